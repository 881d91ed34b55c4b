"""Reading the JSON files of a Hugging Face folder: a sentence encoder, or a Cross-encoder.

Two formats are supported: sentence-transformers, with modules.json (a transformer and the layers after it), and plain
transformers, with a config.json whose architecture is a sequence classifier. A model that polyrank would score
differently from its own library is refused, with the reason. This module reads no weights.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from polyrank.config.models import Reduction
from polyrank.errors import ArtifactError
from polyrank.loading.folders import check_weights
from polyrank.models.foreign.rerankers import Prompting, prompting_of
from polyrank.models.hugging_face import ENCODER_DECODERS
from polyrank.records import as_tuple
from polyrank.text import load_tokenizer

CLASSIFIER, CAUSAL = "ForSequenceClassification", "ForCausalLM"
LIBRARY = "sentence_transformers."  # of the modules; polyrank runs no code of models
LAYERS = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout", "LogitScore")
ROUTERS = ("Router", "Asym")
STATIC = "StaticEmbedding"
ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
WITHOUT_EFFECT = (
    "dtype", "torch_dtype", "attn_implementation", "trust_remote_code", "add_pooling_layer", "padding_side", "use_fast",
    "unpad_inputs", "use_memory_efficient_attention",
)  # fmt: skip
"""Arguments in a Transformer's settings that change no vector, except by rounding."""
NEEDED = ("Pooling", "Dense", "LogitScore")
"""Layers that have a config.json."""
POOLINGS: dict[str, Reduction] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "sqrt_n",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""The modes of a Pooling, as reductions."""


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A module after the transformer.

    Args:
        kind: one of LAYERS.
        folder: of its weights, if it has any.
        settings: its config.json.
    """

    kind: str
    folder: Path
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chat:
    """How texts become messages of a chat template.

    Args:
        form: of a message's content: "flat" (a string), "structured" (a list of parts), or "auto", as the template
            reads it.
        settings: of the template, such as ``add_generation_prompt``.
        required: whether the tokenizer must have a template; otherwise, texts without one stay as they are.
        template: in place of the tokenizer's; None: its own.
    """

    form: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    required: bool = False
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Everything that is needed to build a model and prepare its texts.

    Args:
        transformer: folder of the transformer and its tokenizer.
        kind: "sentences" (one vector per text) or "pairs" (a Cross-encoder).
        layers: after the transformer; empty if its own head returns the scores.
        output: for sentences the similarity, "cosine" or "dot"; for pairs the activation of scores, by its torch name.
        max_tokens: per text or pair; None: the tokenizer's limit.
        max_context_tokens, max_candidate_tokens: limits of one side of sentences; None: ``max_tokens``.
        lower_case: whether texts are lower-cased first.
        prompts: prefixes of contexts and of candidates.
        pools_prompts: whether a vector's pooling includes the prefix.
        truncated: how many of the first numbers of a vector are kept; None: all.
        pads_left: whether settings of the model, and not of its tokenizer, put the padding of a batch at the start.
        pair_parts: texts before, between and after the two texts of a pair, in place of the tokenizer's special tokens.
        chat: whether and how texts are messages of the tokenizer's chat template; None: never.
        of_candidates: the same of candidates' texts, if they pass other modules than contexts.
    """

    transformer: Path
    kind: Literal["sentences", "pairs"]
    layers: tuple[HeadLayer, ...] = ()
    output: str
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None
    lower_case: bool = False
    prompts: tuple[str, str] = ("", "")
    pools_prompts: bool = True
    truncated: int | None = None
    pads_left: bool = False
    pair_parts: Sequence[Sequence[str]] = ()
    chat: Chat | None = None
    of_candidates: "Description | None" = None

    @property
    def sides(self) -> tuple["Description", ...]:
        """The descriptions of contexts' and of candidates' texts; one if they are the same."""
        return (self,) if self.of_candidates is None else (self, self.of_candidates)


def describe(folder: Path) -> Description:
    """The description of the model in a folder.

    Raises:
        ArtifactError: a file is damaged, or the kind of model is not supported; the message gives the reason.
    """
    if (folder / "adapter_config.json").exists():
        raise _unsupported(folder, "holds an adapter without its model", "merge it into the model first")
    modules = folder / "modules.json"
    try:
        description = _describe_sides(folder, _read_json(modules)) if modules.exists() else _describe_classifier(folder)
    except (TypeError, AttributeError, KeyError) as error:
        raise _unsupported(folder, f"has a setting of a wrong type ({error})", "download the model again") from error
    if description.kind == "pairs" and any(description.prompts) and not description.pools_prompts:
        raise _unsupported(folder, "leaves the prompt of its pairs out of the pooling", "choose another model")
    for side in description.sides:
        limits = side.max_tokens, side.max_context_tokens, side.max_candidate_tokens
        for name, n in zip(("max_seq_length", "query_length", "document_length"), limits, strict=True):
            if n is not None and (type(n) is not int or n < 1):
                raise _unsupported(folder, f"has {name} = {n!r}, not a number of tokens", "download the model again")
        check_weights(side.transformer)
    return description


def _describe_classifier(folder: Path) -> Description:
    config = _read_object(folder / "config.json")
    architecture = next(iter(config.get("architectures") or ()), "")
    if architecture.endswith(CAUSAL) and (found := _describe_generator(folder, config)) is not None:
        return found
    if not architecture.endswith(CLASSIFIER):
        raise _unsupported(
            folder,
            f"holds a {architecture or 'network'} without a scoring head and without a pooling",
            f"use its cosines as untuned:{folder}, or train a model with model.backbone = {str(folder)!r}",
        )
    saved = config.get("sentence_transformers") or {}
    activation = saved.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    output = _activation(activation, len(config.get("id2label") or ()) or config.get("num_labels", 2))
    return Description(transformer=folder, kind="pairs", output=output, chat=Chat())


def _describe_generator(folder: Path, config: dict[str, Any]) -> Description | None:
    """A language model that ranks by the logit of a token; None if its prompt is not known."""
    known = prompting_of(folder, config)
    tokenizer = load_tokenizer(folder)
    if known is None and not tokenizer.chat_template:
        return None
    how, vocabulary = known or Prompting(), tokenizer.get_vocab()
    tokens = [vocabulary.get(name) for name in (how.token, how.against) if name]
    if None in tokens:
        raise _unsupported(folder, f"has no token {how.token} or {how.against}", "choose another re-ranker")
    settings = dict(zip(("true_token_id", "false_token_id"), tokens, strict=False))
    return Description(
        transformer=folder,
        kind="pairs",
        layers=(HeadLayer("LogitScore", folder, settings),),
        output=how.activation,
        prompts=(how.prefixes[0], how.prefixes[1]),
        pair_parts=how.parts,
        chat=None if any(how.parts) else Chat(required=True, template=how.template),
    )


def _is_inside(path: str) -> bool:
    """Whether a path leads to a place inside the folder that it starts from."""
    return not (Path(path).is_absolute() or ".." in Path(path).parts)


def _describe_sides(folder: Path, modules: Any) -> Description:
    if not isinstance(modules, list) or not all(
        isinstance(part, dict) and {"type", "path"} <= {*part} for part in modules
    ):
        raise _unsupported(folder, "has a modules.json that lists no modules", "download the model again")
    contexts, candidates = (_routed(folder, modules, side) for side in ("query", "document"))
    found = _describe_modules(folder, contexts)
    if contexts == candidates:
        return found
    if found.kind == "pairs":
        raise _unsupported(folder, "has a Router of pairs", "choose a model of one path")
    return replace(found, of_candidates=_describe_modules(folder, candidates))


def _routed(folder: Path, modules: list[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    """The modules that the texts of a side pass: those of its route in place of a Router."""
    listed = []
    for part in modules:
        place, kind = str(part["path"]), str(part["type"])
        path, is_router = folder / place, kind.startswith(LIBRARY) and kind.rpartition(".")[2] in ROUTERS
        if not is_router or not _is_inside(place):
            listed.append(part)
            continue
        new = path / "router_config.json"
        router = _read_object(new if new.exists() else path / "config.json")
        try:
            mapped = (router["parameters"].get("route_mappings") or {}).items()
            routes = {ast.literal_eval(key): route for key, route in mapped}
        except (SyntaxError, ValueError) as error:
            raise _unsupported(path, f"has damaged route_mappings ({error})", "download the model again") from error
        wanted = ((side, "text"), (side, None), (None, "text"), (None, None))
        known = [*(routes[key] for key in wanted if key in routes), side, "text"]
        if (route := next((name for name in known if name in router["structure"]), None)) is None:
            raise _unsupported(folder, f"has a Router without a route of {side} texts", "choose a model with one")
        names = router["structure"][route]
        listed += [{"path": str(Path(part["path"], name)), "type": router["types"][name]} for name in names]
    return listed


def _describe_modules(folder: Path, modules: list[dict[str, Any]]) -> Description:
    types = [str(part["type"]) for part in modules]
    parts = [(folder / str(part["path"]), str(part["type"]).rpartition(".")[2]) for part in modules]
    if outside := [str(part["path"]) for part in modules if not _is_inside(str(part["path"]))]:
        raise _unsupported(folder, f"has a module in {outside[0]}, outside its folder", "choose another model")
    if foreign := [name for name in types if not name.startswith(LIBRARY)]:
        raise _unsupported(
            folder,
            f"has a module {foreign[0]}, which is code of its author, and polyrank runs no code of models",
            f"choose a model whose modules are those of {LIBRARY[:-1]}",
        )
    first = parts[0][1] if parts else "nothing"
    if first not in ("Transformer", STATIC):
        raise _unsupported(
            folder, f"begins with {first}, not with a Transformer or a {STATIC}", "choose a model of these"
        )
    if odd := [kind for _, kind in parts[1:] if kind not in LAYERS]:
        raise _unsupported(
            folder, f"has a module {odd[0]}, which polyrank does not support", f"choose a model of {', '.join(LAYERS)}"
        )
    transformer = parts[0][0]
    layers = tuple(
        HeadLayer(kind, path, _read_object(path / "config.json", missing=None if kind in NEEDED else {}))
        for path, kind in parts[1:]
    )
    model = _read_object(folder / "config_sentence_transformers.json", missing={})
    if first == STATIC:
        layers, reading = (HeadLayer("Pooling", transformer, {"pooling_mode": "mean"}), *layers), {}
    else:
        files = sorted(transformer.glob("sentence_*_config.json"))
        reading = _read_object(files[0]) if files else {}
        _check_reading(folder, reading, _read_object(transformer / "config.json"), [kind for _, kind in parts[1:]])
    kind: Literal["sentences", "pairs"]
    match model.get("model_type", "SentenceTransformer"):
        case "SentenceTransformer":
            kind, output = "sentences", str(model.get("similarity_fn_name") or "cosine")
            if output not in ("cosine", "dot"):
                raise _unsupported(folder, f"compares by {output}, not by a dot product", "choose cosine or dot")
            if not any(layer.kind == "Pooling" for layer in layers):
                raise _unsupported(folder, "has no Pooling, so it has no vector for a text", "choose a model with one")
        case "CrossEncoder":
            kind, output = "pairs", _activation(model.get("activation_fn"))
        case other:
            raise _unsupported(folder, f"is a {other}", "choose a SentenceTransformer or a CrossEncoder")
    return Description(
        transformer=transformer,
        kind=kind,
        layers=layers,
        output=output,
        max_tokens=reading.get("max_seq_length"),
        max_context_tokens=reading.get("query_length"),
        max_candidate_tokens=reading.get("document_length"),
        lower_case=bool(reading.get("do_lower_case")),
        prompts=_prompts(model, kind),
        pools_prompts=all(layer.settings.get("include_prompt") is not False for layer in layers),
        truncated=_truncated(folder, model.get("truncate_dim")) if kind == "sentences" else None,
        pads_left=any((reading.get(kind) or {}).get("padding_side") == "left" for kind in ARGUMENTS),
        chat=_chat(folder, reading),
    )


def _chat(folder: Path, reading: dict[str, Any]) -> Chat | None:
    """How a saved Transformer makes messages of texts; the library does, wherever it can read messages."""
    modalities = reading.get("modality_config", {"text": None})
    settings = dict(reading.get("processing_kwargs") or {}).get("chat_template") or {}
    if "message" not in modalities:
        if "text" not in modalities:
            raise _unsupported(folder, "reads media instead of texts", "choose a model of texts")
        return None
    if odd := sorted({"padding", "truncation", "max_length", "return_tensors", "restore_suffix"} & settings.keys()):
        raise _unsupported(folder, f"sets {odd[0]} of its chat template", "choose a model without it")
    return Chat(str(modalities["message"].get("format") or "auto"), dict(settings), required=True)


def _check_reading(folder: Path, reading: dict[str, Any], config: dict[str, Any], kinds: list[str]) -> None:
    task = reading.get("transformer_task", "feature-extraction")
    if task not in ("feature-extraction", "sequence-classification", "text-generation") or (
        (task == "text-generation") != (kinds == ["LogitScore"])
    ):
        raise _unsupported(
            folder, f"scores by {task}", "choose a model with a pooling, a classification head or a LogitScore"
        )
    others = reading.get("processing_kwargs", {}).keys() - {"chat_template"}
    others |= {name for kind in ARGUMENTS for name in reading.get(kind) or {}} - {*WITHOUT_EFFECT}
    text = reading.get("modality_config", {}).get("text") or {}
    usual = (None, "last_hidden_state", "logits")
    if text.get("method", "forward") != "forward" or text.get("method_output_name") not in usual:
        others.add("modality_config of text")
    if odd := [*(["query_expansion"] if reading.get("query_expansion") else []), *sorted(others)]:
        raise _unsupported(folder, f"sets {odd[0]}, which polyrank does not support", "choose a model without it")
    if config.get("is_encoder_decoder") and config.get("model_type") not in ENCODER_DECODERS:
        raise _unsupported(
            folder,
            f"holds an encoder-decoder ({config.get('model_type')})",
            f"choose an encoder, or the encoder of {', '.join(ENCODER_DECODERS)}",
        )


def _truncated(folder: Path, length: Any) -> int | None:
    if length is not None and (type(length) is not int or length < 1):
        raise _unsupported(folder, f"has truncate_dim = {length!r}, not a number", "download the model again")
    return length


def _prompts(model: dict[str, Any], kind: str) -> tuple[str, str]:
    """The prefixes that the library puts before queries and documents; for pairs, the default prompt."""
    saved = model.get("prompts") or {}
    if kind == "pairs":
        return str(saved.get(model.get("default_prompt_name")) or ""), ""
    return str(saved.get("query") or ""), str(saved.get("document") or "")


def poolings(layer: HeadLayer) -> tuple[Reduction, ...]:
    """The reductions of a Pooling; the vectors of several are concatenated."""
    modes = layer.settings.get("pooling_mode")
    if modes is None:  # the format of older versions of the library
        names = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
        chosen = (layer.settings.get(f"pooling_mode_{name}") for name in names)
        modes = [name for name, is_on in zip(POOLINGS, chosen, strict=True) if is_on] or ["mean"]
    listed = tuple(map(str, as_tuple(modes, "pooling_mode")))
    if odd := [name for name in listed if name not in POOLINGS]:
        raise _unsupported(layer.folder, f"pools by {odd[0]}", f"choose {', '.join(POOLINGS)}")
    return tuple(POOLINGS[name] for name in listed)


def read_pooling(folder: Path) -> tuple[Reduction, ...]:
    """The reductions of a folder that has a Pooling but no modules.json; empty if it has none."""
    path = folder / "1_Pooling"
    if not (path / "config.json").exists():
        return ()
    try:
        return poolings(HeadLayer("Pooling", path, _read_object(path / "config.json")))
    except TypeError as error:
        raise _unsupported(path, f"has a setting of a wrong type ({error})", "download the model again") from error


def _activation(name: object, n_labels: int = 1) -> str:
    """The activation of the scores; like the library's, if none of torch is set, a sigmoid, and of two labels none."""
    if str(name).startswith("torch."):
        return str(name)
    return "torch.nn.modules.linear.Identity" if n_labels > 1 else "torch.nn.modules.activation.Sigmoid"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing; download the model again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); download the model again") from error


def _read_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not path.exists():
        return missing
    value = _read_json(path)
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} is damaged (it is not a JSON object); download the model again")
    return value


def _unsupported(folder: Path, reason: str, remedy: str) -> ArtifactError:
    return ArtifactError(f"{folder} {reason}; {remedy}")
