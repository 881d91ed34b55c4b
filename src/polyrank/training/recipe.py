"""A recipe carried out: data read, model made, fit, the best model saved, once for each seed.

A run folder holds recipe.json (as resolved), metrics.jsonl, tensorboard/ where that is installed, model/, and
result.json when it has ended; run.lock while it runs, and checkpoint.safetensors too, which stays if the run can be
extended. Of two networks each has such a folder in it, retriever/ and reranker/, for all but recipe, checkpoint and
result.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyrank.config.models import TWO, RecipeModel, SumConfig, TextSettings
from polyrank.config.recipe import DataConfig, Recipe, load_recipe, recipe_to_dict
from polyrank.config.training import NetworkTraining
from polyrank.data import choose_speaker, draw_candidates, read_examples
from polyrank.data.candidate_lists import have_lists
from polyrank.data.in_memory import rows_of
from polyrank.data.mapped_examples import StoredExamples, open_stored
from polyrank.data.rows import shards
from polyrank.data.speakers import speakers_of
from polyrank.devices import processes
from polyrank.devices.choice import choose_device, keep_freed_memory
from polyrank.errors import ConfigError, DataError
from polyrank.evaluation import evaluate, summarise
from polyrank.records import Example
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Scorer
from polyrank.storage.document import has_document, read_document, seal
from polyrank.storage.durable import make_folders, write_file
from polyrank.training.checkpoints import CHECKPOINT
from polyrank.training.convert_step import ConvertStep
from polyrank.training.learner import Report
from polyrank.training.loop import FitResult, fit_together, phased
from polyrank.training.methods import make_step
from polyrank.training.network import Ranker, make_learner, new_ranker
from polyrank.training.resuming import (
    RECIPE,
    RESULT,
    alone_in,
    check_folder,
    extra_check,
    is_longer,
    may_be_extended,
)
from polyrank.training.steps import InBatchStep
from polyrank.training.sums import new_sum
from polyrank.training.tensorboard import TensorBoard


@dataclass(frozen=True, slots=True)
class RunResult:
    """One seed's training.

    Args:
        seed: of the run.
        model: the folder of the best model.
        fit: how it went.
        network: "retriever" or "reranker" where there are two.
        test: figures of the model on the recipe's ``data.test``, as ``polyrank.summarise`` gives them; empty without.
    """

    seed: int
    model: Path
    fit: FitResult
    network: str = ""
    test: dict[str, Any] = field(default_factory=dict)

    def load(self, *, device: str = "auto") -> Scorer:
        """The model, to rank with."""
        return load(self.model, device=device)


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[int, dict[str, Any]], None] = lambda seed, record: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[RunResult]:
    """Carry out a recipe; several seeds go to ``seed-N`` folders below its output.

    Under ``torchrun`` all processes have to call this; they share the work, and the first one writes and reports.

    Args:
        recipe: what to do: a Recipe, its file, or its tables as dictionaries.
        examples, valid: to learn from and to choose the best step by, in place of the recipe's files: Examples, rows,
            or tables as ``polyrank.read_examples`` takes them.
        resume: go on from checkpoints. Finished seeds are not trained again; where the recipe asks for more epochs or
            steps, and their rates so far do not depend on how many, they are trained on. The number of processes may
            be another one.
        overwrite: start again where there is an earlier run.
        device: "auto", "cpu" or "cuda".
        report: called with the seed and each record of metrics.jsonl.
        say: called with lines for the user.

    Raises:
        UsageError: an earlier run is there, and neither ``resume`` nor ``overwrite`` is set.
        LockedError: another process trains there.
        ConfigError: the recipe asks for something that the networks cannot do, or is not that of the earlier run.
        DataError: the data cannot be read or holds nothing to learn from.
        LostProcessError: of several processes another one has ended.
    """
    keep_freed_memory()
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    with processes.together():
        tell = say if processes.is_first() else lambda text: None
        return _train(recipe, examples, valid, resume, overwrite, device, report, tell)


def _train(
    recipe: Recipe,
    examples: Iterable[Any] | None,
    valid: Iterable[Any] | None,
    resume: bool,
    overwrite: bool,
    device: str,
    report: Callable[[int, dict[str, Any]], None],
    say: Callable[[str], None],
) -> list[RunResult]:
    output = Path(recipe.output)
    seeds = recipe.train.seeds
    folders = {seed: output if len(seeds) == 1 else output / f"seed-{seed}" for seed in seeds}

    def check() -> None:
        for folder in folders.values():
            check_folder(folder, recipe, resume=resume, overwrite=overwrite)

    results = []
    with alone_in(output):
        processes.by_first(check)
        learnt, judged = load_data(recipe.data, examples, valid, say)
        if recipe.train.negatives is None and (n_given := _n_given(learnt)):
            say(
                f"{n_given:,} of {len(learnt):,} training examples come with wrong candidates, which are not learnt"
                ' from; to add them to the other responses of the batch, set train.negatives.sources to ["given"]'
            )
        held_out = [] if recipe.data.test is None else read_lists(recipe.data, "test", say=say)
        for seed, folder in folders.items():
            results.extend(_train_one(recipe, seed, folder, learnt, judged, resume, overwrite, device, report, say))
    if held_out:
        say(f"evaluating on the {len(held_out):,} examples of {recipe.data.test}")
        results = [replace(run, test=summarise(evaluate(run.load(device=device), held_out))) for run in results]
    return results


def load_data(
    data: DataConfig,
    examples: Iterable[Any] | None = None,
    valid: Iterable[Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Sequence[Example], list[Example]]:
    """Training examples (those with a right answer) and validation lists, from files or from memory."""
    stored = data.cache is not None and examples is None
    learnt: Sequence[Example] = _stored(data, say) if stored else _read(data, "train", examples, say)
    if data.max_train is not None and data.max_train < len(learnt):
        # a subset that does not depend on the training seed, so that every model and seed learns from the same
        chosen = np.random.Generator(np.random.PCG64(20200113)).permutation(len(learnt))[: data.max_train]
        chosen.sort()
        learnt = learnt.choose(chosen) if isinstance(learnt, StoredExamples) else [learnt[i] for i in chosen.tolist()]
        say(f"using a random subset of {len(learnt):,}")
    if data.valid is None and valid is None:
        return learnt, []
    return learnt, read_lists(data, "valid", valid, say)[: data.max_valid]


def read_lists(
    data: DataConfig,
    part: Literal["valid", "test"],
    given: Iterable[Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Example]:
    """Candidate lists to choose or to be judged by; those of dialogues and pairs are drawn."""
    lists, name = _read(data, part, given, say), getattr(data, part) or part
    if not have_lists(lists):  # drawn from all of them, and with one seed, so that every run is judged by the same
        lists = draw_candidates(lists, data.valid_candidates, what=name)
    lists = [example for example in lists if len(example.candidates) > 1]
    say(f"{name}: {len(lists):,} examples of {len(lists[0].candidates)} candidates")
    return lists


def _stored(data: DataConfig, say: Callable[[str], None]) -> StoredExamples:
    """The training examples, on disk."""
    if data.train is None or data.cache is None:
        raise ConfigError("data.cache keeps the examples of a file on disk, and data.train names none; name one")
    source, speaker = Path(data.train), data.speaker
    first = shards(source)[0]
    if data.kind in (None, "dialogues"):
        speaker = choose_speaker(first, speaker, option="data.speaker", say=say)
    opened = partial(
        open_stored, source, Path(data.cache), kind=data.kind, speaker=speaker, skip_bad=data.skip_bad, say=say
    )
    if processes.count() > 1:
        processes.by_first(lambda: len(opened()))  # which makes the folder
    return opened()


def _n_given(examples: Sequence[Example]) -> int:
    """How many come with wrong candidates."""
    if isinstance(examples, StoredExamples):
        return examples.n_given
    return sum(len(example.candidates) > len(example.relevant) for example in examples)


def _read(
    data: DataConfig, part: Literal["train", "valid", "test"], given: Iterable[Any] | None, say: Callable[[str], None]
) -> list[Example]:
    """The examples of a part that have a right answer."""
    kind, speaker = data.kind if part == "train" else None, data.speaker
    source: str | list[Any] | None = getattr(data, part) if given is None else list(rows_of(given))
    if source is None:
        raise ConfigError(f"there is nothing to learn from; name a file in data.{part}, or give examples")
    name = source if isinstance(source, str) else part
    if part != "train" and speakers_of(source) is None:  # which the speaker of the training part says nothing of
        speaker = None
    elif kind in (None, "dialogues"):
        speaker = choose_speaker(source, speaker, name=name, option="data.speaker", say=say)
    loaded = read_examples(source, kind=kind, speaker=speaker, skip_bad=data.skip_bad)
    say(f"{name}: {loaded.report}")
    if examples := [example for example in loaded.examples if example.relevant]:
        return examples
    raise DataError(f"{name}: no example has the text of a right answer; there is nothing to learn from or judge by")


def _train_one(
    recipe: Recipe,
    seed: int,
    folder: Path,
    examples: Sequence[Example],
    valid: list[Example],
    resume: bool,
    overwrite: bool,
    device: str,
    report: Callable[[int, dict[str, Any]], None],
    say: Callable[[str], None],
) -> list[RunResult]:
    names = [""] if recipe.reranker is None else [*TWO]
    ended = processes.by_first(lambda: _begin(recipe, folder, names, len(examples), resume, overwrite, say))
    if ended is not None:
        return _results(seed, folder, names, ended)
    chosen = choose_device(device)
    parts: list[tuple[RecipeModel, TextSettings, NetworkTraining]] = [
        (recipe.model, recipe.text, recipe.train.of_one_network())
    ]
    if (partner := recipe.reranker) is not None:
        parts.append((partner.model, partner.text, partner.train))
    precision = recipe.train.precision

    def ranker_of(model: RecipeModel, text: TextSettings, own: NetworkTraining) -> Ranker:
        if isinstance(model, SumConfig):
            return new_sum(model, own, precision=precision, device=chosen)
        return new_ranker(model, text, own, examples, precision=precision, seed=seed, device=chosen)

    rankers = [ranker_of(*part) for part in parts]
    step = make_step(rankers, recipe.train, examples, device=chosen, seed=seed, folder=folder)
    n_parameters = sum(p.numel() for ranker in rankers for p in ranker.model.parameters())
    with_others = f", {n} processes" if (n := processes.count()) > 1 else ""
    say(f"seed {seed}: {n_parameters:,} parameters on {chosen}{with_others}")

    def tell(name: str, record: dict[str, Any]) -> None:
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
            report=_both(drawn, partial(tell, name)),
            name=name,
        )
        for ranker, (_, _, own), name, drawn in zip(rankers, parts, names, curves, strict=True)
    ]
    fits = fit_together(
        learners,
        phased(step),
        examples,
        recipe.train,
        seed=seed,
        folder=folder,
        device=chosen,
        resume=resume,
        memory=step.queue if isinstance(step, InBatchStep | ConvertStep) else None,
    )
    for drawn in curves:
        drawn.close()
    processes.by_first(lambda: _end(recipe, folder, names, len(examples), fits))
    return _results(seed, folder, names, fits)


def _begin(
    recipe: Recipe,
    folder: Path,
    names: Sequence[str],
    n_examples: int,
    resume: bool,
    overwrite: bool,
    say: Callable[[str], None],
) -> list[FitResult] | None:
    """Make a run's folder ready; gives how it went if it has ended and is to go no further."""
    if overwrite and not resume:
        _clear(folder)
    longer = resume and is_longer(folder, recipe, n_examples)
    if resume and has_document(folder, RESULT):
        results = read_document(folder, RESULT)
        fits = [FitResult(**(results[name] if name else results)) for name in names]
        if not longer:
            say(f"{folder} is finished")
            return fits
        say(f"{folder} goes on behind its {fits[0].n_steps:,} steps")
        if extra_check(recipe, n_examples, fits[0].n_steps):
            say(f"it was validated after step {fits[0].n_steps:,}, as an uninterrupted run would not have been")
        (folder / RESULT.file).unlink()
    make_folders(folder)
    write_file(folder / RECIPE.file, seal(recipe_to_dict(recipe), RECIPE))
    return None


