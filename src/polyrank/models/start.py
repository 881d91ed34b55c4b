"""Models to train: new, or with the weights that they have in common with a trained model."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from polyrank.config.models import BiConfig, ConvertText, ModelConfig, TextPolicy
from polyrank.errors import ConfigError
from polyrank.models.artifacts import load_model
from polyrank.models.bi_encoder import BiEncoder
from polyrank.models.build import new_model, refit_output_scale
from polyrank.models.network import Network
from polyrank.models.poly_encoder import PolyEncoder
from polyrank.models.transfer import transfer_weights, word_tables
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
        if copied & word_tables(model) and _has_other_words(texts, trained.texts):
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
    if keeps and resolved.normalize:  # lengths have no effect, so neither has the scale
        return resolved
    if not keeps or (config.match_output_std, config.match_self_score) != (None, None):
        return refit_output_scale(model, texts, resolved, config, sample)
    for tower in (model.context_tower, model.candidate_tower):
        tower.scale.fill_(scale)
    return replace(resolved, output_scale=scale)


def _begins_with(texts: Texts, start: Texts) -> bool:
    """Whether a vocabulary has all words of the start's, with the same ids, and perhaps more."""
    if not isinstance(texts, BackboneTexts) or not isinstance(start, BackboneTexts):
        return False
    vocabulary, others = (policy.subwords.tokenizer.get_vocab() for policy in (texts, start))
    return others.items() <= vocabulary.items()


def _has_other_words(texts: Texts, start: Texts) -> bool:
    """Whether two backbones' vocabularies differ; tokens that were added to them do not count."""
    if not isinstance(texts, BackboneTexts) or not isinstance(start, BackboneTexts):
        return False
    vocabulary, others = (policy.subwords.tokenizer.get_vocab(with_added_tokens=False) for policy in (texts, start))
    return vocabulary != others
