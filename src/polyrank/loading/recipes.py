"""Resolves a recipe, once: reads tables and returns a plan with absolute paths, defaults filled in and limits checked.

Later code interprets no name, path or default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.checked import field_types, kinds
from polyrank.config.methods import DistillMethod, Method, RerankMethod
from polyrank.config.models import MODEL, BackboneConfig, ModelConfig, TextPolicy, TextSettings
from polyrank.config.pretrain import PretrainRecipe, pretrain_recipe_from_dict
from polyrank.config.recipe import Recipe, recipe_from_dict
from polyrank.config.runs import NETWORKS, seed_folders
from polyrank.config.tables import Source, read_tables
from polyrank.config.train import NetworkTraining
from polyrank.errors import ConfigError
from polyrank.loading.backbones import resolve_backbone
from polyrank.loading.folders import is_hugging_face
from polyrank.loading.models import named_folder, resolve_model
from polyrank.storage.document import has_document, read_document

PATHS = (*(f"data.{name}" for name in ("train", "valid", "test", "cache")), *("output", "text.vocabulary"))
SCALES = ("output_scale", "match_output_std", "match_self_score")  # a network has at most one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """One network of a training.

    Args:
        name: "retriever" or "reranker" in a mutual training; empty otherwise.
        model, text, train: its settings.
        start: the model folder whose weights it starts from; None: a backbone's weights, or random weights.
    """

    name: str
    model: ModelConfig
    text: TextSettings
    train: NetworkTraining
    start: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A resolved recipe.

    Args:
        recipe: its settings, as the run folder states them.
        output: the folder of all seeds.
        folders: the folder of each seed.
        networks: one network, or the retriever and the re-ranker.
    """

    recipe: Recipe
    output: Path
    folders: Mapping[int, Path]
    networks: tuple[NetworkPlan, ...]


def resolve_recipe(recipe: Recipe | Source, *, resume: bool = False) -> TrainingPlan:
    """Resolve a recipe, its file or its tables to a plan.

    Args:
        recipe: the recipe.
        resume: its run may be finished, and then its backbones may be gone.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a key or value is wrong; or a model or backbone that it
            names does not exist or does not suit its settings.

    >>> plan = resolve_recipe({"model": {"kind": "bi"}, "output": "/tmp/run", "train": {"seeds": [1, 2]}})
    >>> plan.folders[2].as_posix(), plan.networks[0].start
    ('/tmp/run/seed-2', None)
    """
    settings = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    _check_fixed_model(settings.train.method)
    output = Path(settings.output)
    names = ("",) if settings.reranker is None else NETWORKS
    networks = tuple(
        NetworkPlan(
            name=name,
            model=model,
            text=settings.text,
            train=train,
            start=None if train.init_from is None else named_folder(train.init_from),
        )
        for name, (model, train) in zip(names, settings.networks, strict=True)
    )
    if not resume:
        _check_backbones(networks)
    return TrainingPlan(
        recipe=settings, output=output, folders=seed_folders(output, settings.train.seeds), networks=networks
    )


