"""Determines the kind of a folder from the file that identifies it, and whether a folder was replaced."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from polyrank.config.models import MODEL
from polyrank.config.runs import MODEL_FOLDER, NETWORK_FOLDERS, seeds_inside
from polyrank.errors import ArtifactError
from polyrank.storage.document import DocumentKind, has_document, read_document, tensors_kind

FolderKind = Literal["foreign", "ranker", "trained", "index", "remote", "intents", "training", "other"]

RANKER = tensors_kind("ranker", missing="make one with polyrank tune", remedy="make it again with polyrank tune")
INTENTS = tensors_kind("intent", remedy="train it again with polyrank intents train")
REMOTE = DocumentKind(
    name="remote index",
    file="remote.json",
    missing="build one with polyrank index build --remote",
    remedy="build it again with polyrank index build --remote, or restore the file",
)
INDEX_FILE = "candidates.db"
INSIDE = tuple(f"{network}{MODEL_FOLDER}" for network in NETWORK_FOLDERS)
"""Where a training writes its models: that of one network, or those of two."""
_DOCUMENTS: dict[FolderKind, DocumentKind] = {  # if a folder has two of these files, the first one decides
    "ranker": RANKER,
    "trained": MODEL,
    "remote": REMOTE,
    "intents": INTENTS,
}
_FILES: dict[FolderKind, str] = {kind: one.file for kind, one in _DOCUMENTS.items()} | {"index": INDEX_FILE}


def folder_kind(folder: Path) -> FolderKind:
    """The kind of a folder: "training" is a training's output folder with models in it, "other" is unknown."""
    if is_hugging_face(folder):
        return "foreign"
    for kind, file in _FILES.items():
        if (folder / file).is_file():
            return kind
    return "training" if models_inside(folder) else "other"


def models_inside(folder: Path) -> list[Path]:
    """The models of a training's output folder: of its networks, first without a seed, then by seed."""
    runs = (folder, *seeds_inside(folder))
    return [run / inside for inside in INSIDE for run in runs if is_trained(run / inside)]


def is_trained(folder: Path) -> bool:
    """Whether a folder has a model that a training wrote."""
    return has_document(folder, MODEL)


def stamp(paths: Sequence[str]) -> str:
    """A text that changes when one of these folders is replaced, or a document in it."""
    seen = []
    for path in paths:
        for part in ("", *_FILES.values()):
            try:
                status = (Path(path) / part).stat()
            except OSError:
                continue
            # an index in use changes all the time; only another file in its place means another index
            changing = part in ("", INDEX_FILE)
            seen.append([path, part, status.st_ino, 0 if changing else status.st_mtime_ns])
    return json.dumps(seen)


def read_model(folder: Path) -> tuple[FolderKind, dict[str, Any]]:
    """The kind of a model folder and its document; the document is empty for kinds without one.

    Raises:
        ArtifactError: the document is missing or damaged, or a later version wrote it.
    """
    kind = folder_kind(folder)
    if kind in ("foreign", "training", "index", "remote"):
        return kind, {}
    return kind, read_document(folder, _DOCUMENTS.get(kind, MODEL))


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder is a Hugging Face model, not a polyrank model."""
    if (folder / "modules.json").is_file():
        return True
    try:
        config = json.loads((folder / MODEL.file).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "model_type" in config and "fingerprint" not in config


def check_weights(folder: Path) -> None:
    """Refuse a Hugging Face model without safetensors weights.

    Raises:
        ArtifactError: the folder has no .safetensors file.
    """
    if any(folder.glob("*.safetensors")):
        return
    if pickles := sorted(folder.glob("*.bin")):
        raise ArtifactError(
            f"{pickles[0]} is a pickle, which can run code, so polyrank does not read it; save the model as"
            " .safetensors with save_pretrained() of transformers"
        )
    raise ArtifactError(f"{folder} has no .safetensors weights; save the model there with save_pretrained()")
