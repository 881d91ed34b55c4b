"""A training recipe as frozen dataclasses; strict when read from TOML. What fits together is checked when made."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from polyrank.config.checked import (
    Count,
    Settings,
    Several,
    field_types,
    from_dict,
    keys_inside,
    kind_from_dict,
    to_dict,
    unknown_key,
)
from polyrank.config.models import (
    ConvertConfig,
    CrossConfig,
    RecipeModel,
    SumConfig,
    TextPolicy,
    TextSettings,
    text_from_dict,
)
from polyrank.config.training import ConvertMethod, ListwiseMethod, MutualMethod, NetworkTraining, TrainConfig
from polyrank.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(Settings):
    """What to train on.

    Args:
        train: file of examples (JSON lines, gzip, CSV or Parquet); None where they are given from memory.
        valid: file of candidate lists, or of pairs or dialogues, for which lists are drawn; None trains without
            validation.
        test: file of examples that the finished model is evaluated on; None: not.
        kind: of ``train``: "pairs", "dialogues", "candidates"; None: seen from its first row.
        speaker: of dialogues, whose turns are responses; "*": everybody's. None: the agents', where they can be told.
        max_train: use a random subset of so many examples; None for all.
        max_valid: the first so many examples of ``valid``.
        valid_candidates: of each list that is drawn for ``valid``; None: 20, or fewer where it has too few responses.
        skip_bad: count and skip bad rows instead of stopping.
        cache: folder in which the examples of ``train`` are kept, each read when it is needed, for more of them than
            memory holds; ``train`` may then be a folder of files too, or a pattern such as "data/part-*.parquet". None:
            they are in memory.
    """

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    kind: Literal["pairs", "dialogues", "candidates"] | None = None
    speaker: str | None = None
    max_train: Count | None = None
    max_valid: Count | None = 1000
    valid_candidates: Several | None = None
    skip_bad: bool = False
    cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner(Settings):
    """The second network of a mutual training: a re-ranker, or any other kind.

    Args:
        model: what it is.
        text: its text settings; the first network's where they are of one kind.
        train: what it has apart from the first network.
    """

    model: RecipeModel
    text: TextSettings
    train: NetworkTraining

    def __post_init__(self) -> None:
        _check_text(self.model, self.text, "reranker.text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Settings):
    """A whole training: what, from what text, on what data, how, and where to; for mutual learning, with whom."""

    model: RecipeModel
    output: str
    data: DataConfig = field(default_factory=DataConfig)
    text: TextSettings = field(default_factory=TextPolicy)
    train: TrainConfig = field(default_factory=TrainConfig)
    reranker: Partner | None = None

    def __post_init__(self) -> None:
        _check_text(self.model, self.text, "text")
        model, method, negatives = self.model, self.train.method, self.train.negatives
        if not (method.ranks_lists or model.encodes):
            raise ConfigError('a Cross-encoder has no in-batch negatives; set train.method.kind = "listwise"')
        if not method.ranks_lists and method.kind != model.training.method.kind:
            raise ConfigError(
                f'train.method.kind = "{method.kind}" is not for model.kind = "{model.kind}"; set'
                f' "{model.training.method.kind}" or a method that ranks lists'
            )
        match model, method:
            case ConvertConfig(multi_context=False), ConvertMethod(loss_weights=weights) if weights != (1.0, 1.0, 1.0):
                raise ConfigError(f"train.method.loss_weights = {list(weights)} are for model.multi_context = true")
        if (method.kind == "mutual") != (self.reranker is not None):
            raise ConfigError(
                'train.method.kind = "mutual" takes two networks, and the second is the table [reranker]; give both or'
                " neither"
            )
        networks = [model] if self.reranker is None else [model, self.reranker.model]
        crosses = any(isinstance(network, CrossConfig) for network in networks)
        if isinstance(method, ListwiseMethod | MutualMethod) and method.sigmoid and not crosses:
            raise ConfigError("train.method.sigmoid = true is for the scores of a Cross-encoder; leave it out")
        parts = [self.train] if self.reranker is None else [self.train, self.reranker.train]
        for network, own in zip(networks, parts, strict=True):
            if isinstance(network, ConvertConfig) and own.new_dropout:
                raise ConfigError(
                    f"train.new_dropout = {own.new_dropout} is for projections and heads, which a ConveRT has none of;"
                    " set train.dropout"
                )
            if isinstance(network, SumConfig) and own.init_from is not None:
                raise ConfigError(
                    f"train.init_from = {own.init_from} is not for a sum, whose encoders come from model.parts; leave"
                    " it out"
                )
        if negatives is not None and "mined" in negatives.order and not any(network.encodes for network in networks):
            raise ConfigError(
                "train.negatives.remine_epochs needs a network that encodes, and a Cross-encoder would have to read"
                " every pair; mine once with polyrank mine instead"
            )


def _check_text(model: RecipeModel, text: TextSettings, where: str) -> None:
    if not isinstance(text, model.text_kind):
        raise ConfigError(f'{where} of model.kind = "{model.kind}" is {model.text_kind.__name__}; give that')


def recipe_tables(values: dict[str, Any]) -> dict[str, Any]:
    """All tables of a recipe, empty where it has none, so that no later code looks whether one is there.

    Raises:
        ConfigError: a key is unknown or missing, or a table is something else.

    >>> sorted(recipe_tables({"model": {"kind": "bi"}, "output": "run"}))
    ['data', 'model', 'output', 'reranker', 'text', 'train']
    """
    known = [entry.name for entry in dataclasses.fields(Recipe)]
    for key in values:
        if key not in known:
            raise unknown_key(key, known, inside=keys_inside(field_types(Recipe)))
    for name in ("model", "output"):
        if name not in values:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    if type(values["output"]) is not str:
        raise ConfigError(f"output = {values['output']!r} is not a folder; write its path in quotes")
    tables = {"output": values["output"]} | {name: _table(values, name) for name in ("model", "text", "data", "train")}
    if values.get("reranker") is None:
        return {**tables, "reranker": None}
    partner = _table(values, "reranker")
    own = {name: _table(partner, name, "reranker.") for name in ("text", "train")}
    return {**tables, "reranker": {**partner, **own}}


def _table(values: dict[str, Any], name: str, prefix: str = "") -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{prefix}{name} = {table!r} is not a table; write [{prefix}{name}]")
    return table


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    The kind of model says which text settings there are and what training starts from. A second network is a table
    ``reranker``: the keys of a model, and tables ``text`` and ``train`` inside it for what differs.

    Raises:
        ConfigError: a key is unknown, missing or wrong.
    """
    tables = recipe_tables(values)
    model: RecipeModel = kind_from_dict(RecipeModel, tables["model"], "model")
    train = from_dict(TrainConfig, tables["train"], "train", _train_defaults(model, tables["train"]))
    return Recipe(
        model=model,
        data=from_dict(DataConfig, tables["data"], "data"),
        output=tables["output"],
        text=text_from_dict(model, tables["text"]),
        train=train,
        reranker=tables["reranker"] and _partner_from_dict(tables["reranker"], model, train, tables["text"]),
    )


