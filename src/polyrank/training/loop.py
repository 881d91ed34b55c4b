"""The loop: batches in order, a step's loss, an update, now and then a validation and a checkpoint.

It knows nothing of negatives, teachers or text. Everything random is a pure function of (seed, epoch, position), so a
resumed run is the run that was never interrupted, bit for bit on the same machine and threads.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from polyrank.config.training import TrainConfig
from polyrank.data.mapped_examples import StoredExamples
from polyrank.devices import processes
from polyrank.devices.choice import choose_dtype
from polyrank.errors import DivergedError
from polyrank.records import Example
from polyrank.training.batches import BatchOrder
from polyrank.training.checkpoints import CHECKPOINT, Memory, load_checkpoint, save_checkpoint
from polyrank.training.learner import Learner, TrainState, memory_needed
from polyrank.training.signals import InterruptedTraining, stop_on_signals
from polyrank.training.steps import PhasedStep, Step


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a training went.

    Args:
        n_steps: updates made, skipped ones included.
        n_examples: examples seen.
        best: validation figures of the best model, empty without validation.
        best_step: the step it was met at.
        seconds: wall time of its steps; of an interrupted run, the earlier part is in it, and what was computed after
            the last checkpoint is not.
    """

    n_steps: int
    n_examples: int
    best: dict[str, float]
    best_step: int
    seconds: float


def phased(step: Step | PhasedStep) -> PhasedStep:
    """A step for one network as one of a single phase."""
    return step if isinstance(step, PhasedStep) else _OnePhase(step)


