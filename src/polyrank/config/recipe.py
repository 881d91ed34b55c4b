"""A training recipe as frozen dataclasses; strict when read from TOML. Networks' settings are in ``architecture``."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyrank.config.checked import Count, NotNegative, Positive, Share, Whole, parsed, unknown_key
from polyrank.config.checked import from_dict as from_dict
from polyrank.config.models import MODEL
from polyrank.config.models import MODEL_KINDS as MODEL_KINDS

# the settings of networks are part of this module's face
from polyrank.config.models import BiConfig as BiConfig
from polyrank.config.models import ConvertConfig as ConvertConfig
from polyrank.config.models import ConvertText as ConvertText
from polyrank.config.models import CrossConfig as CrossConfig
from polyrank.config.models import ModelConfig as ModelConfig
from polyrank.config.models import PolyConfig as PolyConfig
from polyrank.config.models import Reduction as Reduction
from polyrank.config.models import TextPolicy as TextPolicy
from polyrank.config.models import model_from_dict as model_from_dict
from polyrank.config.models import model_to_dict as model_to_dict
from polyrank.config.models import text_from_dict as text_from_dict
from polyrank.config.names import model_folder
from polyrank.errors import ConfigError
from polyrank.storage.document import has_document, read_document


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
    max_train: Count | None = None
    max_valid: Count | None = 1000
    skip_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How to train.

    Args:
        method: "in_batch" (other responses of the batch are the negatives), "listwise" (each context its own),
            "distill" (listwise, and like ``teacher``) or "mutual" (listwise, two networks that learn from each other).
        init_from: a model folder, or "shipped:convert", whose weights to start from; None: the backbone's. Another kind
            gives what both have: an encoder's context side becomes a Cross-encoder's transformer, say.
        batch_size: contexts per step.
        epochs: passes over the data.
        max_steps: stop after so many steps; None for no limit.
        n_negatives: but for "in_batch": negatives per context, given ones first, then drawn at random.
        redraw_negatives: draw anew each epoch. False: the same for the whole run.
        remine_epochs: every so many epochs, from the first on, take instead the wrong responses that the network (of
            two, the one that encodes) now ranks highest; None: never.
        remine_ranks: the ranks that they are drawn from, first and last, counted from 1 without right answers.
        teacher: for "distill": a folder of a trained model, which stays as it is.
        teacher_scores: file for its scores, which other runs may share, as seen from the working directory; None: in
            the run's folder.
        imitation: of the other network, by "kl" (of probabilities) or "margin_mse" (of differences between scores).
        alpha: weight of the imitation.
        label_weight: weight of the cross-entropy beside it; 0 learns from the other network alone.
        temperature: for "kl": scores are divided by it before they become probabilities.
        optimizer: "adamw", "adamax" or "adadelta" (rho 0.9).
        lr: peak learning rate.
        new_lr: learning rate of codes, projections and heads; None: ``lr``, and 25 times that for a Poly-encoder whose
            codes start near zero.
        weight_decay: decoupled for AdamW, L2 regularization for the others; not applied to biases, norms and codes.
            None: 0.01, but none for Adamax.
        train_layers: "all", "all_but_embeddings", or the top n layers as "top-n".
        warmup_steps: linear warm-up; at most half of the training.
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

    method: Literal["in_batch", "listwise", "distill", "mutual"] = "in_batch"
    init_from: str | None = None
    batch_size: Count = 64
    epochs: Count = 1
    max_steps: Count | None = None
    n_negatives: Count = 15
    redraw_negatives: bool = True
    remine_epochs: int | None = None
    remine_ranks: tuple[Count, ...] = (1, 50)
    teacher: str | None = None
    teacher_scores: str | None = None
    imitation: Literal["kl", "margin_mse"] = "kl"
    alpha: NotNegative = 1.0
    label_weight: NotNegative = 1.0
    temperature: Positive = 3.0
    optimizer: Literal["adamw", "adamax", "adadelta"] = "adamw"
    lr: NotNegative = 5e-5
    new_lr: NotNegative | None = None
    weight_decay: NotNegative | None = None
    train_layers: str = "all_but_embeddings"
    warmup_steps: Whole = 100
    schedule: Literal["linear", "cosine", "plateau", "constant"] = "plateau"
    final_lr: NotNegative = 0.0
    plateau_factor: Share = 0.4
    plateau_patience: Whole = 0
    clip_norm: Positive | None = 1.0
    clip_embeddings_norm: Positive | None = None
    dropout: Share | None = None
    smoothing: float = 0.0
    scale_steps: int = 10_000
    loss_weights: tuple[float, ...] = (1.0, 1.0, 1.0)
    range_steps: int = 100
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    evaluate_per_epoch: Count = 2
    early_stopping: Count | None = None
    checkpoint_steps: Count | None = None
    max_bad_steps: Whole = 10
    length_window: Count = 50
    seeds: tuple[Whole, ...] = (1,)


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


CONVERT_TUNE: dict[str, Any] = {
    **CONVERT_TRAIN,
    "batch_size": 256,
    "optimizer": "adamw",
    "lr": 5e-4,
    "final_lr": 5e-7,
    "warmup_steps": 20,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "scale_steps": 0,
    "dropout": 0.2,
}
"""The same when it starts from a trained one: the paper's fine-tuning (section 4), with AdamW, since Adadelta at the
paper's rate of 0.1 hardly moves in hundreds of steps."""


