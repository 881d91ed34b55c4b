"""A model to be trained: fresh, or started from the weights of a trained one, all that both have."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from polyrank.config.models import ConvertText, ModelConfig, TextPolicy
from polyrank.errors import ConfigError
from polyrank.models.artifacts import load_model
from polyrank.models.build import new_model, refit_output_scale
from polyrank.models.network import Network
from polyrank.text import Texts


def start_model(
    config: ModelConfig,
    policy: TextPolicy | ConvertText,
    *,
    seed: int,
    sample: Sequence[str],
    dropout: float | None = None,
    new_dropout: float = 0.0,
    corpus: Iterable[str] = (),
    start: Path | None = None,
) -> tuple[Network, Texts, ModelConfig]:
    """A model as the settings say, with the weights of the model folder ``start`` where there is one.

    Args:
        config, policy, seed, sample, dropout, new_dropout, corpus: see ``new_model``.
        start: the folder of a trained model.

    Returns:
        The model, its text policy at work, and the resolved configuration to save.

    Raises:
        ConfigError: the weights to start from do not fit.
    """
    trained = None if start is None else load_model(start, dropout=dropout)
    model, texts, resolved = new_model(
        config,
        policy,
        seed=seed,
        sample=sample,
        dropout=dropout,
        new_dropout=new_dropout,
        corpus=corpus,
        start=None if trained is None else (trained.model, trained.texts, trained.config),
    )
    if trained is not None:
        taken = transfer_weights(model, trained.model, f"{start}")
        if "context_tower.scale" not in taken:
            resolved = refit_output_scale(model, texts, resolved, config, sample)
    return model, texts, resolved


def transfer_weights(model: Network, trained: Network, where: str) -> frozenset[str]:
    """Put a trained model's weights into another one.

    A Poly-encoder started from a Bi-encoder keeps its own codes. A Cross-encoder takes the transformer of an encoder's
    context side and keeps its own head; an encoder takes a Cross-encoder's transformer on both sides.

    Args:
        model: changed in place.
        trained: has the weights.
        where: names it in errors.

    Returns:
        Names of the weights that were taken.

    Raises:
        ConfigError: no weight has a counterpart, or one has another shape.
    """
    own, saved = model.state_dict(), trained.state_dict()
    taken = {}
    for name in own:
        for source in (name, f"context_tower.{name}", name.partition("_tower.")[2]):
            if source in saved:
                taken[name] = saved[source]
                break
    odd = [name for name, tensor in taken.items() if tensor.shape != own[name].shape]
    if odd or not taken:
        raise ConfigError(f"the weights in {where} do not fit this model ({(odd or ['no common part'])[0]})")
    model.load_state_dict(taken, strict=False)
    return frozenset(taken)
