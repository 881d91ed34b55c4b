"""A recipe carried out: data read, model made, fit, the best model saved, once for each seed.

A run folder holds recipe.json (as resolved), metrics.jsonl, tensorboard/ where that is installed,
checkpoint.safetensors while it runs, and model/.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.artifacts import load_model, save_model
from polyrank.config import ConvertConfig, CrossConfig, Recipe, TrainConfig, recipe_from_dict, recipe_to_dict
from polyrank.data import read_examples
from polyrank.devices import choose_device, choose_dtype, keep_freed_memory
from polyrank.durable import write_file
from polyrank.errors import ConfigError, DataError, UsageError
from polyrank.inference import CrossScorer, EncoderScorer
from polyrank.metrics import metric_values, place, with_duplicates
from polyrank.models import Convert, CrossEncoder, Model, new_model
from polyrank.records import Example
from polyrank.text import ConvertSubwords, ConvertTexts, Texts
from polyrank.training.convert_step import ConvertStep
from polyrank.training.loop import FitResult, fit
from polyrank.training.steps import InBatchStep, ListwiseStep, Step
from polyrank.training.tensorboard import TensorBoard


@dataclass(frozen=True, slots=True)
class RunResult:
    """One seed's training.

    Args:
        seed: of the run.
        model: the folder of the best model.
        fit: how it went.
    """

    seed: int
    model: Path
    fit: FitResult


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
    if isinstance(recipe.model, CrossConfig) and settings.method != "listwise":
        raise ConfigError('a Cross-encoder has no in-batch negatives; set train.method = "listwise"')
    if not settings.seeds:
        raise ConfigError("train.seeds is empty; give at least one")
    examples, valid = load_data(recipe, say)
    results = []
    for seed in settings.seeds:
        folder = output if len(settings.seeds) == 1 else output / f"seed-{seed}"
        results.append(_train_one(recipe, seed, folder, examples, valid, resume, overwrite, device, report, say))
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
) -> RunResult:
    done, model_folder = folder / "result.json", folder / "model"
    resolved = json.dumps(recipe_to_dict(recipe), indent=2, sort_keys=True).encode()
    if folder.exists() and any(folder.iterdir()):
        if not (resume or overwrite):
            raise UsageError(
                f"{folder} holds an earlier run; pass --resume to go on with it or --overwrite to start again"
            )
        if resume and (folder / "recipe.json").exists() and not _same_recipe(folder / "recipe.json", recipe):
            raise ConfigError(f"the recipe differs from the one that {folder} was started with; use another output")
        if resume and done.exists():
            say(f"{folder} is finished")
            return RunResult(seed, model_folder, FitResult(**json.loads(done.read_text("utf-8"))))
        if overwrite and not resume:
            for name in ("checkpoint.safetensors", "metrics.jsonl", "result.json"):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "recipe.json", resolved)

    responses = [response for example in examples if (response := example.response)]
    model, texts, config = new_model(
        recipe.model,
        recipe.text,
        seed=seed,
        sample=responses[:256],
        dropout=recipe.train.dropout,
        corpus=distinct_texts(examples) if isinstance(recipe.model, ConvertConfig) else (),
        subwords=_vocabulary_of(recipe),
    )
    if recipe.train.init_from is not None:
        warm_start(model, Path(recipe.train.init_from))
    place = choose_device(device)
    model.to(place)
    say(f"seed {seed}: {sum(p.numel() for p in model.parameters()):,} parameters on {place}")
    step = make_step(model, texts, recipe.train, examples, place, seed)
    dtype = choose_dtype(recipe.train.precision, place)
    kind = CrossScorer if isinstance(model, CrossEncoder) else EncoderScorer
    scorer = kind(model, texts, device=place, dtype=dtype)  # type: ignore[arg-type]  # the pair of types belongs together

    def evaluate() -> dict[str, float]:
        scorer.forget()
        return validation_figures(scorer, valid)

    def save_best(figures: dict[str, float]) -> None:
        metadata = {"recipe": recipe_to_dict(recipe), "seed": seed, "validation": figures}
        save_model(model_folder, model, texts, config, metadata=metadata, replace=True)

    curves = TensorBoard(folder / "tensorboard")

    def keep(record: dict[str, Any]) -> None:
        curves(record)
        report(seed, record)

    result = fit(
        model,
        step,
        examples,
        recipe.train,
        seed=seed,
        folder=folder,
        device=place,
        save_best=save_best,
        evaluate=evaluate if valid else None,
        resume=resume,
        report=keep,
    )
    curves.close()
    write_file(done, json.dumps(dataclasses.asdict(result)).encode())
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return RunResult(seed, model_folder, result)


def distinct_texts(examples: Sequence[Example]) -> Iterator[str]:
    """Every turn and candidate once, in order of appearance: the turns of a dialogue come back in later contexts."""
    known: set[str] = set()
    for example in examples:
        for text in (*example.context, *example.candidates, *example.background):
            if text not in known:
                known.add(text)
                yield text


def _vocabulary_of(recipe: Recipe) -> ConvertSubwords | None:
    """The vocabulary of the model to start from: embeddings mean nothing with another."""
    if not isinstance(recipe.model, ConvertConfig) or recipe.train.init_from is None:
        return None
    texts = load_model(Path(recipe.train.init_from)).texts
    if not isinstance(texts, ConvertTexts):
        raise ConfigError(f"train.init_from = {recipe.train.init_from} is no ConveRT; give one or leave it out")
    return texts.subwords


def _same_recipe(path: Path, recipe: Recipe) -> bool:
    """Whether a run's recipe.json says the same; settings that did not exist when it was written have defaults."""
    try:
        return recipe_from_dict(json.loads(path.read_bytes())) == recipe
    except (ValueError, ConfigError):
        return False


