"""Run folders: their files, whether a training may start or resume in one, and a lock for one process at a time.

Trainings and pre-trainings have the same kinds of files: a recipe, metrics, a checkpoint, a model, a final result.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.train import NetworkTraining
from polyrank.devices import distributed
from polyrank.errors import ConfigError, UsageError
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import make_folders, write_file
from polyrank.storage.lock import hold
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.optimizer import Schedule

LOCK = "run.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """The files of a training's folder, or of a pre-training's.

    Args:
        recipe: the document with the recipe.
        result: the document with the result of a finished run.
        begun: patterns of files that show that a run has begun.
        other: patterns of a run's other files.
        cleared: patterns of files that starting again removes.
        may_differ: keys of the recipe that may change when a run resumes.
    """

    recipe: DocumentKind
    result: DocumentKind
    begun: tuple[str, ...]
    other: tuple[str, ...]
    cleared: tuple[str, ...]
    may_differ: tuple[str, ...]

    def check_folder(self, folder: Path, *, resume: bool, overwrite: bool) -> None:
        """Check that a run may use the folder, before any work.

        Raises:
            UsageError: the folder holds an earlier run or other files, and neither option is set.
        """
        if overwrite or resume or not folder.exists():
            return
        if self.has_begun(folder):
            raise UsageError(
                f"{folder} holds an earlier run; pass `resume=True` to continue it or `overwrite=True` to start again"
            )
        expected = {path for pattern in (*self.other, LOCK, self.recipe.file) for path in folder.glob(pattern)}
        foreign = sorted(path.name for path in folder.iterdir() if path not in expected and path.name[0] != ".")
        if foreign:
            raise UsageError(
                f"{folder} holds {foreign[0]!r}, which is not from a training; choose another output, or pass"
                " `overwrite=True` to train next to it"
            )

    def has_begun(self, folder: Path) -> bool:
        """Whether the folder holds files of a run that another run would overwrite or resume."""
        return any(path.exists() for pattern in self.begun for path in folder.glob(pattern))

    def check_same(self, folder: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
        """Check that a resumed run has the recipe that it was started with, except for ``may_differ``.

        Args:
            folder: of the run.
            earlier, now: the recipe's tables.

        Raises:
            ConfigError: a key differs; the message lists each with both values.
        """
        there, here = dotted(earlier), dotted(now)
        keys = [key for key in there | here if there.get(key) != here.get(key) and key not in self.may_differ]
        if keys:
            differences = ", ".join(f"{key} = {there.get(key)!r} (now {here.get(key)!r})" for key in keys)
            raise ConfigError(
                f"the recipe differs from the one that {folder} was started with: {differences}; use the same values,"
                " or another output"
            )

    def begin(
        self, folder: Path, recipe: dict[str, Any], *, longer: bool | None, notify: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Prepare a folder for a run; returns the result of a finished run that gets no more steps, else None.

        Args:
            folder: of the run.
            recipe: its tables.
            longer: whether a finished run gets more steps; None: start again.
            notify: called with lines for the user.
        """
        if longer is None or not self.has_begun(folder):  # what a run that died before its first file left is older
            self.clear(folder)
        elif has_document(folder, self.result):
            result = read_document(folder, self.result)
            if not longer:
                notify(f"{folder} is finished")
                return result
            notify(f"{folder} continues after its {read_progress(folder / CHECKPOINT)['step']:,} steps")
            (folder / self.result.file).unlink()
        make_folders(folder)
        write_file(folder / self.recipe.file, seal(recipe, self.recipe))
        return None

    def end(self, folder: Path, result: dict[str, Any]) -> None:
        """Write the result of a finished run."""
        write_file(folder / self.result.file, seal(result, self.result))

    def clear(self, folder: Path) -> None:
        """Remove the files that an earlier run would resume from; its model stays until a new one replaces it."""
        for path in [path for pattern in self.cleared for path in folder.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def is_longer(self, folder: Path, trainings: Sequence[NetworkTraining], before: int, now: int) -> bool:
        """Whether a run gets more steps than it was started with, after checking that its steps so far stay valid.

        Args:
            folder: of a run with the same recipe except for its length.
            trainings: of its networks.
            before, now: the total steps, earlier and now.

        Raises:
            ConfigError: a run of the new length has other learning rates in the steps made so far, or it is shorter
                than these.
        """
        checkpoint = folder / CHECKPOINT
        if before == now or not (checkpoint.exists() or has_document(folder, self.result)):  # nothing is saved yet
            return False
        if not checkpoint.exists():
            raise ConfigError(
                f"{folder} ended at {before:,} steps and kept no {CHECKPOINT} to continue from to {now:,}; train again"
                " with `overwrite=True`"
            )
        if now < (done := int(read_progress(checkpoint)["step"])):
            raise ConfigError(f"{folder} has made {done:,} steps already, more than {now:,}; set at least as many")
        for train in trainings:
            if not same_first_rates(train, before, now, done):
                raise ConfigError(
                    f"the first {done:,} learning rates of {folder} would differ between {before:,} steps and {now:,}:"
                    f' train.schedule.kind = "{train.schedule.kind}" or its warm-up depends on the number of steps;'
                    " start again with `overwrite=True`, or keep the number (constant, plateau and inverse_sqrt do not"
                    " depend on it, nor does a warm-up of at most half of the run)"
                )
        return now > before


@contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder, on rank 0. A folder that is created here and stays empty is removed afterwards.

    Raises:
        LockedError: another process trains there; the message names it.
    """
    if not distributed.is_rank_zero():
        yield
        return
    made = not folder.exists()
    make_folders(folder)
    try:
        with hold(folder / LOCK, f"{folder} is being trained in", required=False):
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()


def stopped_by_minutes(minutes: float | None, n_steps: int) -> str:
    """The message of a run that its time limit ended."""
    return f"stopped after {minutes:g} minutes (train.minutes) at step {n_steps:,}; continue with `resume=True`"


def dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def same_first_rates(settings: NetworkTraining, before: int, now: int, n_steps: int) -> bool:
    """Whether runs of ``before`` and ``now`` steps have the same learning rates in their first ``n_steps``.

    >>> from polyrank.config.schedules import ConstantSchedule, LinearSchedule
    >>> kinds = (ConstantSchedule(warmup_steps=2), LinearSchedule(warmup_steps=2))
    >>> [same_first_rates(NetworkTraining(schedule=kind), 6, 9, 6) for kind in kinds]
    [True, False]
    """
    first, second = Schedule(settings, before), Schedule(settings, now)
    return all(first.factor(step) == second.factor(step) for step in range(n_steps))
