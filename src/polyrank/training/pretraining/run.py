"""Running a pre-training recipe: learn the vocabulary, encode the texts, train the network, save the best backbone.

A run folder holds pretraining.json (the recipe, and a digest of the texts), tokenizer.json (a learned vocabulary),
tokens/ (texts as ids), metrics.jsonl, checkpoint.safetensors (with the heads), model/, pretrained.json once the run has
finished, and run.lock while it runs.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyrank.config.checked import to_dict
from polyrank.config.pretrain import ContinuedModel, PretrainRecipe, VocabularyConfig, pretrain_recipe_from_dict
from polyrank.config.runs import MODEL_FOLDER
from polyrank.data.lines import open_file
from polyrank.data.mapped_examples import answered_rows
from polyrank.devices import distributed
from polyrank.devices.choice import choose_device
from polyrank.errors import ConfigError
from polyrank.loading.recipes import load_pretrain_recipe
from polyrank.models.pretraining import (
    BACKBONE_FILES,
    Start,
    continued_backbone,
    new_bert,
    pretraining_network,
    save_backbone,
)
from polyrank.storage.document import DocumentKind, has_document, read_document
from polyrank.storage.durable import check_replaceable, sha256_file, write_file
from polyrank.text import Subwords, learn_bert_subwords, read_subwords
from polyrank.training.checkpoints import CHECKPOINT
from polyrank.training.learner import METRICS, Learner
from polyrank.training.loop import FitResult, fit
from polyrank.training.pretraining.step import VALID_SEED, PairBatches, PretrainStep, turn_separator, validate
from polyrank.training.pretraining.tokens import Pairs, open_pairs, texts_of
from polyrank.training.run_document import INPUTS, backbone_digest, check_same_inputs
from polyrank.training.run_folder import RunKind, hold_run_folder, stopped_by_minutes
from polyrank.training.tracking import CURVES, check_tensorboard, with_curves

VOCABULARY, TOKENS = "tokenizer.json", "tokens"
RECIPE, RESULT = (
    DocumentKind(name="folder of a pre-training", file=file, remedy="start again with `overwrite=True`")
    for file in ("pretraining.json", "pretrained.json")
)
PRETRAINING = RunKind(
    recipe=RECIPE,
    result=RESULT,
    begun=(CHECKPOINT, RESULT.file, METRICS, MODEL_FOLDER),
    other=(VOCABULARY, TOKENS, CURVES),
    cleared=(CHECKPOINT, RESULT.file, METRICS, VOCABULARY, RECIPE.file, TOKENS, CURVES),
    may_differ=(
        "output",
        "data.cache",
        *(f"train.{key}" for key in ("steps", "minutes", "checkpoint_steps", "micro_batch_tokens", "tensorboard")),
    ),
)


@dataclass(frozen=True, slots=True)
class PretrainResult:
    """The result of a pre-training.

    Args:
        model: the Hugging Face folder of the best backbone.
        fit: how the training went.
    """

    model: Path
    fit: FitResult


def pretrain(
    recipe: PretrainRecipe | str | Path | Mapping[str, Any],
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    report: Callable[[dict[str, Any]], None] = lambda record: None,
    notify: Callable[[str], None] = lambda text: None,
) -> PretrainResult:
    """Pre-train a transformer by a recipe; the result is a backbone for every kind of model.

    Under ``torchrun`` all processes have to call this. They share the work, and rank 0 writes files and reports.

    Args:
        recipe: a PretrainRecipe, its file, or its tables as dictionaries.
        resume: continue from the checkpoint of an interrupted run, or of a run that now has more steps.
        overwrite: start again, replacing an earlier run.
        device: "auto", "cpu", "cuda" or "mps".
        report: called with each record of metrics.jsonl.
        notify: called with lines for the user.

    Raises:
        UsageError: the output holds an earlier run, and neither ``resume`` nor ``overwrite`` is set.
        LockedError: another process trains in the same folder.
        ConfigError: a setting does not fit the backbone, or the recipe differs from that of the resumed run.
        DataError: the data cannot be read, or has no pairs of context and response.
        LostProcessError: another process of a distributed run has ended.
    """
    if not isinstance(recipe, PretrainRecipe):
        recipe = load_pretrain_recipe(recipe)
    check_tensorboard(recipe.train.tensorboard)
    folder, chosen, plan = Path(recipe.output), choose_device(device), recipe
    with distributed.process_group(), hold_run_folder(folder):
        ended = distributed.on_rank_zero(lambda: _begin(plan, folder, resume, overwrite, notify))
        if ended is not None:
            return PretrainResult(folder / MODEL_FOLDER, ended)
        notify = notify if distributed.is_rank_zero() else lambda text: None
        result = _fit(recipe, folder, chosen, resume, report, notify)
        if not result.finished:
            notify(stopped_by_minutes(recipe.train.minutes, result.n_steps))
        elif distributed.is_rank_zero():
            PRETRAINING.end(folder, dataclasses.asdict(result))
    return PretrainResult(folder / MODEL_FOLDER, result)


def _begin(
    recipe: PretrainRecipe, folder: Path, resume: bool, overwrite: bool, notify: Callable[[str], None]
) -> FitResult | None:
    """Prepare the folder; returns the fit of a finished run that gets no more steps, else None.

    Raises:
        UsageError: the folder holds an earlier run or other files, and neither option is set.
        ConfigError: the run to resume was started with other settings or other texts.
        DataError: a file cannot be read.
    """
    check_replaceable(folder / MODEL_FOLDER, own_files=BACKBONE_FILES, replace=True)
    PRETRAINING.check_folder(folder, resume=resume, overwrite=overwrite)
    inputs = {}
    for name, file in (("data.train", recipe.data.train), ("data.valid", recipe.data.valid)):
        if file is not None:
            with open_file(Path(file)):  # a missing file is reported before an earlier run is removed
                inputs[name] = sha256_file(Path(file))
    if isinstance(recipe.model, ContinuedModel) and (start := Path(recipe.model.backbone)).is_dir():
        inputs[str(start)] = backbone_digest(start, with_weights=False)  # checkpoints hold all weights
    longer = False
    if resume and PRETRAINING.has_begun(folder) and has_document(folder, PRETRAINING.recipe):
        began = read_document(folder, PRETRAINING.recipe)
        earlier_inputs = began.pop(INPUTS)
        earlier = pretrain_recipe_from_dict(began)
        PRETRAINING.check_same(folder, to_dict(earlier), to_dict(recipe))
        check_same_inputs(earlier_inputs, inputs, folder)
        longer = PRETRAINING.is_longer(folder, [recipe.train.of_network], earlier.train.steps, recipe.train.steps)
    document, more = to_dict(recipe) | {INPUTS: inputs}, longer if resume or not overwrite else None
    result = PRETRAINING.begin(folder, document, longer=more, notify=notify)
    return None if result is None else FitResult(**result)


def _fit(
    recipe: PretrainRecipe,
    folder: Path,
    device: torch.device,
    resume: bool,
    report: Callable[[dict[str, Any]], None],
    notify: Callable[[str], None],
) -> FitResult:
    backbone, subwords, pooling = _start(recipe, folder, notify)
    if recipe.text.max_tokens > backbone.max_positions:
        raise ConfigError(
            f"text.max_tokens = {recipe.text.max_tokens} is above the backbone's longest input,"
            f" {backbone.max_positions}; lower it"
        )
    separator = turn_separator(subwords, recipe.text.turn_separator)
    cache = Path(recipe.data.cache or folder / TOKENS)

    def read(file: str) -> Pairs:
        return distributed.rank_zero_first(
            lambda: open_pairs(Path(file), subwords, separator, cache, skip_bad=recipe.data.skip_bad, notify=notify)
        )

    batches = PairBatches(read(recipe.data.train), subwords, recipe, recipe.train.seed)
    validation = None
    if recipe.data.valid is not None:
        validation = PairBatches(read(recipe.data.valid).first(recipe.data.max_valid), subwords, recipe, VALID_SEED)
    network = pretraining_network(backbone, recipe.train.seed).to(device)
    n_parameters = sum(p.numel() for p in backbone.parameters())
    notify(f"{n_parameters:,} parameters, {len(subwords):,} subwords, on {device}")
    with with_curves(report, folder, wanted=recipe.train.tensorboard) as drawn:
        learner = Learner(
            model=network,
            settings=recipe.train.of_network,
            folder=folder,
            save_best=lambda figures: save_backbone(folder / MODEL_FOLDER, backbone, subwords, pooling),
            evaluate=None if validation is None else partial(validate, network, validation, device),
            best_by="loss",
            report=drawn,
        )
        (result,) = fit(
            [learner],
            PretrainStep(network, device, batches),
            batches,
            recipe.train,
            seed=recipe.train.seed,
            folder=folder,
            device=device,
            resume=resume,
            notify=notify,
        )
    return result


def _start(recipe: PretrainRecipe, folder: Path, notify: Callable[[str], None]) -> Start:
    """The backbone to train, with its vocabulary."""
    model, train = recipe.model, recipe.train
    if isinstance(model, ContinuedModel):
        return continued_backbone(model, recipe.text.turn_separator, dropout=train.dropout, seed=train.seed)
    assert recipe.vocabulary is not None, "PretrainRecipe fills it in for a network from scratch"
    subwords = _vocabulary(recipe, recipe.vocabulary, folder, notify)
    dropout = 0.1 if train.dropout is None else train.dropout
    return new_bert(model, len(subwords), padding=subwords.pad_id, dropout=dropout, seed=train.seed), subwords, None


def _vocabulary(
    recipe: PretrainRecipe, settings: VocabularyConfig, folder: Path, notify: Callable[[str], None]
) -> Subwords:
    """The vocabulary in the run folder; if there is none yet, it is learned and stored."""
    file = folder / VOCABULARY
    distributed.on_rank_zero(lambda: None if file.exists() else _learn_vocabulary(recipe, settings, file, notify))
    return read_subwords(file.read_bytes(), str(file))


def _learn_vocabulary(
    recipe: PretrainRecipe, settings: VocabularyConfig, file: Path, notify: Callable[[str], None]
) -> None:
    notify(f"learning {settings.size:,} subwords")

    def texts() -> Iterator[str]:
        source = Path(recipe.data.train)
        for examples in answered_rows(source, [source], skip_bad=recipe.data.skip_bad):
            yield from texts_of(examples)

    subwords = learn_bert_subwords(texts(), kind=settings.kind, size=settings.size, lower_case=settings.lower_case)
    subwords.add([recipe.text.turn_separator])
    write_file(file, subwords.to_bytes())
