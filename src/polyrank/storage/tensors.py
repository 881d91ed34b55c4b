"""Tensors as safetensors bytes, and small models as verified folders: a JSON document and a file of tensors.

Models on top of a frozen encoder are stored this way. The document names the encoder and its fingerprint, and holds the
SHA-256 of the tensors and its own checksum. No pickle. This module does not know what the folders mean.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from safetensors import TensorSpec

from polyrank.storage.document import DocumentKind, check_part, read_document, seal
from polyrank.storage.durable import new_folder

if TYPE_CHECKING:
    from torch import Tensor


def to_bytes(tensors: "Mapping[str, Tensor]", notes: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with tensors by name and ``notes`` in the header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    parts = {  # as safetensors.torch.save makes them, which takes ten times as long for many small tensors
        name: TensorSpec(dtype=str(one.dtype)[6:], shape=one.shape, data_ptr=one.data_ptr(), data_len=one.nbytes)
        for name, one in plain.items()
    }
    return bytes(safetensors.serialize(parts, None if notes is None else dict(notes)))


def from_bytes(data: bytes) -> "dict[str, Tensor]":
    """The inverse of ``to_bytes``, without the notes."""
    return dict(safetensors.torch.load(data))


def read_file(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and notes of a safetensors file.

    Raises:
        ValueError: the file is not a safetensors file, or it is damaged.
    """
    with _opened(path, "pt") as stream:
        return {name: stream.get_tensor(name) for name in stream.keys()}, stream.metadata() or {}  # noqa: SIM118  # not a dict


def read_header(path: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the tensors in a safetensors file, and its notes; the tensors are not read.

    Raises:
        ValueError: as for ``read_file``.
    """
    with _opened(path, "np") as stream:
        return list(stream.keys()), stream.metadata() or {}


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    try:
        with safetensors.safe_open(str(path), framework=framework) as stream:
            yield stream
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error


def write_tensors(
    path: Path,
    kind: DocumentKind,
    document: Mapping[str, Any],
    tensors: "Mapping[str, Tensor]",
    *,
    replace: bool = False,
) -> None:
    """Write a document and a file of tensors into a new folder, atomically.

    Args:
        path: the folder to create.
        kind: of the folder, from ``tensors_kind``.
        document: JSON values; the key "tensors" and those of the seal are reserved.
        tensors: tensors by name.
        replace: whether an existing folder of this kind may be replaced.

    Raises:
        UsageError: ``path`` already exists.
        ResourceError: the disk is full.
    """
    data = to_bytes(tensors)
    whole = seal({**document, "tensors": hashlib.sha256(data).hexdigest()}, kind)
    with new_folder(path, replace=replace) as folder:
        (folder / kind.parts[0]).write_bytes(data)
        (folder / kind.file).write_bytes(whole)


def read_tensors(path: Path, kind: DocumentKind) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """The document and the tensors of a folder; every byte is verified.

    Raises:
        ArtifactError: the folder is of another kind or damaged, or a newer version of polyrank wrote it.
    """
    document = read_document(path, kind)
    weights = check_part(path / kind.parts[0], document["tensors"], kind)
    return document, from_bytes(weights.read_bytes())
