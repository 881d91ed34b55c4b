"""A training recipe as frozen dataclasses; strict when read from TOML. What fits together is checked when made."""

import copy
import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyrank.config.checked import (
    Count,
    Settings,
    Several,
    field_types,
    from_dict,
    kind_from_dict,
    kinds,
    parsed,
    to_dict,
    unknown_key,
)
from polyrank.config.models import (
    MODEL,
    ConvertConfig,
    ConvertText,
    CrossConfig,
    RecipeModel,
    SumConfig,
    TextPolicy,
    TextSettings,
    text_from_dict,
)
from polyrank.config.names import model_folder
from polyrank.config.training import ConvertMethod, ListwiseMethod, MutualMethod, NetworkTraining, TrainConfig
from polyrank.errors import ConfigError
from polyrank.storage.document import has_document, read_document


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


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    The kind of model says which text settings there are and what training starts from. A second network is a table
    ``reranker``: the keys of a model, and tables ``text`` and ``train`` inside it for what differs.
    """
    known = [entry.name for entry in dataclasses.fields(Recipe)]
    for key, value in values.items():
        if key not in known:
            raise unknown_key(key, known)
        if key != "output" and not isinstance(value, dict) and not (key == "reranker" and value is None):
            raise ConfigError(f"{key} = {value!r} is no table; write [{key}]")
    for name in ("model", "output"):
        if name not in values:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    if not isinstance(values["output"], str):
        raise ConfigError(f"output = {values['output']!r} is no folder; write its path in quotes")
    model, train = _model_from_dict(values["model"]), values.get("train", {})
    settings = from_dict(TrainConfig, train, "train", _train_defaults(model, train))
    partner = values.get("reranker")
    return Recipe(
        model=model,
        data=from_dict(DataConfig, values.get("data", {}), "data"),
        output=values["output"],
        text=text_from_dict(model, values.get("text", {})),
        train=settings,
        reranker=None if partner is None else _partner_from_dict(partner, model, settings, values.get("text", {})),
    )


def _model_from_dict(values: dict[str, Any], where: str = "model") -> RecipeModel:
    model: RecipeModel = kind_from_dict(RecipeModel, values, where)
    return model


def _train_defaults(model: RecipeModel, train: Any) -> TrainConfig:
    return model.training if not isinstance(train, dict) or train.get("init_from") is None else model.tuning


def _partner_from_dict(values: dict[str, Any], first: RecipeModel, settings: TrainConfig, text: Any) -> Partner:
    model = _model_from_dict({key: value for key, value in values.items() if key not in ("text", "train")}, "reranker")
    own, train = values.get("text", {}), values.get("train", {})
    for key in train if isinstance(train, dict) else ():
        shared = field_types(TrainConfig).keys() | TrainConfig.moved.keys()
        if key in shared - field_types(NetworkTraining).keys() - NetworkTraining.moved.keys():
            raise ConfigError(f"reranker.train.{key} is one for both networks; set it in [train]")
    alike = model.text_kind is first.text_kind
    # what suits the one optimiser ruins the other; and the first network's weights are its own
    start = dataclasses.replace(settings, init_from=None) if alike else _train_defaults(model, train)
    return Partner(
        model=model,
        text=text_from_dict(model, {**text, **own} if alike and isinstance(own, dict) else own, "reranker.text"),
        train=from_dict(NetworkTraining, train, "reranker.train", start.of_one_network()),
    )


def load_recipe(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply ``changes`` such as ``train.lr=5e-5``.

    Args:
        source: the file; or its tables as dictionaries.
        changes: each KEY=VALUE, values as TOML writes them.

    Paths of data, output and a vocabulary are relative to the recipe's folder (of tables, to the working directory);
    those of models are names as on the command line, relative to the working directory.

    Raises:
        ConfigError: no file, no TOML, or a bad key or value.

    >>> load_recipe({"model": {"kind": "bi"}, "output": "run"}, ["train.lr=5e-5"]).train.lr
    5e-05
    """
    values, base = read_tables(source, changes)
    return _complete(values, base)


def read_tables(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> tuple[dict[str, Any], Path]:
    """The tables of any TOML recipe with ``changes`` made, and the folder that its paths are relative to.

    Raises:
        ConfigError: no file, no TOML, or a change that is none.
    """
    if isinstance(source, Mapping):
        values, base = copy.deepcopy(dict(source)), Path.cwd()
    else:
        path = Path(source)
        values, base = _read_toml(path), path.resolve().parent
    for change in changes:
        _make(change, values)
    return values, base


def _make(change: str, values: dict[str, Any]) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {change!r} is not KEY=VALUE; write for example train.lr=5e-5")
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change!r}: {table} is no table")
    values[last] = parsed(text.strip())


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin a file with a byte order mark
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; give the path of a .toml file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; give the path of a .toml file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8, as TOML is; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; mend it there") from error


