"""A recipe of pre-training carried out: vocabulary learnt, texts as ids, network made, fit, the best backbone saved.

A run folder holds pretraining.json (the recipe), tokenizer.json (a vocabulary that was learnt), tokens/ (texts as ids),
metrics.jsonl, checkpoint.safetensors (with the heads, to go on from), model/ and, when it has ended, pretrained.json;
run.lock while it runs.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyrank.config.checked import to_dict
from polyrank.config.pretraining import (
    ContinuedModel,
    PretrainRecipe,
    VocabularyConfig,
    load_pretrain_recipe,
    pretrain_recipe_from_dict,
)
from polyrank.devices import processes
from polyrank.devices.choice import choose_device, keep_freed_memory
from polyrank.errors import ConfigError, UsageError
from polyrank.models.pretraining import (
    BACKBONE_FILES,
    Start,
    continued_backbone,
    new_bert,
    pretraining_network,
    save_backbone,
)
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import check_replaceable, make_folders, write_file
from polyrank.text import Subwords, learn_bert_subwords, read_subwords
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.pretraining.loop import VALID_SEED, PretrainFit, Reading, fit, separator_of
from polyrank.training.pretraining.tokens import Pairs, open_pairs, rows_of, texts_of
from polyrank.training.resuming import alone_in, begins_alike, dotted

RECIPE, RESULT = (
    DocumentKind(
        name="folder of a pre-training", file=file, missing="check the path", remedy="start again with --overwrite"
    )
    for file in ("pretraining.json", "pretrained.json")
)
VOCABULARY, TOKENS, MODEL, LOCK = "tokenizer.json", "tokens", "model", "run.lock"
BEGUN = (CHECKPOINT, RESULT.file, "metrics.jsonl", MODEL)
OURS = (*BEGUN, RECIPE.file, VOCABULARY, TOKENS, LOCK)
MAY_DIFFER = ("output", "data.cache", "train.steps", "train.checkpoint_steps", "train.micro_batch_tokens")


@dataclass(frozen=True, slots=True)
class PretrainResult:
    """A pre-training's outcome.

    Args:
        model: the Hugging Face folder of the best backbone.
        fit: how it went.
    """

    model: Path
    fit: PretrainFit


def pretrain(
    recipe: PretrainRecipe | str | Path | Mapping[str, Any],
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[dict[str, Any]], None] = lambda record: None,
    say: Callable[[str], None] = lambda text: None,
) -> PretrainResult:
    """Pre-train a transformer by a recipe; the result is a backbone for every model here.

    Under ``torchrun`` all processes have to call this; they share the work, and the first one writes and reports.

    Args:
        recipe: what to do: a PretrainRecipe, its file, or its tables as dictionaries.
        resume: go on from the checkpoint of an interrupted run, or of one that is to have more steps.
        overwrite: start again where there is an earlier run.
        device: "auto", "cpu" or "cuda".
        report: called with each record of metrics.jsonl.
        say: called with lines for the user.

    Raises:
        UsageError: an earlier run is there, and neither ``resume`` nor ``overwrite`` is set.
        LockedError: another process trains there.
        ConfigError: the recipe asks for the impossible, or is not that of the earlier run.
        DataError: the data cannot be read or holds nothing to learn from.
        LostProcessError: of several processes another one has ended.
    """
    keep_freed_memory()
    if not isinstance(recipe, PretrainRecipe):
        recipe = load_pretrain_recipe(recipe)
    folder, chosen, plan = Path(recipe.output), choose_device(device), recipe
    with processes.together(), alone_in(folder):
        ended = processes.by_first(lambda: _begin(plan, folder, resume, overwrite, say))
        if ended is not None:
            return PretrainResult(folder / MODEL, ended)
        tell = say if processes.is_first() else lambda text: None
        result = _fit(recipe, folder, chosen, resume, report, tell)
        if processes.is_first():
            write_file(folder / RESULT.file, seal(dataclasses.asdict(result), RESULT))
    return PretrainResult(folder / MODEL, result)


def _begin(
    recipe: PretrainRecipe, folder: Path, resume: bool, overwrite: bool, say: Callable[[str], None]
) -> PretrainFit | None:
    """Make a run's folder ready; gives how it went if it has ended and is to go no further."""
    _check_folder(folder, recipe, resume=resume, overwrite=overwrite)
    if overwrite and not resume:
        for file in (CHECKPOINT, RESULT.file, "metrics.jsonl", VOCABULARY, RECIPE.file):
            (folder / file).unlink(missing_ok=True)
        shutil.rmtree(folder / TOKENS, ignore_errors=True)
    if resume and has_document(folder, RESULT):
        known = read_document(folder, RESULT)
        if known["n_steps"] >= recipe.train.steps:
            say(f"{folder} is finished")
            return PretrainFit(**known)
        say(f"{folder} goes on behind its {known['n_steps']:,} steps")
        (folder / RESULT.file).unlink()
    make_folders(folder)
    write_file(folder / RECIPE.file, seal(to_dict(recipe), RECIPE))
    return None


