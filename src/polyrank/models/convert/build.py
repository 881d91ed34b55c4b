"""Building a ConveRT's network and vocabulary from its settings."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.errors import ConfigError
from polyrank.models.convert.network import Convert
from polyrank.text import ConvertTexts, Texts, learn_subwords, load_convert_subwords

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "none": None}


def build_convert(config: ConvertConfig, n_subwords: int, dropout: float | None = None) -> Convert:
    """The network of a configuration, with uninitialized weights.

    Args:
        config: sizes and ablations.
        n_subwords: rows of the embedding table.
        dropout: replaces the configuration's.

    Raises:
        ConfigError: a span is below 1, a list is empty, or the dropout is not below 1.
    """
    if not config.spans or min(config.spans) < 1 or not config.position_periods:
        raise ConfigError(
            f"model.spans = {list(config.spans)} and model.position_periods = {list(config.position_periods)} need a"
            " number of at least 1 for each layer or table"
        )
    values = asdict(config)
    dtype = DTYPES[values.pop("quantization")]
    own_dropout = values.pop("dropout")
    values.pop("equal_sides")  # new_convert uses it when it initializes weights
    used = own_dropout if dropout is None else dropout
    if not 0 <= used < 1:
        raise ConfigError(f"model.dropout = {used} is outside 0 to 1; give a number below 1, such as 0.2")
    return Convert(n_subwords, dropout=used, dtype=dtype, **values)


def empty_convert(config: ConvertConfig, n_subwords: int, dropout: float | None = None) -> Convert:
    """A network without memory for its weights, to restore saved weights into."""
    with torch.device("meta"):
        return build_convert(config, n_subwords, dropout)


def new_convert(
    config: ConvertConfig,
    policy: ConvertText,
    *,
    seed: int,
    corpus: Iterable[str] = (),
    start: Texts | None = None,
    dropout: float | None = None,
) -> tuple[Convert, ConvertTexts]:
    """A new ConveRT.

    Args:
        config: sizes and ablations.
        policy: text settings.
        seed: of the weights.
        corpus: texts to learn the vocabulary from, if neither ``start`` nor ``policy`` has one.
        start: the texts of a ConveRT whose weights will be copied: its embeddings need its vocabulary.
        dropout: replaces the configuration's.

    Returns:
        The model and its tokenized text policy, which no longer names a vocabulary file: the model folder will hold it.

    Raises:
        ConfigError: a text setting does not fit the vocabulary or ``start``.
    """
    if start is not None:
        if policy.vocabulary is not None:
            raise ConfigError(
                f"text.vocabulary = {policy.vocabulary}, but train.init_from has its own vocabulary; give one of them"
            )
        if not isinstance(start, ConvertTexts):
            raise ConfigError("train.init_from is not a ConveRT, and this model is; name a ConveRT or leave it out")
        subwords = start.subwords
    elif policy.vocabulary is not None:
        subwords = load_convert_subwords(Path(policy.vocabulary))
    else:
        subwords = learn_subwords(
            corpus, min_count=policy.min_count, size=policy.vocabulary_size, n_buckets=policy.n_buckets
        )
    if subwords.n_buckets != policy.n_buckets:
        raise ConfigError(
            f"text.n_buckets = {policy.n_buckets}, but the vocabulary has {subwords.n_buckets}; set it to that number"
        )
    model = build_convert(config, len(subwords), dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.start(equal_sides=config.equal_sides)
    return model, ConvertTexts(subwords, replace(policy, vocabulary=None), config.multi_context)
