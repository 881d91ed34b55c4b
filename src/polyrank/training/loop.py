"""The training loop: a batch, a loss and an update for each network in turn, sometimes a validation and a checkpoint.

The loop knows nothing of text, examples, negatives or teachers: a source orders the data, and a step
makes batches and their losses.
Everything random is a pure function of (seed, step), so a resumed run equals one that was never interrupted, bit for
bit on the same machine and number of threads. Only a late Cross-encoder may differ in the last bits: it keeps what it
computed of candidates, and a resumed run computes that in other batches.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from polyrank.config.pretrain import PretrainSteps
from polyrank.config.train import TrainConfig
from polyrank.devices import distributed
from polyrank.devices.choice import choose_dtype
from polyrank.devices.pipeline import AHEAD, prefetched
from polyrank.errors import DivergedError
from polyrank.training.checkpoints import CHECKPOINT, explain_damage, load_checkpoint, save_checkpoint
from polyrank.training.learner import Learner, Loss, TrainState, explain_out_of_memory
from polyrank.training.signals import InterruptedTraining, stop_on_signals

MAX_BAD_STEPS = 10  # non-finite losses in a row that are skipped before training stops with an error
TIMED_STEPS = 20  # after so many steps the remaining time is estimated; the first one, which warms up, does not count
SUGGESTED_MINUTES = 20
OUT_OF_TIME = 1  # as a reason to stop, among signal numbers: polyrank handles no signal of this number
Rows = TypeVar("Rows")
Read = TypeVar("Read", contravariant=True)
Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a training went.

    Args:
        n_steps: updates made, skipped ones included.
        n_examples: examples trained on, with repetitions; 0 in a pre-training, which counts tokens.
        n_tokens: tokens trained on, without padding; 0 in other trainings.
        best: validation figures of the best model; empty without validation.
        best_step: the step after which the best model was saved.
        seconds: wall time of the steps; a resumed run adds the time up to its checkpoint.
        finished: false if ``train.minutes`` ended the training; ``--resume`` continues it.
    """

    n_steps: int
    n_examples: int = 0
    n_tokens: int = 0
    best: dict[str, float]
    best_step: int
    seconds: float
    finished: bool = True


class Source(Protocol[Rows]):
    """The order of a training's data, and when to validate."""

    @property
    def n_steps(self) -> int:
        """Updates of the whole training."""

    @property
    def ahead(self) -> bool:
        """Whether batches may be prepared before the previous updates are made, in another thread."""

    def rows(self, number: int) -> tuple[Rows, int]:
        """The data of 0-based update ``number``, and their epoch: a pure function of it."""

    def counts(self, rows: Rows) -> dict[str, int]:
        """The counts of a batch for metrics.jsonl: ``n_examples`` or ``n_tokens``."""

    def check(self, done: int) -> dict[str, float] | None:
        """The progress after ``done`` updates for the record of a validation, such as ``epoch``; None: no validation.

        The last update is followed by a validation.
        """

    def too_large(self, rows: Rows) -> str:
        """The error for a batch that does not fit into memory, with the settings to change."""


class Step(Protocol[Read, Batch]):
    """A training method for one network or several."""

    def prepare(self, rows: Read, epoch: int) -> Batch:
        """Everything that the step needs of a batch; runs in another thread, without networks and devices.

        Args:
            rows: of the batch; for a training on examples, each with its position in the data.
            epoch: of random negatives.
        """

    def losses(self, batch: Batch, number: int) -> Iterator[Loss]:
        """Yield the loss of 0-based update ``number`` for each network in turn.

        Code after a ``yield`` runs with that network updated.
        """