@dataclass(frozen=True, slots=True)
class _OnePhase:
    step: Step

    def length(self, example: Example) -> int:
        return self.step.length(example)

    def phases(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Iterator[Tensor]:
        yield self.step(batch, epoch, number)


def fit_together(
    learners: Sequence[Learner],
    step: PhasedStep,
    examples: Sequence[Example],
    settings: TrainConfig,
    *,
    seed: int,
    folder: Path,
    device: torch.device,
    resume: bool = False,
    memory: Memory | None = None,
) -> list[FitResult]:
    """Train networks on the same batches, in turns, and keep the best version of each by its own validation.

    Args:
        learners: the networks, each with how it is trained.
        step: the training method: gives a loss for each learner in turn, and is asked for the next one when the
            learner before has been updated.
        examples: what to learn from.
        settings: what is one for all of them, such as batches and epochs.
        seed: of order, negatives and dropout.
        folder: for ``checkpoint.safetensors``, which holds all of them; exists.
        device: where to compute.
        resume: go on from the checkpoint, if there is one.
        memory: what the step keeps from batch to batch, for the checkpoint; None: nothing.

    Raises:
        DivergedError: ``max_bad_steps`` non-finite losses of one network in a row.
        ResourceError: a batch does not fit into memory.
        InterruptedTraining: SIGINT or SIGTERM; state is saved.
    """
    sizes = examples.sizes if isinstance(examples, StoredExamples) else [step.length(each) for each in examples]
    order = BatchOrder(len(examples), sizes, settings.batch_size, seed=seed, window=settings.window)
    n_steps, steps_per_epoch = count_steps(settings, len(examples))
    checks = check_steps(n_steps, steps_per_epoch, settings.evaluate_per_epoch)
    trainees = [TrainState(learner, n_steps) for learner in learners]
    parts = [(trainee.learner.name, trainee.model, trainee.optimizer) for trainee in trainees]
    dtype = choose_dtype(settings.precision, device)
    checkpoint = folder / CHECKPOINT

    done = n_examples = 0
    started = time.monotonic()
    if resume and checkpoint.exists():
        progress = load_checkpoint(checkpoint, parts, memory)
        done, n_examples = progress["step"], progress["n_examples"]
        started -= progress.get("seconds", 0.0)  # which older checkpoints do not know
        for trainee in trainees:
            trainee.restore(progress["learners"][trainee.learner.name])
    if processes.is_first():
        for trainee in trainees:
            trainee.forget_after(done)

    def save() -> None:
        if not processes.is_first():
            return
        own = {trainee.learner.name: trainee.progress for trainee in trainees}
        seconds = round(time.monotonic() - started, 3)
        progress = {"step": done, "n_examples": n_examples, "seconds": seconds, "learners": own}
        save_checkpoint(checkpoint, parts, progress, memory)

    with stop_on_signals() as request:
        while done < n_steps and not all(trainee.has_enough for trainee in trainees):
            epoch, position = divmod(done, steps_per_epoch)
            batch = [(int(i), examples[int(i)]) for i in order.batch(epoch, position)]
            n_examples += len(batch)
            phases = step.phases(batch, epoch, done)
            records = []
            for trainee in trainees:
                rate = trainee.set_rates(done)
                dropout_seed = (seed * 1_000_003 + done + processes.number() * 2**40) % 2**63
                with memory_needed(len(batch), settings.chunk_size):
                    loss = _update(trainee, phases, len(batch), settings.loss, device, dtype, dropout_seed)
                records.append({"step": done + 1, "loss": loss if math.isfinite(loss) else None, "lr": rate})
            done += 1
            counts = {"n_steps": n_steps, "n_examples": n_examples, "seconds": round(time.monotonic() - started, 3)}
            for trainee, record in zip(trainees, records, strict=True):
                trainee.write({**record, **counts})
                if trainee.n_bad > settings.max_bad_steps:
                    raise _diverged(trainee.n_bad, settings.max_bad_steps, folder, checkpoint.exists())
            if done in checks:
                for trainee in trainees:
                    trainee.check(done, done / steps_per_epoch)
            due = done in checks or (settings.checkpoint_steps and done % settings.checkpoint_steps == 0)
            if due and not any(trainee.n_bad for trainee in trainees):  # else the last good one stays
                save()
            if stop := processes.most(request.signal_number or 0):  # heard by any of them, after the same step
                save()
                raise InterruptedTraining(stop, str(folder))
    if not all(trainee.best_step for trainee in trainees):
        raise DivergedError(
            f"no loss was finite when a model was to be kept, so there is none in {folder}; lower train.lr"
        )
    seconds = time.monotonic() - started
    return [FitResult(done, n_examples, trainee.best, trainee.best_step, seconds) for trainee in trainees]


def count_steps(settings: TrainConfig, n_examples: int) -> tuple[int, int]:
    """The steps of a training, and of each epoch.

    >>> count_steps(TrainConfig(batch_size=4, epochs=3, max_steps=8), 10)
    (8, 3)
    """
    per_epoch = math.ceil(n_examples / settings.batch_size)
    n_steps = settings.epochs * per_epoch
    return n_steps if settings.max_steps is None else min(n_steps, settings.max_steps), per_epoch


def check_steps(n_steps: int, steps_per_epoch: int, per_epoch: int) -> set[int]:
    """The steps after which to validate: ``per_epoch`` times an epoch, and at the end.

    >>> sorted(check_steps(10, 4, 2))
    [2, 4, 6, 8, 10]
    """
    n_checks = math.ceil(n_steps / steps_per_epoch * per_epoch)
    return {min(n_steps, round((i + 1) * steps_per_epoch / per_epoch)) for i in range(n_checks)} | {n_steps}


def _update(
    trainee: TrainState,
    phases: Iterator[Tensor],
    n_contexts: int,
    kind: Literal["mean", "sum"],
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> float:
    """The next phase's loss and its learner's update; dropout is a function of ``seed``. Returns the mean loss."""
    torch.manual_seed(seed)
    trainee.model.train()
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = next(phases)
    return trainee.update(loss, weight=n_contexts if kind == "sum" else 1)


def _diverged(n_bad: int, limit: int, folder: Path, saved: bool) -> DivergedError:
    kept = f"the checkpoint in {folder} is from before" if saved else "nothing was saved yet"
    return DivergedError(
        f"the loss was not finite for {n_bad} steps in a row (train.max_bad_steps = {limit}); {kept}; lower train.lr"
    )