def _train_defaults(model: RecipeModel, train: dict[str, Any]) -> TrainConfig:
    return model.training if train.get("init_from") is None else model.tuning


def _partner_from_dict(
    values: dict[str, Any], first: RecipeModel, settings: TrainConfig, text: dict[str, Any]
) -> Partner:
    own, train = values["text"], values["train"]
    keys = {key: value for key, value in values.items() if key not in ("text", "train")}
    model: RecipeModel = kind_from_dict(RecipeModel, keys, "reranker")
    shared = field_types(TrainConfig).keys() | TrainConfig.moved.keys()
    for key in train:
        if key in shared - field_types(NetworkTraining).keys() - NetworkTraining.moved.keys():
            raise ConfigError(f"reranker.train.{key} is one for both networks; set it in [train]")
    alike = model.text_kind is first.text_kind
    # what suits the one optimiser ruins the other; and the first network's weights are its own
    start = dataclasses.replace(settings, init_from=None) if alike else _train_defaults(model, train)
    return Partner(
        model=model,
        text=text_from_dict(model, {**text, **own} if alike else own, "reranker.text"),
        train=from_dict(NetworkTraining, train, "reranker.train", start.of_one_network()),
    )


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    values = to_dict(recipe)
    if (partner := values.pop("reranker")) is not None:
        values["reranker"] = {**partner.pop("model"), **partner}
    return values
