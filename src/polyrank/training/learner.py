"""One network in training: its optimizer, schedule, best version and metrics.jsonl. The loop may have several."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from polyrank.config.train import NetworkTraining
from polyrank.devices import distributed
from polyrank.devices.choice import fast_products
from polyrank.errors import ResourceError, is_out_of_memory
from polyrank.models import Network
from polyrank.storage.durable import write_file
from polyrank.training.exchange import accumulating, summed_gradients
from polyrank.training.optimizer import Schedule, clip_gradients, freeze, make_optimizer

METRICS = "metrics.jsonl"
CPU = torch.device("cpu")
Report = Callable[[dict[str, Any]], None]
Figures = Mapping[str, float | Tensor]


class Loss(NamedTuple):
    """The loss of a batch, or a part of it, for the network that is updated next.

    Args:
        mean: over ``n_contexts``; a scalar with a graph.
        n_contexts: with ``train.loss = "sum"`` the mean is multiplied by it.
        figures: for metrics.jsonl, by name; a name that ends in "loss" becomes a curve. None: the mean as "loss".
        last: False: more parts of the same update follow, each with its own graph.
    """

    mean: Tensor
    n_contexts: int = 1
    figures: Figures | None = None
    last: bool = True


def to_floats(figures: Figures) -> dict[str, float]:
    """Figures with their tensors as numbers, after a single wait for the device.

    >>> to_floats({"loss": torch.tensor(0.5), "epoch": 2.0})
    {'loss': 0.5, 'epoch': 2.0}
    """
    tensors = [value for value in figures.values() if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return {name: next(numbers) if isinstance(value, Tensor) else value for name, value in figures.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A network to train, with its own settings and files.

    Args:
        model: the network, on its device.
        settings: how it is trained.
        folder: for ``metrics.jsonl``; must exist.
        save_best: called with the figures when the model is the best so far; without validation, when it is the last.
        evaluate: returns validation figures, including "loss" and ``best_by``; None: no validation.
        best_by: the figure that chooses the best version: the highest "R@1" or the lowest "loss".
        report: called with each record of ``metrics.jsonl``.
        name: of the network, if several are trained together; else empty.
    """

    model: Network
    settings: NetworkTraining
    folder: Path
    save_best: Callable[[dict[str, float]], None]
    evaluate: Callable[[], Mapping[str, float]] | None = None
    best_by: Literal["R@1", "loss"] = "R@1"
    report: Report = lambda _: None
    name: str = ""


