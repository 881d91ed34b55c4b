"""Building the training step that a recipe's settings describe."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrank.config import methods
from polyrank.config.train import NegativesConfig, NegativeSource, TrainConfig
from polyrank.data.mapped_examples import StoredExamples, StoredResponses
from polyrank.devices.choice import choose_dtype
from polyrank.errors import ConfigError, DataError
from polyrank.models import Convert, CrossEncoder, EncoderNetwork, LateCrossEncoder
from polyrank.models.bi_encoder import TwoTowers
from polyrank.models.losses import LogQ, LossFunction, cross_entropy
from polyrank.negatives.hard import HardNegatives, collect_right_answers
from polyrank.negatives.random import GivenNegatives, MixedNegatives, Negatives, RandomNegatives, right_answers
from polyrank.negatives.remined import MinedNegatives
from polyrank.records import Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.late import LateScorer
from polyrank.scorers.open import load, load_encoder
from polyrank.training.convert_step import ConvertStep
from polyrank.training.inputs import Positions, response_of
from polyrank.training.loop import Step
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.ranker import Ranker
from polyrank.training.rerank import RerankStep
from polyrank.training.steps import InBatchStep, ListwiseStep
from polyrank.training.stored_tokens import StoredTokens, open_tokens
from polyrank.training.teacher import TEACHER_SCORES, Teacher

N_DRAWN = 300
"""Wrong candidates of a context from which a first stage chooses the hardest, for a training with it."""

N_POOL = 20_000
"""Responses from which those are drawn: few enough that the first stage soon keeps the vectors of all."""


def make_step(
    rankers: Sequence[Ranker],
    settings: TrainConfig,
    examples: Sequence[Example],
    *,
    device: torch.device,
    seed: int,
    folder: Path,
    loss: LossFunction | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Step[Positions, Any]:
    """The training step of the method that the settings name.

    Args:
        rankers: to train: one, or two for mutual learning.
        settings: of the method and its negatives.
        examples: the training data.
        device: where to compute.
        seed: of drawn negatives.
        folder: for mined negatives and a teacher's scores.
        loss: in place of the cross-entropy.
        notify: called with lines for the user.

    Raises:
        DataError: the data holds too few responses.
    """
    first, method, negatives = rankers[0], settings.method, None
    if settings.negatives is None and count_distinct(_responses(examples), 2) < 2:
        raise DataError("all responses are equal, so no batch has a negative; give examples with other responses")
    if count_distinct((repr(example.query) for example in examples), 2) < 2:
        raise DataError("all contexts are equal, so every response answers each; give examples with other contexts")
    if settings.negatives is not None:
        drawn, most = settings.negatives, None
        if method.corrects is not None:  # a small set has fewer wrong responses
            drawn, most = replace(drawn, n=max(drawn.n, count_distinct(_responses(examples), N_DRAWN + 1) - 1)), N_POOL
        negatives = make_negatives(rankers, drawn, examples, seed=seed, folder=folder, n_pool=most, notify=notify)
    tokens = [_stored_tokens(ranker, examples, notify) for ranker in rankers]
    if isinstance(method, methods.InBatchNegatives):
        assert isinstance(first.model, EncoderNetwork), "Recipe allows this method for encoders only"
        loss = loss or partial(cross_entropy, smoothing=method.smoothing)
        weighting = LogQ(Counter(map(response_of, examples))) if method.negatives_weighting == "logq" else None
        in_batch = InBatchStep(
            first.model,
            first.texts,
            device,
            loss,
            rights=collect_right_answers(examples),
            negatives=negatives,
            chunk_size=settings.chunk_size,
            weighting=weighting,
            stored=tokens[0],
            cuts=_cuts(first.model, getattr(method, "matryoshka_dims", ())),
        )
        if not isinstance(method, methods.ConvertMethod):
            return in_batch
        assert isinstance(first.model, Convert), "Recipe allows this method for a ConveRT only"
        return ConvertStep(first.model, in_batch, method.scale_steps, summed=settings.loss == "sum")
    assert settings.negatives is not None, "TrainConfig fills them in for methods that rank lists"
    assert negatives is not None, "made from them"
    labels = loss or cross_entropy
    steps = [
        ListwiseStep(
            ranker.model,
            ranker.texts,
            device,
            negatives,
            labels,
            getattr(method, "sigmoid", False),
            settings.chunk_size,
            stored,
            ranker.scorer if isinstance(ranker.scorer, LateScorer) else None,
        )
        for ranker, stored in zip(rankers, tokens, strict=True)
    ]
    dtype = choose_dtype(settings.precision, device)
    # other models that score the examples do so in the precision of the training, never in int8
    precision = "fp32" if dtype == torch.float32 else settings.precision
    match method:
        case methods.ListwiseMethod():
            return steps[0]
        case methods.RerankMethod():
            assert isinstance(first.model, CrossEncoder | LateCrossEncoder), "Recipe allows it for Cross-encoders only"
            encoder = load_encoder(method.first_stage, device=str(device), precision=precision)
            first.model.zero_head()
            if isinstance(first.scorer, LateScorer):
                first.scorer.follow(encoder, ("context", "candidate"))
            return RerankStep(steps[0], encoder, settings.negatives.n)
        case methods.MutualMethod():
            return MutualStep(steps[0], steps[1], _imitation(method, labels))
        case methods.DistillMethod():
            teacher = load(method.teacher, device=str(device), precision=precision)
            wrong = settings.negatives
            repeats = not wrong.redraw and "mined" not in wrong.sources
            key = sha256(f"{teacher.fingerprint or method.teacher} {dtype}".encode()).hexdigest()[:12]
            file = folder / TEACHER_SCORES.replace("*", key) if repeats else None
            scored = Teacher(teacher, file, n_examples=len(examples), n_candidates=1 + wrong.n)
            return DistillStep(steps[0], scored, _imitation(method, labels))


def _cuts(model: EncoderNetwork, dimensions: Sequence[int]) -> list[Callable[[Tensor], Tensor]]:
    """The functions that cut vectors of a model to each of some dimensions.

    Raises:
        ConfigError: the model's vectors cannot be cut, or are as short.
    """
    if not dimensions:
        return []
    if not isinstance(model, TwoTowers) or max(dimensions) >= model.dimension:
        raise ConfigError(
            f"train.method.matryoshka_dims = {list(dimensions)} needs a Bi- or Poly-encoder of more dimensions than"
            f" these; this {type(model).__name__} has {model.dimension}"
        )
    return [partial(model.context_tower.prefix, dimension=n) for n in dimensions]


def _imitation(method: methods.ImitatingMethod, labels: LossFunction) -> Imitation:
    return Imitation(method.alpha, method.temperature, method.label_weight, labels)


def _stored_tokens(ranker: Ranker, examples: Sequence[Example], notify: Callable[[str], None]) -> StoredTokens | None:
    """The tokens of examples on disk for an encoder; None for examples in memory, and for pairs, which vary."""
    if isinstance(examples, StoredExamples) and isinstance(ranker.model, EncoderNetwork):
        return open_tokens(examples, ranker.texts, notify)
    return None


def make_negatives(
    rankers: Sequence[Ranker],
    settings: NegativesConfig,
    examples: Sequence[Example],
    *,
    seed: int,
    folder: Path,
    n_pool: int | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Negatives:
    """Wrong candidates from the sources that the settings name; the first encoder among the networks mines them.

    Args:
        rankers: the networks in training.
        settings: the sources.
        examples: the training data.
        seed: of the draws.
        folder: for mined negatives.
        n_pool: random ones are drawn from at most so many of the data's responses, chosen at random; None: all.
        notify: called with lines for the user.

    Raises:
        DataError: the data holds too few.
        ConfigError: mining is requested for examples on disk.
    """
    order, right = settings.sources, collect_right_answers(examples)
    pool = _responses(examples)
    drawn = pool if settings.weighting == "uniform" else _responses(examples, distinct=False)
    if n_pool is not None and len(drawn) > n_pool:
        drawn = [drawn[i] for i in np.random.default_rng(seed).choice(len(drawn), n_pool, replace=False).tolist()]

    def n_given(example: Example) -> int:
        return len({*example.candidates} - right_answers(example, right)) if "given" in order else 0

    def source(kind: NegativeSource) -> Negatives:
        match kind:
            case "given":
                if order == ("given",) and not any(map(n_given, examples)):
                    raise DataError(
                        "no training example comes with wrong candidates, and train.negatives.sources has no other"
                        ' source; add "random"'
                    )
                return GivenNegatives(settings.n, seed, settings.redraw, right)
            case "random":
                n_distinct = count_distinct(pool, settings.n + 1)
                if n_distinct <= settings.n and any(n_given(example) < settings.n for example in examples):
                    raise DataError(
                        f"{n_distinct} distinct responses are too few to draw {settings.n} negatives from; lower"
                        " train.negatives.n"
                    )
                return RandomNegatives(drawn, settings.n, seed, settings.redraw, right)
            case "mined":
                if isinstance(examples, StoredExamples):
                    raise ConfigError(
                        "mining needs the examples in memory; leave data.cache out, or mine once with polyrank mine"
                    )
                scorer = next(ranker.scorer for ranker in rankers if isinstance(ranker.scorer, EncoderScorer))
                first, last = settings.remine_ranks
                ranks = HardNegatives(n_negatives=settings.n, first_rank=first, last_rank=last, seed=seed)
                return MinedNegatives(
                    examples, scorer, pool, ranks, every=settings.remine_epochs, folder=folder, notify=notify
                )

    return MixedNegatives([source(kind) for kind in order], settings.n)


def _responses(examples: Sequence[Example], *, distinct: bool = True) -> Sequence[str]:
    """The responses to draw from: the distinct ones or all; always all responses of a folder on disk."""
    if isinstance(examples, StoredExamples):
        return StoredResponses(examples)
    responses = [response for example in examples if (response := example.response) is not None]
    return list(dict.fromkeys(responses)) if distinct else responses


def count_distinct(texts: Iterable[str], most: int) -> int:
    """The number of distinct texts, counted up to ``most``.

    >>> count_distinct(["yes", "yes", "no", "maybe"], 2)
    2
    """
    distinct: set[str] = set()
    for text in texts:
        distinct.add(text)
        if len(distinct) == most:
            break
    return len(distinct)