def _end(recipe: Recipe, folder: Path, names: Sequence[str], n_examples: int, fits: Sequence[FitResult]) -> None:
    """Write how it went, and drop what only a run that may be extended needs."""
    results = {name: dataclasses.asdict(fit) for name, fit in zip(names, fits, strict=True)}
    write_file(folder / RESULT.file, seal(results.get("", results), RESULT))
    if not may_be_extended(recipe, n_examples):
        for leftover in (CHECKPOINT, "mined-*.npy"):
            for path in folder.glob(leftover):
                path.unlink()


def _results(seed: int, folder: Path, names: Sequence[str], fits: Sequence[FitResult]) -> list[RunResult]:
    return [RunResult(seed, folder / name / "model", fit, name) for name, fit in zip(names, fits, strict=True)]


def _both(first: Report, second: Report) -> Report:
    def report(record: dict[str, Any]) -> None:
        first(record)
        second(record)

    return report


def _clear(folder: Path) -> None:
    """Forget earlier runs; models stay until better ones replace them, and a teacher's scores stay true."""
    for pattern in (CHECKPOINT, RESULT.file, "mined-*.npy"):
        for path in folder.glob(pattern):
            path.unlink()
    for name in ("", *TWO):
        (folder / name / "metrics.jsonl").unlink(missing_ok=True)
        shutil.rmtree(folder / name / "tensorboard", ignore_errors=True)
    for seed in folder.glob("seed-*/"):
        _clear(seed)