def load_recipe(source: Source, changes: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply ``changes`` such as ``train.lr=5e-5``.

    Args:
        source: the file, or its tables as dictionaries.
        changes: each KEY=VALUE, with values in TOML syntax.

    Paths of data, output and a vocabulary are relative to the recipe's folder (for tables, to the working directory).
    Names of models and all ``changes`` are relative to the working directory, as on the command line.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a key or value is wrong.

    >>> load_recipe({"model": {"kind": "bi"}, "output": "run"}, ["train.lr=5e-5"]).train.lr
    5e-05
    """
    values, _ = read_tables(source, changes, PATHS)
    return recipe_from_dict(values, _inherited(values))


def load_pretrain_recipe(source: Source, changes: Sequence[str] = ()) -> PretrainRecipe:
    """Read a TOML recipe of a pre-training and apply ``changes`` such as ``train.steps=100``.

    Args:
        source: the file, or its tables as dictionaries.
        changes: each KEY=VALUE, with values in TOML syntax.

    Paths of data and output are relative to the recipe's folder (for tables, to the working directory). The name of a
    backbone and paths in ``changes`` are relative to the working directory, as on the command line.

    Raises:
        ConfigError: the file does not exist or is not TOML, or a key or value is wrong.

    >>> recipe = load_pretrain_recipe({"output": "run", "data": {"train": "a.jsonl"}}, ["model.layers=4"])
    >>> recipe.model.layers, recipe.vocabulary.size
    (4, 30000)
    """
    values, _ = read_tables(source, changes, PATHS)
    return pretrain_recipe_from_dict(values)


def _inherited(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings that networks take over from the models that training starts from, as tables of a recipe.

    A network that starts from a model of the same kind inherits all settings of that model. From a model of another
    kind it inherits the transformer, and so the name of the backbone.
    """
    first, second = _table(values, "model"), _table(values, "reranker")
    inherited = _start(first, _table(values, "train"), "train")
    if start := _start(second, _table(second, "train"), "reranker.train"):
        inherited["reranker"] = start["model"]
    return inherited


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of a recipe that is not checked yet; empty if it is missing or wrong."""
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _start(model: dict[str, Any], train: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The settings, as tables ``model`` and ``text``, that a network inherits from ``init_from``."""
    if not isinstance(name := train.get("init_from"), str):
        return {}
    folder = named_folder(name)
    if not has_document(folder, MODEL):
        raise ConfigError(f"{where}.init_from = {name} is not a model folder; give one that training wrote")
    if is_hugging_face(folder):
        raise ConfigError(
            f'{where}.init_from = {name} is a Hugging Face model; write it as backbone = "{name}", and leave init_from'
            " out"
        )
    document = read_document(folder, MODEL)
    settings, text = dict(document["model"]), dict(document["text"])
    if settings.get("kind") != model.get("kind"):
        config = kinds(ModelConfig).get(str(model.get("kind")))
        both = config is not None and "backbone" in field_types(config).keys() & settings.keys()
        return {"model": {"backbone": settings["backbone"]}} if both else {}
    together = settings | model
    if any(model.get(key) is not None for key in SCALES):  # the recipe sets the scale itself
        spent: tuple[str, ...] = SCALES
    elif together.get("normalize"):  # match_self_score is then the scale of the cosine
        spent = SCALES[:2]
    else:  # the targets that the stored scale was fitted to no longer apply
        spent = SCALES[1:] if settings.get(SCALES[0]) is not None else ()
    if together.get("reduction") != "mean_of_first":
        spent += ("reduction_tokens",)
    text.pop("vocabulary", None)  # the model folder contains its subwords; the original file may be gone
    return {"model": {key: value for key, value in settings.items() if key not in spent}, "text": text}


def _check_fixed_model(method: Method) -> None:
    """Refuse a teacher or a first stage that does not exist or has no vectors, before any data is read."""
    match method:
        case DistillMethod(teacher=name):
            if resolve_model(name, bare_hub_names=False).alone().kind == "lexical":
                raise ConfigError(f"train.method.teacher = {name} was not trained; give a model folder")
        case RerankMethod(first_stage=name):
            if resolve_model(name, bare_hub_names=False).kind == "lexical":
                raise ConfigError(f"train.method.first_stage = {name} has no vectors; give an encoder's model folder")


def _check_backbones(networks: Sequence[NetworkPlan]) -> None:
    """Refuse backbones that do not exist, and texts that they cannot read, before any data is read."""
    for network in networks:
        if network.start is None and isinstance(network.model, BackboneConfig):
            longest = resolve_backbone(network.model.backbone, bare_hub_names=False).max_positions
            if longest is not None and isinstance(network.text, TextPolicy):
                network.text.check_budgets(longest)
