"""Imports Bi-, Poly- and Cross-encoders that ParlAI saved as model folders with the same scores.

python runs/papers/from_parlai.py MODEL FOLDER

ParlAI's transformer of variant "xlm" equals BERT with other names of its tensors: it normalizes the embeddings, and
the output of each sublayer after adding its input. A model consists of four files: MODEL holds the weights, MODEL.opt
the settings as JSON, MODEL.dict and MODEL.dict.codecs the vocabulary. polyrank reads the weights with
``weights_only``, so no code in a file runs.

Shapes: V tokens of the vocabulary, D dimensions.

Source: Humeau et al., Poly-encoders (ICLR 2020), sections 4 and 5; https://parl.ai/projects/polyencoder.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from byte_pairs import read_byte_pairs
from torch import Tensor

from polyrank.config.models import BackboneConfig, BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.data.values import is_number
from polyrank.errors import ArtifactError
from polyrank.models.artifacts import MODEL_FILES, save_model
from polyrank.models.backbone import empty_backbone
from polyrank.models.build import build_model
from polyrank.storage.durable import check_replaceable
from polyrank.text import BackboneTexts, Subwords

EPSILON = 1e-5  # of ParlAI's layer normalization
NEWLINE = "__newln__"  # ParlAI's tokenizer replaces a line break by this word
ENDINGS = (".opt", ".dict", ".dict.codecs")
REQUIRED = {"variant": "xlm", "activation": "gelu", "dict_tokenizer": "bpe"}  # ParlAI's own defaults differ
IF_GIVEN = {  # these values are ParlAI's defaults
    "normalize_sent_emb": False,
    "use_memories": False,
    "polyencoder_type": "codes",
    "poly_attention_type": "basic",
    "codes_attention_type": "basic",
    "polyencoder_attention_keys": "context",
    "history_reversed": False,
    "person_tokens": False,
    "history_add_global_end_token": None,
}
SIZES = ("embedding_size", "ffn_size", "n_layers", "n_heads")
LENGTHS = ("n_positions", "truncate", "text_truncate", "label_truncate", "history_size", "poly_n_codes")
SHARES = ("dropout", "attention_dropout")
MODULES = {  # modules of a layer: ParlAI's name and BERT's
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "norm2": "output.LayerNorm",
}
SIDES = {  # kind of network: prefixes of the tensors of its transformers
    "bi": ("context_encoder", "cand_encoder"),
    "poly": ("encoder_ctxt", "encoder_cand"),
    "cross": ("encoder",),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Args:
        kind: "bi", "poly" or "cross".
        n_parameters: size of the network.
        fingerprint: of the model folder.
        random_codes: whether the file has no codes. The model then has random ones and needs training.
    """

    kind: str
    n_parameters: int
    fingerprint: str
    random_codes: bool


