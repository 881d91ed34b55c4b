"""Models to train: new, or with the weights that they have in common with a trained model."""

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
    """A model by its settings, with the weights of the model folder ``start`` if it is given.

    Args:
        config, policy, seed, sample, dropout, new_dropout, corpus: see ``new_model``.
        start: the folder of a trained model.

    Returns:
        The model, its tokenized text policy, and the resolved configuration to save.

    Raises:
        ConfigError: the weights do not fit the model.
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
    if trained is not None and "context_tower.scale" not in transfer_weights(model, trained.model, f"{start}"):
        resolved = refit_output_scale(model, texts, resolved, config, sample)
    return model, texts, resolved


def transfer_weights(model: Network, trained: Network, where: str) -> frozenset[str]:
    """Copy a trained model's weights into another model.

    A Poly-encoder that starts from a Bi-encoder keeps its codes. A Cross-encoder gets the transformer of an encoder's
    context side and keeps its head; an encoder gets a Cross-encoder's transformer on both sides.

    Args:
        model: changed in place.
        trained: has the weights.
        where: names the trained model in errors.

    Returns:
        The names of the copied weights.

    Raises:
        ConfigError: no weight has a counterpart, or one has another shape.
    """
    own, saved = model.state_dict(), trained.state_dict()
    copied = {}
    for name in own:
        for source in (name, f"context_tower.{name}", name.partition("_tower.")[2]):
            if source in saved:
                copied[name] = saved[source]
                break
    odd = [name for name, tensor in copied.items() if tensor.shape != own[name].shape]
    if odd or not copied:
        raise ConfigError(f"the weights in {where} do not fit this model ({(odd or ['no common part'])[0]})")
    model.load_state_dict(copied, strict=False)
    return frozenset(copied)