def fit(
    learners: Sequence[Learner],
    step: Step[Rows, Batch],
    source: Source[Rows],
    settings: TrainConfig | PretrainSteps,
    *,
    seed: int,
    folder: Path,
    device: torch.device,
    resume: bool = False,
    notify: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[FitResult]:
    """Train networks on the same batches, in turns, and keep the best version of each by its own validation.

    Args:
        learners: the networks, each with its settings.
        step: the training method.
        source: of the data.
        settings: of the whole training. If ``minutes`` ends it, there is a checkpoint, and a validation that may save a
            better model. A resumed run has the weights of an uninterrupted one, but if the limit's model replaced an
            earlier one, it may stay the best version.
        seed: of dropout.
        folder: for ``checkpoint.safetensors``, which holds all networks; must exist.
        device: where to compute.
        resume: continue from the checkpoint, if there is one.
        notify: called with lines for the user.
        clock: the time in seconds.

    Raises:
        DivergedError: more than ``MAX_BAD_STEPS`` non-finite losses of one network in a row.
        ResourceError: a batch does not fit into memory.
        InterruptedTraining: SIGINT or SIGTERM; the checkpoint is saved.
    """
    n_steps, minutes, dtype = source.n_steps, settings.minutes, choose_dtype(settings.precision, device)
    states = [TrainState(learner, n_steps, device, dtype, settings.loss) for learner in learners]
    parts = [(state.learner.name, state.model, state.optimizer) for state in states]
    checkpoint = folder / CHECKPOINT
    done, counts = 0, Counter[str]()
    began = started = clock()
    if resume and checkpoint.exists():
        progress = load_checkpoint(checkpoint, parts)
        with explain_damage(checkpoint):
            saved_states = progress.pop("learners")
            done, earlier = progress.pop("step"), progress.pop("seconds")
            counts.update(progress)
            started -= earlier
            for state in states:
                state.restore(saved_states[state.learner.name])
    if distributed.is_rank_zero():
        for state in states:
            state.drop_records_after(done)

    def seconds() -> float:
        return round(clock() - started, 3)

    def save(progresses: Sequence[dict[str, Any]]) -> None:
        if distributed.is_rank_zero():
            named = {state.learner.name: progress for state, progress in zip(states, progresses, strict=True)}
            progress = {"step": done, **counts, "seconds": seconds(), "learners": named}
            save_checkpoint(checkpoint, parts, progress)

    notify(f"training for {n_steps:,} steps" if not done else f"continuing after step {done:,} of {n_steps:,}")
    first, warm, stop = done, began, 0
    ahead = AHEAD if source.ahead else 0

    def prepare(number: int) -> tuple[Rows, Batch]:
        rows, epoch = source.rows(number)
        return rows, step.prepare(rows, epoch)

    prepared = prefetched(prepare, range(done, n_steps), ahead=ahead)
    with stop_on_signals() as request, closing(prepared) as batches:
        while done < n_steps and not stop:
            if settings.early_stopping and min(state.n_stale for state in states) >= settings.early_stopping:
                break
            rows, batch = next(batches)
            counts.update(source.counts(rows))
            losses = step.losses(batch, done)
            records = []
            for state in states:
                rate = state.set_rates(done)
                seeded = torch.default_generator if device.type == "cpu" else torch  # torch's formats a stack trace
                seeded.manual_seed((seed * 1_000_003 + done + distributed.rank() * 2**40) % 2**63)  # of dropout
                with explain_out_of_memory(source.too_large(rows)):
                    figures = state.update(losses)
                shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
                records.append({"step": done + 1, **shown, "lr": rate})
            done += 1
            so_far = {"n_steps": n_steps, **counts, "seconds": seconds()}
            for state, record in zip(states, records, strict=True):
                state.write({**record, **so_far})
                if state.n_bad > MAX_BAD_STEPS:
                    kept = f"{checkpoint} is from before them" if checkpoint.exists() else "no checkpoint was saved yet"
                    raise DivergedError(
                        f"the loss was not finite for {state.n_bad} steps in a row, more than {MAX_BAD_STEPS}; {kept};"
                        " lower train.lr"
                    )
            if done == first + 1:
                warm = clock()
            elif done == first + TIMED_STEPS < n_steps:
                rest = (clock() - warm) / (TIMED_STEPS - 1) * (n_steps - done)
                limit = f"; train.minutes = {SUGGESTED_MINUTES} ends the training earlier and keeps its best model"
                notify(
                    f"the remaining {n_steps - done:,} steps take about {duration(rest)}, validations not included"
                    + (limit if minutes is None and rest > 60 * SUGGESTED_MINUTES else "")
                )
            where = source.check(done)
            if where is not None:
                for state in states:
                    state.validate(done, where)
            due = where is not None or (settings.checkpoint_steps and done % settings.checkpoint_steps == 0)
            if due and not any(state.n_bad for state in states):  # else the last good checkpoint stays
                save([state.progress for state in states])
            late = minutes is not None and done < n_steps and clock() - began >= 60 * minutes
            stop = distributed.all_reduce_max(request.signal_number or OUT_OF_TIME * late)  # every rank, at this step
            if stop:
                before = [state.progress for state in states]
                save(before)
                if stop != OUT_OF_TIME:
                    raise InterruptedTraining(stop, str(folder))
                if where is None:
                    for state in states:
                        state.validate(done, {})
                    pairs = zip(before, states, strict=True)  # a model may have replaced the best one so far
                    save([one | state.best_version if one["best_step"] else one for one, state in pairs])
    if not all(state.best_step for state in states):
        raise DivergedError(
            f"no loss was finite when a model was due to be saved, so {folder} has none; lower train.lr"
        )
    ended: dict[str, Any] = {"n_steps": done, **counts, "seconds": clock() - started, "finished": not stop}
    return [FitResult(**ended, best=state.best, best_step=state.best_step) for state in states]


def duration(seconds: float) -> str:
    """A time for people.

    >>> [duration(seconds) for seconds in (42.3, 600, 9030)]
    ['42 s', '10 min', '2 h 30 min']
    """
    hours, minutes = divmod(int(seconds / 60), 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
