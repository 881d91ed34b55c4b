"""From a recipe's settings to a training method at work: the step that ``fit`` is given."""

from collections.abc import Sequence
from pathlib import Path

import torch

from polyrank.config.recipe import TrainConfig
from polyrank.devices import choose_dtype
from polyrank.errors import ConfigError, DataError
from polyrank.models import Convert, EncoderNetwork
from polyrank.negatives.hard import HardNegatives
from polyrank.negatives.random import Negatives, RandomNegatives, given_negatives
from polyrank.negatives.remined import MinedNegatives
from polyrank.records import Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import load_scorer
from polyrank.training.convert_step import ConvertStep
from polyrank.training.mutual import DistillStep, Imitation, MutualStep
from polyrank.training.network import Ranker
from polyrank.training.steps import InBatchStep, ListwiseStep, Step
from polyrank.training.teacher import RememberedScores


def make_step(
    ranker: Ranker,
    settings: TrainConfig,
    examples: Sequence[Example],
    *,
    device: torch.device,
    seed: int,
    folder: Path,
) -> Step:
    """The method for one network.

    Args:
        ranker: what learns.
        settings: name the method.
        examples: the training data.
        device: where to compute.
        seed: of drawn negatives.
        folder: for mined negatives and a teacher's scores.
    """
    if settings.method == "in_batch":
        return _in_batch(ranker, settings, device)
    step = ListwiseStep(
        ranker.model,
        ranker.texts,
        device,
        make_negatives([ranker], settings, examples, seed=seed, folder=folder),
    )
    if settings.teacher is None:
        return step
    teacher = load_scorer(settings.teacher, device=str(device), precision=settings.precision)
    file = folder / "teacher-scores.sqlite" if settings.teacher_scores is None else Path(settings.teacher_scores)
    known = f"{teacher.fingerprint} {choose_dtype(settings.precision, device)}"
    return DistillStep(step, RememberedScores(file, teacher, known), _imitation(settings))


def make_mutual_step(
    first: Ranker,
    second: Ranker,
    settings: TrainConfig,
    examples: Sequence[Example],
    *,
    device: torch.device,
    seed: int,
    folder: Path,
) -> MutualStep:
    """Mutual learning of two networks; see ``make_step``."""
    negatives = make_negatives([first, second], settings, examples, seed=seed, folder=folder)
    return MutualStep(
        ListwiseStep(first.model, first.texts, device, negatives),
        ListwiseStep(second.model, second.texts, device, negatives),
        _imitation(settings),
    )


def make_negatives(
    rankers: Sequence[Ranker], settings: TrainConfig, examples: Sequence[Example], *, seed: int, folder: Path
) -> Negatives:
    """Wrong candidates: drawn, or mined by the first of the networks that encodes.

    Raises:
        ConfigError: they are to be mined and no network encodes.
        DataError: the data holds too few responses.
    """
    pool = list(dict.fromkeys(response for example in examples if (response := example.response) is not None))
    if len(pool) <= settings.n_negatives and any(len(given_negatives(e)) < settings.n_negatives for e in examples):
        raise DataError(
            f"{len(pool)} distinct responses are too few to draw {settings.n_negatives} negatives from; lower"
            " train.n_negatives"
        )
    drawn = RandomNegatives(pool, settings.n_negatives, seed, settings.redraw_negatives)
    if settings.remine_epochs is None:
        return drawn
    scorers = [ranker.scorer for ranker in rankers if isinstance(ranker.scorer, EncoderScorer)]
    if not scorers:
        raise ConfigError(
            "train.remine_epochs needs a network that encodes, and a Cross-encoder would have to read every pair; mine"
            " once with polyrank mine instead"
        )
    if len(settings.remine_ranks) != 2:
        raise ConfigError(
            f"train.remine_ranks = {list(settings.remine_ranks)} is no first and last rank; write [1, 50]"
        )
    first, last = settings.remine_ranks
    ranks = HardNegatives(n_negatives=settings.n_negatives, first_rank=first, last_rank=last, seed=seed)
    return MinedNegatives(examples, scorers[0], pool, ranks, every=settings.remine_epochs, folder=folder, rest=drawn)


def _imitation(settings: TrainConfig) -> Imitation:
    return Imitation(settings.imitation, settings.alpha, settings.temperature, settings.label_weight)


def _in_batch(ranker: Ranker, settings: TrainConfig, device: torch.device) -> Step:
    model, texts = ranker.model, ranker.texts
    if isinstance(model, Convert):
        return ConvertStep(
            model,
            texts,
            device,
            smoothing=settings.smoothing,
            scale_steps=settings.scale_steps,
            loss_weights=settings.loss_weights,
            range_steps=settings.range_steps,
        )
    assert isinstance(model, EncoderNetwork), "train() refuses others"
    return InBatchStep(model, texts, device, settings.smoothing)
