"""Recipes, resolved once: tables go in, a whole plan comes out, and no later code looks at a name, path or default.

Paths are absolute, what training starts from is read, defaults are filled in, and limits are checked.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.checked import field_types, kinds
from polyrank.config.models import MODEL, TWO, ConvertText, RecipeModel, SumConfig, TextSettings
from polyrank.config.pretraining import PretrainRecipe, pretrain_recipe_from_dict
from polyrank.config.recipe import Recipe, recipe_from_dict, recipe_tables
from polyrank.config.tables import Source, read_tables
from polyrank.config.training import NetworkTraining
from polyrank.errors import ConfigError
from polyrank.loading.models import model_folder
from polyrank.storage.document import has_document, read_document

PATHS = (
    *(f"data.{name}" for name in ("train", "valid", "test", "cache")),
    *("output", "text.vocabulary", "reranker.text.vocabulary"),
)
SCALES = ("output_scale", "match_output_std", "match_self_score")  # of which a network has one


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """One network of a training.

    Args:
        name: "retriever" or "reranker" where there are two; empty where it is alone.
        model, text, train: its settings.
        start: the folder whose weights it starts from; None: a backbone's, or none.
        parts: of a sum, the folders of its encoders.
    """

    name: str
    model: RecipeModel
    text: TextSettings
    train: NetworkTraining
    start: Path | None
    parts: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A recipe, resolved.

    Args:
        recipe: its settings, as the run folder states them.
        output: the folder of all seeds.
        folders: of each seed.
        networks: one, or the retriever and the re-ranker.
    """

    recipe: Recipe
    output: Path
    folders: Mapping[int, Path]
    networks: tuple[NetworkPlan, ...]


def resolve_recipe(recipe: Recipe | Source) -> TrainingPlan:
    """The plan of a recipe, or of its file or tables.

    Raises:
        ConfigError: no file, no TOML, or a bad key or value.

    >>> plan = resolve_recipe({"model": {"kind": "bi"}, "output": "/tmp/run", "train": {"seeds": [1, 2]}})
    >>> plan.folders[2].as_posix(), plan.networks[0].start
    ('/tmp/run/seed-2', None)
    """
    whole = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    output, seeds, partner = Path(whole.output), whole.train.seeds, whole.reranker
    settings = [(whole.model, whole.text, whole.train.of_one_network())]
    if partner is not None:
        settings.append((partner.model, partner.text, partner.train))
    return TrainingPlan(
        recipe=whole,
        output=output,
        folders={seed: output if len(seeds) == 1 else output / f"seed-{seed}" for seed in seeds},
        networks=tuple(
            NetworkPlan(
                name=name,
                model=model,
                text=text,
                train=train,
                start=None if train.init_from is None else model_folder(train.init_from),
                parts=tuple(map(model_folder, _parts(model))),
            )
            for name, (model, text, train) in zip(TWO if partner else ("",), settings, strict=True)
        ),
    )


