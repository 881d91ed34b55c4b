"""Settings as frozen dataclasses, one per model, text policy and training recipe; strict when read from TOML.

``None`` where a default depends on the backbone: ``polyrank.models.build`` resolves it and the saved model states it.
Settings never reach into classes: builders turn them into flat keyword arguments.
"""

import dataclasses
import difflib
import tomllib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from polyrank.errors import ConfigError

Reduction = Literal["first", "mean", "mean_of_first", "sqrt_n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPolicy:
    """How strings become token ids. Contexts keep their end, candidates their start.

    Args:
        max_context_tokens: budget of a context in tokens, special ones included.
        max_candidate_tokens: budget of a candidate in tokens, special ones included.
        max_background_tokens: most tokens of background (its start is kept) inside the context's budget.
        turn_separator: text between two turns. A special token of the vocabulary ("[SEP]") becomes that token.
        new_tokens: tokens to add to the vocabulary, such as "[EOT]" for use as a separator or prefix.
        speaker_prefixes: put before each turn, the first before the last turn and then alternating backwards:
            ("customer: ", "agent: ") for replies by agents. Empty for none.
        background: where persona lines and other facts go, "before" or "after" the turns, or "drop".
    """

    max_context_tokens: int = 360
    max_candidate_tokens: int = 72
    max_background_tokens: int = 120
    turn_separator: str = "[SEP]"
    new_tokens: tuple[str, ...] = ()
    speaker_prefixes: tuple[str, ...] = ()
    background: Literal["before", "after", "drop"] = "before"


@dataclass(frozen=True, slots=True, kw_only=True)
class BiConfig:
    """A Bi-encoder: one vector for the context, one for the candidate.

    Args:
        backbone: "embedded", a local folder, or a hub name.
        reduction: how token outputs become one vector; None: what the backbone was trained with, else "first".
        reduction_tokens: for "mean_of_first", how many tokens.
        shared_towers: one network for both sides. Two, with the same initial weights, by default.
        projection_dim: D of a learnt linear map on each side; None for no map.
        output_scale: token outputs are multiplied by this; None: fitted (see the next two) or 1.
        match_output_std: fit ``output_scale`` so that token outputs have this standard deviation (BERT: 0.5).
        match_self_score: fit it so that a candidate vector's product with itself is this on average.
    """

    backbone: str = "embedded"
    reduction: Reduction | None = None
    reduction_tokens: int = 16
    shared_towers: bool = False
    projection_dim: int | None = None
    output_scale: float | None = None
    match_output_std: float | None = None
    match_self_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolyConfig(BiConfig):
    """A Poly-encoder: m vectors for the context, one for the candidate.

    Args:
        codes: "learnt" codes attend over the outputs; "first", "last" or "last_h1" take outputs as they are.
        n_codes: m. With "last_h1" there are m + 1 vectors.
        code_init: "uniform" on [0, 1) as in the released code, or "normal" with std ``code_std``; None: by backbone.
        code_std: standard deviation for "normal". Near zero every context vector starts as the mean of the outputs.
    """

    codes: Literal["learnt", "first", "last", "last_h1"] = "learnt"
    n_codes: int = 64
    code_init: Literal["uniform", "normal"] | None = None
    code_std: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossConfig:
    """A Cross-encoder: context and candidate read together.

    Args:
        backbone: "embedded", a local folder, or a hub name.
        head: "linear", h_1 W (ICLR 2020), or "mlp", a tanh layer first (Tao et al.).
    """

    backbone: str = "embedded"
    head: Literal["linear", "mlp"] = "linear"


ModelConfig = BiConfig | PolyConfig | CrossConfig
MODEL_KINDS: dict[str, type[BiConfig] | type[CrossConfig]] = {"bi": BiConfig, "poly": PolyConfig, "cross": CrossConfig}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What to train on.

    Args:
        train: file of examples (JSON lines, gzip, CSV or Parquet).
        valid: file of candidate lists; None trains without validation.
        kind: of ``train``: "pairs", "dialogues", "candidates"; None: seen from its first row.
        speaker: for dialogues, learn only this speaker's turns.
        max_train: use a random subset of so many examples; None for all.
        max_valid: the first so many examples of ``valid``.
        skip_bad: count and skip bad rows instead of stopping.
    """

    train: str
    valid: str | None = None
    kind: Literal["pairs", "dialogues", "candidates"] | None = None
    speaker: str | None = None
    max_train: int | None = None
    max_valid: int | None = 1000
    skip_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How to train.

    Args:
        method: "in_batch" (other responses of the batch are the negatives) or "listwise" (each context its own).
        init_from: a model folder whose weights to start from; None: the backbone's.
        batch_size: contexts per step.
        epochs: passes over the data.
        max_steps: stop after so many steps; None for no limit.
        n_negatives: for "listwise": negatives per context, given ones first, then drawn at random anew each epoch.
        optimizer: "adamw" or "adamax".
        lr: peak learning rate.
        new_lr: learning rate of codes, projections and heads; None: ``lr``.
        weight_decay: decoupled for AdamW; not applied to biases, norms and codes.
        train_layers: "all", "all_but_embeddings", or the top n layers as "top-n".
        warmup_steps: linear warm-up.
        schedule: after warm-up "linear" to zero, "constant", or "plateau": times ``plateau_factor`` when validation
            loss stalls.
        plateau_factor: see ``schedule``.
        plateau_patience: checks without gain that are forgiven.
        clip_norm: largest gradient norm; None for no limit.
        dropout: of the backbone; None: its own.
        precision: "fp32", "bf16" (autocast), or "auto": bf16 where the hardware has it.
        evaluate_per_epoch: validations (and checkpoints) per epoch.
        early_stopping: stop after so many validations without a better R@1; None never.
        checkpoint_steps: also checkpoint every so many steps; None: only at validations.
        max_bad_steps: non-finite losses in a row that are skipped before training stops with an error.
        length_window: batches that are sorted by length together; 1 for no sorting.
        seeds: one run for each.
    """

    method: Literal["in_batch", "listwise"] = "in_batch"
    init_from: str | None = None
    batch_size: int = 64
    epochs: int = 1
    max_steps: int | None = None
    n_negatives: int = 15
    optimizer: Literal["adamw", "adamax"] = "adamw"
    lr: float = 5e-5
    new_lr: float | None = None
    weight_decay: float = 0.01
    train_layers: str = "all_but_embeddings"
    warmup_steps: int = 100
    schedule: Literal["linear", "plateau", "constant"] = "plateau"
    plateau_factor: float = 0.4
    plateau_patience: int = 0
    clip_norm: float | None = 1.0
    dropout: float | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    evaluate_per_epoch: int = 2
    early_stopping: int | None = None
    checkpoint_steps: int | None = None
    max_bad_steps: int = 10
    length_window: int = 50
    seeds: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training: what, from what text, on what data, how, and where to."""

    model: ModelConfig
    data: DataConfig
    output: str
    text: TextPolicy = field(default_factory=TextPolicy)
    train: TrainConfig = field(default_factory=TrainConfig)


T = TypeVar("T")


def from_dict(kind: type[T], values: dict[str, Any], where: str = "") -> T:
    """Build the dataclass ``kind``, refusing unknown keys and wrong types.

    Raises:
        ConfigError: names the key and suggests the nearest known one.

    >>> from_dict(TextPolicy, {"max_context_tokens": 128}).max_context_tokens
    128
    >>> from_dict(TextPolicy, {"max_contxt_tokens": 128})
    Traceback (most recent call last):
    polyrank.errors.ConfigError: unknown key "max_contxt_tokens"; did you mean "max_context_tokens"?
    """
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # every caller passes a dataclass
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f'did you mean "{prefix}{near[0]}"?' if near else f"known keys: {', '.join(sorted(hints))}"
            raise ConfigError(f'unknown key "{prefix}{key}"; {hint}')
    for entry in fields:
        required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if required and entry.name not in values:
            raise ConfigError(f'missing key "{prefix}{entry.name}"; add it to the recipe')
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against a type hint; lists become tuples and whole numbers become floats where one is due."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in options:
            raise ConfigError(f"{where} = {value!r} is not one of {', '.join(map(repr, options))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _value(next(option for option in options if option is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} is not a list; write [{value!r}]")
        return tuple(_value(options[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} = {value!r} is {type(value).__name__}; it must be {hint.__name__}")
    return value


def model_from_dict(values: dict[str, Any]) -> ModelConfig:
    """Build the configuration that ``kind`` ("bi", "poly", "cross") names.

    >>> model_from_dict({"kind": "poly", "n_codes": 16}).n_codes
    16
    """
    kind = values.get("kind")
    if kind not in MODEL_KINDS:
        raise ConfigError(f"model.kind = {kind!r} is not one of {', '.join(MODEL_KINDS)}")
    rest = {key: value for key, value in values.items() if key != "kind"}
    config: ModelConfig = from_dict(MODEL_KINDS[kind], rest, "model")
    return config


def model_to_dict(config: ModelConfig) -> dict[str, Any]:
    """The inverse of ``model_from_dict``, ready for JSON."""
    kind = next(name for name, known in MODEL_KINDS.items() if type(config) is known)
    return {"kind": kind, **dataclasses.asdict(config)}


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``."""
    tables = {"model": model_from_dict, "text": None, "data": None, "train": None}
    kinds: dict[str, type[Any]] = {"text": TextPolicy, "data": DataConfig, "train": TrainConfig}
    for key, value in values.items():
        if key in tables and not isinstance(value, dict):
            raise ConfigError(f"{key} = {value!r} is no table; write [{key}]")
    built: dict[str, Any] = {
        key: model_from_dict(value) if key == "model" else from_dict(kinds[key], value, key) if key in kinds else value
        for key, value in values.items()
    }
    for name in ("model", "data", "output"):
        if name not in built:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    unknown = set(built) - {"model", "data", "output", "text", "train"}
    if unknown:
        key = sorted(unknown)[0]
        near = difflib.get_close_matches(key, ("model", "data", "output", "text", "train"), n=1)
        raise ConfigError(
            f'unknown key "{key}"; '
            + (f'did you mean "{near[0]}"?' if near else "known keys: model, data, output, text, train")
        )
    return Recipe(**built)


def load_recipe(path: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """Read a TOML recipe and apply ``changes`` such as ``train.lr=5e-5``. Paths are relative to the recipe's folder.

    Raises:
        ConfigError: no file, no TOML, or a bad key or value.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no recipe {path}; give the path of a .toml file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {change!r} is not KEY=VALUE; write for example train.lr=5e-5")
        *tables, last = key.strip().split(".")
        place = values
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {change!r}: {table} is no table")
        place[last] = _parse(text.strip())
    recipe = recipe_from_dict(values)
    base = path.resolve().parent
    valid = None if recipe.data.valid is None else str(base / recipe.data.valid)
    data = dataclasses.replace(recipe.data, train=str(base / recipe.data.train), valid=valid)
    return dataclasses.replace(recipe, data=data, output=str(base / recipe.output))


def _parse(text: str) -> Any:
    """A value as TOML writes it, or else the text itself; "none" is None."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    return {
        "model": model_to_dict(recipe.model),
        "text": dataclasses.asdict(recipe.text),
        "data": dataclasses.asdict(recipe.data),
        "train": dataclasses.asdict(recipe.train),
        "output": recipe.output,
    }
