"""Settings as frozen dataclasses, one per model, text policy and training recipe; strict when read from TOML.

``None`` where a default depends on the backbone: ``polyrank.models.build`` resolves it and the saved model states it.
Settings never reach into classes: builders turn them into flat keyword arguments.
"""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyrank.errors import ConfigError
from polyrank.strict import from_dict as from_dict  # part of this module's face
from polyrank.strict import parsed, unknown_key

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
class ConvertText:
    """How strings become ids for a ConveRT. The paper's figures are the defaults.

    Args:
        max_context_tokens: budget of the immediate context (the last turn), in subwords; its end is kept.
        max_candidate_tokens: budget of a candidate; its start is kept.
        max_earlier_tokens: budget of the earlier turns together, newest first; the newest are kept.
        max_earlier_turns: most earlier turns that are read.
        number_prefixes: put "0", "1", ... before the earlier turns, 0 before the newest, as for DSTC7.
        background: read persona lines and other facts behind the earlier turns ("after"), or not ("drop").
        vocabulary: a file of subwords; None: learnt from the training data.
        min_count: when learning: how often a subword must be seen.
        vocabulary_size: when learning: so many subwords, whatever their counts; None: as ``min_count`` gives.
        n_buckets: ids for characters outside the vocabulary.
    """

    max_context_tokens: int = 60
    max_candidate_tokens: int = 60
    max_earlier_tokens: int = 60
    max_earlier_turns: int = 10
    number_prefixes: bool = False
    background: Literal["after", "drop"] = "drop"
    vocabulary: str | None = None
    min_count: int = 250
    vocabulary_size: int | None = None
    n_buckets: int = 1000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig:
    """A ConveRT: a small dual encoder over subwords. The paper's figures are the defaults.

    Args:
        embedding_dim: of subwords, positions and layers.
        attention_dim: of the projections that attention weights are computed from, per head.
        ffn_dim: inside a layer's feed-forward network.
        spans: for each layer, how far apart two subwords may be to attend to each other. Equal ones: ablation C.
        position_periods: rows of each position table.
        n_heads: of attention; above one, values are projected too. 8: ablation A.
        relative_bias: whether attention scores get a learnt bias by relative position. False: ablation B.
        reduction_heads: how many weighted sums make r. 1: ablation E. (D is ``text.n_buckets = 1``.)
        side_dim, side_layers: the networks that each side has for itself.
        side_skips: their skip connections. False: ablation F.
        output_dim: D of the final encodings.
        multi_context: read the earlier turns as well.
        combination: of the immediate and the earlier context's encodings: their "mean", or one more "feed_forward"
            network on it, as in the released graphs.
        quantization: what the weights are rounded to, in training and in the file: 8 bits for embeddings and this
            type for the rest, or "none" for 32 bits.
        dropout: after embeddings and attention; 0 for pre-training, 0.2 for fine-tuning.
    """

    embedding_dim: int = 512
    attention_dim: int = 64
    ffn_dim: int = 2048
    spans: tuple[int, ...] = (3, 5, 48, 48, 48, 48)
    position_periods: tuple[int, ...] = (47, 11)
    n_heads: int = 1
    relative_bias: bool = True
    reduction_heads: int = 2
    side_dim: int = 1024
    side_layers: int = 3
    side_skips: bool = True
    output_dim: int = 512
    multi_context: bool = False
    combination: Literal["feed_forward", "mean"] = "feed_forward"
    quantization: Literal["float16", "bfloat16", "none"] = "float16"
    dropout: float = 0.0


