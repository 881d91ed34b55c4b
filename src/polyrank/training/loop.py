"""The one loop: a batch, a loss for each network in turn, an update, now and then a validation and a checkpoint.

It knows nothing of text, examples, negatives or teachers: a source gives it batches, a step their losses. Everything
random is a pure function of (seed, step), so a resumed run is the run that was never interrupted, bit for bit on the
same machine and threads.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from polyrank.config.training import Precision
from polyrank.devices import processes
from polyrank.devices.choice import choose_dtype
from polyrank.errors import DivergedError
from polyrank.training.checkpoints import CHECKPOINT, Memory, load_checkpoint, save_checkpoint
from polyrank.training.learner import Learner, LossParts, TrainState, enough_memory
from polyrank.training.signals import InterruptedTraining, stop_on_signals

MAX_BAD_STEPS = 10
Batch = TypeVar("Batch")
Read = TypeVar("Read", contravariant=True)


class BatchSource(Protocol[Batch]):
    """What a training reads, and when it is validated."""

    @property
    def n_steps(self) -> int:
        """Updates of the whole training."""
        ...

    def batch(self, number: int) -> Batch:
        """The batch of 0-based update ``number``: a pure function of it."""
        ...

    def counts(self, batch: Batch) -> dict[str, int]:
        """What metrics.jsonl counts of a batch, such as ``n_examples``."""
        ...

    def check(self, done: int) -> dict[str, float] | None:
        """What the record of a validation after ``done`` updates says of them, such as ``epoch``; None: no validation.

        There is one after the last update.
        """
        ...

    def too_large(self, batch: Batch) -> str:
        """The error of a batch that does not fit into memory, with the settings to change."""
        ...


class BatchStep(Protocol[Read]):
    """A training method, for one network or for several."""

    def losses(self, batch: Read, number: int) -> Iterator[LossParts]:
        """A loss for each network in turn; what comes after one sees its network updated."""
        ...


@dataclass(frozen=True, slots=True)
class Fit:
    """How the training of one network went.

    Args:
        n_steps: updates made, skipped ones included.
        counts: sums of the source's counts.
        best: validation figures of the best model, empty without validation.
        best_step: the step it was met at.
        seconds: wall time of its steps; of an interrupted run, the earlier part is in it, and what was computed after
            the last checkpoint is not.
    """

    n_steps: int
    counts: dict[str, int]
    best: dict[str, float]
    best_step: int
    seconds: float


def fit(
    learners: Sequence[Learner],
    step: BatchStep[Batch],
    source: BatchSource[Batch],
    *,
    seed: int,
    folder: Path,
    device: torch.device,
    precision: Precision = "auto",
    checkpoint_steps: int | None = None,
    max_bad_steps: int = MAX_BAD_STEPS,
    resume: bool = False,
    memory: Memory | None = None,
) -> list[Fit]:
    """Train networks on the same batches, in turns, and keep the best version of each by its own validation.

    Args:
        learners: the networks, each with how it is trained.
        step: the training method.
        source: of batches.
        seed: of dropout.
        folder: for ``checkpoint.safetensors``, which holds all networks; exists.
        device: where to compute.
        precision: to compute in.
        checkpoint_steps: also checkpoint every so many steps; None: only at validations.
        max_bad_steps: non-finite losses in a row that are skipped before training stops with an error.
        resume: continue from the checkpoint, if there is one.
        memory: what the step keeps from batch to batch, for the checkpoint; None: nothing.

    Raises:
        DivergedError: more than ``max_bad_steps`` non-finite losses of one network in a row.
        ResourceError: a batch does not fit into memory.
        InterruptedTraining: SIGINT or SIGTERM; state is saved.
    """
    n_steps, states = source.n_steps, [TrainState(learner, source.n_steps) for learner in learners]
    parts = [(state.learner.name, state.model, state.optimizer) for state in states]
    dtype, checkpoint = choose_dtype(precision, device), folder / CHECKPOINT
    done, counts = 0, Counter[str]()
    started = time.monotonic()
    if resume and checkpoint.exists():
        progress = load_checkpoint(checkpoint, parts, memory)
        learnt = progress.pop("learners")
        done, earlier = progress.pop("step"), progress.pop("seconds", 0.0)  # which older checkpoints do not know
        counts.update(progress)
        started -= earlier
        for state in states:
            state.restore(learnt[state.learner.name])
    if processes.is_first():
        for state in states:
            state.forget_after(done)

    def seconds() -> float:
        return round(time.monotonic() - started, 3)

    def save() -> None:
        if processes.is_first():
            own = {state.learner.name: state.progress for state in states}
            progress = {"step": done, **counts, "seconds": seconds(), "learners": own}
            save_checkpoint(checkpoint, parts, progress, memory)

    with stop_on_signals() as request:
        while done < n_steps and not all(state.has_enough for state in states):
            batch = source.batch(done)
            counts.update(source.counts(batch))
            losses = step.losses(batch, done)
            records = []
            for state in states:
                rate = state.set_rates(done)
                torch.manual_seed((seed * 1_000_003 + done + processes.number() * 2**40) % 2**63)  # of dropout
                with enough_memory(source.too_large(batch)):
                    figures = state.update(next(losses), device, dtype)
                shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
                records.append({"step": done + 1, **shown, "lr": rate})
            done += 1
            so_far = {"n_steps": n_steps, **counts, "seconds": seconds()}
            for state, record in zip(states, records, strict=True):
                state.write({**record, **so_far})
                if state.n_bad > max_bad_steps:
                    saved = checkpoint.exists()
                    kept = f"the checkpoint in {folder} is from before" if saved else "nothing was saved yet"
                    raise DivergedError(
                        f"the loss was not finite for {state.n_bad} steps in a row, more than {max_bad_steps}; {kept};"
                        " lower train.lr"
                    )
            where = source.check(done)
            if where is not None:
                for state in states:
                    state.check(done, where)
            due = where is not None or (checkpoint_steps and done % checkpoint_steps == 0)
            if due and not any(state.n_bad for state in states):  # else the last good one stays
                save()
            if stop := processes.most(request.signal_number or 0):  # heard by any of them, after the same step
                save()
                raise InterruptedTraining(stop, str(folder))
    if not all(state.best_step for state in states):
        raise DivergedError(
            f"no loss was finite when a model was to be kept, so there is none in {folder}; lower train.lr"
        )
    return [Fit(done, dict(counts), state.best, state.best_step, time.monotonic() - started) for state in states]
