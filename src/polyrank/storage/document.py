"""The sealed JSON document: what a file of ours says, with its format, its writer, and a checksum of all that.

There is one way to write what a document says, so every byte of the file is determined, and a file with any other
byte is refused. Knows nothing of what documents mean; no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank._version import __version__
from polyrank.errors import ArtifactError
from polyrank.storage.durable import sha256_file

SEAL = ("checksum", "format", "written_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """A kind of document, one to a folder.

    Args:
        name: of such a folder, in errors.
        file: name of the document in it.
        format: the newest that this program reads, and the one that it writes.
        missing: what the user can do about a folder that has no such document.
        remedy: what the user can do about a damaged one.
        spaced: whether spaces stand between the items of which the checksum is taken; of kinds that have always had it.
        seal_optional: whether a document without any seal is read, as it was written before there were seals.
    """

    name: str
    file: str
    missing: str
    remedy: str
    format: int = 1
    spaced: bool = False
    seal_optional: bool = False


def tensors_kind(name: str) -> DocumentKind:
    """The kind of a folder of ``polyrank.storage.tensors``: a document and the tensors beside it, both of that name."""
    missing, remedy = "check the path", "make the folder again"
    return DocumentKind(name=f"folder of kind {name!r}", file=f"{name}.json", missing=missing, remedy=remedy)


def checksum(values: Mapping[str, Any], *, spaced: bool = False) -> str:
    """SHA-256 of JSON values in their one canonical form, in hex. A key "checksum" does not count.

    >>> checksum({"b": 1, "a": [2]}) == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()
    True
    """
    content = {key: value for key, value in values.items() if key != "checksum"}
    separators = None if spaced else (",", ":")
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=separators).encode()).hexdigest()


def seal(document: Mapping[str, Any], kind: DocumentKind) -> bytes:
    """A document as the bytes of its file.

    Args:
        document: ready for JSON, without the keys of a seal.
        kind: of the document.

    Raises:
        ValueError: it holds NaN or infinity, which JSON cannot, or a key of the seal.
    """
    if reserved := [key for key in SEAL if key in document]:
        raise ValueError(f"{reserved[0]!r} is a key of the seal")
    # as JSON reads it again: a key that is a number becomes a string, which is sorted otherwise
    whole = json.loads(json.dumps({**document, "format": kind.format, "written_by": __version__}, allow_nan=False))
    whole["checksum"] = checksum(whole, spaced=kind.spaced)
    return _layout(whole, 2)


def unseal(data: bytes, path: Path, kind: DocumentKind) -> dict[str, Any]:
    """The inverse of ``seal``.

    Args:
        data: the file's bytes.
        path: of the file, for errors.
        kind: of the document.

    Raises:
        ArtifactError: it is damaged, or newer than this program.
    """
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        check_format(path, document, kind.format)
        if kind.seal_optional and not any(key in document for key in SEAL):
            return document
        text = data.replace(b"\r\n", b"\n")  # as some systems end the lines of a text file
        if text not in (_layout(document, 2), _layout(document, 1)):  # the second is that of earlier folders of tensors
            raise ValueError("it is not as it was written")
        if document.get("checksum") != checksum(document, spaced=kind.spaced):
            raise ValueError("its checksum does not match")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); {kind.remedy}") from error
    return {key: value for key, value in document.items() if key not in SEAL}


def check_format(where: Path | str, document: Mapping[str, Any], newest: int) -> None:
    """Refuse what a later program has written.

    Args:
        where: names the file in errors.
        document: says its format, and maybe by whom it was written; without a format it is of the first.
        newest: the latest format that is read.

    Raises:
        ArtifactError: it is newer.
        ValueError: its format is no number.
    """
    version = document.get("format", 1)
    if type(version) is not int:
        raise ValueError(f"format {str(version)[:20]!r} is no number")
    if version > newest:
        by = f"written by polyrank {document['written_by']} " if "written_by" in document else ""
        raise ArtifactError(f"{where}: {by}in format {version}, this reads up to {newest}; upgrade polyrank")


def has_document(folder: Path, kind: DocumentKind) -> bool:
    """Whether a folder looks like one of this kind."""
    return (folder / kind.file).is_file()


def read_document(folder: Path, kind: DocumentKind) -> dict[str, Any]:
    """What the document of a folder says, without its seal; every byte is verified.

    Raises:
        ArtifactError: it is missing, damaged, or newer than this program.
    """
    path = folder / kind.file
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"{folder} is no {kind.name}: it has no {kind.file}; {kind.missing}") from error
    return unseal(data, path, kind)


def check_part(path: Path, digest: object, kind: DocumentKind) -> Path:
    """A file beside a document, if its SHA-256 is the one that the document has.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; {kind.remedy}")
    if sha256_file(path) != digest:
        raise ArtifactError(f"{path} is damaged: its SHA-256 does not match {kind.file}; {kind.remedy}")
    return path


def _layout(document: Any, indent: int) -> bytes:
    return json.dumps(document, indent=indent, sort_keys=True).encode()