def _complete(values: dict[str, Any], base: Path) -> Recipe:
    """The recipe with what it starts from filled in, and its paths absolute."""
    recipe = recipe_from_dict(_with_starts(values))
    files = (recipe.data.train, recipe.data.valid, recipe.data.test, recipe.data.cache)
    train, valid, test, cache = (file and str(base / file) for file in files)
    data = dataclasses.replace(recipe.data, train=train, valid=valid, test=test, cache=cache)
    partner = recipe.reranker
    if partner is not None:
        partner = dataclasses.replace(partner, text=_placed(partner.text, base))
    return dataclasses.replace(
        recipe, data=data, text=_placed(recipe.text, base), output=str(base / recipe.output), reranker=partner
    )


def _with_starts(values: dict[str, Any]) -> dict[str, Any]:
    """A network that starts from one of its own kind has that one's settings where the recipe gives no others.

    One of another kind gives its transformer, and so its backbone's name.
    """
    model, text, partner = values.get("model"), values.get("text", {}), values.get("reranker")
    merged = dict(values)
    _check_parts(model, "model")
    _check_parts(partner, "reranker")
    if (start := _start(model, values.get("train"), "train")) and isinstance(text, dict):
        merged |= {"model": {**start["model"], **values["model"]}, "text": {**start["text"], **text}}
    if isinstance(partner, dict) and (start := _start(partner, partner.get("train"), "reranker.train")):
        own, alike = partner.get("text", {}), _text_kind(model) is _text_kind(partner)
        if isinstance(text, dict) and isinstance(own, dict):
            policy = start["text"] | (text if alike else {}) | own
            merged["reranker"] = start["model"] | partner | {"text": policy}
    return merged


SCALES = ("output_scale", "match_output_std", "match_self_score")  # of which a network has one


def _text_kind(model: Any) -> Any:
    kind = kinds(RecipeModel).get(str(model.get("kind"))) if isinstance(model, dict) else None
    return kind and kind.text_kind


def _start(model: Any, train: Any, where: str) -> dict[str, dict[str, Any]] | None:
    """Settings, in tables ``model`` and ``text``, which a network has from what it starts from."""
    start = train.get("init_from") if isinstance(train, dict) else None
    if not (isinstance(start, str) and isinstance(model, dict)):
        return None
    _check_model_folder(start, f"{where}.init_from")
    if _is_hugging_face(model_folder(start) / MODEL.file):
        raise ConfigError(
            f'{where}.init_from = {start} is a model of Hugging Face; write it as backbone = "{start}" of the model,'
            " and leave init_from out"
        )
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


def _check_parts(model: Any, where: str) -> None:
    """Refuse a sum of what no training wrote, before any data is read."""
    parts = model.get("parts") if isinstance(model, dict) and model.get("kind") == SumConfig.kind else None
    for name in parts if isinstance(parts, list | tuple) else ():
        if (model_folder(str(name)) / "sum.json").is_file():
            raise ConfigError(f"{where}.parts = {name} is a sum; name its encoders instead")
        _check_model_folder(str(name), f"{where}.parts")
        if _is_hugging_face(model_folder(str(name)) / MODEL.file):
            raise ConfigError(
                f'{where}.parts = {name} is a model of Hugging Face; train a Bi-encoder with backbone = "{name}" first,'
                " and name that"
            )


def _check_model_folder(name: str, where: str) -> None:
    if not has_document(model_folder(name), MODEL):
        raise ConfigError(f"{where} = {name} is no model folder; give one that training wrote")


def _is_hugging_face(path: Path) -> bool:
    try:
        return "model_type" in json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # whoever reads it as ours says what is wrong with it


def _placed(text: TextSettings, base: Path) -> TextSettings:
    """With the path of a vocabulary made absolute."""
    if isinstance(text, ConvertText) and text.vocabulary is not None:
        return dataclasses.replace(text, vocabulary=str(base / text.vocabulary))
    return text


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    values = to_dict(recipe)
    if (partner := values.pop("reranker")) is not None:
        values["reranker"] = {**partner.pop("model"), **partner}
    return values