def _fit(
    recipe: PretrainRecipe,
    folder: Path,
    device: torch.device,
    resume: bool,
    report: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> PretrainFit:
    backbone, subwords, pooling = _start(recipe, folder, say)
    if recipe.text.max_tokens > backbone.max_positions:
        raise ConfigError(
            f"text.max_tokens = {recipe.text.max_tokens} are more than the backbone's longest input,"
            f" {backbone.max_positions}; lower it"
        )
    separator = separator_of(subwords, recipe.text.turn_separator)
    cache = Path(recipe.data.cache or folder / TOKENS)

    def read(file: str) -> Pairs:
        def opened() -> Pairs:
            return open_pairs(Path(file), subwords, separator, cache, skip_bad=recipe.data.skip_bad, say=say)

        made: list[Pairs] = []
        processes.by_first(lambda: made.append(opened()))  # the others find its files
        return made[0] if made else opened()

    reading = Reading(read(recipe.data.train), subwords, recipe, recipe.train.seed)
    validation = None
    if recipe.data.valid is not None:
        validation = Reading(read(recipe.data.valid).first(recipe.data.max_valid), subwords, recipe, VALID_SEED)
    network = pretraining_network(backbone, recipe.train.seed).to(device)
    n_parameters = sum(p.numel() for p in backbone.parameters())
    say(f"{n_parameters:,} parameters, {len(subwords):,} subwords, on {device}")
    return fit(
        network,
        reading,
        validation,
        folder=folder,
        device=device,
        save=lambda: save_backbone(folder / MODEL, backbone, subwords, pooling),
        report=report,
        resume=resume,
    )


def _start(recipe: PretrainRecipe, folder: Path, say: Callable[[str], None]) -> Start:
    """The backbone to be trained, with its vocabulary."""
    model, train = recipe.model, recipe.train
    separator = recipe.text.turn_separator
    if isinstance(model, ContinuedModel):
        return continued_backbone(model, separator, dropout=train.dropout, seed=train.seed)
    assert recipe.vocabulary is not None, "a recipe from scratch has one"
    subwords = _vocabulary(recipe, recipe.vocabulary, folder, say)
    dropout = 0.1 if train.dropout is None else train.dropout
    return new_bert(model, len(subwords), padding=subwords.pad_id, dropout=dropout, seed=train.seed), subwords, None


def _vocabulary(
    recipe: PretrainRecipe, settings: VocabularyConfig, folder: Path, say: Callable[[str], None]
) -> Subwords:
    """The one that was learnt before this run was interrupted, or learnt now and stored."""
    file = folder / VOCABULARY
    processes.by_first(lambda: None if file.exists() else _learn_vocabulary(recipe, settings, file, say))
    return read_subwords(file.read_bytes(), str(file))


def _learn_vocabulary(
    recipe: PretrainRecipe, settings: VocabularyConfig, file: Path, say: Callable[[str], None]
) -> None:
    say(f"learning {settings.size:,} subwords")

    def texts() -> Iterator[str]:
        for examples in rows_of(Path(recipe.data.train), skip_bad=recipe.data.skip_bad):
            yield from texts_of(examples)

    subwords = learn_bert_subwords(texts(), kind=settings.kind, size=settings.size, lower_case=settings.lower_case)
    subwords.add([recipe.text.turn_separator])
    write_file(file, subwords.to_bytes())


def _check_folder(folder: Path, recipe: PretrainRecipe, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder before any work.

    Raises:
        UsageError: an earlier run, or something else, is there, and nothing says what to do about it.
        ConfigError: the run that would go on was started with other settings.
    """
    check_replaceable(folder / MODEL, ours=BACKBONE_FILES, replace=True)
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in OURS and entry.name[0] != ".")
    if others:
        raise UsageError(f"{folder} holds {others[0]!r}, which is of no pre-training; choose another output")
    if overwrite and not resume:
        return
    if any((folder / name).exists() for name in BEGUN) and not resume:
        raise UsageError(f"{folder} holds an earlier run; pass --resume to go on with it or --overwrite to start again")
    if resume and has_document(folder, RECIPE):
        _check_same(folder, recipe)


def _check_same(folder: Path, recipe: PretrainRecipe) -> None:
    earlier = pretrain_recipe_from_dict(read_document(folder, RECIPE))
    there, now = dotted(to_dict(earlier)), dotted(to_dict(recipe))
    keys = [key for key in there | now if there.get(key) != now.get(key) and key not in MAY_DIFFER]
    if keys:
        differences = ", ".join(f"{key} = {there.get(key)!r} (now {now.get(key)!r})" for key in keys)
        raise ConfigError(
            f"the recipe differs from the one that {folder} was started with: {differences}; give the same, or another"
            " output"
        )
    checkpoint = folder / CHECKPOINT
    if earlier.train.steps == recipe.train.steps or not checkpoint.exists():
        return
    done = int(read_progress(checkpoint)["step"])
    if recipe.train.steps < done:
        raise ConfigError(f"{folder} has made {done:,} steps already, more than {recipe.train.steps:,}; ask for more")
    if not begins_alike(recipe.train.of_network, earlier.train.steps, recipe.train.steps, done):
        raise ConfigError(
            f"the first {done:,} rates of {folder} would be others in a run of {recipe.train.steps:,} steps than in its"
            f" {earlier.train.steps:,}; keep the length, or start again with --overwrite"
        )
