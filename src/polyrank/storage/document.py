"""Sealed JSON documents: values with their format version, the version of polyrank that wrote them, and a checksum.

A document has exactly one byte representation, so reading refuses a file in which any byte differs. This module does
not know what documents mean and does not import torch.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from polyrank._version import __version__
from polyrank.errors import ArtifactError
from polyrank.storage.durable import new_folder, sha256_file

T = TypeVar("T")
SEAL = ("checksum", "format", "written_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """A kind of document; a folder holds at most one document of a kind.

    Args:
        name: what errors call a folder of this kind.
        file: name of the document in the folder.
        remedy: what the user can do if the document is damaged.
        missing: what the user can do if the folder has no such document.
        format: the format version that polyrank writes and reads.
        parts: names of the other files in the folder.
    """

    name: str
    file: str
    remedy: str
    missing: str = "check the path"
    format: int = 1
    parts: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """All files of such a folder."""
        return (self.file, *self.parts)


def tensors_kind(
    name: str, *, missing: str = "check the path", remedy: str = "create the folder again"
) -> DocumentKind:
    """The kind of a folder that ``polyrank.storage.tensors`` writes: ``name.json`` and ``name.safetensors``."""
    parts = (f"{name}.safetensors",)
    return DocumentKind(
        name=f"folder of kind {name!r}", file=f"{name}.json", missing=missing, remedy=remedy, parts=parts
    )


class DocumentValues(dict[str, Any]):
    """A JSON object of a document; reading a key that it lacks refuses the document, whose form has changed since.

    >>> DocumentValues({"scale": 1.0}, "support/ranker.json", "make it again")["relevance"]
    Traceback (most recent call last):
    polyrank.errors.ArtifactError: support/ranker.json has no 'relevance': another version wrote it; make it again
    """

    def __init__(self, values: Any = (), where: Path | str = "the document", remedy: str = "make it again") -> None:
        super().__init__(values)  # alone, as in copies of dataclasses
        self.where, self.remedy = where, remedy

    def __missing__(self, key: str) -> Any:
        raise ArtifactError(f"{self.where} has no {key!r}: another version wrote it; {self.remedy}")


def checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of JSON values in canonical form, in hex. A key "checksum" is ignored.

    >>> checksum({"b": 1, "a": [2]}) == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()
    True
    """
    content = {key: value for key, value in values.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal(document: Mapping[str, Any], kind: DocumentKind) -> bytes:
    """Add the seal to a document and return the bytes of its file.

    Args:
        document: JSON values, without the keys of a seal.
        kind: the kind of document.

    Raises:
        ValueError: it holds NaN or infinity, which JSON cannot represent, or a key of the seal.
    """
    if reserved := [key for key in SEAL if key in document]:
        raise ValueError(f"{reserved[0]!r} is a reserved key of the seal; rename it")
    # the checksum is of the values as JSON reads them back: a numeric key becomes a string, which sorts differently
    whole = json.loads(json.dumps({**document, "format": kind.format, "written_by": __version__}, allow_nan=False))
    whole["checksum"] = checksum(whole)
    return _layout(whole)


def unseal(data: bytes, path: Path, kind: DocumentKind) -> dict[str, Any]:
    """Verify the bytes of a file and return its document without the seal.

    Args:
        data: the file's bytes.
        path: path of the file, for errors.
        kind: the kind of document.

    Raises:
        ArtifactError: the file is damaged, or a newer version of polyrank wrote it.
    """
    try:
        document = json.loads(data, object_hook=lambda values: DocumentValues(values, path, kind.remedy))
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        check_format(path, document, kind.format, kind.remedy)
        text = data.replace(b"\r\n", b"\n")  # some systems convert the line endings of text files
        if text != _layout(document):
            raise ValueError("it was modified")
        if document.get("checksum") != checksum(document):
            raise ValueError("its checksum does not match")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); {kind.remedy}") from error
    return DocumentValues({key: value for key, value in document.items() if key not in SEAL}, path, kind.remedy)


def check_format(where: Path | str, document: Mapping[str, Any], supported: int, remedy: str) -> None:
    """Refuse a document of another format.

    Args:
        where: the file, for errors.
        document: may have the keys "format" (default 1) and "written_by".
        supported: the format that this version reads.
        remedy: what the user can do if the format is older.

    Raises:
        ArtifactError: the format is newer or older.
        ValueError: the format is not an integer.
    """
    version = document.get("format", 1)
    if type(version) is not int:
        raise ValueError(f"format {str(version)[:20]!r} is not an integer")
    if version != supported:
        by = f"written by polyrank {document['written_by']} " if "written_by" in document else ""
        fix = "upgrade polyrank" if version > supported else remedy
        raise ArtifactError(f"{where}: {by}in format {version}, this version reads format {supported}; {fix}")


def has_document(folder: Path, kind: DocumentKind) -> bool:
    """Whether the folder has a document of this kind."""
    return (folder / kind.file).is_file()


def read_document(folder: Path, kind: DocumentKind) -> dict[str, Any]:
    """Read and verify the document of a folder; returns it without the seal.

    Raises:
        ArtifactError: the document is missing or damaged, or a newer version of polyrank wrote it.
    """
    path = folder / kind.file
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        article = "an" if kind.name[0] in "aeio" else "a"
        raise ArtifactError(f"{folder} is not {article} {kind.name}: it has no {kind.file}; {kind.missing}") from error
    return unseal(data, path, kind)


def open_or_write(
    folder: Path,
    kind: DocumentKind,
    open_: Callable[[Path], T],
    write: Callable[[], None],
    notify: Callable[[str], None],
) -> T:
    """Open a folder that can be written again, such as one of a cache; write it if it is missing or damaged.

    Args:
        folder: with a document of this kind.
        kind: of its document.
        open_: raises ArtifactError if the folder is missing or damaged.
        write: writes the folder.
        notify: called if the folder is damaged.
    """
    try:
        return open_(folder)
    except ArtifactError as error:
        if has_document(folder, kind):
            notify(f"{error}; polyrank writes it again")
    write()
    return open_(folder)


def check_part(path: Path, digest: object, kind: DocumentKind) -> Path:
    """Verify a file whose SHA-256 is recorded in a document; returns its path.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; {kind.remedy}")
    if sha256_file(path) != digest:
        raise ArtifactError(f"{path} is damaged: its SHA-256 does not match {kind.file}; {kind.remedy}")
    return path


@contextmanager
def new_parts(folder: Path, kind: DocumentKind) -> Iterator[tuple[dict[str, Any], list[BinaryIO]]]:
    """Write a folder of this kind, in place of an earlier one, whole or not at all.

    Yields:
        The document to fill in, which gets the SHA-256 of the parts, and the parts as open files.
    """
    document: dict[str, Any] = {}
    with new_folder(folder, replace=True, own_files=kind.files) as new:
        with ExitStack() as stack:
            yield document, [stack.enter_context((new / name).open("w+b")) for name in kind.parts]
        document["parts"] = {name: sha256_file(new / name) for name in kind.parts}
        (new / kind.file).write_bytes(seal(document, kind))


def read_parts(folder: Path, kind: DocumentKind) -> tuple[dict[str, Any], list[Path]]:
    """The document and the parts of a folder that ``new_parts`` wrote; every byte is verified.

    Raises:
        ArtifactError: the folder is of another kind or damaged, or a newer version of polyrank wrote it.
    """
    document = read_document(folder, kind)
    return document, [check_part(folder / name, document["parts"][name], kind) for name in kind.parts]


def _layout(document: Any) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode()
