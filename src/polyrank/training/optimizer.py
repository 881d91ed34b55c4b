"""The trained parameters, their optimizer, and the schedule of the learning rate."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyrank.config.schedules import PlateauSchedule
from polyrank.config.train import NetworkTraining
from polyrank.errors import ConfigError
from polyrank.models import Network


def freeze(model: Network, train_layers: str) -> None:
    """Freeze layers of the backbone; codes, projections and heads are always trained.

    Args:
        model: any polyrank network.
        train_layers: "all", "all_but_embeddings" (the word embeddings), or "top-n" (the last n layers).

    Source: Humeau et al., Poly-encoders (ICLR 2020), Table 3.
    """
    for trunk in model.trunks():
        if train_layers == "all":
            continue
        if train_layers == "all_but_embeddings":
            trunk.embeddings().requires_grad_(False)
            continue
        name, _, count = train_layers.partition("-")
        layers = trunk.layers()
        if name != "top" or not count.isdigit() or not 1 <= int(count) <= len(layers):
            raise ConfigError(
                f"train.train_layers = {train_layers!r} is not all, all_but_embeddings or top-1 to top-{len(layers)}"
            )
        for parameter in trunk.parameters():
            parameter.requires_grad_(False)
        for layer in layers[-int(count) :]:
            layer.requires_grad_(True)


def clip_gradients(model: Network, optimizer: torch.optim.Optimizer, settings: NetworkTraining) -> Tensor:
    """Clip the gradients to the settings' norms; returns the norm of all gradients before ``clip_norm`` is applied."""
    if settings.clip_embeddings_norm is not None:
        words = [p for trunk in model.trunks() for p in trunk.embeddings().parameters()]
        torch.nn.utils.clip_grad_norm_(words, settings.clip_embeddings_norm)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return torch.nn.utils.clip_grad_norm_(trained, settings.clip_norm or math.inf)


def make_optimizer(model: Network, settings: NetworkTraining) -> torch.optim.Optimizer:
    """The optimizer: no decay for biases, norms and (by default) new parameters, which have their own rate."""
    new = {id(parameter) for parameter in model.new_parameters()}
    new_lr = settings.lr * model.new_rate if settings.new_lr is None else settings.new_lr
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or "bias" in name.split(".")  # a ConveRT's relative bias has two dimensions
            plain |= id(parameter) in new and not settings.decay_new
            key = (new_lr if id(parameter) in new else settings.lr, 0.0 if plain else settings.decay)
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ConfigError(f"train.train_layers = {settings.train_layers!r} leaves nothing to train; use all")
    parameters = [{"params": p, "lr": lr, "weight_decay": decay} for (lr, decay), p in groups.items()]
    if settings.optimizer == "adadelta":
        return torch.optim.Adadelta(parameters, lr=settings.lr, rho=0.9)
    betas = settings.betas or (0.9, 0.999)
    if settings.optimizer == "adamax":
        return torch.optim.Adamax(parameters, lr=settings.lr, betas=betas)
    fused = all(parameter.is_cuda for group in groups.values() for parameter in group) or None  # one kernel per group
    return torch.optim.AdamW(parameters, lr=settings.lr, betas=betas, fused=fused)


@dataclass(slots=True)
class Schedule:
    """The factor on all learning rates, as a function of the step and of the validation losses so far.

    Args:
        settings: the schedule and the rate.
        n_steps: length of the whole training.
        best_loss: lowest validation loss so far.
        stalls: validations since the lowest loss.
        decay: product of the plateau factors so far.
    """

    settings: NetworkTraining
    n_steps: int
    best_loss: float = math.inf
    stalls: int = 0
    decay: float = 1.0

    def factor(self, step: int) -> float:
        """The factor for 0-based ``step``.

        >>> from polyrank.config.schedules import LinearSchedule
        >>> schedule = Schedule(NetworkTraining(schedule=LinearSchedule(warmup_steps=2)), n_steps=6)
        >>> [schedule.factor(step) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        kind = self.settings.schedule
        warmup = min(kind.warmup_steps, max(self.n_steps // 2, 1))
        if step < warmup:
            return (step + 1) / warmup
        return self.decay * kind.after_warmup(step, warmup, self.n_steps, self.settings.lr)

    def observe(self, valid_loss: float) -> None:
        """Record a validation loss; a plateau schedule decays after more than ``patience`` losses without a gain."""
        if valid_loss < self.best_loss:
            self.best_loss, self.stalls = valid_loss, 0
            return
        self.stalls += 1
        kind = self.settings.schedule
        if isinstance(kind, PlateauSchedule) and self.stalls > kind.patience:
            self.decay *= kind.factor
            self.stalls = 0
