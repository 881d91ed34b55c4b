"""Tensors as bytes; and a small learnt thing as a folder: a JSON document and a file of tensors, read with checks.

For what is learnt on top of a frozen encoder. The document names that encoder and its fingerprint and carries the
SHA-256 of the tensors and a checksum of itself. No pickle. This module knows folders, not what is in them.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch

from polyrank.storage.document import check_part, has_document, read_document, seal, tensors_kind
from polyrank.storage.durable import new_folder

if TYPE_CHECKING:
    from torch import Tensor


def to_bytes(tensors: "Mapping[str, Tensor]", notes: Mapping[str, str] | None = None) -> bytes:
    """Tensors by name, and notes in the header, as the bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data: bytes = safetensors.torch.save(plain, None if notes is None else dict(notes))
    return data


def from_bytes(data: bytes) -> "dict[str, Tensor]":
    """The inverse of ``to_bytes``, without the notes."""
    tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors


def read_file(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and notes of a safetensors file.

    Raises:
        ValueError: it is none, or it is damaged.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  # no dict: has no __iter__
            return tensors, stream.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error


def read_notes(path: Path) -> dict[str, str]:
    """The notes of a safetensors file, whose tensors are not read.

    Raises:
        ValueError: as for ``read_file``.
    """
    try:
        with safetensors.safe_open(str(path), framework="np") as stream:
            return stream.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error


def write_tensors(
    path: Path, kind: str, document: Mapping[str, Any], tensors: "Mapping[str, Tensor]", *, replace: bool = False
) -> None:
    """Write ``kind.json`` and ``kind.safetensors`` into a new folder, whole or not at all.

    Args:
        path: the folder to make.
        kind: what it is; names the files.
        document: ready for JSON; keys "kind", "tensors" and those of the seal are ours.
        tensors: by name.
        replace: whether an earlier folder of this kind may be replaced.

    Raises:
        UsageError: something is at ``path`` already.
        ResourceError: the disk is full.
    """
    data = to_bytes(tensors)
    whole = seal({**document, "kind": kind, "tensors": hashlib.sha256(data).hexdigest()}, tensors_kind(kind))
    with new_folder(path, replace=replace) as folder:
        (folder / f"{kind}.safetensors").write_bytes(data)
        (folder / f"{kind}.json").write_bytes(whole)


def is_folder_of(path: Path, kind: str) -> bool:
    """Whether ``path`` looks like a folder of this kind."""
    return has_document(path, tensors_kind(kind))


def read_tensors(path: Path, kind: str) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """The document and the tensors; every byte is verified before it is used.

    Raises:
        ArtifactError: it is something else, damaged, or newer than this program.
    """
    document = read_document(path, tensors_kind(kind))
    weights = check_part(path / f"{kind}.safetensors", document["tensors"], tensors_kind(kind))
    return document, from_bytes(weights.read_bytes())