def make_step(
    model: Model,
    texts: Texts | ConvertTexts,
    settings: TrainConfig,
    examples: Sequence[Example],
    device: torch.device,
    seed: int,
) -> Step:
    """The training method that the settings name."""
    if settings.method == "in_batch":
        if isinstance(model, Convert):
            assert isinstance(texts, ConvertTexts), "new_model() gives it these"
            return ConvertStep(
                model,
                texts,
                device,
                smoothing=settings.smoothing,
                scale_steps=settings.scale_steps,
                loss_weights=settings.loss_weights,
                range_steps=settings.range_steps,
            )
        assert isinstance(texts, Texts), "only a ConveRT has texts of another kind"
        assert not isinstance(model, CrossEncoder), "train() refuses this"
        return InBatchStep(model, texts, device, settings.smoothing)
    pool = list(dict.fromkeys(response for example in examples if (response := example.response) is not None))
    if len(pool) <= settings.n_negatives:
        raise DataError(
            f"{len(pool)} distinct responses are too few to draw {settings.n_negatives} negatives from; lower"
            " train.n_negatives"
        )
    return ListwiseStep(model, texts, device, pool, settings.n_negatives, seed)


def warm_start(model: Model, folder: Path) -> None:
    """Start from a trained model's weights: all of them for the same kind, else those whose names both have.

    A Poly-encoder started from a Bi-encoder keeps its own codes.
    """
    known = model.state_dict()
    found = {name: tensor for name, tensor in load_model(folder).model.state_dict().items() if name in known}
    odd = [name for name, tensor in found.items() if tensor.shape != known[name].shape]
    if odd or not found:
        raise ConfigError(f"the weights in {folder} do not fit this model ({(odd or ['no common part'])[0]})")
    model.load_state_dict(found, strict=False)


def validation_figures(scorer: CrossScorer | EncoderScorer, examples: Sequence[Example]) -> dict[str, float]:
    """Mean cross-entropy ("loss"), R@1 and MRR over candidate lists."""
    losses, placements = [], []
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        lists = scorer.score([e.query for e in part], [e.candidates for e in part])
        for example, values in zip(part, lists, strict=True):
            if not np.isfinite(values).all():
                return {"loss": math.inf, "R@1": 0.0, "MRR": 0.0}
            top = values.max()
            losses.append(float(top + np.log(np.exp(values - top).sum()) - values[example.relevant[0]]))
            placements.append(place(values, with_duplicates(example.candidates, example.relevant)))
    values_of = metric_values(placements, (1,))
    return {
        "loss": float(np.mean(losses)),
        "R@1": float(values_of["R@1"].mean()),
        "MRR": float(values_of["MRR"].mean()),
    }
