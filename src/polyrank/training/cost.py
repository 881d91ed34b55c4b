"""The cost of a training, measured on a few batches before it begins.

The batches train copies of the networks in a temporary folder, so the training itself has the same bits as without.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from polyrank.config.train import TrainConfig
from polyrank.data.mapped_examples import choose
from polyrank.devices import distributed
from polyrank.devices.choice import choose_dtype
from polyrank.devices.random_state import restored_random_state
from polyrank.loading.recipes import TrainingPlan
from polyrank.models.losses import LossFunction
from polyrank.records import Example
from polyrank.scorers.protocols import Scorer
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.fitting import ExampleOrder, check_steps, count_steps
from polyrank.training.inputs import Positions, response_of
from polyrank.training.learner import TrainState, explain_out_of_memory
from polyrank.training.loop import TIMED_STEPS, Step, duration
from polyrank.training.methods import count_distinct, make_ranker, make_step
from polyrank.training.ranker import Ranker, make_learner, validation_figures
from polyrank.training.rerank import judged

TRIED_BATCHES = 4  # the first one, which warms up, does not count
ENOUGH_SECONDS = 10.0  # slow batches need no repetition
SAMPLE = 2_000  # examples from which the batches come, so that sorting by length has an effect
VALIDATED = 32
SUGGESTED_MINUTES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a training, or of the rest of one.

    Args:
        n_steps: updates to make.
        per_second: examples per second.
        seconds: of all updates and validations.
        memory: bytes, the peak so far; None if the system does not report it.

    >>> print(Cost(n_steps=1_116, per_second=2.4, seconds=14_880, memory=2_100_000_000).describe())
    1,116 steps will take about 4 h 8 min (2.4 examples/s, validations included) and 2.1 GB of memory; train.minutes=20
    ends the training earlier and keeps its best model
    """

    n_steps: int
    per_second: float
    seconds: float
    memory: int | None

    def describe(self, minutes: float | None = None) -> str:
        """A sentence for people.

        Args:
            minutes: the recipe's ``train.minutes``.
        """
        space = "" if self.memory is None else f" and {self.memory / 1e9:.1f} GB of memory"
        text = (
            f"{self.n_steps:,} steps will take about {duration(self.seconds)} ({self.per_second:.1f} examples/s,"
            f" validations included){space}"
        )
        if minutes is not None and 60 * minutes < self.seconds:
            return f"{text}; train.minutes = {minutes:g} ends the training earlier and keeps its best model"
        if minutes is None and self.seconds > 60 * SUGGESTED_MINUTES:
            return f"{text}; train.minutes={SUGGESTED_MINUTES} ends the training earlier and keeps its best model"
        return text


def measure_cost(
    plan: TrainingPlan,
    examples: Sequence[Example],
    valid: Sequence[Example],
    *,
    seed: int,
    device: torch.device,
    loss: LossFunction | None = None,
    run: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Cost | None:
    """Measure what a training, or the rest of one, will cost. Mining of negatives is not included.

    Args:
        plan: the resolved recipe.
        examples: to train on.
        valid: validation lists; may be empty.
        seed: of the run.
        device: where to compute.
        loss: as for ``train``.
        run: the folder of the run to resume; None: a new run.
        progress: called with what is done next.
        clock: the time in seconds.

    Returns:
        None if the training has so few steps that measuring takes about as long.

    Raises:
        ResourceError: a batch does not fit into memory.
    """
    train = _without_mining(plan.recipe.train, examples)
    n_steps, per_epoch = count_steps(train, len(examples))
    resumes = run is not None and (run / CHECKPOINT).exists()
    done = int(read_progress(run / CHECKPOINT)["step"]) if run is not None and resumes else 0
    if n_steps - done <= TIMED_STEPS:
        return None
    n_checks = sum(step > done for step in check_steps(n_steps, per_epoch, train.evaluate_per_epoch))
    on_gpu = device.type == "cuda"
    with TemporaryDirectory() as folder, restored_random_state(device):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        sample = _sample(examples)
        rankers = [
            make_ranker(network, sample, precision=train.precision, seed=seed, device=device)
            for network in plan.networks
        ]
        step = make_step(rankers, train, examples, device=device, seed=seed, folder=Path(folder), loss=loss)
        learners = [
            make_learner(ranker, own.train, Path(folder), [], metadata={}, report=lambda _: None)
            for ranker, own in zip(rankers, plan.networks, strict=True)
        ]
        dtype = choose_dtype(train.precision, device)
        states = [TrainState(learner, n_steps, device, dtype, train.loss) for learner in learners]
        source = ExampleOrder(sample, rankers[0].length, train, seed)
        per_step, n_of_step = _time_updates(states, step, source, progress, clock)
        progress("timing the validation")
        scorers = [judged(step, ranker.scorer, train) for ranker in rankers]
        pairs = zip(rankers, scorers, strict=True)
        checking = sum(_time_validation(*pair, valid, clock) for pair in pairs) if valid else 0.0
        memory = torch.cuda.max_memory_allocated(device) if on_gpu else _peak_memory()
    if on_gpu:
        torch.cuda.empty_cache()
    seconds = (n_steps - done) * per_step + n_checks * checking
    return Cost(n_steps=n_steps - done, per_second=n_of_step / per_step, seconds=seconds, memory=memory)


def _without_mining(train: TrainConfig, examples: Sequence[Example]) -> TrainConfig:
    """The settings with random negatives in place of mined ones, of which there may be fewer than ``n``."""
    negatives = train.negatives
    if negatives is None or "mined" not in negatives.sources:
        return train
    others, n = tuple(source for source in negatives.sources if source != "mined"), negatives.n
    if "random" not in others:
        others, n = (*others, "random"), max(1, count_distinct(map(response_of, examples), n + 1) - 1)
    return replace(train, negatives=replace(negatives, n=n, sources=others))


def _sample(examples: Sequence[Example]) -> Sequence[Example]:
    numbers = np.linspace(0, len(examples) - 1, min(SAMPLE, len(examples)), dtype=np.int64)
    return choose(examples, numbers)


def _time_updates(
    states: Sequence[TrainState],
    step: Step[Positions, Any],
    source: ExampleOrder,
    progress: Callable[[str], None],
    clock: Callable[[], float],
) -> tuple[float, float]:
    """Seconds and examples of an update."""
    times: list[float] = []
    sizes: list[int] = []
    for number in range(TRIED_BATCHES):
        progress(f"timing batch {number + 1} of {TRIED_BATCHES}")
        began = clock()
        rows, epoch = source.rows(number)
        losses = step.losses(step.prepare(rows, epoch), number)
        for state in states:
            state.set_rates(number)
            with explain_out_of_memory(source.too_large(rows)):
                state.update(losses)
        times.append(clock() - began)
        sizes.append(len(rows))
        if distributed.all_reduce_max(int(sum(times) > ENOUGH_SECONDS)):  # every rank stops at the same batch
            break
    return mean(times[1:] or times), mean(sizes[1:] or sizes)


def _time_validation(ranker: Ranker, scorer: Scorer, valid: Sequence[Example], clock: Callable[[], float]) -> float:
    """Seconds of a validation: those of a few lists, times the ratio of texts to encode, or of pairs to score."""

    def cost(examples: Sequence[Example]) -> int:
        if ranker.model.pairwise:
            return sum(len(example.candidates) for example in examples)
        return len(examples) + len({text for example in examples for text in example.candidates})

    part = valid[:VALIDATED]
    began = clock()
    validation_figures(scorer, part)
    return (clock() - began) * cost(valid) / cost(part)


def _peak_memory() -> int | None:
    """The peak memory of this process in bytes; None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None
