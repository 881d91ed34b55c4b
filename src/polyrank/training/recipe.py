"""A recipe carried out: data read, model made, fit, the best model saved, once for each seed.

A run folder holds recipe.json (as resolved), metrics.jsonl, tensorboard/ where that is installed, model/,
checkpoint.safetensors while it runs, and result.json when it has ended. Of two networks each has such a folder in it,
retriever/ and reranker/, for all but recipe, checkpoint and result.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.config.models import CrossConfig
from polyrank.config.names import TWO
from polyrank.config.recipe import Recipe, default_train, recipe_from_dict, recipe_to_dict
from polyrank.data import read_examples
from polyrank.devices import choose_device, keep_freed_memory
from polyrank.errors import ConfigError, DataError, UsageError
from polyrank.records import Example
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import write_file
from polyrank.training.learner import Report
from polyrank.training.loop import FitResult, fit_together, phased
from polyrank.training.methods import make_mutual_step, make_step
from polyrank.training.mutual import MutualStep
from polyrank.training.network import make_learner, new_ranker
from polyrank.training.steps import Step
from polyrank.training.tensorboard import TensorBoard

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


@dataclass(frozen=True, slots=True)
class RunResult:
    """One seed's training.

    Args:
        seed: of the run.
        model: the folder of the best model.
        fit: how it went.
        network: "retriever" or "reranker" where there are two.
    """

    seed: int
    model: Path
    fit: FitResult
    network: str = ""


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[RunResult]:
    """Carry out a recipe; several seeds go to ``seed-N`` folders below its output.

    Args:
        recipe: what to do.
        resume: go on from checkpoints; finished seeds are not trained again.
        overwrite: start again where there is an earlier run.
        device: "auto", "cpu" or "cuda".
        report: called with the seed and each record of metrics.jsonl.
        say: called with lines for the user.

    Raises:
        ConfigError: the recipe asks for something impossible.
        DataError: the data cannot be read or holds nothing to learn from.
    """
    keep_freed_memory()
    output = Path(recipe.output)
    settings = recipe.train
    check_method(recipe)
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise ConfigError(f"train.seeds = {list(settings.seeds)} is empty or holds one twice; give each once")
    if foreign := unread_keys(recipe):
        say(f"train.method = {settings.method!r} does not look at {', '.join(f'train.{key}' for key in foreign)}")
    examples, valid = load_data(recipe, say)
    results = []
    for seed in settings.seeds:
        folder = output if len(settings.seeds) == 1 else output / f"seed-{seed}"
        results.extend(_train_one(recipe, seed, folder, examples, valid, resume, overwrite, device, report, say))
    return results


def load_data(recipe: Recipe, say: Callable[[str], None]) -> tuple[list[Example], list[Example]]:
    """Training examples (those with a right answer) and validation lists."""
    data = recipe.data
    loaded = read_examples(Path(data.train), kind=data.kind, speaker=data.speaker, skip_bad=data.skip_bad)
    say(f"{data.train}: {loaded.report}")
    examples = [example for example in loaded.examples if example.relevant]
    if not examples:
        raise DataError(f"{data.train}: no example has a right answer; there is nothing to learn from")
    if data.max_train is not None and data.max_train < len(examples):
        # a subset that does not depend on the training seed, so that every model and seed learns from the same
        chosen = np.random.Generator(np.random.PCG64(20200113)).permutation(len(examples))[: data.max_train]
        examples = [examples[i] for i in sorted(chosen.tolist())]
        say(f"using a random subset of {len(examples):,}")
    valid: list[Example] = []
    if data.valid is not None:
        found = read_examples(Path(data.valid), skip_bad=data.skip_bad)
        valid = [example for example in found.examples if example.relevant][: data.max_valid]
        if not valid or len(valid[0].candidates) < 2:
            raise DataError(f"{data.valid}: validation needs candidate lists with a right answer")
        say(f"{data.valid}: {len(valid):,} validation examples of {len(valid[0].candidates)} candidates")
    return examples, valid


def check_method(recipe: Recipe) -> None:
    """Whether a method has what it needs, and no network that it would not train.

    Raises:
        ConfigError: it has not.
    """
    settings, method = recipe.train, recipe.train.method
    if isinstance(recipe.model, CrossConfig) and method == "in_batch":
        raise ConfigError('a Cross-encoder has no in-batch negatives; set train.method = "listwise"')
    if (method == "mutual") != (recipe.reranker is not None):
        raise ConfigError(
            'train.method = "mutual" takes two networks, and the second is the table [reranker]; give both or neither'
        )
    if (method == "distill") != (settings.teacher is not None):
        raise ConfigError(
            'train.method = "distill" takes a teacher, a model folder at train.teacher; give both or neither'
        )
    if settings.remine_epochs is not None and (settings.remine_epochs < 1 or method == "in_batch"):
        raise ConfigError(
            f"train.remine_epochs = {settings.remine_epochs} with train.method = {method!r}: lists are mined every 1 or"
            ' more epochs, for "listwise", "distill" and "mutual"'
        )
    if settings.temperature <= 0 or settings.alpha < 0 or settings.label_weight < 0:
        raise ConfigError(
            f"train.temperature = {settings.temperature} must be above 0, train.alpha = {settings.alpha} and"
            f" train.label_weight = {settings.label_weight} not below"
        )


# keys of ``train`` that a method does not read
LISTS = ("n_negatives", "redraw_negatives", "remine_ranks")
IMITATION = ("imitation", "alpha", "label_weight", "temperature")
UNREAD = {
    "in_batch": (*LISTS, *IMITATION, "teacher_scores"),
    "listwise": (*IMITATION, "teacher_scores", "smoothing"),
    "distill": ("smoothing",),
    "mutual": ("teacher_scores", "smoothing"),
}


def unread_keys(recipe: Recipe) -> list[str]:
    """Settings of ``train`` that its method does not read and that are not the defaults: they change nothing.

    Args:
        recipe: with its model, whose kind says what the defaults are.

    >>> from polyrank.config.recipe import recipe_from_dict
    >>> values = {"model": {"kind": "bi"}, "data": {"train": "x"}, "output": "y", "train": {"alpha": 2.0}}
    >>> unread_keys(recipe_from_dict(values))
    ['alpha']
    """
    settings, defaults = recipe.train, default_train(recipe.model, recipe.train)
    unread = UNREAD[settings.method]
    if settings.remine_epochs is None and "remine_ranks" not in unread:
        unread = (*unread, "remine_ranks")
    return [key for key in unread if getattr(settings, key) != getattr(defaults, key)]


def _train_one(
    recipe: Recipe,
    seed: int,
    folder: Path,
    examples: list[Example],
    valid: list[Example],
    resume: bool,
    overwrite: bool,
    device: str,
    report: Callable[[int, dict[str, Any]], None],
    say: Callable[[str], None],
) -> list[RunResult]:
    names = [""] if recipe.reranker is None else [*TWO]
    if folder.exists() and any(folder.iterdir()):
        if not (resume or overwrite):
            raise UsageError(
                f"{folder} holds an earlier run; pass --resume to go on with it or --overwrite to start again"
            )
        if resume and has_document(folder, RECIPE) and not _same_recipe(folder, recipe):
            raise ConfigError(f"the recipe differs from the one that {folder} was started with; use another output")
        if resume and has_document(folder, RESULT):
            say(f"{folder} is finished")
            found = read_document(folder, RESULT)
            fits = [FitResult(**(found[name] if name else found)) for name in names]
            return _results(seed, folder, names, fits)
        if overwrite and not resume:
            _clear(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RECIPE.file, seal(recipe_to_dict(recipe), RECIPE))

    place = choose_device(device)
    first = new_ranker(recipe.model, recipe.text, recipe.train, examples, seed=seed, device=place)
    rankers, settings = [first], [recipe.train]
    step: Step | MutualStep
    if recipe.reranker is None:
        step = make_step(first, recipe.train, examples, device=place, seed=seed, folder=folder)
    else:
        partner = recipe.reranker
        second = new_ranker(partner.model, partner.text, partner.train, examples, seed=seed, device=place)
        rankers, settings = [first, second], [recipe.train, partner.train]
        step = make_mutual_step(first, second, recipe.train, examples, device=place, seed=seed, folder=folder)
    n_parameters = sum(p.numel() for ranker in rankers for p in ranker.model.parameters())
    say(f"seed {seed}: {n_parameters:,} parameters on {place}")

    def told(name: str, record: dict[str, Any]) -> None:
        report(seed, {"network": name, **record} if name else record)

    curves = [TensorBoard(folder / name / "tensorboard") for name in names]
    metadata = {"recipe": recipe_to_dict(recipe), "seed": seed}
    learners = [
        make_learner(
            ranker,
            own,
            folder / name,
            valid,
            metadata=metadata,
            report=_both(drawn, partial(told, name)),
            name=name,
        )
        for ranker, own, name, drawn in zip(rankers, settings, names, curves, strict=True)
    ]
    fits = fit_together(learners, phased(step), examples, seed=seed, folder=folder, device=place, resume=resume)
    for drawn in curves:
        drawn.close()
    found = {name: dataclasses.asdict(fit) for name, fit in zip(names, fits, strict=True)}
    write_file(folder / RESULT.file, seal(found.get("", found), RESULT))
    for leftover in ("checkpoint.safetensors", "mined-*.npy"):
        for path in folder.glob(leftover):
            path.unlink()
    return _results(seed, folder, names, fits)


def _results(seed: int, folder: Path, names: Sequence[str], fits: Sequence[FitResult]) -> list[RunResult]:
    return [RunResult(seed, folder / name / "model", fit, name) for name, fit in zip(names, fits, strict=True)]


def _both(first: Report, second: Report) -> Report:
    def report(record: dict[str, Any]) -> None:
        first(record)
        second(record)

    return report


def _clear(folder: Path) -> None:
    """Forget earlier runs; models stay until better ones replace them, and a teacher's scores stay true."""
    for pattern in ("checkpoint.safetensors", RESULT.file, "mined-*.npy"):
        for path in folder.glob(pattern):
            path.unlink()
    for name in ("", *TWO):
        (folder / name / "metrics.jsonl").unlink(missing_ok=True)
        shutil.rmtree(folder / name / "tensorboard", ignore_errors=True)
    for seed in folder.glob("seed-*/"):
        _clear(seed)


def _same_recipe(folder: Path, recipe: Recipe) -> bool:
    """Whether a run's recipe.json says the same; settings that did not exist when it was written have defaults."""
    try:
        return recipe_from_dict(read_document(folder, RECIPE)) == recipe
    except ConfigError:
        return False
