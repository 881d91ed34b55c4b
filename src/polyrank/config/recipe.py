"""A training recipe as frozen dataclasses, with strict parsing. Creating one checks that its parts fit together."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from polyrank.config.checked import (
    AtLeastTwo,
    Count,
    Settings,
    check_recipe,
    check_table,
    field_types,
    from_dict,
    kind_from_dict,
    nested_keys,
    to_dict,
)
from polyrank.config.methods import ConvertMethod
from polyrank.config.models import (
    BiConfig,
    ConvertConfig,
    LateConfig,
    ModelConfig,
    PolyConfig,
    TextPolicy,
    TextSettings,
    text_from_dict,
)
from polyrank.config.training import NetworkTraining, TrainConfig
from polyrank.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(Settings):
    """The training, validation and test data.

    Args:
        train: file of examples (JSON lines, gzip, CSV or Parquet); None if they are passed in memory.
        valid: file of candidate lists, or of pairs or dialogues, for which lists are drawn; None: no validation.
        test: file of examples to evaluate the finished model on; None: no evaluation.
        kind: of ``train``: "pairs", "dialogues", "candidates"; None: inferred from its first row.
        speaker: for dialogues, the speaker whose turns are responses; "*": all speakers. None: the agents, if they can
            be recognized.
        max_train: use a random subset of this many examples; None: all.
        max_valid: use at most this many examples of ``valid``, from its start.
        valid_candidates: size of each list that is drawn for ``valid``; None: 20, or fewer if there are fewer
            responses.
        skip_bad: count and skip bad rows instead of stopping.
        cache: folder in which the examples of ``train`` are stored and read one by one, for data that does not fit in
            memory; ``train`` may then also be a folder of files, or a pattern such as "data/part-*.parquet". None: keep
            them in memory.
    """

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    kind: Literal["pairs", "dialogues", "candidates"] | None = None
    speaker: str | None = None
    max_train: Count | None = None
    max_valid: Count | None = 1000
    valid_candidates: AtLeastTwo | None = None
    skip_bad: bool = False
    cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner(Settings):
    """The second network of a mutual training: a re-ranker, or any other kind.

    Args:
        model: its model settings.
        text: its text settings; by default those of the first network, if both have the same kind.
        train: its training settings.
    """

    model: ModelConfig
    text: TextSettings
    train: NetworkTraining

    def __post_init__(self) -> None:
        _check_text(self.model, self.text, "reranker.text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Settings):
    """A training: model, text, data and training settings, output folder, and a partner for mutual training."""

    model: ModelConfig
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
                raise ConfigError(
                    f"train.method.loss_weights = {list(weights)} apply to model.multi_context = true; leave them out"
                )
        if (method.kind == "mutual") != (self.reranker is not None):
            raise ConfigError(
                'train.method.kind = "mutual" trains two networks, and the table [reranker] is the second; give both or'
                " neither"
            )
        if method.kind == "rerank" and model.encodes:
            raise ConfigError(f'train.method.kind = "rerank" trains a Cross-encoder, not model.kind = "{model.kind}"')
        if self.reranker is not None:
            patience, other = self.train.early_stopping, self.reranker.train.early_stopping
            if (patience is None) != (other is None):
                lacking, given = ("train", other) if patience is None else ("reranker.train", patience)
                raise ConfigError(
                    f"early_stopping = {given} of one network has no effect, because a mutual training ends when both"
                    f" stop; set {lacking}.early_stopping too"
                )
        networks = [model] if self.reranker is None else [model, self.reranker.model]
        if getattr(method, "sigmoid", False) and all(network.encodes for network in networks):
            raise ConfigError("train.method.sigmoid = true applies to the scores of a Cross-encoder; leave it out")
        parts = [self.train] if self.reranker is None else [self.train, self.reranker.train]
        for network, own in zip(networks, parts, strict=True):
            if network.kind == "late" and own.train_layers != TrainConfig().train_layers:
                raise ConfigError(
                    f"train_layers = {own.train_layers!r} does not apply to a late Cross-encoder, of which the joined"
                    " layers are trained; set model.joined_layers"
                )
        _check_effects(list(zip(networks, parts, strict=True)))
        if negatives is not None and "mined" in negatives.order and not any(network.encodes for network in networks):
            raise ConfigError(
                "train.negatives.remine_epochs needs a network that encodes, because a Cross-encoder would have to read"
                " every pair; mine once with polyrank mine instead"
            )


def _check_text(model: ModelConfig, text: TextSettings, where: str) -> None:
    if not isinstance(text, model.text_kind):
        raise ConfigError(f'{where} of model.kind = "{model.kind}" is {model.text_kind.__name__}; give that')


def _unused(model: ModelConfig, train: NetworkTraining) -> dict[str, str]:
    """Settings of ``train`` that have no effect on a model, each with the reason and the fix."""
    unused = {}
    match model:
        case ConvertConfig() | BiConfig(projection_dim=None):
            unused["new_dropout"] = "this model has no projections or heads; set dropout instead"
            if not (isinstance(model, PolyConfig) and model.codes == "learnt"):
                reason = "this model has no new codes, projections or heads; leave it out"
                unused["new_lr"] = unused["decay_new"] = reason
    if isinstance(model, LateConfig):
        unused["clip_embeddings_norm"] = "a late Cross-encoder does not train the word embeddings; leave it out"
    elif train.train_layers != "all":
        unused["clip_embeddings_norm"] = (
            f'train_layers = "{train.train_layers}" does not train the word embeddings; set "all", or leave it out'
        )
    return unused


def _check_effects(networks: Sequence[tuple[ModelConfig, NetworkTraining]]) -> None:
    """Refuse settings without effect; of two networks with the same value, which one inherits, one must use it."""
    for (model, own), where in zip(networks, ("train", "reranker.train"), strict=False):
        for key, reason in _unused(model, own).items():
            value = getattr(own, key)
            alike = [pair for pair in networks if getattr(pair[1], key) == value]
            if value not in (None, getattr(model.training, key)) and all(key in _unused(*pair) for pair in alike):
                shown = str(value).lower() if isinstance(value, bool) else value
                raise ConfigError(f"{where}.{key} = {shown} has no effect, because {reason}")


def recipe_tables(values: dict[str, Any]) -> dict[str, Any]:
    """All tables of a recipe; the missing ones are empty, so that later code need not check.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not a table.

    >>> sorted(recipe_tables({"model": {"kind": "bi"}, "output": "run"}))
    ['data', 'model', 'output', 'reranker', 'text', 'train']
    """
    check_recipe(Recipe, values, ("model", "output"), nested_keys(field_types(Recipe)))
    tables = {"output": values["output"]} | {name: _table(values, name) for name in ("model", "text", "data", "train")}
    if values.get("reranker") is None:
        return {**tables, "reranker": None}
    partner = _table(values, "reranker")
    own = {name: _table(partner, name, "reranker.") for name in ("text", "train")}
    return {**tables, "reranker": {**partner, **own}}


def _table(values: dict[str, Any], name: str, prefix: str = "") -> dict[str, Any]:
    table: dict[str, Any] = values.get(name, {})
    check_table(table, f"{prefix}{name}")
    return table


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    The kind of model determines the text settings and the defaults of the training. A second network is a table
    ``reranker`` with the keys of a model, and tables ``text`` and ``train`` for the differences.

    Raises:
        ConfigError: a key is unknown, missing or wrong.
    """
    tables = recipe_tables(values)
    model: ModelConfig = kind_from_dict(ModelConfig, tables["model"], "model")
    train = from_dict(TrainConfig, tables["train"], "train", _train_defaults(model, tables["train"]))
    return Recipe(
        model=model,
        data=from_dict(DataConfig, tables["data"], "data"),
        output=tables["output"],
        text=text_from_dict(model, tables["text"]),
        train=train,
        reranker=tables["reranker"] and _partner_from_dict(tables["reranker"], model, train, tables["text"]),
    )


def _train_defaults(model: ModelConfig, train: dict[str, Any]) -> TrainConfig:
    return model.training if train.get("init_from") is None else model.tuning


def _partner_from_dict(
    values: dict[str, Any], first: ModelConfig, settings: TrainConfig, text: dict[str, Any]
) -> Partner:
    own, train = values["text"], values["train"]
    keys = {key: value for key, value in values.items() if key not in ("text", "train")}
    model: ModelConfig = kind_from_dict(ModelConfig, keys, "reranker")
    shared = field_types(TrainConfig).keys() - field_types(NetworkTraining).keys()
    for key in train:
        if key in shared:
            raise ConfigError(f"reranker.train.{key} is common to both networks; set it in [train]")
    alike = model.text_kind is first.text_kind
    # two kinds of text need different optimizers and rates; init_from names weights of the first network only
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
