"""A small learnt thing as a folder: one JSON document and one file of tensors, written whole and read with checks.

For what is learnt on top of a frozen encoder. The document names that encoder and its fingerprint and carries the
SHA-256 of the tensors and a checksum of itself. No pickle. This module knows folders, not what is in them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch

from polyrank import __version__
from polyrank.errors import ArtifactError
from polyrank.storage.durable import new_folder

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1


def write_tensors(
    path: Path, kind: str, document: Mapping[str, Any], tensors: "Mapping[str, Tensor]", *, replace: bool = False
) -> None:
    """Write ``kind.json`` and ``kind.safetensors`` into a new folder, whole or not at all.

    Args:
        path: the folder to make.
        kind: what it is; names the files.
        document: ready for JSON; keys "format", "kind", "written_by", "tensors" and "checksum" are ours.
        tensors: by name.
        replace: whether an earlier folder of this kind may be replaced.

    Raises:
        UsageError: the place is taken.
        ResourceError: the disk is full.
    """
    data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    whole: dict[str, Any] = {
        **document,
        "format": FORMAT,
        "kind": kind,
        "written_by": __version__,
        "tensors": hashlib.sha256(data).hexdigest(),
    }
    whole["checksum"] = _checksum(whole)
    with new_folder(path, replace=replace) as folder:
        (folder / f"{kind}.safetensors").write_bytes(data)
        (folder / f"{kind}.json").write_text(json.dumps(whole, indent=1, sort_keys=True, allow_nan=False), "utf-8")


def is_folder_of(path: Path, kind: str) -> bool:
    """Whether ``path`` looks like a folder of this kind."""
    return (path / f"{kind}.json").is_file()


def read_tensors(path: Path, kind: str) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """The document and the tensors; every byte is verified before it is used.

    Raises:
        ArtifactError: it is something else, damaged, or newer than this program.
    """
    place, weights = path / f"{kind}.json", path / f"{kind}.safetensors"
    if not place.is_file():
        raise ArtifactError(f"{path} is no folder of kind {kind!r}: it has no {place.name}; check the path")
    try:
        document = json.loads(place.read_bytes())
        version, checksum = document["format"], document["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{place} is damaged ({error}); make the folder again") from error
    if isinstance(version, int) and version > FORMAT:
        raise ArtifactError(
            f"{place}: written by polyrank {document.get('written_by')} in format {version}, this reads up to {FORMAT};"
            " upgrade polyrank"
        )
    if checksum != _checksum(document):
        raise ArtifactError(f"{place} is damaged: its checksum does not match; make the folder again")
    try:
        data = weights.read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"{weights} is missing; make the folder again") from error
    if hashlib.sha256(data).hexdigest() != document["tensors"]:
        raise ArtifactError(f"{weights} is damaged: its SHA-256 does not match {place.name}; make the folder again")
    return document, safetensors.torch.load(data)


def _checksum(document: Mapping[str, Any]) -> str:
    values = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
