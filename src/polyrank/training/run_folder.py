"""What a run folder holds, and whether a training may continue in it; one process has it at a time.

Trainings and pre-trainings have folders of one form: a recipe, metrics, a checkpoint, a model, a result at the end.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.training import NetworkTraining
from polyrank.devices import processes
from polyrank.errors import ConfigError, UsageError
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import make_folders, write_file
from polyrank.storage.lock import hold
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.optimizer import Schedule

LOCK, MODEL = "run.lock", "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """What the folder of a training, or of a pre-training, holds.

    Args:
        recipe: the document that says what was to be done.
        result: the document that says how it went, once it has ended.
        begun: files of a run that has begun, as patterns.
        other: further files of a run, as patterns.
        cleared: files that a run that starts again removes, as patterns.
        may_differ: keys of the recipe that a run may continue with other values of.
    """

    recipe: DocumentKind
    result: DocumentKind
    begun: tuple[str, ...]
    other: tuple[str, ...]
    cleared: tuple[str, ...]
    may_differ: tuple[str, ...]

    def check_folder(self, folder: Path, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder before any work.

        Raises:
            UsageError: an earlier run, or something else, is there, and nothing says what to do about it.
        """
        if overwrite or resume or not folder.exists():
            return
        if self.has_begun(folder):
            raise UsageError(
                f"{folder} holds an earlier run; pass --resume to continue it or --overwrite to start again"
            )
        known = {path for pattern in (*self.other, LOCK, self.recipe.file) for path in folder.glob(pattern)}
        if others := sorted(entry.name for entry in folder.iterdir() if entry not in known and entry.name[0] != "."):
            raise UsageError(
                f"{folder} holds {others[0]!r}, which no training wrote; choose another output, or pass --overwrite to"
                " train next to it"
            )

    def has_begun(self, folder: Path) -> bool:
        """Whether a run left anything that another would overwrite or continue."""
        return any(path.exists() for pattern in self.begun for path in folder.glob(pattern))

    def check_same(self, folder: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
        """Refuse to continue a run by another recipe, but for how long it is and where.

        Args:
            folder: of the run.
            earlier, now: the recipe's tables.

        Raises:
            ConfigError: names each key that differs, with both values.
        """
        there, here = dotted(earlier), dotted(now)
        keys = [key for key in there | here if there.get(key) != here.get(key) and key not in self.may_differ]
        if keys:
            differences = ", ".join(f"{key} = {there.get(key)!r} (now {here.get(key)!r})" for key in keys)
            raise ConfigError(
                f"the recipe differs from the one that {folder} was started with: {differences}; give the same, or"
                " another output"
            )

    def begin(
        self, folder: Path, recipe: dict[str, Any], *, longer: bool | None, notify: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Make a folder ready for a run; the result of one that has ended and is to have no more steps.

        Args:
            folder: of the run.
            recipe: its tables.
            longer: whether a run that has ended is to have more steps; None: start again.
            notify: called with lines for the user.
        """
        if longer is None:
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
        """Write how a run went."""
        write_file(folder / self.result.file, seal(result, self.result))

    def clear(self, folder: Path) -> None:
        """Remove what an earlier run would be resumed from; its model stays until a better one replaces it."""
        for path in [path for pattern in self.cleared for path in folder.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def is_longer(self, folder: Path, trainings: Sequence[NetworkTraining], before: int, now: int) -> bool:
        """Whether a run is to have more steps than it was started with; checked to be one that can continue.

        Args:
            folder: of a run by the same recipe, but for its length.
            trainings: of its networks.
            before, now: its steps.

        Raises:
            ConfigError: its first steps would have been others in a run of the new length, or it is that long already.
        """
        checkpoint = folder / CHECKPOINT
        if before == now or not (checkpoint.exists() or has_document(folder, self.result)):  # nothing is saved yet
            return False
        if not checkpoint.exists():
            raise ConfigError(
                f"{folder} ended at {before:,} steps and kept no {CHECKPOINT} to continue from to {now:,}; train again"
                " with --overwrite"
            )
        if now < (done := int(read_progress(checkpoint)["step"])):
            raise ConfigError(f"{folder} has made {done:,} steps already, more than {now:,}; ask for as many at least")
        for train in trainings:
            if not begins_alike(train, before, now, done):
                raise ConfigError(
                    f"the first {done:,} rates of {folder} would be others in a run of {now:,} steps than in its"
                    f' {before:,}: train.schedule.kind = "{train.schedule.kind}" or its warm-up depends on the end;'
                    " start again with --overwrite, or keep the length (constant, plateau and inverse_sqrt do not"
                    " depend on it, nor does a warm-up of at most half of the run)"
                )
        return now > before


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Have a run folder for this process; a folder that was made for it and stays empty is removed again.

    Of several processes that work together the first one has it.

    Raises:
        LockedError: names the process that trains there.
    """
    if not processes.is_first():
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


def dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as keys with dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def begins_alike(settings: NetworkTraining, before: int, now: int, n_steps: int) -> bool:
    """Whether runs of two lengths have the same learning rates in their first ``n_steps``.

    >>> from polyrank.config.schedules import ConstantSchedule, LinearSchedule
    >>> kinds = (ConstantSchedule(warmup_steps=2), LinearSchedule(warmup_steps=2))
    >>> [begins_alike(NetworkTraining(schedule=kind), 6, 9, 6) for kind in kinds]
    [True, False]
    """
    first, second = Schedule(settings, before), Schedule(settings, now)
    return all(first.factor(step) == second.factor(step) for step in range(n_steps))