def import_parlai(model: Path, output: Path, *, replace: bool = False) -> Imported:
    """Write a ParlAI model as a model folder.

    The folder joins turns and separates pairs as ParlAI does. One difference remains: ParlAI cuts the boundary token
    after a candidate that is too long, and polyrank keeps it.

    Args:
        model: the file of weights, next to the other three files.
        output: the folder to write.
        replace: whether to replace an existing model folder.

    Raises:
        ArtifactError: a file is missing or damaged, or the settings describe a network that polyrank does not have.
        UsageError: the folder exists and ``replace`` is false.
    """
    check_replaceable(output, own_files=MODEL_FILES, replace=replace)
    for path in (model, *(Path(f"{model}{ending}") for ending in ENDINGS)):
        if not path.is_file():
            raise ArtifactError(f"{path} does not exist; a ParlAI model is a file of weights and {', '.join(ENDINGS)}")
    settings, weights = _read_settings(Path(f"{model}.opt")), _read_weights(model)
    kind = next((kind for kind, (side, *_) in SIDES.items() if any(n.startswith(f"{side}.") for n in weights)), None)
    if kind is None:
        sides = ", ".join(side for side, *_ in SIDES.values())
        raise ArtifactError(f"{model} has no tensors of {sides}; give a Bi-, Poly- or Cross-encoder")
    subwords, n_tokens = _read_vocabulary(model, settings)
    shape, config = _shape(settings, subwords), _config(kind, settings)
    network = build_model(config, empty_backbone(shape))
    random_codes = False
    if isinstance(config, PolyConfig) and "codes" not in weights:
        weights["codes"] = torch.rand(config.n_codes, shape["hidden_size"], generator=torch.Generator().manual_seed(0))
        random_codes = True
    try:
        network.load_state_dict(_state(kind, weights, settings, subwords, n_tokens), assign=True)
    except KeyError as error:
        raise ArtifactError(f"{model} has no tensor {error}; download it and {model}.opt again") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtifactError(f"{model} and {model}.opt do not agree ({reason}); download both again") from error
    texts = BackboneTexts(subwords, _policy(settings, shape["max_position_embeddings"]), network.backbone.max_positions)
    metadata = {"imported": {"from": "parlai", "name": model.name, "task": settings.get("task")}}
    fingerprint = save_model(output, network, texts, config, metadata=metadata, replace=replace)
    return Imported(kind, sum(p.numel() for p in network.parameters()), fingerprint, random_codes)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read as JSON ({error}); download the model again") from error
    if not isinstance(settings, dict):
        raise ArtifactError(f"{path} does not hold settings by name; download the model again")
    for name, value in {**REQUIRED, **{name: value for name, value in IF_GIVEN.items() if name in settings}}.items():
        if settings.get(name) != value:
            raise ArtifactError(f"{path} has {name} = {settings.get(name)!r}; polyrank imports only {value!r}")
    for name in (*SIZES, *(name for name in LENGTHS if settings.get(name) is not None)):
        if type(settings.get(name)) is not int or (name in SIZES and settings[name] < 1):
            raise ArtifactError(f"{path} has {name} = {settings.get(name)!r}, not a number; download the model again")
    for name in SHARES:
        if not is_number(share := settings.get(name, 0.0)) or not 0 <= share < 1:
            raise ArtifactError(f"{path} has {name} = {share!r}, not from 0 to 1; download the model again")
    if not is_number(settings.get("output_scaling", 1.0)):
        raise ArtifactError(f"{path} has output_scaling = {settings['output_scaling']!r}; download the model again")
    if settings["embedding_size"] % settings["n_heads"]:
        raise ArtifactError(
            f"{path} has embedding_size = {settings['embedding_size']}, which n_heads = {settings['n_heads']} does not"
            " divide; download the model again"
        )
    return settings