ModelConfig = BiConfig | PolyConfig | CrossConfig | ConvertConfig
MODEL_KINDS: dict[str, type[BiConfig] | type[CrossConfig] | type[ConvertConfig]] = {
    "bi": BiConfig,
    "poly": PolyConfig,
    "cross": CrossConfig,
    "convert": ConvertConfig,
}


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
        optimizer: "adamw", "adamax" or "adadelta" (rho 0.9).
        lr: peak learning rate.
        new_lr: learning rate of codes, projections and heads; None: ``lr``.
        weight_decay: decoupled for AdamW, L2 regularization for the others; not applied to biases, norms and codes.
        train_layers: "all", "all_but_embeddings", or the top n layers as "top-n".
        warmup_steps: linear warm-up.
        schedule: after warm-up "linear" to zero, "cosine" to ``final_lr``, "constant", or "plateau": times
            ``plateau_factor`` when validation loss stalls.
        final_lr: see ``schedule``.
        plateau_factor: see ``schedule``.
        plateau_patience: checks without gain that are forgiven.
        clip_norm: largest gradient norm; None for no limit.
        clip_embeddings_norm: largest norm of the word embeddings' gradient, before ``clip_norm``; None for no limit.
        dropout: of the backbone; None: its own.
        smoothing: for "in_batch": this much of the probability is spread over the wrong candidates.
        scale_steps: ConveRT: steps in which the scale of the cosine grows from 1 to its end; 0: at its end at once.
        loss_weights: ConveRT with multiple contexts: of the losses of the immediate context, of the earlier turns
            and of both together.
        range_steps: ConveRT: steps between two looks at the range of the 8-bit embeddings.
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
    optimizer: Literal["adamw", "adamax", "adadelta"] = "adamw"
    lr: float = 5e-5
    new_lr: float | None = None
    weight_decay: float = 0.01
    train_layers: str = "all_but_embeddings"
    warmup_steps: int = 100
    schedule: Literal["linear", "cosine", "plateau", "constant"] = "plateau"
    final_lr: float = 0.0
    plateau_factor: float = 0.4
    plateau_patience: int = 0
    clip_norm: float | None = 1.0
    clip_embeddings_norm: float | None = None
    dropout: float | None = None
    smoothing: float = 0.0
    scale_steps: int = 10_000
    loss_weights: tuple[float, ...] = (1.0, 1.0, 1.0)
    range_steps: int = 100
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    evaluate_per_epoch: int = 2
    early_stopping: int | None = None
    checkpoint_steps: int | None = None
    max_bad_steps: int = 10
    length_window: int = 50
    seeds: tuple[int, ...] = (1,)


CONVERT_TRAIN: dict[str, Any] = {
    "batch_size": 512,
    "optimizer": "adadelta",
    "lr": 1.0,
    "final_lr": 0.001,
    "schedule": "cosine",
    "warmup_steps": 0,
    "weight_decay": 1e-5,
    "clip_norm": None,
    "clip_embeddings_norm": 1.0,
    "smoothing": 0.2,
    "train_layers": "all",
    "length_window": 1,
}
"""What a recipe's ``train`` table starts from when its model is a ConveRT: the paper's pre-training (section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training: what, from what text, on what data, how, and where to."""

    model: ModelConfig
    data: DataConfig
    output: str
    text: TextPolicy | ConvertText = field(default_factory=TextPolicy)
    train: TrainConfig = field(default_factory=TrainConfig)


def model_from_dict(values: dict[str, Any]) -> ModelConfig:
    """Build the configuration that ``kind`` ("bi", "poly", "cross", "convert") names.

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


def text_from_dict(config: ModelConfig, values: dict[str, Any]) -> TextPolicy | ConvertText:
    """Build the text settings that go with a model.

    >>> text_from_dict(ConvertConfig(), {}).max_context_tokens
    60
    """
    kind: type[TextPolicy] | type[ConvertText] = ConvertText if isinstance(config, ConvertConfig) else TextPolicy
    text: TextPolicy | ConvertText = from_dict(kind, values, "text")
    return text


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    A ConveRT has its own text settings, and its training starts from ``CONVERT_TRAIN``.
    """
    tables = {"model": model_from_dict, "text": None, "data": None, "train": None}
    for key, value in values.items():
        if key in tables and not isinstance(value, dict):
            raise ConfigError(f"{key} = {value!r} is no table; write [{key}]")
    convert = values.get("model", {}).get("kind") == "convert"
    if convert:
        values = {"text": {}, **values, "train": {**CONVERT_TRAIN, **values.get("train", {})}}
    kinds: dict[str, type[Any]] = {
        "text": ConvertText if convert else TextPolicy,
        "data": DataConfig,
        "train": TrainConfig,
    }
    built: dict[str, Any] = {
        key: model_from_dict(value) if key == "model" else from_dict(kinds[key], value, key) if key in kinds else value
        for key, value in values.items()
    }
    for name in ("model", "data", "output"):
        if name not in built:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    known = [entry.name for entry in dataclasses.fields(Recipe)]
    for key in built:
        if key not in known:
            raise unknown_key(key, known)
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
        place[last] = parsed(text.strip())
    recipe = recipe_from_dict(values)
    base = path.resolve().parent
    valid = None if recipe.data.valid is None else str(base / recipe.data.valid)
    data = dataclasses.replace(recipe.data, train=str(base / recipe.data.train), valid=valid)
    reading = recipe.text
    if isinstance(reading, ConvertText) and reading.vocabulary is not None:
        reading = dataclasses.replace(reading, vocabulary=str(base / reading.vocabulary))
    return dataclasses.replace(recipe, data=data, text=reading, output=str(base / recipe.output))


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    return {
        "model": model_to_dict(recipe.model),
        "text": dataclasses.asdict(recipe.text),
        "data": dataclasses.asdict(recipe.data),
        "train": dataclasses.asdict(recipe.train),
        "output": recipe.output,
    }
