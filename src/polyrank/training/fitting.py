"""Training on examples: their order as a source of the loop, and how many steps there are."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from polyrank.config.train import TrainConfig
from polyrank.data.mapped_examples import StoredExamples
from polyrank.records import Example
from polyrank.training.batches import BatchOrder, Ints
from polyrank.training.inputs import Positions
from polyrank.training.learner import Learner
from polyrank.training.loop import FitResult, Step, fit


class ExampleOrder:
    """Examples as a source of the loop, in the order of ``BatchOrder``.

    Args:
        examples: to train on.
        length: of an example in tokens; examples of similar length share a batch.
        settings: of batches, epochs and validations.
        seed: of the order.
    """

    def __init__(
        self, examples: Sequence[Example], length: Callable[[Example], int], settings: TrainConfig, seed: int
    ) -> None:
        self._examples, self._settings = examples, settings
        sizes: Callable[[Ints], Ints] | Sequence[int] = ()
        if settings.window > 1:  # else no length is ever read
            sizes = examples.sizes if isinstance(examples, StoredExamples) else [*map(length, examples)]
        self._order = BatchOrder(len(examples), sizes, settings.batch_size, seed=seed, window=settings.window)
        self.n_steps, self.per_epoch = count_steps(settings, len(examples))
        self._checks = check_steps(self.n_steps, self.per_epoch, settings.evaluate_per_epoch)
        # mining uses the weights at the start of an epoch, and a first stage chooses the negatives of each batch
        mines = settings.negatives is not None and "mined" in settings.negatives.sources
        self.ahead = not mines and settings.method.corrects is None

    def rows(self, number: int) -> tuple[Positions, int]:
        """The examples of 0-based update ``number`` with their positions, and the epoch."""
        epoch, position = divmod(number, self.per_epoch)
        return [(row, self._examples[row]) for row in self._order.batch(epoch, position).tolist()], epoch

    def counts(self, rows: Positions) -> dict[str, int]:
        """The number of examples."""
        return {"n_examples": len(rows)}

    def check(self, done: int) -> dict[str, float] | None:
        """The epoch if a validation is due after ``done`` updates; else None."""
        return {"epoch": round(done / self.per_epoch, 4)} if done in self._checks else None

    def too_large(self, rows: Positions) -> str:
        """The error, with settings that need less memory."""
        return too_large(len(rows), self._settings.chunk_size)


def too_large(n_contexts: int, chunk_size: int | None = None) -> str:
    """The error for a batch that does not fit into memory.

    >>> too_large(8)[:61]
    'a batch of 8 does not fit into memory; try train.batch_size=4'
    """
    half, chunk = max(1, n_contexts // 2), max(1, (chunk_size or n_contexts) // 2)
    return (
        f"a batch of {n_contexts} does not fit into memory; try train.batch_size={half} (fewer in-batch negatives),"
        f" train.chunk_size={chunk} (as many negatives, a third more time) or smaller text budgets"
    )


def fit_together(
    learners: Sequence[Learner],
    step: Step[Positions, Any],
    examples: Sequence[Example],
    settings: TrainConfig,
    *,
    length: Callable[[Example], int] = lambda example: sum(map(len, example.context)),
    seed: int,
    folder: Path,
    device: torch.device,
    resume: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> list[FitResult]:
    """Train networks on the same batches of examples, in turns; keep the best version of each by its own validation.

    Args:
        learners: the networks, each with its settings.
        step: the training method.
        examples: to train on.
        settings: shared by all networks, such as batches and epochs.
        length: of an example; with ``length_window``, examples of similar length share a batch.
        seed: of order, negatives and dropout.
        folder, device, resume, notify: as for ``loop.fit``.

    Raises:
        DivergedError, ResourceError, InterruptedTraining: as ``loop.fit``.
    """
    return fit(
        learners,
        step,
        ExampleOrder(examples, length, settings, seed),
        settings,
        seed=seed,
        folder=folder,
        device=device,
        resume=resume,
        notify=notify,
    )


def count_steps(settings: TrainConfig, n_examples: int) -> tuple[int, int]:
    """The steps of a training, and the steps per epoch.

    >>> count_steps(TrainConfig(batch_size=4, epochs=3, max_steps=8), 10)
    (8, 3)
    """
    per_epoch = math.ceil(n_examples / settings.batch_size)
    n_steps = settings.epochs * per_epoch
    return n_steps if settings.max_steps is None else min(n_steps, settings.max_steps), per_epoch


def check_steps(n_steps: int, steps_per_epoch: int, per_epoch: int) -> set[int]:
    """The steps after which to validate: ``per_epoch`` times per epoch, and at the end.

    >>> sorted(check_steps(10, 4, 2))
    [2, 4, 6, 8, 10]
    """
    n_checks = math.ceil(n_steps / steps_per_epoch * per_epoch)
    return {min(n_steps, round((i + 1) * steps_per_epoch / per_epoch)) for i in range(n_checks)} | {n_steps}
