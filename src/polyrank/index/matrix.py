"""The matrix of an index: the vectors of its live rows in one file to be mapped. Derived, checked, disposable.

vectors.npy float32 [N, D]; rows.npy int64 [N], ascending; products.ann, where one is wanted, an inner-product index of
the vectors; manifest.json what they are of, with SHA-256s. No torch.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyrank.durable import new_folder
from polyrank.errors import ArtifactError, MissingExtraError
from polyrank.index.ann import CODES_FROM, Ann, build_ann, read_ann
from polyrank.index.checks import Vectors
from polyrank.index.store import Meta

ANN = "products.ann"
ROWS_AT_A_TIME = 4096
REMEDY = "run polyrank index compact, which makes it again"


@dataclass(frozen=True, slots=True)
class Block:
    """Vectors to search.

    Args:
        vectors: ``[n, D]``, read-only.
        rows: ``[n]``, the rows that they are of, ascending.
        alive: ``[n]``, false where a row was removed since; None: all are live.
    """

    vectors: Vectors
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, verified and mapped.

    Args:
        block: vectors and rows.
        ann: inner-product index of the block, where there is one.
        change: of the index that it is of.
        digest: of the rows that it holds.
    """

    block: Block
    ann: Ann | None
    change: int
    digest: int


def write_matrix(path: Path, rows: Iterable[tuple[int, Vectors]], meta: Meta) -> None:
    """Write a matrix folder, whole and durable or not at all; memory does not grow with N.

    Args:
        path: the folder to make.
        rows: numbers, ascending, and vectors ``[D]``, of all live candidates.
        meta: of the index; where it names a kind of inner-product index, that is built as well.

    Raises:
        MissingExtraError: the library for that is not installed.
        UsageError: there is no such kind.
    """
    n, dimension = meta.n, meta.dimension
    with new_folder(path) as folder:
        numbers = np.empty(n, "<i8")
        with (folder / "vectors.npy").open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, _header("<f4", (n, dimension)))
            buffer, count = np.empty((ROWS_AT_A_TIME, dimension), "<f4"), 0
            for count, (number, vector) in enumerate(rows, 1):
                numbers[count - 1], buffer[(count - 1) % ROWS_AT_A_TIME] = number, vector
                if count % ROWS_AT_A_TIME == 0:
                    stream.write(buffer.tobytes())
            stream.write(buffer[: count % ROWS_AT_A_TIME].tobytes())
        assert count == n, "the caller counts its rows"
        with (folder / "rows.npy").open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, _header("<i8", numbers.shape))
            stream.write(numbers.tobytes())
        document: dict[str, Any] = {
            "change": meta.change,
            "digest": str(meta.digest),
            "n": n,
            "dimension": dimension,
            "files": {},
        }
        parts = ["vectors.npy", "rows.npy"]
        if meta.ann and n:
            # codes cannot be learnt from a few vectors, and a few are scanned in no time
            kind = meta.ann if n >= CODES_FROM or meta.ann == "hnsw" else "flat"
            build_ann(np.load(folder / "vectors.npy", mmap_mode="r"), kind).write(folder / ANN)  # type: ignore[arg-type]
            parts.append(ANN)
        for name in parts:
            with (folder / name).open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            document["files"][name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256}
        document["checksum"] = _checksum(document)
        (folder / "manifest.json").write_bytes(_canonical(document))


def _header(kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"descr": kind, "fortran_order": False, "shape": shape}


def open_matrix(path: Path) -> Matrix:
    """Verify every byte, then map it.

    Raises:
        FileNotFoundError: there is no such folder.
        ArtifactError: a part is missing or damaged.
    """
    document = read_manifest(path)
    with verified(path, "rows.npy", document) as stream:
        rows = np.lib.format.read_array(stream, allow_pickle=False)
    with verified(path, "vectors.npy", document) as stream:
        vectors = _map(stream)
    ann = None
    if ANN in document["files"]:
        with verified(path, ANN, document) as stream, suppress(MissingExtraError):  # who lacks the library scans
            ann = read_ann(stream.read())
    return Matrix(Block(vectors, rows), ann, document["change"], int(document["digest"]))


def read_manifest(path: Path) -> dict[str, Any]:
    """What a matrix is of, checked.

    Raises:
        FileNotFoundError: there is no such folder.
        ArtifactError: the manifest is missing or damaged.
    """
    place = path / "manifest.json"
    try:
        data = place.read_bytes()
    except OSError as error:
        path.stat()  # a writer may have put another matrix in place of this one
        raise ArtifactError(f"{place} cannot be read ({error.strerror}); {REMEDY}") from error
    try:
        document: dict[str, Any] = json.loads(data)
        checksum = document["checksum"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{place} is damaged ({error}); {REMEDY}") from error
    if data != _canonical(document) or checksum != _checksum(document):
        raise ArtifactError(f"{place} is damaged: its checksum does not match; {REMEDY}")
    return document


@contextmanager
def verified(path: Path, name: str, document: dict[str, Any]) -> Iterator[BinaryIO]:
    """A part, open at its start, once all of its bytes have been found to be those that were written.

    What is read is what was verified: the same open file, whatever its name means by now.

    Raises:
        FileNotFoundError: there is no such folder any more.
        ArtifactError: it is missing or damaged.
    """
    place, written = path / name, document["files"][name]
    try:
        stream = place.open("rb")
    except OSError as error:
        path.stat()
        raise ArtifactError(f"{place} cannot be read ({error.strerror}); {REMEDY}") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size != written["bytes"]:
            raise ArtifactError(f"{place} is damaged: it has {size:,} bytes, not {written['bytes']:,}; {REMEDY}")
        if hashlib.file_digest(stream, "sha256").hexdigest() != written["sha256"]:
            raise ArtifactError(f"{place} is damaged: its SHA-256 does not match; {REMEDY}")
        stream.seek(0)
        yield stream


def _map(stream: BinaryIO) -> Vectors:
    """The array of an open .npy file, in memory only where it is looked at."""
    np.lib.format.read_magic(stream)
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    if 0 in shape:  # an empty array cannot be mapped
        return np.zeros(shape, np.float32)
    return np.memmap(stream, kind, "r", stream.tell(), shape)


def _canonical(document: dict[str, Any]) -> bytes:
    """The one way to write the manifest, so that every byte of it is determined by what it says."""
    return json.dumps(document, indent=2, sort_keys=True).encode()


def _checksum(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
