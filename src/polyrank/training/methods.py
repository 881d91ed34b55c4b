"""From a recipe's settings to a training method at work: the step that ``fit`` is given."""

from collections.abc import Sequence
from pathlib import Path

import torch

from polyrank.config.training import (
    ConvertMethod,
    InBatchMethod,
    ListwiseMethod,
    MutualMethod,
    NegativesConfig,
    NegativeSource,
    NegativesWeighting,
    TrainConfig,
)
from polyrank.data.mapped_examples import StoredExamples, StoredResponses
from polyrank.devices.choice import choose_dtype
from polyrank.errors import ConfigError, DataError
from polyrank.models import Convert, EncoderNetwork
from polyrank.negatives.hard import HardNegatives, rights
from polyrank.negatives.mixed import MixedNegatives
from polyrank.negatives.random import GivenNegatives, Negatives, RandomNegatives, right_answers
from polyrank.negatives.remined import MinedNegatives
from polyrank.records import Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.open import load
from polyrank.training.convert_step import ConvertStep
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.queue import CandidateQueue
from polyrank.training.ranker import Ranker
from polyrank.training.steps import InBatchStep, ListwiseStep, PhasedStep, Step, response_of
from polyrank.training.teacher import RememberedScores
from polyrank.training.weighting import LogQ, UniformDraws, Weighting, count_responses


def make_step(
    rankers: Sequence[Ranker],
    settings: TrainConfig,
    examples: Sequence[Example],
    *,
    device: torch.device,
    seed: int,
    folder: Path,
) -> Step | PhasedStep:
    """The method at work.

    Args:
        rankers: what learns: one, or two for mutual learning.
        settings: name the method.
        examples: the training data.
        device: where to compute.
        seed: of drawn negatives.
        folder: for mined negatives and a teacher's scores.

    Raises:
        DataError: the data holds too few responses.
    """
    first, method = rankers[0], settings.method
    negatives = None
    if settings.negatives is not None:
        negatives = make_negatives(rankers, settings.negatives, examples, seed=seed, folder=folder)
    match method:
        case InBatchMethod():
            assert isinstance(first.model, EncoderNetwork), "a Recipe of a Cross-encoder does not have it"
            return InBatchStep(
                first.model,
                first.texts,
                device,
                method.smoothing,
                rights(examples),
                negatives,
                settings.chunk_size,
                make_queue(method.queue, first.model, device),
                make_weighting(method.negatives_weighting, examples, seed),
            )
        case ConvertMethod():
            assert isinstance(first.model, Convert), "a Recipe of another network does not have it"
            return ConvertStep(
                first.model,
                first.texts,
                device,
                smoothing=method.smoothing,
                scale_steps=method.scale_steps,
                loss_weights=method.loss_weights,
                range_steps=method.range_steps,
                rights=rights(examples),
                negatives=negatives,
                chunk_size=settings.chunk_size,
                queue=make_queue(method.queue, first.model, device),
                weighting=make_weighting(method.negatives_weighting, examples, seed),
                loss=settings.loss,
            )
    assert negatives is not None, "a TrainConfig of such a method has them"
    sigmoid, chunk_size = isinstance(method, ListwiseMethod | MutualMethod) and method.sigmoid, settings.chunk_size
    steps = [ListwiseStep(ranker.model, ranker.texts, device, negatives, sigmoid, chunk_size) for ranker in rankers]
    if isinstance(method, ListwiseMethod):
        return steps[0]
    imitation = Imitation(method.imitation, method.alpha, method.temperature, method.label_weight)
    if isinstance(method, MutualMethod):
        return MutualStep(steps[0], steps[1], imitation)
    teacher = load(method.teacher, device=str(device), precision=settings.precision)
    file = folder / "teacher-scores.sqlite" if method.teacher_scores is None else Path(method.teacher_scores)
    known = f"{teacher.fingerprint or method.teacher} {choose_dtype(settings.precision, device)}"
    return DistillStep(steps[0], RememberedScores(file, teacher, known), imitation)


def make_queue(size: int, model: EncoderNetwork, device: torch.device) -> CandidateQueue | None:
    """An empty one, or none of size 0."""
    return CandidateQueue(size, model.dimension, device) if size else None


def make_weighting(kind: NegativesWeighting, examples: Sequence[Example], seed: int) -> Weighting | None:
    """The correction for how often responses are said in the examples; None: none."""
    match kind:
        case "as_said":
            return None
        case "logq":
            return LogQ(count_responses(map(response_of, examples)))
        case "uniform":
            return UniformDraws(count_responses(map(response_of, examples)), seed)


def make_negatives(
    rankers: Sequence[Ranker], settings: NegativesConfig, examples: Sequence[Example], *, seed: int, folder: Path
) -> Negatives:
    """Wrong candidates from the sources that the settings name; mined by the first of the networks that encodes.

    Raises:
        DataError: the data holds too few of them.
        ConfigError: they are to be mined among examples on disk.
    """
    order, right = settings.order, rights(examples)
    pool = _responses(examples)

    def n_given(example: Example) -> int:
        return len({*example.candidates} - right_answers(example, right)) if "given" in order else 0

    def source(kind: NegativeSource) -> Negatives:
        match kind:
            case "given":
                if order == ("given",) and not any(map(n_given, examples)):
                    raise DataError(
                        "no training example comes with wrong candidates, and train.negatives.sources names no others;"
                        ' add "random" to it'
                    )
                return GivenNegatives(settings.n, seed, settings.redraw, right)
            case "random":
                if len(pool) <= settings.n and any(n_given(example) < settings.n for example in examples):
                    raise DataError(
                        f"{len(pool)} distinct responses are too few to draw {settings.n} negatives from; lower"
                        " train.negatives.n"
                    )
                return RandomNegatives(pool, settings.n, seed, settings.redraw, right)
            case "mined":
                if isinstance(examples, StoredExamples):
                    raise ConfigError(
                        "negatives are mined among examples in memory; leave data.cache out, or mine them once with"
                        " polyrank mine"
                    )
                scorer = next(ranker.scorer for ranker in rankers if isinstance(ranker.scorer, EncoderScorer))
                first, last = settings.remine_ranks
                ranks = HardNegatives(n_negatives=settings.n, first_rank=first, last_rank=last, seed=seed)
                assert settings.remine_epochs is not None, "a NegativesConfig with this source has it"
                return MinedNegatives(examples, scorer, pool, ranks, every=settings.remine_epochs, folder=folder)

    return MixedNegatives([source(kind) for kind in order], settings.n)


def _responses(examples: Sequence[Example]) -> Sequence[str]:
    """To draw from: distinct ones, or in a folder on disk all."""
    if isinstance(examples, StoredExamples):
        return StoredResponses(examples)
    return list(dict.fromkeys(response for example in examples if (response := example.response) is not None))
