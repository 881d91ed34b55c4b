"""What a folder of Hugging Face's form holds, as its JSON files say: a sentence encoder, or a Cross-encoder.

Two forms are read. That of sentence-transformers has modules.json: a transformer and the layers behind it. That of
transformers alone has a config.json whose architecture is a sequence classifier. What would not score as its own
library does is refused, with the reason. This module reads no weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polyrank.errors import ArtifactError
from polyrank.loading.folders import check_weights

CLASSIFIER = "ForSequenceClassification"
LAYERS = ("Pooling", "Dense", "Normalize", "Dropout")
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A module behind the transformer.

    Args:
        kind: one of LAYERS.
        folder: with its weights, where it has any.
        settings: its config.json.
    """

    kind: str
    folder: Path
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What it takes to build the model, and to give it texts as it was given them.

    Args:
        transformer: folder of the transformer and its tokenizer.
        kind: "sentences", one vector for each text, or "pairs", a Cross-encoder.
        layers: behind the transformer; none where its own head gives the scores.
        output: of sentences, the similarity, "cosine" or "dot"; of pairs, the activation of scores as torch names it.
        max_tokens: of a text or a pair; None: what the tokenizer says.
        max_context_tokens, max_candidate_tokens: of one side of sentences, where it has a limit of its own.
        lower_case: whether texts are made lower-case first.
        prompts: put before contexts, and before candidates.
    """

    transformer: Path
    kind: Literal["sentences", "pairs"]
    layers: tuple[Layer, ...] = ()
    output: str
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None
    lower_case: bool = False
    prompts: tuple[str, str] = ("", "")


def describe(folder: Path) -> Description:
    """What the folder holds.

    Raises:
        ArtifactError: a file is damaged, or the model is of a kind that cannot be scored here; the message says why.
    """
    if (folder / "adapter_config.json").exists():
        raise _refused(folder, "holds an adapter without its model", "merge it into the model first")
    modules = folder / "modules.json"
    description = _of_modules(folder, _read(modules)) if modules.exists() else _of_transformers(folder)
    check_weights(description.transformer)
    return description


def _of_transformers(folder: Path) -> Description:
    config = _object(folder / "config.json")
    architecture = next(iter(config.get("architectures") or ()), "")
    if not architecture.endswith(CLASSIFIER):
        raise _refused(
            folder,
            f"holds a {architecture or 'network'} without a head that scores or a pooling that says how it encodes",
            f"take its cosines as untuned:{folder}, or train a model with model.backbone = {str(folder)!r}",
        )
    saved = config.get("sentence_transformers") or {}
    activation = saved.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return Description(transformer=folder, kind="pairs", output=_activation(activation))


def _of_modules(folder: Path, modules: Any) -> Description:
    try:
        parts = [(folder / str(part["path"]), str(part["type"]).rpartition(".")[2]) for part in modules]
    except (TypeError, KeyError) as error:
        raise _refused(folder, "has a modules.json that lists no modules", "get the model again") from error
    if not parts or parts[0][1] != "Transformer":
        first = parts[0][1] if parts else "nothing"
        raise _refused(folder, f"begins with {first}, not with a Transformer", "choose a transformer model")
    if odd := [kind for _, kind in parts[1:] if kind not in LAYERS]:
        raise _refused(folder, f"has a module {odd[0]}, which is not read", f"choose a model of {', '.join(LAYERS)}")
    transformer = parts[0][0]
    layers = tuple(
        Layer(kind, path, _object(path / "config.json", missing=None if kind in ("Pooling", "Dense") else {}))
        for path, kind in parts[1:]
    )
    model = _object(folder / "config_sentence_transformers.json", missing={})
    files = sorted(transformer.glob("sentence_*_config.json"))
    reading = _object(files[0]) if files else {}
    _check_reading(folder, reading, _object(transformer / "config.json"))
    kind: Literal["sentences", "pairs"]
    match model.get("model_type", "SentenceTransformer"):
        case "SentenceTransformer":
            kind, output = "sentences", str(model.get("similarity_fn_name") or "cosine")
            if output not in ("cosine", "dot"):
                raise _refused(folder, f"compares by {output}, which is no product of vectors", "choose cosine or dot")
            if not any(layer.kind == "Pooling" for layer in layers):
                raise _refused(folder, "has no Pooling, so it gives no vector for a text", "choose a model with one")
        case "CrossEncoder":
            kind, output = "pairs", _activation(model.get("activation_fn"))
        case other:
            raise _refused(folder, f"is a {other}", "choose a SentenceTransformer or a CrossEncoder")
    return Description(
        transformer=transformer,
        kind=kind,
        layers=layers,
        output=output,
        max_tokens=reading.get("max_seq_length"),
        max_context_tokens=reading.get("query_length"),
        max_candidate_tokens=reading.get("document_length"),
        lower_case=bool(reading.get("do_lower_case")),
        prompts=_prompts(folder, model, layers, kind),
    )


def _check_reading(folder: Path, reading: dict[str, Any], config: dict[str, Any]) -> None:
    task = reading.get("transformer_task", "feature-extraction")
    if task not in ("feature-extraction", "sequence-classification"):
        raise _refused(folder, f"scores by {task}", "choose a model with a pooling or a classification head")
    for name in ("query_expansion", "processing_kwargs"):
        if reading.get(name):
            raise _refused(folder, f"sets {name}, which is not read", "choose a model without it")
    if "text" not in reading.get("modality_config", {"text": None}):
        raise _refused(folder, "reads messages or media instead of texts", "choose a model of texts")
    if config.get("is_encoder_decoder"):
        raise _refused(folder, f"holds an encoder-decoder ({config.get('model_type')})", "choose an encoder")


def _prompts(folder: Path, model: dict[str, Any], layers: tuple[Layer, ...], kind: str) -> tuple[str, str]:
    """What its library puts before queries and documents; before pairs, what is the default."""
    saved = model.get("prompts") or {}
    if kind == "pairs":
        prompts = str(saved.get(model.get("default_prompt_name")) or ""), ""
    else:
        prompts = str(saved.get("query") or ""), str(saved.get("document") or "")
    if any(prompts) and any(layer.settings.get("include_prompt") is False for layer in layers):
        raise _refused(folder, "leaves its prompts out of the pooling, which is not read", "choose another model")
    return prompts


def poolings(layer: Layer) -> tuple[str, ...]:
    """How a Pooling reduces the outputs; the vectors of several ways are joined."""
    modes = layer.settings.get("pooling_mode")
    if modes is None:  # as older versions of the library write it
        modes = [mode for name, mode in POOLINGS.items() if layer.settings.get(name)] or ["mean"]
    names = (modes,) if isinstance(modes, str) else tuple(map(str, modes))
    if odd := [name for name in names if name not in POOLINGS.values()]:
        raise _refused(layer.folder, f"pools by {odd[0]}", f"choose {', '.join(POOLINGS.values())}")
    return names


def _activation(name: object) -> str:
    """Of the scores. The library takes a sigmoid where nothing is said, or what is said is no part of torch."""
    return str(name) if str(name).startswith("torch.") else "torch.nn.modules.activation.Sigmoid"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing; get the model again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); get the model again") from error


def _object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not path.exists():
        return missing
    value = _read(path)
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} is damaged (it is no JSON object); get the model again")
    return value


def _refused(folder: Path, reason: str, remedy: str) -> ArtifactError:
    return ArtifactError(f"{folder} {reason}; {remedy}")