OF_ONE_NETWORK = (
    "init_from", "optimizer", "lr", "new_lr", "weight_decay", "train_layers", "warmup_steps", "schedule", "final_lr",
    "plateau_factor", "plateau_patience", "clip_norm", "clip_embeddings_norm", "dropout", "early_stopping",
)  # fmt: skip
"""The keys of ``train`` that two networks in one training may have apart; the rest is the same batches for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """The second network of a mutual training: a re-ranker, or any other kind.

    Args:
        model: what it is.
        text: its text settings; the first network's where they are of one kind.
        train: the recipe's settings with its own ones (``OF_ONE_NETWORK``) put over them.
    """

    model: ModelConfig
    text: TextPolicy | ConvertText
    train: TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training: what, from what text, on what data, how, and where to; for mutual learning, with whom."""

    model: ModelConfig
    data: DataConfig
    output: str
    text: TextPolicy | ConvertText = field(default_factory=TextPolicy)
    train: TrainConfig = field(default_factory=TrainConfig)
    reranker: Partner | None = None


def recipe_from_dict(values: dict[str, Any]) -> Recipe:
    """Build a Recipe from nested tables ``model``, ``text``, ``data``, ``train`` and the key ``output``.

    A ConveRT has its own text settings, and its training starts from ``CONVERT_TRAIN`` or ``CONVERT_TUNE``. A second
    network is a table ``reranker``: the keys of a model, and tables ``text`` and ``train`` inside it for what differs.
    """
    known = [entry.name for entry in dataclasses.fields(Recipe)]
    for key, value in values.items():
        if key not in known:
            raise unknown_key(key, known)
        if key != "output" and not isinstance(value, dict) and not (key == "reranker" and value is None):
            raise ConfigError(f"{key} = {value!r} is no table; write [{key}]")
    for name in ("model", "data", "output"):
        if name not in values:
            raise ConfigError(f'missing key "{name}"; add it to the recipe')
    if not isinstance(values["output"], str):
        raise ConfigError(f"output = {values['output']!r} is no folder; write its path in quotes")
    model, train = model_from_dict(values["model"]), values.get("train", {})
    settings = from_dict(TrainConfig, {**_train_defaults(model, train), **train}, "train")
    partner = values.get("reranker")
    return Recipe(
        model=model,
        data=from_dict(DataConfig, values["data"], "data"),
        output=values["output"],
        text=text_from_dict(model, values.get("text", {})),
        train=settings,
        reranker=None if partner is None else _partner_from_dict(partner, model, settings, values.get("text", {})),
    )


