"""What a folder holds, by the file that makes it what it is."""

import json
from pathlib import Path
from typing import Any, Literal

from polyrank.config.models import MODEL
from polyrank.errors import ArtifactError
from polyrank.storage.document import DocumentKind, has_document, read_document, tensors_kind

FolderKind = Literal[
    "foreign", "map", "sum", "popularity", "trained", "pipeline", "index", "remote", "intents", "training", "other"
]

MAP = tensors_kind("map")
INTENTS = tensors_kind("intent")
POPULARITY = tensors_kind("popularity")
SUM = DocumentKind(
    name="sum of encoders", file="sum.json", missing="make one with polyrank sum", remedy="make the sum again"
)
PIPELINE = DocumentKind(
    name="pipeline",
    file="pipeline.json",
    missing="make one with polyrank pipeline create",
    remedy="make the pipeline again",
    spaced=True,
)
REMOTE = DocumentKind(
    name="remote index",
    file="remote.json",
    missing="build one with polyrank index build --remote",
    remedy="build it again with polyrank index build --remote, or restore the file",
)
INDEX_FILE = "candidates.db"
_FILES: dict[FolderKind, str] = {  # in this order: what a folder of two of them is
    "map": MAP.file,
    "sum": SUM.file,
    "popularity": POPULARITY.file,
    "trained": MODEL.file,
    "pipeline": PIPELINE.file,
    "index": INDEX_FILE,
    "remote": REMOTE.file,
    "intents": INTENTS.file,
}


def folder_kind(folder: Path) -> FolderKind:
    """What a folder holds; "training": a training's output, with a model in it; "other": nothing that is known."""
    if is_hugging_face(folder):
        return "foreign"
    for kind, file in _FILES.items():
        if (folder / file).is_file():
            return kind
    inside = has_document(folder / "model", MODEL) or has_document(folder / "model", SUM)
    return "training" if inside else "other"


def read_model(folder: Path) -> tuple[FolderKind, dict[str, Any]]:
    """What the folder of a model is, and what its document says; nothing, where the folder has none of ours.

    Raises:
        ArtifactError: the document is damaged, written by a later version, or there is none at all.
    """
    kind = folder_kind(folder)
    if kind in ("foreign", "training", "pipeline", "index", "remote"):
        return kind, {}
    return kind, read_document(folder, {"map": MAP, "sum": SUM, "popularity": POPULARITY}.get(kind, MODEL))


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder has the form of Hugging Face's models, and not ours."""
    if (folder / "modules.json").is_file():
        return True
    try:
        config = json.loads((folder / MODEL.file).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "model_type" in config and "fingerprint" not in config


def check_weights(folder: Path) -> None:
    """Refuse a folder of a Hugging Face model whose weights would not be read.

    Raises:
        ArtifactError: it has no .safetensors.
    """
    if any(folder.glob("*.safetensors")):
        return
    if pickles := sorted(folder.glob("*.bin")):
        raise ArtifactError(
            f"{pickles[0]} is a pickle, which can run code and is not read; save the model as .safetensors with"
            " save_pretrained() of transformers"
        )
    raise ArtifactError(f"{folder} holds no .safetensors weights; save the model there with save_pretrained()")
