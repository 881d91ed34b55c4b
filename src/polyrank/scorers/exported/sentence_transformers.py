"""A Bi-encoder as a folder that sentence-transformers loads, written without that library."""

import re
from pathlib import Path
from typing import Any

import torch

from polyrank.config.models import CARD, BiConfig, PolyConfig
from polyrank.errors import UsageError
from polyrank.models import BiEncoder
from polyrank.models.artifacts import load_model
from polyrank.models.hugging_face import write_json, write_network, write_tokenizer
from polyrank.models.sentence_layers import build_layer
from polyrank.storage.durable import check_replaceable, new_folder
from polyrank.storage.tensors import to_bytes
from polyrank.text import BackboneTexts

OURS = (
    "modules.json", "config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "1_Pooling", "*_Dense", "*_LayerNorm",
    "*_Normalize", CARD,
)  # fmt: skip  # all files of such a folder
USAGE = """\
---
{header}
---

# Sentence encoder for ranking replies

Exported by polyrank.

## How to load it

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
context = model.encode("Hello!{separator}Where is my parcel?")
replies = model.encode(["It arrives today.", "You are welcome."])
print(model.similarity(context, replies))
```

Join the turns of a context by `{separator}`.{turns} Texts are cut at {n} tokens.
"""
POOLING = {
    "first": "cls_token",
    "last": "lasttoken",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "sqrt_n": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean_tokens",
}


def export_to_sentence_transformers(path: Path, output: Path, *, replace: bool = False) -> None:
    """Write a Bi-encoder so that ``SentenceTransformer(output).encode`` returns its vectors; their dot product scores.

    Join the turns of a context by the model's turn separator. sentence-transformers cuts the end of every text, at the
    context's budget; polyrank cuts the start of a context, and a candidate at its own budget.

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
    model, config, texts = artifact.model, artifact.config, artifact.texts
    if not isinstance(model, BiEncoder) or not isinstance(config, BiConfig) or isinstance(config, PolyConfig):
        kind = type(model).__name__
        raise UsageError(
            f"{path} is a {kind}, and sentence-transformers has one vector per text and one network for all; export a"
            " Bi-encoder with model.shared_towers = true, or export to onnx"
        )
    if model.context_tower is not model.candidate_tower:
        raise UsageError(
            f"{path} has two towers, and sentence-transformers has one network for all texts; train with"
            " model.shared_towers = true, or export to onnx"
        )
    if config.reduction not in POOLING:
        raise UsageError(
            f"{path} reduces by {config.reduction!r}, and sentence-transformers by {', '.join(POOLING)}; train with"
            " one of these, or export to onnx"
        )
    assert isinstance(texts, BackboneTexts), "every Bi-encoder has them"
    if texts.policy.slots:
        raise UsageError(f"{path} reads slots (text.slots), which sentence-transformers does not make; export to onnx")
    prompts = dict(zip(("query", "document"), texts.prompts, strict=True)) if any(texts.prompts) else {}
    with new_folder(output, replace=replace, own_files=OURS) as folder:
        write_network(model.backbone.network, folder)
        write_tokenizer(texts.subwords, folder, _length(texts))
        pooling = {f"pooling_mode_{name}": name == POOLING[config.reduction] for name in POOLING.values()}
        write_json(
            folder / "1_Pooling" / "config.json", {"word_embedding_dimension": model.backbone.dimension, **pooling}
        )
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        modules += _write_layers(model, folder)
        modules += [(f"{len(modules)}_Normalize", "Normalize")] if config.normalize else []
        write_json(
            folder / "modules.json",
            [
                {"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.models.{kind}"}
                for i, (name, kind) in enumerate(modules)
            ],
        )
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": _length(texts), "do_lower_case": False})
        write_json(
            folder / "config_sentence_transformers.json",
            {"similarity_fn_name": "cosine" if config.normalize else "dot", "prompts": prompts},
        )
        (folder / CARD).write_text(_card(path, texts), "utf-8")


def _card(path: Path, texts: BackboneTexts) -> str:
    """The model's own card, if it has one, with this library's header and usage."""
    try:
        card = (path / CARD).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        card = ""
    header_part = re.match(r"---\n(.*?)^---\n", card, re.DOTALL | re.MULTILINE)
    kept = [
        line for line in (header_part[1] if header_part else "").splitlines() if not line.startswith("library_name:")
    ]
    header = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity", *kept]
    _, *sections = re.split(r"^(?=## )", card[header_part.end() if header_part else 0 :], flags=re.MULTILINE)
    others = "".join(section for section in sections if not section.startswith("## How to load it"))
    usage = USAGE.format(
        header="\n".join(header), separator=texts.separator, turns=_turns(texts), n=texts.policy.max_context_tokens
    )
    return usage + ("\n" + others.rstrip() + "\n" if others else "")


def _turns(texts: BackboneTexts) -> str:
    """The steps that make that library read a context as this one does."""
    policy, needs = texts.policy, []
    if policy.max_earlier_turns is not None:
        needs.append(f"Give the last {policy.max_earlier_turns + 1} turns at most.")
    if policy.speaker_prefixes:
        first, *others = (f"`{prefix}`" for prefix in policy.speaker_prefixes)
        needs.append(f"Begin the last turn with {first}, and the turns before it with {', '.join([*others, first])}.")
    if policy.close_last_turn:
        needs.append("End the last turn with the separator, too.")
    return "".join(f" {need}" for need in needs)


def _length(texts: BackboneTexts) -> int:
    return max(texts.policy.max_context_tokens, texts.policy.max_candidate_tokens)


def _write_layers(model: BiEncoder, folder: Path) -> list[tuple[str, str]]:
    """Write the layers, and the output scale with the projection as one linear map; returns their folders and kinds."""
    tower, layers = model.candidate_tower, list(model.candidate_tower.layers)
    weight = getattr(tower.projection, "weight", None)
    if weight is None and float(tower.scale) != 1.0 and tower.length is None:
        weight = torch.eye(tower.dimension)
    if weight is not None:
        n_out, n_in = weight.shape
        last = build_layer({
            "kind": "Dense", "n_in": n_in, "n_out": n_out, "bias": False, "residual": False, "adds_inputs": False,
            "activation": "Identity",
        })  # fmt: skip
        last.load_state_dict({"linear.weight": weight.detach() * tower.scale})
        layers.append(last)
    written = []
    for i, layer in enumerate(layers):
        settings: dict[str, Any] = layer.settings  # type: ignore[assignment]  # of a SentenceLayer
        name = f"{i + 2}_{settings['kind']}"
        if settings["kind"] == "Dense":
            activation: Any = layer.activation
            document = {
                "in_features": settings["n_in"],
                "out_features": settings["n_out"],
                "bias": settings["bias"],
                "use_residual": settings["adds_inputs"],
                "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
            }
        else:
            document = {"dimension": settings["n_out"]} if settings["kind"] == "LayerNorm" else {}
        write_json(folder / name / "config.json", document)
        if tensors := layer.state_dict():
            (folder / name / "model.safetensors").write_bytes(to_bytes(tensors))
        written.append((name, str(settings["kind"])))
    return written
