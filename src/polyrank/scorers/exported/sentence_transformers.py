"""Bi- and Cross-encoders as a folder that sentence-transformers loads, written without that library."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.config.models import CARD, TextPolicy
from polyrank.errors import UsageError
from polyrank.models import BiEncoder, CrossEncoder
from polyrank.models.artifacts import load_model
from polyrank.models.backbone import Backbone
from polyrank.models.bi_encoder import Tower
from polyrank.models.hugging_face import write_json, write_network, write_tokenizer
from polyrank.models.sentence_layers import SentenceLayer, build_layer
from polyrank.models.static import StaticNetwork
from polyrank.storage.durable import check_replaceable, new_folder
from polyrank.storage.tensors import to_bytes
from polyrank.text import BackboneTexts
from polyrank.wording import counted

OURS = (
    "modules.json", "config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "1_Pooling", "*_Dense", "*_LayerNorm",
    "*_Normalize", "router_config.json", "query_*", "document_*", CARD,
)  # fmt: skip  # all files of such a folder
POOLING = {
    "first": "cls_token",
    "last": "lasttoken",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "sqrt_n": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean_tokens",
}
Modules = list[tuple[str, str]]
"""The folder and the kind of each module."""


def export_to_sentence_transformers(path: Path, output: Path, *, replace: bool = False) -> None:
    """Write an encoder or a Cross-encoder so that sentence-transformers gives its vectors, or its scores.

    Of a Bi-encoder, ``encode_query`` and ``encode_document`` return the vectors, and their dot products the scores. Two
    towers become a Router. Join the turns of a context by the model's turn separator. sentence-transformers cuts the
    end of every text, at the context's budget, and the longer text of a pair; polyrank cuts the start of a context, and
    a candidate at its own budget.

    Args:
        path: the model folder.
        output: the folder to make.
        replace: whether an earlier one may be replaced.

    Raises:
        UsageError: the model does not fit that library, or ``output`` exists and ``replace`` is false.
        ArtifactError: the model is damaged.
    """
    check_replaceable(output, own_files=OURS, replace=replace)
    artifact = load_model(path)
    model, texts = artifact.model, artifact.texts
    if not isinstance(model, BiEncoder | CrossEncoder):
        raise UsageError(
            f"{path} is a {type(model).__name__}, and sentence-transformers has one vector per text or a score per"
            " pair; export a Bi- or Cross-encoder, or export to onnx"
        )
    assert isinstance(texts, BackboneTexts), "both have a backbone"
    _check(path, model, texts.policy)
    prompts = dict(zip(("query", "document"), texts.prompts, strict=True)) if any(texts.prompts) else {}
    about: dict[str, Any] = {"prompts": prompts}
    with new_folder(output, replace=replace, own_files=OURS) as folder:
        if isinstance(model, CrossEncoder):
            modules = _write_backbone(model.backbone, model.pooling.reduction, texts, folder, pairs=True)
            *inner, last = [layer for layer in model.head if isinstance(layer, nn.Linear)]
            layers = [*(_dense(layer.weight, layer.bias, "Tanh") for layer in inner), _dense(last.weight, last.bias)]
            modules += _write_layers(layers, folder, "", len(modules), "scores")
            about |= {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
            about |= {"default_prompt_name": "query" if prompts else None}
        else:
            unit = model.context_tower.length is not None
            about["similarity_fn_name"] = "cosine" if unit else "dot"
            if model.context_tower is model.candidate_tower:
                modules = _write_tower(model.context_tower, model.reduction, texts, folder)
            else:
                modules = _write_router(model, texts, folder)
        write_json(
            folder / "modules.json",
            [
                {"idx": i, "name": str(i), "path": name, "type": _full_name(kind)}
                for i, (name, kind) in enumerate(modules)
            ],
        )
        write_json(folder / "config_sentence_transformers.json", about)
        (folder / CARD).write_text(_card(path, texts, isinstance(model, CrossEncoder)), "utf-8")


def _check(path: Path, model: BiEncoder | CrossEncoder, policy: TextPolicy) -> None:
    pairs = isinstance(model, CrossEncoder)
    reduction = model.pooling.reduction if isinstance(model, CrossEncoder) else model.reduction
    if reduction not in POOLING or (reduction != "mean" and isinstance(model.backbone.network, StaticNetwork)):
        raise UsageError(
            f"{path} reduces by {reduction!r}, and sentence-transformers by {', '.join(POOLING)}, or static embeddings"
            " by mean; train with one of these, or export to onnx"
        )
    odd = {
        "slots": policy.slots,
        "start_candidate_of_pair": pairs and policy.start_candidate_of_pair,
        "candidate_prefix": pairs and bool(policy.candidate_prefix),
    }
    if chosen := [name for name, is_set in odd.items() if is_set]:
        raise UsageError(f"{path} sets text.{chosen[0]}, which sentence-transformers does not have; export to onnx")


def _write_router(model: BiEncoder, texts: BackboneTexts, folder: Path) -> Modules:
    """Write two towers, and the document that gives queries to one and documents to the other."""
    routes = {"query": model.context_tower, "document": model.candidate_tower}
    written = {
        route: _write_tower(tower, model.reduction, texts, folder, f"{route}_") for route, tower in routes.items()
    }
    router = {
        "types": {name: _full_name(kind) for modules in written.values() for name, kind in modules},
        "structure": {route: [name for name, _ in modules] for route, modules in written.items()},
        "parameters": {"default_route": "query", "allow_empty_key": True},
    }
    write_json(folder / "router_config.json", router)
    return [("", "Router")]


def _full_name(kind: str) -> str:
    return f"sentence_transformers.models.{kind}"


def _write_tower(tower: Tower, reduction: str, texts: BackboneTexts, folder: Path, prefix: str = "") -> Modules:
    modules = _write_backbone(tower.backbone, reduction, texts, folder, prefix)
    layers: list[Any] = list(tower.layers)
    weight = getattr(tower.projection, "weight", None)
    if weight is None and float(tower.scale) != 1.0 and tower.length is None:
        weight = torch.eye(tower.dimension)
    if weight is not None:
        layers.append(_dense(weight.detach() * tower.scale))
    if tower.length is not None:
        layers.append(build_layer({"kind": "Normalize"}))
    return modules + _write_layers(layers, folder, prefix, len(modules))


def _write_backbone(
    backbone: Backbone, reduction: str, texts: BackboneTexts, folder: Path, prefix: str = "", *, pairs: bool = False
) -> Modules:
    """Write the transformer with its tokenizer and pooling, or a table of word vectors with its tokenizer."""
    policy, network = texts.policy, backbone.network
    if isinstance(network, StaticNetwork):
        name = f"{prefix}0_StaticEmbedding"
        write_json(folder / name / "tokenizer.json", texts.subwords.with_boundaries())
        (folder / name / "model.safetensors").write_bytes(to_bytes({"embedding.weight": network.words.weight}))
        return [(name, "StaticEmbedding")]
    budgets = policy.max_context_tokens, policy.max_candidate_tokens
    longest = min(sum(budgets), texts.max_positions) if pairs else max(budgets)
    name, pooling = f"{prefix}0_Transformer" if prefix else "", f"{prefix}1_Pooling"
    write_json(folder / name / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    write_network(network, folder / name)
    write_tokenizer(texts.subwords, folder / name, longest, segments=pairs and backbone.takes_segments)
    modes = {f"pooling_mode_{mode}": mode == POOLING[reduction] for mode in POOLING.values()}
    write_json(folder / pooling / "config.json", {"word_embedding_dimension": backbone.dimension, **modes})
    return [(name, "Transformer"), (pooling, "Pooling")]


def _dense(weight: Tensor, bias: Tensor | None = None, activation: str = "Identity") -> SentenceLayer:
    n_out, n_in = weight.shape
    sizes = {"kind": "Dense", "n_in": n_in, "n_out": n_out, "bias": bias is not None, "activation": activation}
    made = build_layer({**sizes, "residual": False, "adds_inputs": False})
    made.load_state_dict({"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias}))
    return made


def _write_layers(
    layers: Sequence[SentenceLayer], folder: Path, prefix: str, n_before: int, output: str = "sentence_embedding"
) -> Modules:
    """Write layers; the last one, if it is a Dense, gives the ``output`` of the model."""
    written = []
    for i, layer in enumerate(layers, n_before):
        settings: dict[str, Any] = layer.settings
        name = f"{prefix}{i}_{settings['kind']}"
        if settings["kind"] == "Dense":
            activation: Any = layer.activation
            document = {
                "in_features": settings["n_in"],
                "out_features": settings["n_out"],
                "bias": settings["bias"],
                "use_residual": settings["adds_inputs"],
                "module_output_name": output if layer is layers[-1] else "sentence_embedding",
                "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
            }
        else:
            document = {"dimension": settings["n_out"]} if settings["kind"] == "LayerNorm" else {}
        write_json(folder / name / "config.json", document)
        if tensors := layer.state_dict():
            (folder / name / "model.safetensors").write_bytes(to_bytes(tensors))
        written.append((name, str(settings["kind"])))
    return written


def _card(path: Path, texts: BackboneTexts, pairs: bool) -> str:
    """The model's own card, if it has one, with this library's header and usage."""
    try:
        card = (path / CARD).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        card = ""
    header_part = re.match(r"---\n(.*?)^---\n", card, re.DOTALL | re.MULTILINE)
    kept = [
        line for line in (header_part[1] if header_part else "").splitlines() if not line.startswith("library_name:")
    ]
    task = "text-ranking" if pairs else "sentence-similarity"
    header = ["library_name: sentence-transformers", f"pipeline_tag: {task}", *kept]
    _, *sections = re.split(r"^(?=## )", card[header_part.end() if header_part else 0 :], flags=re.MULTILINE)
    others = "".join(section for section in sections if not section.startswith("## How to load it"))
    template = Path(__file__).parent / ("reranker.md" if pairs else "encoder.md")
    usage = template.read_text("utf-8").format(
        header="\n".join(header), separator=texts.separator, turns=_turns(texts), n=texts.policy.max_context_tokens
    )
    return usage + ("\n" + others.rstrip() + "\n" if others else "")


def _turns(texts: BackboneTexts) -> str:
    """The steps that make that library read a context as this one does."""
    policy, needs = texts.policy, []
    if policy.max_earlier_turns is not None:
        needs.append(f"Give the last {counted(policy.max_earlier_turns + 1, 'turn')} at most.")
    if policy.speaker_prefixes:
        first, *others = (f"`{prefix}`" for prefix in policy.speaker_prefixes)
        needs.append(f"Begin the last turn with {first}, and the turns before it with {', '.join([*others, first])}.")
    if policy.close_last_turn:
        needs.append("End the last turn with the separator, too.")
    return "".join(f" {need}" for need in needs)
