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
    TrainConfig,
)
from polyrank.devices import choose_dtype
from polyrank.errors import DataError
from polyrank.models import Convert, EncoderNetwork
from polyrank.negatives.hard import HardNegatives, rights
from polyrank.negatives.random import Negatives, RandomNegatives, given_negatives
from polyrank.negatives.remined import MinedNegatives
from polyrank.records import Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.open import load
from polyrank.training.convert_step import ConvertStep
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.network import Ranker
from polyrank.training.steps import InBatchStep, ListwiseStep, PhasedStep, Step
from polyrank.training.teacher import RememberedScores


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
    match method:
        case InBatchMethod():
            assert isinstance(first.model, EncoderNetwork), "a Recipe of a Cross-encoder does not have it"
            return InBatchStep(first.model, first.texts, device, method.smoothing, rights(examples))
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
            )
    assert settings.negatives is not None, "a TrainConfig of such a method has them"
    negatives = make_negatives(rankers, settings.negatives, examples, seed=seed, folder=folder)
    steps = [ListwiseStep(ranker.model, ranker.texts, device, negatives) for ranker in rankers]
    if isinstance(method, ListwiseMethod):
        return steps[0]
    imitation = Imitation(method.imitation, method.alpha, method.temperature, method.label_weight)
    if isinstance(method, MutualMethod):
        return MutualStep(steps[0], steps[1], imitation)
    teacher = load(method.teacher, device=str(device), precision=settings.precision)
    file = folder / "teacher-scores.sqlite" if method.teacher_scores is None else Path(method.teacher_scores)
    known = f"{teacher.fingerprint or method.teacher} {choose_dtype(settings.precision, device)}"
    return DistillStep(steps[0], RememberedScores(file, teacher, known), imitation)


def make_negatives(
    rankers: Sequence[Ranker], settings: NegativesConfig, examples: Sequence[Example], *, seed: int, folder: Path
) -> Negatives:
    """Wrong candidates: drawn, or mined by the first of the networks that encodes.

    Raises:
        DataError: the data holds too few responses.
    """
    pool = list(dict.fromkeys(response for example in examples if (response := example.response) is not None))
    if len(pool) <= settings.n and any(len(given_negatives(e)) < settings.n for e in examples):
        raise DataError(
            f"{len(pool)} distinct responses are too few to draw {settings.n} negatives from; lower train.negatives.n"
        )
    drawn = RandomNegatives(pool, settings.n, seed, settings.redraw, rights(examples))
    if settings.remine_epochs is None:
        return drawn
    scorer = next(ranker.scorer for ranker in rankers if isinstance(ranker.scorer, EncoderScorer))
    first, last = settings.remine_ranks
    ranks = HardNegatives(n_negatives=settings.n, first_rank=first, last_rank=last, seed=seed)
    return MinedNegatives(examples, scorer, pool, ranks, every=settings.remine_epochs, folder=folder, rest=drawn)
