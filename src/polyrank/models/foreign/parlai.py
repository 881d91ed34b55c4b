"""Models that ParlAI saved: its Bi-, Poly- and Cross-encoders as model folders, with the same scores.

ParlAI's transformer of variant "xlm" is BERT under other names: embeddings are normalised, and so is the output of each
sublayer after its input is added. Four files make a model: MODEL holds weights, MODEL.opt settings as JSON, MODEL.dict
and MODEL.dict.codecs the vocabulary. No code of a file runs: weights are read with ``weights_only``.

Source: Humeau et al., Poly-encoders (ICLR 2020), sections 4 and 5; https://parl.ai/projects/polyencoder.
"""

import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError
from polyrank.models.artifacts import save_model
from polyrank.models.backbone import empty_backbone
from polyrank.models.build import BackboneConfig, build_model
from polyrank.text import BackboneTexts, Subwords
from polyrank.text.byte_pairs import read_byte_pairs

EPSILON = 1e-5  # of ParlAI's layer normalisation
NEWLINE = "__newln__"  # what its tokenizer makes of a line break
REQUIRED = {  # the settings of the released models; others describe another network
    "variant": "xlm",
    "activation": "gelu",
    "dict_tokenizer": "bpe",
    "share_encoders": False,
    "normalize_sent_emb": False,
    "use_memories": False,
    "poly_attention_type": "basic",
    "codes_attention_type": "basic",
}
MODULES = {  # of a layer: ParlAI's name, and BERT's
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "norm2": "output.LayerNorm",
}
SIDES = {  # by network, the names of its transformers, which begin the names of a checkpoint's tensors
    "bi": ("context_encoder", "cand_encoder"),
    "poly": ("encoder_ctxt", "encoder_cand"),
    "cross": ("encoder",),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model.

    Args:
        kind: "bi", "poly" or "cross".
        n_parameters: numbers held.
        fingerprint: of the folder.
        random_codes: whether the file had no codes, so that they are random: a start for training only.
    """

    kind: str
    n_parameters: int
    fingerprint: str
    random_codes: bool


def import_parlai(model: Path, output: Path, *, replace: bool = False) -> Imported:
    """Write a model of ParlAI as a model folder.

    A context's turns are joined as ParlAI joins lines, and a pair has a boundary token before its candidate too. One
    difference is left: ParlAI cuts the boundary behind a candidate that is too long; polyrank keeps it.

    Args:
        model: the file of weights; the other three lie next to it.
        output: the folder to write.
        replace: whether a model folder there may be replaced.

    Raises:
        ArtifactError: a file is missing or damaged, or the settings describe a network that polyrank does not have.
        UsageError: the folder exists and ``replace`` is false.
    """
    settings, weights = _read_settings(model), _read_weights(model)
    kind = next((kind for kind, (side, *_) in SIDES.items() if any(n.startswith(f"{side}.") for n in weights)), None)
    if kind is None:
        sides = ", ".join(side for side, *_ in SIDES.values())
        raise ArtifactError(f"{model} holds no transformer named {sides}; check that the file is one of these models")
    start = settings.get("dict_starttoken", "__start__")
    unknown = settings.get("dict_unktoken", "__unk__")
    padding = settings.get("dict_nulltoken", "__null__")
    if (end := settings.get("dict_endtoken", "__end__")) != start:
        raise ArtifactError(
            f"{model}.opt has dict_endtoken = {end!r}; only models with {start!r} on both sides are read"
        )
    special = list(dict.fromkeys([padding, start, end, unknown]))
    subwords, n_tokens = read_byte_pairs(
        Path(f"{model}.dict"),
        Path(f"{model}.dict.codecs"),
        special=special,
        padding=padding,
        boundary=start,
        unknown=unknown,
        lower=bool(settings.get("dict_lower", False)),
    )
    shape = _shape(settings, len(subwords), subwords.pad_id)
    config = _config(kind, settings)
    network = build_model(config, empty_backbone(shape))
    scale = float(settings.get("output_scaling", 1.0))
    state: dict[str, Tensor] = {}
    towers = ("backbone",) if kind == "cross" else ("context_tower.backbone", "candidate_tower.backbone")
    for side, tower in zip(SIDES[kind], towers, strict=True):
        transformer = _transformer(weights, side, settings, subwords, n_tokens, unknown, model)
        state |= {f"{tower}.network.{name}": tensor for name, tensor in transformer.items()}
        if kind != "cross":
            state[tower.replace("backbone", "scale")] = torch.tensor(scale)
    random_codes = (
        kind == "poly" and isinstance(config, PolyConfig) and config.codes == "learnt" and "codes" not in weights
    )
    if kind == "cross":  # outputs are scaled before the head: the head's weights are scaled instead
        state["head.0.weight"] = scale * weights["linear_layer.weight"]
        state["head.0.bias"] = weights["linear_layer.bias"]
    elif random_codes:
        n, dimension = config.n_codes, shape["hidden_size"]  # type: ignore[union-attr]
        state["codes"] = torch.rand(n, dimension, generator=torch.Generator().manual_seed(0))
    elif "codes" in weights:
        state["codes"] = weights["codes"]
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtifactError(f"{model} and {model}.opt do not agree ({reason}); download both again") from error
    texts = BackboneTexts(subwords, _policy(settings, shape), shape["max_position_embeddings"])
    metadata = {"imported": {"from": "parlai", "name": model.name, "task": settings.get("task")}}
    fingerprint = save_model(output, network, texts, config, metadata=metadata, replace=replace)
    return Imported(kind, sum(p.numel() for p in network.parameters()), fingerprint, random_codes)


def _read_settings(model: Path) -> dict[str, Any]:
    path = Path(f"{model}.opt")
    try:
        settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read as JSON ({error}); download the model again") from error
    for name, value in REQUIRED.items():
        if settings.get(name, value) != value:
            raise ArtifactError(f"{path} has {name} = {settings[name]!r}; only models with {value!r} can be imported")
    return settings


def _read_weights(model: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(model, map_location="cpu", weights_only=True)
        weights = content.get("model", content)
        return {name: tensor.float() for name, tensor in weights.items()}
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{model} cannot be read as weights alone ({reason}); download it again") from error


def _shape(settings: dict[str, Any], n_words: int, padding: int) -> dict[str, Any]:
    """The sizes of the transformer as BERT's configuration."""
    lengths = [settings.get(name) or 0 for name in ("truncate", "text_truncate", "label_truncate")]
    return {
        "model_type": "bert",
        "vocab_size": n_words,
        "hidden_size": settings["embedding_size"],
        "num_hidden_layers": settings["n_layers"],
        "num_attention_heads": settings["n_heads"],
        "intermediate_size": settings["ffn_size"],
        "hidden_dropout_prob": settings.get("dropout", 0.0),
        "attention_probs_dropout_prob": settings.get("attention_dropout", 0.0),
        "max_position_embeddings": settings.get("n_positions") or max(*lengths, 0) or 1024,
        "type_vocab_size": 2,
        "layer_norm_eps": EPSILON,
        "pad_token_id": padding,
    }


def _config(kind: str, settings: dict[str, Any]) -> BackboneConfig:
    reduction: Any = settings.get("reduction_type") or ("first" if kind == "cross" else "mean")
    if reduction not in (("first",) if kind == "cross" else ("first", "mean")):
        raise ArtifactError(f"reduction_type = {reduction!r} of a {kind}-encoder is not one that polyrank has")
    if kind == "cross":
        return CrossConfig(backbone="parlai")
    scale = float(settings.get("output_scaling", 1.0))
    if kind == "bi":
        return BiConfig(backbone="parlai", reduction=reduction, output_scale=scale)
    return PolyConfig(
        backbone="parlai",
        reduction=reduction,
        output_scale=scale,
        codes="first" if settings.get("polyencoder_type") == "n_first" else "learnt",
        n_codes=settings.get("poly_n_codes", 64),
        code_init="uniform",
    )


def _policy(settings: dict[str, Any], shape: dict[str, Any]) -> TextPolicy:
    """ParlAI adds a context's two boundary tokens after cutting it, and a candidate's before."""
    longest: int = shape["max_position_embeddings"]

    def budget(name: str, usual: int) -> int:
        n = settings.get(name) or settings.get("truncate") or usual
        return n if n > 0 else longest

    delimiter = settings.get("delimiter", "\n")
    return TextPolicy(
        max_context_tokens=min(budget("text_truncate", 360) + 2, longest),
        max_candidate_tokens=min(budget("label_truncate", 72), longest),
        turn_separator=delimiter.replace("\n", NEWLINE),
        share_pair_budget=False,
        start_candidate_of_pair=True,
    )


def _transformer(
    weights: dict[str, Tensor],
    side: str,
    settings: dict[str, Any],
    subwords: Subwords,
    n_tokens: int,
    unknown: str,
    model: Path,
) -> dict[str, Tensor]:
    """The tensors of one transformer, under BERT's names."""
    try:
        words = weights[f"{side}.embeddings.weight"]
        if len(words) < n_tokens:
            raise ArtifactError(
                f"{model}.dict lists {n_tokens} tokens and {model} has {len(words)}; download both again"
            )
        words = words[:n_tokens] * (math.sqrt(words.shape[1]) if settings.get("embeddings_scale") else 1.0)
        others = words[subwords.id_of(unknown)].expand(len(subwords) - n_tokens, -1)
        segments = weights.get(f"{side}.segment_embeddings.weight", torch.zeros(2, words.shape[1]))
        state = {
            "embeddings.word_embeddings.weight": torch.cat([words, others]),
            "embeddings.position_embeddings.weight": weights[f"{side}.position_embeddings.weight"],
            "embeddings.token_type_embeddings.weight": segments,
        }
        names = {f"{side}.norm_embeddings": "embeddings.LayerNorm"} | {
            f"{side}.layers.{n}.{own}": f"encoder.layer.{n}.{bert}"
            for n in range(settings["n_layers"])
            for own, bert in MODULES.items()
        }
        return state | {
            f"{own}.{part}": weights[f"{theirs}.{part}"] for theirs, own in names.items() for part in ("weight", "bias")
        }
    except KeyError as error:
        raise ArtifactError(f"{model} has no tensor {error}; download it again") from error