def _read_weights(model: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(model, map_location="cpu", weights_only=True)
        return {str(name): tensor.float() for name, tensor in content.get("model", content).items()}
    except Exception as error:  # of a damaged file, unpickling raises almost anything
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{model} cannot be read as weights alone ({reason}); download it again") from error


def _read_vocabulary(model: Path, settings: dict[str, Any]) -> tuple[Subwords, int]:
    """The vocabulary, and the number of ids with their own row in the word embeddings."""
    names = [settings.get(f"dict_{kind}token", f"__{kind}__") for kind in ("null", "start", "end")]
    padding, start, end = names
    unknown = settings.get("dict_unktoken", "__unk__")
    if end != start:
        raise ArtifactError(f"{model}.opt has dict_endtoken = {end!r}; polyrank imports only {start!r} on both sides")
    return read_byte_pairs(
        Path(f"{model}.dict"),
        Path(f"{model}.dict.codecs"),
        special=(padding, start, unknown),
        padding=padding,
        boundary=start,
        unknown=unknown,
        lower=bool(settings.get("dict_lower", False)),
    )


def _shape(settings: dict[str, Any], subwords: Subwords) -> dict[str, Any]:
    """The sizes of the transformer as a configuration of BERT."""
    lengths = [settings.get(name) or 0 for name in ("truncate", "text_truncate", "label_truncate")]
    return {
        "model_type": "bert",
        "vocab_size": len(subwords),
        "hidden_size": settings["embedding_size"],
        "num_hidden_layers": settings["n_layers"],
        "num_attention_heads": settings["n_heads"],
        "intermediate_size": settings["ffn_size"],
        "hidden_dropout_prob": settings.get("dropout", 0.0),
        "attention_probs_dropout_prob": settings.get("attention_dropout", 0.0),
        "max_position_embeddings": settings.get("n_positions") or max(*lengths, 0) or 1024,
        "type_vocab_size": 2,
        "layer_norm_eps": EPSILON,
        "pad_token_id": subwords.pad_id,
    }


def _config(kind: str, settings: dict[str, Any]) -> BackboneConfig:
    usual, known = ("first", ("first",)) if kind == "cross" else ("mean", ("first", "mean"))
    reduction: Any = settings.get("reduction_type") or usual
    if reduction not in known:
        raise ArtifactError(
            f"reduction_type = {reduction!r} of a {kind}-encoder is unknown; polyrank imports {' and '.join(known)}"
        )
    if kind == "cross":
        return CrossConfig(backbone="parlai")
    shared: dict[str, Any] = {"backbone": "parlai", "reduction": reduction, "output_scale": _scale(settings)}
    if kind == "bi":
        return BiConfig(**shared)
    return PolyConfig(**shared, n_codes=settings.get("poly_n_codes", 64), code_init="uniform")


def _scale(settings: dict[str, Any]) -> float:
    return float(settings.get("output_scaling", 1.0))


def _policy(settings: dict[str, Any], longest: int) -> TextPolicy:
    """ParlAI adds the boundary tokens of a context after cutting it, and those of a candidate before."""

    def budget(name: str) -> int:
        n = settings.get(name) or settings.get("truncate") or -1  # -1: ParlAI does not cut
        return n if n > 0 else longest

    n_turns = settings.get("history_size") or -1  # -1: ParlAI keeps all turns
    return TextPolicy(
        max_context_tokens=min(budget("text_truncate") + 2, longest),
        max_candidate_tokens=min(budget("label_truncate"), longest),
        max_earlier_turns=n_turns - 1 if n_turns > 0 else None,
        turn_separator=settings.get("delimiter", "\n").replace("\n", NEWLINE),
        share_pair_budget=False,
        start_candidate_of_pair=True,
    )


def _state(
    kind: str, weights: dict[str, Tensor], settings: dict[str, Any], subwords: Subwords, n_tokens: int
) -> dict[str, Tensor]:
    """The tensors of the whole network, by polyrank's names.

    Raises:
        KeyError: a tensor is missing.
    """
    sides, scale = SIDES[kind], _scale(settings)
    if kind == "cross":
        state = _transformer(weights, sides[0], "backbone", settings, subwords, n_tokens)
        state["head.0.weight"] = scale * weights["linear_layer.weight"]  # ParlAI scales the head's input instead
        state["head.0.bias"] = weights["linear_layer.bias"]
        return state
    state = {name: weights[name] for name in ("codes",) if name in weights}
    for side, tower in zip(sides, ("context_tower", "candidate_tower"), strict=True):
        state |= _transformer(weights, side, f"{tower}.backbone", settings, subwords, n_tokens)
        state[f"{tower}.scale"] = torch.tensor(scale)
    return state


def _transformer(
    weights: dict[str, Tensor], side: str, place: str, settings: dict[str, Any], subwords: Subwords, n_tokens: int
) -> dict[str, Tensor]:
    """The tensors of one transformer, by BERT's names within ``place``.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: the word embeddings ``[V, D]`` have fewer rows than the dictionary has tokens.
    """
    words = weights[f"{side}.embeddings.weight"]
    if any(name.startswith(f"{side}.layers.{settings['n_layers']}.") for name in weights):
        raise RuntimeError(f"n_layers is {settings['n_layers']}, and the file has more layers")
    if len(words) < n_tokens:
        raise RuntimeError(f"the dictionary lists {n_tokens} tokens, the word embeddings have {len(words)} rows")
    words = words[:n_tokens] * (math.sqrt(words.shape[1]) if settings.get("embeddings_scale") else 1.0)
    unlisted = words[subwords.id_of(settings.get("dict_unktoken", "__unk__"))].expand(len(subwords) - n_tokens, -1)
    segments = weights.get(f"{side}.segment_embeddings.weight", torch.zeros(2, words.shape[1]))
    state = {
        "embeddings.word_embeddings.weight": torch.cat([words, unlisted]),
        "embeddings.position_embeddings.weight": weights[f"{side}.position_embeddings.weight"],
        "embeddings.token_type_embeddings.weight": segments,
    }
    modules = {"norm_embeddings": "embeddings.LayerNorm"} | {
        f"layers.{n}.{theirs}": f"encoder.layer.{n}.{own}"
        for n in range(settings["n_layers"])
        for theirs, own in MODULES.items()
    }
    for theirs, own in modules.items():
        for part in ("weight", "bias"):
            state[f"{own}.{part}"] = weights[f"{side}.{theirs}.{part}"]
    return {f"{place}.network.{name}": tensor for name, tensor in state.items()}


if __name__ == "__main__":
    imported = import_parlai(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{sys.argv[2]}: {imported.kind}, {imported.n_parameters:,} parameters")
    if imported.random_codes:
        print("The file has no codes, so they are random; train the model before you use it.")
