"""Models to train: new, or with the weights that they have in common with a trained model."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from polyrank.config.models import BiConfig, ConvertText, ModelConfig, TextPolicy
from polyrank.errors import ConfigError
from polyrank.models.artifacts import load_model
from polyrank.models.bi_encoder import BiEncoder
from polyrank.models.build import new_model, refit_output_scale
from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.models.network import Network
from polyrank.models.poly_encoder import PolyEncoder
from polyrank.text import BackboneTexts, Texts


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
        ConfigError: the weights do not fit the model, or belong to another vocabulary.
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
        copied = transfer_weights(model, trained.model, f"{start}", same_words=_begins_with(texts, trained.texts))
        if copied & _word_tables(model) and _has_other_words(texts, trained.texts):
            raise ConfigError(
                f"{start} has another vocabulary than the backbone, so its embeddings belong to other words; leave"
                " model.backbone out, or start from a model on that backbone"
            )
        resolved = _with_scale(model, texts, resolved, config, sample, keeps="context_tower.scale" in copied)
    return model, texts, resolved


def _with_scale(
    model: Network, texts: Texts, resolved: ModelConfig, config: ModelConfig, sample: Sequence[str], *, keeps: bool
) -> ModelConfig:
    """Give a started encoder the output scale of its settings, or else that of its start; returns the settings.

    Args:
        model: changed in place.
        texts: its tokenized text policy.
        resolved, config: its settings, after and before the backbone filled them in.
        sample: to fit the scale on.
        keeps: whether the model has the scale of its start.
    """
    if not isinstance(model, BiEncoder | PolyEncoder) or not isinstance(config, BiConfig):
        return resolved
    assert isinstance(resolved, BiConfig), "it is config, with values instead of None"
    scale = float(model.context_tower.scale) if config.output_scale is None else config.output_scale
    if keeps and config.normalize:  # lengths have no effect, so neither has the scale
        return resolved
    if not keeps or (config.match_output_std, config.match_self_score) != (None, None):
        return refit_output_scale(model, texts, resolved, config, sample)
    for tower in (model.context_tower, model.candidate_tower):
        tower.scale.fill_(scale)
    return replace(resolved, output_scale=scale)


def _word_tables(model: Network) -> set[str]:
    """The names of the tables of word embeddings."""
    tables = {id(table) for trunk in model.trunks() for table in trunk.embeddings().parameters()}
    return {name for name, own in model.named_parameters(remove_duplicate=False) if id(own) in tables}


def _begins_with(texts: Texts, start: Texts) -> bool:
    """Whether a vocabulary has all words of the start's, with the same ids, and perhaps more."""
    if not isinstance(texts, BackboneTexts) or not isinstance(start, BackboneTexts):
        return False
    own, others = (each.subwords.tokenizer.get_vocab() for each in (texts, start))
    return others.items() <= own.items()


def _has_other_words(texts: Texts, start: Texts) -> bool:
    """Whether two backbones' vocabularies differ; tokens that were added to them do not count."""
    if not isinstance(texts, BackboneTexts) or not isinstance(start, BackboneTexts):
        return False
    own, others = (each.subwords.tokenizer.get_vocab(with_added_tokens=False) for each in (texts, start))
    return own != others


def transfer_weights(model: Network, trained: Network, where: str, *, same_words: bool = False) -> frozenset[str]:
    """Copy a trained model's weights into another model.

    A Poly-encoder that starts from a Bi-encoder keeps its codes. A Cross-encoder gets the transformer of an encoder's
    context side and keeps its head; an encoder gets a Cross-encoder's transformer on both sides.

    Args:
        model: changed in place.
        trained: has the weights.
        where: names the trained model in errors.
        same_words: whether the first words of the model's vocabulary are those of the trained one; further ones keep
            their embeddings.

    Returns:
        The names of the copied weights.

    Raises:
        ConfigError: no weight has a counterpart, or one has another shape; two towers would become one; or another
            kind of network would start from a late Cross-encoder.
    """
    if isinstance(trained, LateCrossEncoder) and not _reads_alike(model, trained):
        raise ConfigError(
            f"{where} is a late Cross-encoder, of which only the {trained.reader} has all layers; start from the"
            " encoder that it corrects"
        )
    own, saved = model.state_dict(), trained.state_dict()
    copied = {}
    for name in own:
        for source in (name, f"context_tower.{name}", name.partition("_tower.")[2]):
            if source in saved:
                copied[name] = saved[source]
                break
    for name in copied.keys() & _word_tables(model) if same_words else ():
        if len(old := copied[name]) < len(new := own[name]) and old.shape[1:] == new.shape[1:]:
            copied[name] = torch.cat([old, new[len(old) :]])
    odd = [name for name, tensor in copied.items() if tensor.shape != own[name].shape]
    if odd or not copied:
        raise ConfigError(f"the weights in {where} do not fit this model ({(odd or ['no common part'])[0]})")
    sources: dict[int, Tensor] = {}  # by the tensor that gets them: shared towers have two names for one
    for name, tensor in copied.items():
        if not torch.equal(sources.setdefault(own[name].data_ptr(), tensor), tensor):
            raise ConfigError(
                f"{where} has two towers, and model.shared_towers = true has one network for both sides; set it to"
                " false, or start from a model with shared towers"
            )
    model.load_state_dict(copied, strict=False)
    return frozenset(copied)


def _reads_alike(model: Network, trained: LateCrossEncoder) -> bool:
    return isinstance(model, LateCrossEncoder) and model.reader == trained.reader
