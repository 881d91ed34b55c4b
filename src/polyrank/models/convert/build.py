"""From ConveRT's settings to its network and vocabulary."""

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
    """The network that the settings describe, its weights not yet set.

    Args:
        config: sizes and ablations.
        n_subwords: rows of the embedding table.
        dropout: instead of the configuration's.

    Raises:
        ConfigError: a size is below 1, there is no layer, or the dropout is no probability below 1.
    """
    for name, value in asdict(config).items():
        sizes = value if isinstance(value, tuple) else (value,)
        for size in sizes:
            if isinstance(size, int) and not isinstance(size, bool) and size < 1:
                raise ConfigError(f"model.{name} = {value!r} is below 1; give at least 1")
    if not config.spans or not config.position_periods:
        raise ConfigError(
            "model.spans and model.position_periods must not be empty; give one number per layer or table"
        )
    values = asdict(config)
    dtype = DTYPES[values.pop("quantization")]
    own_dropout = values.pop("dropout")
    values.pop("equal_sides")  # says how weights start, which is new_convert's business
    used = own_dropout if dropout is None else dropout
    if not 0 <= used < 1:
        raise ConfigError(f"model.dropout = {used} is outside 0 to 1; give a share below 1, such as 0.2")
    return Convert(n_subwords, dropout=used, dtype=dtype, **values)


def empty_convert(config: ConvertConfig, n_subwords: int, dropout: float | None = None) -> Convert:
    """A network for saved weights to be restored into, which has no memory for them yet."""
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
    """A fresh ConveRT.

    Args:
        config: sizes and ablations.
        policy: text settings.
        seed: of the weights.
        corpus: texts to learn the vocabulary from, when there is none.
        start: of a ConveRT whose weights will be taken over, since embeddings mean nothing with another vocabulary.
        dropout: instead of the configuration's.

    Returns:
        The model and its text policy at work; the policy no longer names a vocabulary file, for it is saved with it.
    """
    if start is not None:
        if policy.vocabulary is not None:
            raise ConfigError(
                f"text.vocabulary = {policy.vocabulary}, but train.init_from brings a vocabulary of its own; give one"
                " of them"
            )
        if not isinstance(start, ConvertTexts):
            raise ConfigError("train.init_from names no ConveRT, which this model is; give one or leave it out")
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
