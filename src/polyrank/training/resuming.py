"""What a run folder holds already, and whether a training may go on with it; one process has it at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polyrank.config.models import TWO, RecipeModel, SumConfig
from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_to_dict
from polyrank.config.training import NetworkTraining
from polyrank.devices import processes
from polyrank.errors import ConfigError, UsageError
from polyrank.loading.models import model_folder
from polyrank.models.artifacts import OURS
from polyrank.storage.document import DocumentKind, has_document, read_document
from polyrank.storage.durable import check_replaceable, make_folders
from polyrank.storage.lock import hold
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.loop import check_steps, count_steps
from polyrank.training.optimizer import Schedule
from polyrank.training.sums import OURS_OF_A_SUM

RECIPE, RESULT = (
    DocumentKind(
        name="run folder",
        file=file,
        missing="check the path",
        remedy="train again with --overwrite",
        seal_optional=True,
    )
    for file in ("recipe.json", "result.json")
)
LOCK = "run.lock"
OF_A_RUN = (CHECKPOINT, RESULT.file, "metrics.jsonl", "model")
BEFORE_A_RUN = (LOCK, RECIPE.file, "tensorboard", "teacher-scores.sqlite*", "mined-*.npy", *TWO)
MAY_DIFFER = ("output", "data.cache", "train.seeds", "train.epochs", "train.max_steps", "train.checkpoint_steps")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Have a run folder for this process; a folder that was made for it and stays empty goes again.

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


def check_folder(folder: Path, recipe: Recipe, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder before any work, as far as it can be known then.

    Raises:
        UsageError: an earlier run, or something else, is there, and nothing says what to do about it; or a model's
            folder, which will be replaced, holds what would be lost.
        ConfigError: the run that would go on was started with other settings; names them.
    """
    networks = [recipe.model] if recipe.reranker is None else [recipe.model, recipe.reranker.model]
    for name, model in zip([""] if recipe.reranker is None else TWO, networks, strict=True):
        ours = OURS_OF_A_SUM if isinstance(model, SumConfig) else OURS
        check_replaceable(folder / name / "model", ours=ours, replace=True)
        _check_parts(folder, model)
    if overwrite or not folder.exists():
        return
    if _has_begun(folder):
        if not resume:
            raise UsageError(
                f"{folder} holds an earlier run; pass --resume to go on with it or --overwrite to start again"
            )
        check_same(folder, recipe)
        return
    others = [entry.name for entry in folder.iterdir() if not any(entry.match(name) for name in BEFORE_A_RUN)]
    if others and not resume:
        raise UsageError(
            f"{folder} holds {min(others)!r}, which is of no training; choose another output, or pass --overwrite to"
            " train beside it"
        )


def _check_parts(folder: Path, model: RecipeModel) -> None:
    """Refuse a sum that would take the place of what it starts from, which a resumed run would then miss."""
    for name in model.parts if isinstance(model, SumConfig) else ():
        if model_folder(name).resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{name}, which the sum starts from, lies in {folder}; choose another output")


def _has_begun(folder: Path) -> bool:
    return any((folder / name / file).exists() for name in ("", *TWO) for file in OF_A_RUN)


def check_same(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on with a run by another recipe, but for how long it is and where.

    Raises:
        ConfigError: names each key that differs, with both values.
    """
    if not has_document(folder, RECIPE):
        return
    there, now = (dotted(recipe_to_dict(plan)) for plan in (earlier_recipe(folder), recipe))
    keys = [key for key in there | now if there.get(key) != now.get(key) and key not in MAY_DIFFER]
    if keys:
        differences = ", ".join(f"{key} = {there.get(key)!r} (now {now.get(key)!r})" for key in keys)
        raise ConfigError(
            f"the recipe differs from the one that {folder} was started with: {differences}; give the same, or another"
            " output"
        )


def earlier_recipe(folder: Path) -> Recipe:
    """The recipe that a run was started with; settings that did not exist when it was written have defaults."""
    document = read_document(folder, RECIPE)
    try:
        return recipe_from_dict(document)
    except ConfigError as error:
        raise ConfigError(
            f"{folder / RECIPE.file} cannot be read as a recipe of today ({error}); start again with --overwrite"
        ) from error


def dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as keys with dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def is_longer(folder: Path, recipe: Recipe, n_examples: int) -> bool:
    """Whether the recipe asks for more steps than the run was started with; checked to be one that can go on.

    Args:
        folder: of a run by the same recipe, but for its length.
        recipe: how it is to go on.
        n_examples: to train on.

    Raises:
        ConfigError: its first steps would have been others in a run of the new length, or it is that long already.
    """
    checkpoint = folder / CHECKPOINT
    if not has_document(folder, RECIPE) or not (checkpoint.exists() or has_document(folder, RESULT)):
        return False  # nothing is saved yet
    before, now = (count_steps(plan.train, n_examples)[0] for plan in (earlier_recipe(folder), recipe))
    if before == now:
        return False
    if not checkpoint.exists():
        raise ConfigError(
            f"{folder} ended at {before:,} steps and kept no {CHECKPOINT} to go on from to {now:,}; train again with"
            " --overwrite"
        )
    done = int(read_progress(checkpoint)["step"])
    if now < done:
        raise ConfigError(f"{folder} has made {done:,} steps already, more than {now:,}; ask for as many at least")
    for train in _networks(recipe):
        if not begins_alike(train, before, now, done):
            raise ConfigError(
                f"the first {done:,} rates of {folder} would be others in a run of {now:,} steps than in its"
                f' {before:,}: train.schedule.kind = "{train.schedule.kind}" or its warm-up depends on the end; train'
                " anew with --overwrite, or keep the length (constant, plateau and inverse_sqrt do not depend on it,"
                " nor does a warm-up of at most half of the run)"
            )
    return now > before


def extra_check(recipe: Recipe, n_examples: int, last: int) -> bool:
    """Whether a run that ended at step ``last`` was validated there, and one by this recipe would not have been."""
    n_steps, per_epoch = count_steps(recipe.train, n_examples)
    return recipe.data.valid is not None and last not in check_steps(
        n_steps, per_epoch, recipe.train.evaluate_per_epoch
    )


def may_be_extended(recipe: Recipe, n_examples: int) -> bool:
    """Whether a longer run would have begun just as this one."""
    n_steps, _ = count_steps(recipe.train, n_examples)
    return all(begins_alike(train, n_steps, 2 * n_steps, n_steps) for train in _networks(recipe))


def begins_alike(settings: NetworkTraining, before: int, now: int, n_steps: int) -> bool:
    """Whether runs of two lengths have the same learning rates in their first ``n_steps``.

    >>> from polyrank.config.schedules import ConstantSchedule, LinearSchedule
    >>> kinds = (ConstantSchedule(warmup_steps=2), LinearSchedule(warmup_steps=2))
    >>> [begins_alike(NetworkTraining(schedule=kind), 6, 9, 6) for kind in kinds]
    [True, False]
    """
    first, second = Schedule(settings, before), Schedule(settings, now)
    return all(first.factor(step) == second.factor(step) for step in range(n_steps))


def _networks(recipe: Recipe) -> list[NetworkTraining]:
    return [recipe.train] if recipe.reranker is None else [recipe.train, recipe.reranker.train]
