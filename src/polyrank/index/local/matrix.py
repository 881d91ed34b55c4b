"""The matrix of an index: the vectors of its live rows in a file to be memory-mapped. Derived and checked.

vectors.npy holds [N, D] as float32, bf16 (as uint16) or int8, the latter with scales.npy, float32 [N]; rows.npy holds
int64 [N], ascending; products.ann, if requested, an inner-product index of the vectors; manifest.json the change that
they reflect, and SHA-256s. No torch.
"""

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, MissingExtraError
from polyrank.index.checks import Vectors
from polyrank.index.local.ann import CODES_FROM, Ann, build_ann, read_ann
from polyrank.index.local.store import Meta
from polyrank.index.protocol import Block
from polyrank.storage.document import DocumentKind, seal, unseal
from polyrank.storage.durable import new_folder, write_file
from polyrank.storage.quantized import PackedVectors, from_rows, pack

ANN = "products.ann"
ROWS_AT_A_TIME = 4096
KINDS = {"fp32": "<f4", "bf16": "<u2", "int8": "|i1"}
REMEDY = "run polyrank index compact, which rebuilds it"
MATRIX = DocumentKind(name="matrix of an index", file="manifest.json", missing=REMEDY, remedy=REMEDY)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, verified and mapped.

    Args:
        block: vectors and rows.
        ann: inner-product index of the block; None if there is none, or its library is missing.
        change: the index's change that it reflects.
        digest: of its rows.
    """

    block: Block
    ann: Ann | None
    change: int
    digest: int


def write_matrix(path: Path, rows: Iterable[tuple[int, bytes]], meta: Meta) -> None:
    """Write a matrix folder, completely and durably or not at all, in memory that does not grow with N.

    Args:
        path: the folder to make.
        rows: row numbers, ascending, and stored vectors of all live candidates.
        meta: of the index; if it names a kind of inner-product index, that is built as well.

    Raises:
        MissingExtraError: the library for the inner-product index is not installed.
        UsageError: the kind of inner-product index is unknown.
    """
    n = meta.n
    with new_folder(path) as folder:
        numbers, count, parts = np.empty(n, "<i8"), 0, ["vectors.npy", "rows.npy"]
        scales = np.empty(n if meta.precision == "int8" else 0, "<f4")
        with (folder / "vectors.npy").open("wb") as stream:
            _write_header(stream, KINDS[meta.precision], (n, meta.dimension))
            remaining = iter(rows)
            while part := list(islice(remaining, ROWS_AT_A_TIME)):
                # packing the decoded vectors again restores the stored bits
                packed = pack(from_rows([vector for _, vector in part], meta.precision), meta.precision)
                here = slice(count, count := count + len(part))
                numbers[here] = [number for number, _ in part]
                if isinstance(packed, PackedVectors) and packed.scales is not None:
                    scales[here] = packed.scales
                stream.write((packed.values if isinstance(packed, PackedVectors) else packed).tobytes())
        assert count == n, "the caller passes n rows"
        _write_array(folder / "rows.npy", numbers)
        if meta.precision == "int8":
            _write_array(folder / "scales.npy", scales)
            parts.append("scales.npy")
        if meta.ann and n:
            # too few vectors cannot train codes, and scanning a few takes no time
            kind = meta.ann if n >= CODES_FROM or meta.ann == "hnsw" else "flat"
            with (folder / "vectors.npy").open("rb") as stream:
                vectors = _as_vectors(_map(stream), scales)
            write_file(folder / ANN, build_ann(vectors, kind).to_bytes())  # type: ignore[arg-type]  # checked there
            parts.append(ANN)
        files = {}
        for name in parts:
            with (folder / name).open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            files[name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256}
        document = {"change": meta.change, "digest": str(meta.digest), "n": n, "dimension": meta.dimension}
        (folder / MATRIX.file).write_bytes(seal(document | {"files": files}, MATRIX))


def _write_array(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as stream:
        _write_header(stream, array.dtype.str, array.shape)
        stream.write(array.tobytes())  # np.save loses the error code of a full disk


def _write_header(stream: BinaryIO, kind: str, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(stream, {"descr": kind, "fortran_order": False, "shape": shape})


def open_matrix(path: Path) -> Matrix:
    """Verify every byte, then map the vectors.

    Raises:
        FileNotFoundError: the folder does not exist.
        ArtifactError: a part is missing or damaged.
    """
    document = read_manifest(path)
    with verified(path, "rows.npy", document) as stream:
        rows = np.lib.format.read_array(stream, allow_pickle=False)
    with verified(path, "vectors.npy", document) as stream:
        values = _map(stream)
    scales = np.empty(0, "<f4")
    if "scales.npy" in document["files"]:
        with verified(path, "scales.npy", document) as stream:
            scales = np.lib.format.read_array(stream, allow_pickle=False)
    ann = None
    if ANN in document["files"]:
        with verified(path, ANN, document) as stream, suppress(MissingExtraError):  # without the library, searches scan
            ann = read_ann(stream.read())
    return Matrix(Block(_as_vectors(values, scales), rows), ann, document["change"], int(document["digest"]))


class Verification(threading.Thread):
    """Opens a matrix while searches use an earlier one.

    Attributes:
        path: of the matrix.
        matrix: set at the end; None: it is damaged, or a writer has replaced it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(name="polyrank-verification", daemon=True)
        self.path = path
        self.matrix: Matrix | None = None
        try:
            self.start()
        except RuntimeError:  # no thread can be started
            self.run()

    def run(self) -> None:
        with suppress(OSError, ArtifactError):
            self.matrix = open_matrix(self.path)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of a matrix.

    Raises:
        FileNotFoundError: the folder does not exist.
        ArtifactError: the manifest is missing or damaged.
    """
    manifest = path / MATRIX.file
    try:
        data = manifest.read_bytes()
    except OSError as error:
        path.stat()  # FileNotFoundError if a writer has replaced the matrix
        raise ArtifactError(f"{manifest} cannot be read ({error.strerror}); {REMEDY}") from error
    return unseal(data, manifest, MATRIX)


@contextmanager
def verified(path: Path, name: str, document: dict[str, Any]) -> Iterator[BinaryIO]:
    """Open a part after checking its size and SHA-256; the stream is at the start.

    The check and the caller read the same open file, even if another file gets its name meanwhile.

    Raises:
        FileNotFoundError: the folder does not exist any more.
        ArtifactError: the part is missing or damaged.
    """
    part, entry = path / name, document["files"][name]
    try:
        stream = part.open("rb")
    except OSError as error:
        path.stat()
        raise ArtifactError(f"{part} cannot be read ({error.strerror}); {REMEDY}") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size != entry["bytes"]:
            raise ArtifactError(f"{part} is damaged: it has {size:,} bytes, not {entry['bytes']:,}; {REMEDY}")
        if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
            raise ArtifactError(f"{part} is damaged: its SHA-256 does not match; {REMEDY}")
        stream.seek(0)
        yield stream


def _as_vectors(values: NDArray[Any], scales: Vectors) -> Vectors | PackedVectors:
    if values.dtype == np.float32:
        return values
    return PackedVectors(values, scales if values.dtype == np.int8 else None)


def _map(stream: BinaryIO) -> NDArray[Any]:
    """Map the array of an open .npy file."""
    np.lib.format.read_magic(stream)
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    if 0 in shape:  # an empty array cannot be mapped
        return np.zeros(shape, kind)
    return np.memmap(stream, kind, "r", stream.tell(), shape)