def _train_defaults(model: ModelConfig, train: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(model, ConvertConfig):
        return {}
    return CONVERT_TRAIN if train.get("init_from") is None else CONVERT_TUNE


def default_train(model: ModelConfig, settings: TrainConfig) -> TrainConfig:
    """What a recipe of this model and start has that says nothing of its training."""
    return TrainConfig(**_train_defaults(model, {"init_from": settings.init_from}))


def _partner_from_dict(values: dict[str, Any], first: ModelConfig, settings: TrainConfig, text: Any) -> Partner:
    own: dict[str, Any] = {}
    for name in ("text", "train"):
        own[name] = values.get(name, {})
        if not isinstance(own[name], dict):
            raise ConfigError(f"reranker.{name} = {own[name]!r} is no table; write [reranker.{name}]")
    model = model_from_dict({key: value for key, value in values.items() if key not in own}, "reranker")
    for key in own["train"]:
        if key in TrainConfig.__dataclass_fields__ and key not in OF_ONE_NETWORK:
            raise ConfigError(f"reranker.train.{key} is one for both networks; set it in [train]")
        if key not in OF_ONE_NETWORK:
            raise unknown_key(key, OF_ONE_NETWORK, "reranker.train.")
    alike = isinstance(model, ConvertConfig) == isinstance(first, ConvertConfig)
    if not alike:  # what suits the one optimiser ruins the other
        settings = dataclasses.replace(
            TrainConfig(**_train_defaults(model, own["train"])),
            **{name: value for name, value in _plain(settings).items() if name not in OF_ONE_NETWORK},
        )
    # the first network's weights are its own, the rest of its settings may do for both
    given = _plain(settings) | {"init_from": None} | own["train"]
    return Partner(
        model=model,
        text=text_from_dict(model, {**(text if alike else {}), **own["text"]}, "reranker.text"),
        train=from_dict(TrainConfig, given, "reranker.train"),
    )


def _plain(settings: TrainConfig) -> dict[str, Any]:
    return dataclasses.asdict(settings)


def load_recipe(path: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """Read a TOML recipe and apply ``changes`` such as ``train.lr=5e-5``.

    Paths of data, output and a vocabulary are relative to the recipe's folder; those of models are names as on the
    command line, relative to the working directory.

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
    recipe = recipe_from_dict(_with_starts(values))
    base = path.resolve().parent
    valid = None if recipe.data.valid is None else str(base / recipe.data.valid)
    data = dataclasses.replace(recipe.data, train=str(base / recipe.data.train), valid=valid)
    partner = recipe.reranker
    if partner is not None:
        partner = dataclasses.replace(partner, text=_placed(partner.text, base))
    return dataclasses.replace(
        recipe, data=data, text=_placed(recipe.text, base), output=str(base / recipe.output), reranker=partner
    )


def _with_starts(values: dict[str, Any]) -> dict[str, Any]:
    """A network that starts from one of its own kind has that one's settings where the recipe gives no others."""
    model, text, partner = values.get("model"), values.get("text", {}), values.get("reranker")
    found = dict(values)
    if (start := _start(model, values.get("train"), "train")) and isinstance(text, dict):
        found |= {"model": {**start["model"], **values["model"]}, "text": {**start["text"], **text}}
    if isinstance(partner, dict) and (start := _start(partner, partner.get("train"), "reranker.train")):
        own, alike = partner.get("text", {}), isinstance(model, dict) and _of_convert(model) == _of_convert(partner)
        if isinstance(text, dict) and isinstance(own, dict):
            policy = start["text"] | (text if alike else {}) | own
            found["reranker"] = start["model"] | partner | {"text": policy}
    return found


SCALES = ("output_scale", "match_output_std", "match_self_score")  # of which a network has one


def _of_convert(model: dict[str, Any]) -> bool:
    return model.get("kind") == "convert"


def _start(model: Any, train: Any, where: str) -> dict[str, dict[str, Any]] | None:
    """Settings, in tables ``model`` and ``text``, of what a network starts from, where that is of its kind."""
    start = train.get("init_from") if isinstance(train, dict) else None
    if not (isinstance(start, str) and isinstance(model, dict)):
        return None
    if not has_document(model_folder(start), MODEL):
        raise ConfigError(f"{where}.init_from = {start} is no model folder; give one that training wrote")
    known = read_document(model_folder(start), MODEL)
    found = {name: dict(known[name]) for name in ("model", "text")}
    if found["model"].get("kind") != model.get("kind"):
        return None
    if any(model.get(name) is not None for name in SCALES):  # the recipe's own
        spent: tuple[str, ...] = SCALES
    else:  # what the scale was fitted to, and is no longer
        spent = SCALES[1:] if found["model"].get(SCALES[0]) is not None else ()
    found["text"].pop("vocabulary", None)  # its subwords come with it, not from where it once had them
    return {**found, "model": {name: value for name, value in found["model"].items() if name not in spent}}


def _placed(text: TextPolicy | ConvertText, base: Path) -> TextPolicy | ConvertText:
    """With the path of a vocabulary made absolute."""
    if isinstance(text, ConvertText) and text.vocabulary is not None:
        return dataclasses.replace(text, vocabulary=str(base / text.vocabulary))
    return text


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The inverse of ``recipe_from_dict``, ready for JSON."""
    values = {
        "model": model_to_dict(recipe.model),
        "text": dataclasses.asdict(recipe.text),
        "data": dataclasses.asdict(recipe.data),
        "train": _plain(recipe.train),
        "output": recipe.output,
    }
    if (partner := recipe.reranker) is not None:
        own = {name: value for name, value in _plain(partner.train).items() if name in OF_ONE_NETWORK}
        values["reranker"] = {**model_to_dict(partner.model), "text": dataclasses.asdict(partner.text), "train": own}
    return values