class TrainState:
    """The state of one network's training. ``progress``, the weights and the optimizer are enough to resume it.

    Args:
        learner: the network and its settings.
        n_steps: length of the whole training.
        device: where to compute.
        dtype: of the large products; in fp16 the loss is multiplied by a scale that adapts to the gradients.
        loss: whether an update uses the "mean" over a batch's contexts or their "sum".
    """

    def __init__(
        self,
        learner: Learner,
        n_steps: int,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        loss: Literal["mean", "sum"] = "mean",
    ) -> None:
        self.learner, self.model, self.settings = learner, learner.model, learner.settings
        self.device, self.dtype, self.loss = device, dtype, loss
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        freeze(self.model, self.settings.train_layers)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.schedule = Schedule(self.settings, n_steps)
        self._peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.best: dict[str, float] = {}
        self.n_bad = self.n_stale = self.best_step = 0

    @property
    def progress(self) -> dict[str, Any]:
        """Everything that changes during training except tensors, ready for JSON."""
        schedule = self.schedule
        return {
            "bad": self.n_bad,
            "stale": self.n_stale,
            **self.best_version,
            "best_loss": None if math.isinf(schedule.best_loss) else schedule.best_loss,
            "stalls": schedule.stalls,
            "decay": schedule.decay,
            **({"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {}),
        }

    @property
    def best_version(self) -> dict[str, Any]:
        """The part of ``progress`` that describes the saved model."""
        return {"best": self.best, "best_step": self.best_step}

    def restore(self, progress: dict[str, Any]) -> None:
        """Restore the state from ``progress``."""
        self.n_bad, self.n_stale = progress["bad"], progress["stale"]
        self.best, self.best_step = progress["best"], progress["best_step"]
        self.schedule.best_loss = math.inf if progress["best_loss"] is None else progress["best_loss"]
        self.schedule.stalls, self.schedule.decay = progress["stalls"], progress["decay"]
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(progress["scaler"])

    def set_rates(self, step: int) -> float:
        """Set the optimizer's learning rates for 0-based ``step``; returns that of the backbone."""
        factor = self.schedule.factor(step)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        return self.settings.lr * factor

    def update(self, losses: Iterator[Loss]) -> dict[str, float]:
        """Make one update with the next loss, or with the sum of its parts; a non-finite loss changes no weight.

        Returns the loss's figures; its losses are NaN if the gradient was not finite. In fp16 such a gradient is usual
        while its scale is too large: the scale is halved, and the losses are returned unless the scale is 1 or less.
        """
        self.model.train()
        try:
            with summed_gradients(self.model):
                raw = self._backward(losses)
            self.scaler.unscale_(self.optimizer)
            figures = to_floats({**raw, "norm": clip_gradients(self.model, self.optimizer, self.settings)})
            norm = figures.pop("norm")
            if all(map(math.isfinite, figures.values())):
                if math.isfinite(norm):
                    self.optimizer.step()
                elif not self.scaler.is_enabled() or self.scaler.get_scale() <= 1:
                    figures = {name: math.nan if name.endswith("loss") else value for name, value in figures.items()}
            self.scaler.update()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.n_bad = 0 if all(map(math.isfinite, figures.values())) else self.n_bad + 1
        return figures

    def _backward(self, losses: Iterator[Loss]) -> Figures:
        exact = self.dtype == torch.float32
        with fast_products(self.device) if exact else nullcontext():
            last = False
            while not last:
                with torch.autocast(self.device.type, self.dtype, enabled=not exact):
                    mean, n_contexts, figures, last = next(losses)
                    loss = mean if self.loss == "mean" else n_contexts * mean
                with nullcontext() if last else accumulating():
                    self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return {"loss": mean.detach()} if figures is None else figures

    def validate(self, step: int, where: Mapping[str, float]) -> None:
        """Validate after ``step`` updates and save the best version; the record includes ``where``."""
        figures = {} if self.learner.evaluate is None else dict(self.learner.evaluate())
        finite = all(map(math.isfinite, figures.values()))
        if figures:
            self.schedule.observe(figures["loss"])
            shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
            self.write({"step": step, **where, "valid": shown})
        sign = -1 if (name := self.learner.best_by) == "loss" else 1
        best = sign * self.best[name] if self.best else -math.inf
        better = finite and sign * figures[name] > best if figures else self.n_bad == 0
        self.n_stale = 0 if better else self.n_stale + 1
        if better:
            self.best, self.best_step = figures, step
            if distributed.is_rank_zero():
                self.learner.save_best(figures)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record to ``metrics.jsonl``, on rank 0."""
        if distributed.is_rank_zero():
            with (self.learner.folder / METRICS).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
            self.learner.report(record)

    def drop_records_after(self, last_step: int) -> None:
        """Drop the records of steps after the checkpoint, which the resumed run repeats."""
        metrics = self.learner.folder / METRICS
        if not metrics.exists():
            return
        kept = []
        for line in metrics.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                break  # the process died while it wrote this line
            if record["step"] > last_step:
                break
            kept.append(line)
        write_file(metrics, "".join(line + os.linesep for line in kept).encode())


@contextmanager
def explain_out_of_memory(message: str) -> Iterator[None]:
    """Turn running out of memory into a ResourceError with this message."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise ResourceError(message) from error
        raise
