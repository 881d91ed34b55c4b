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

from polyrank.config.names import TWO
from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_to_dict
from polyrank.data import choose_speaker, draw_candidates, read_examples
from polyrank.data.candidate_lists import have_lists
from polyrank.data.speakers import speakers_of
from polyrank.devices import choose_device, keep_freed_memory
from polyrank.errors import ConfigError, DataError, UsageError
from polyrank.records import Example
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import make_folders, write_file
from polyrank.training.learner import Report
from polyrank.training.loop import FitResult, fit_together, phased
from polyrank.training.methods import make_step
from polyrank.training.network import make_learner, new_ranker
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
        ConfigError: the recipe asks for something that the networks cannot do.
        DataError: the data cannot be read or holds nothing to learn from.
    """
    keep_freed_memory()
    output = Path(recipe.output)
    examples, valid = load_data(recipe, say)
    results = []
    for seed in recipe.train.seeds:
        folder = output if len(recipe.train.seeds) == 1 else output / f"seed-{seed}"
        results.extend(_train_one(recipe, seed, folder, examples, valid, resume, overwrite, device, report, say))
    return results


def load_data(recipe: Recipe, say: Callable[[str], None]) -> tuple[list[Example], list[Example]]:
    """Training examples (those with a right answer) and validation lists."""
    data = recipe.data
    speaker = data.speaker
    if data.kind in (None, "dialogues"):
        speaker = choose_speaker(data.train, speaker, option="data.speaker", say=say)
    loaded = read_examples(Path(data.train), kind=data.kind, speaker=speaker, skip_bad=data.skip_bad)
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
        holds_dialogues = speakers_of(data.valid) is not None
        speaker = choose_speaker(data.valid, data.speaker, option="data.speaker", say=say) if holds_dialogues else None
        loaded = read_examples(Path(data.valid), speaker=speaker, skip_bad=data.skip_bad)
        valid = [example for example in loaded.examples if example.relevant]
        if not valid:
            raise DataError(f"{data.valid}: validation needs examples with the text of a right answer")
        if not have_lists(valid):  # drawn from all of them, and with one seed, so that every run is judged by the same
            valid = draw_candidates(valid, data.valid_candidates, what=data.valid)
        valid = [example for example in valid if len(example.candidates) > 1][: data.max_valid]
        say(f"{data.valid}: {len(valid):,} validation examples of {len(valid[0].candidates)} candidates")
    return examples, valid


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
            results = read_document(folder, RESULT)
            fits = [FitResult(**(results[name] if name else results)) for name in names]
            return _results(seed, folder, names, fits)
        if overwrite and not resume:
            _clear(folder)
    make_folders(folder)
    write_file(folder / RECIPE.file, seal(recipe_to_dict(recipe), RECIPE))

    chosen = choose_device(device)
    parts = [(recipe.model, recipe.text, recipe.train.of_one_network())]
    if (partner := recipe.reranker) is not None:
        parts.append((partner.model, partner.text, partner.train))
    rankers = [
        new_ranker(model, text, own, examples, precision=recipe.train.precision, seed=seed, device=chosen)
        for model, text, own in parts
    ]
    step = make_step(rankers, recipe.train, examples, device=chosen, seed=seed, folder=folder)
    n_parameters = sum(p.numel() for ranker in rankers for p in ranker.model.parameters())
    say(f"seed {seed}: {n_parameters:,} parameters on {chosen}")

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
        learners, phased(step), examples, recipe.train, seed=seed, folder=folder, device=chosen, resume=resume
    )
    for drawn in curves:
        drawn.close()
    results = {name: dataclasses.asdict(fit) for name, fit in zip(names, fits, strict=True)}
    write_file(folder / RESULT.file, seal(results.get("", results), RESULT))
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
    document = read_document(folder, RECIPE)
    try:
        return recipe_from_dict(document) == recipe
    except ConfigError:
        if "n_negatives" not in document.get("train", {}):
            return False
    raise ConfigError(
        f"{folder / RECIPE.file} has keys of train where recipes no longer have them; start again with --overwrite"
    )