def load_recipe(source: Source, changes: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply ``changes`` such as ``train.lr=5e-5``.

    Args:
        source: the file; or its tables as dictionaries.
        changes: each KEY=VALUE, values as TOML writes them.

    Paths of data, output and a vocabulary are relative to the recipe's folder (of tables, to the working directory);
    those of models are names as on the command line, relative to the working directory, and so are all ``changes``.

    Raises:
        ConfigError: no file, no TOML, or a bad key or value.

    >>> load_recipe({"model": {"kind": "bi"}, "output": "run"}, ["train.lr=5e-5"]).train.lr
    5e-05
    """
    values, base = read_tables(source, changes, PATHS)
    recipe = recipe_from_dict(_with_starts(recipe_tables(values)))
    data = _placed(recipe.data, base, "train", "valid", "test", "cache")
    partner = recipe.reranker
    _check_parts(recipe.model, "model")
    if partner is not None:
        _check_parts(partner.model, "reranker")
        partner = dataclasses.replace(partner, text=_placed_text(partner.text, base))
    text = _placed_text(recipe.text, base)
    return dataclasses.replace(recipe, data=data, text=text, output=str(base / recipe.output), reranker=partner)


def load_pretrain_recipe(source: Source, changes: Sequence[str] = ()) -> PretrainRecipe:
    """Read a TOML recipe of a pre-training and apply ``changes`` such as ``train.steps=100``.

    Args:
        source: the file; or its tables as dictionaries.
        changes: each KEY=VALUE, values as TOML writes them.

    Paths of data and output are relative to the recipe's folder (of tables, to the working directory); a backbone is a
    name as on the command line, relative to the working directory, and so are paths in ``changes``.

    Raises:
        ConfigError: no file, no TOML, or a bad key or value.

    >>> recipe = load_pretrain_recipe({"output": "run", "data": {"train": "a.jsonl"}}, ["model.layers=4"])
    >>> recipe.model.layers, recipe.vocabulary.size
    (4, 30000)
    """
    values, base = read_tables(source, changes, PATHS)
    recipe = pretrain_recipe_from_dict(values)
    data = _placed(recipe.data, base, "train", "valid", "cache")
    return dataclasses.replace(recipe, data=data, output=str(base / recipe.output))


def _placed(data: Any, base: Path, *names: str) -> Any:
    """Settings of data with the paths of files made absolute."""
    files = {name: str(base / file) for name in names if (file := getattr(data, name)) is not None}
    return dataclasses.replace(data, **files)


def _placed_text(text: TextSettings, base: Path) -> TextSettings:
    return _placed(text, base, "vocabulary") if isinstance(text, ConvertText) else text


def _with_starts(tables: dict[str, Any]) -> dict[str, Any]:
    """A network that starts from one of its own kind has that one's settings where the recipe gives no others.

    One of another kind gives its transformer, and so its backbone's name.
    """
    model, text, partner = tables["model"], tables["text"], tables["reranker"]
    merged = dict(tables)
    if start := _start(model, tables["train"], "train"):
        merged |= {"model": start["model"] | model, "text": start["text"] | text}
    if partner and (start := _start(partner, partner["train"], "reranker.train")):
        alike = _text_kind(model) is _text_kind(partner)
        policy = start["text"] | (text if alike else {}) | partner["text"]
        merged["reranker"] = start["model"] | partner | {"text": policy}
    return merged


def _text_kind(model: dict[str, Any]) -> Any:
    kind = kinds(RecipeModel).get(str(model.get("kind")))
    return kind and kind.text_kind


def _start(model: dict[str, Any], train: dict[str, Any], where: str) -> dict[str, dict[str, Any]] | None:
    """Settings, in tables ``model`` and ``text``, which a network has from what it starts from."""
    if (start := train.get("init_from")) is None:
        return None
    _check_model_folder(start, f"{where}.init_from", f'write it as backbone = "{start}", and leave init_from out')
    known = read_document(model_folder(start), MODEL)
    merged = {name: dict(known[name]) for name in ("model", "text")}
    if merged["model"].get("kind") != model.get("kind"):
        own = kinds(RecipeModel).get(str(model.get("kind")))
        both = own is not None and "backbone" in field_types(own).keys() & merged["model"].keys()
        return {"model": {"backbone": merged["model"]["backbone"]}, "text": {}} if both else None
    if any(model.get(name) is not None for name in SCALES):  # the recipe's own
        spent: tuple[str, ...] = SCALES
    elif {**merged["model"], **model}.get("normalize"):  # the size of its scores is what they are made to have
        spent = SCALES[:2]
    else:  # what the scale was fitted to, and is no longer
        spent = SCALES[1:] if merged["model"].get(SCALES[0]) is not None else ()
    merged["text"].pop("vocabulary", None)  # its subwords come with it, not from where it once had them
    return {**merged, "model": {name: value for name, value in merged["model"].items() if name not in spent}}


def _parts(model: RecipeModel) -> tuple[str, ...]:
    return model.parts if isinstance(model, SumConfig) else ()


def _check_parts(model: RecipeModel, where: str) -> None:
    """Refuse a sum of what no training wrote, before any data is read."""
    for name in _parts(model):
        if (model_folder(name) / "sum.json").is_file():
            raise ConfigError(f"{where}.parts = {name} is a sum; name its encoders instead")
        instead = f'train a Bi-encoder with backbone = "{name}" first, and name that'
        _check_model_folder(name, f"{where}.parts", instead)


def _check_model_folder(name: str, where: str, instead: str) -> None:
    folder = model_folder(name)
    if not has_document(folder, MODEL):
        raise ConfigError(f"{where} = {name} is no model folder; give one that training wrote")
    try:
        of_hugging_face = "model_type" in json.loads((folder / MODEL.file).read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # reading it as a model folder says what is wrong with it
    if of_hugging_face:
        raise ConfigError(f"{where} = {name} is a model of Hugging Face; {instead}")
