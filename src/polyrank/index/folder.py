"""The index: an immutable folder of candidates and their vectors, written whole, verified before it is read.

index.json         format, encoder's fingerprint, sizes and SHA-256 of the rest, and a checksum of itself
candidates.jsonl   id, text and metadata, in row order
vectors.npy        float32 [N, D], memory-mapped read-only
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyrank import __version__
from polyrank.durable import new_folder, sha256_file
from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.records import Candidate

FORMAT = 1
MAX_TEXT_CHARACTERS = 100_000
MAX_FAULTS_NAMED = 5
PARTS = ("candidates.jsonl", "vectors.npy")

Vectors = NDArray[np.float32]
Place = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Index:
    """An open index.

    Args:
        path: its folder.
        candidates: in row order.
        vectors: ``[N, D]``, read-only.
        document: index.json.
    """

    path: Path
    candidates: tuple[Candidate, ...]
    vectors: Vectors
    document: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the vectors."""
        return str(self.document["fingerprint"])

    def info(self) -> dict[str, Any]:
        """What it holds, ready for JSON."""
        return {key: value for key, value in self.document.items() if key != "checksum"}


def write_index(
    path: Place,
    candidates: Sequence[Candidate],
    vectors: Vectors | Sequence[Vectors],
    *,
    fingerprint: str,
    model: str,
    replace: bool = False,
) -> None:
    """Write an index folder, whole or not at all.

    Args:
        path: the folder to make.
        candidates: with distinct ids and texts that are not empty; metadata that JSON can hold.
        vectors: ``[N, D]``, one per candidate, finite and not zero.
        fingerprint: of the encoder.
        model: where the encoder's folder is, for whoever opens the index.
        replace: whether an existing index may be replaced.

    Raises:
        DataError: names the first five faulty candidates by position; nothing is written.
        UsageError: the place is taken.
        ResourceError: the disk is full; an earlier index is intact.
    """
    path = Path(path)
    check_place(path, replace=replace)
    matrix, faults = _matrix(vectors)
    if matrix.ndim != 2 or len(matrix) != len(candidates):
        raise DataError(f"{len(candidates)} candidates came with vectors of shape {matrix.shape}; give one for each")
    _refuse(_vector_faults(matrix) | faults | _candidate_faults(candidates))
    with new_folder(path, replace=replace) as folder:
        with (folder / "candidates.jsonl").open("wb") as stream:
            stream.writelines(_line(candidate) for candidate in candidates)
        np.save(folder / "vectors.npy", matrix)
        document: dict[str, Any] = {
            "format": FORMAT,
            "written_by": __version__,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": fingerprint,
            "model": model,
            "n": len(candidates),
            "dimension": int(matrix.shape[1]),
            "files": {name: sha256_file(folder / name) for name in PARTS},
            "bytes": {name: (folder / name).stat().st_size for name in PARTS},
        }
        document["checksum"] = _checksum(document)
        (folder / "index.json").write_bytes(_canonical(document))


def check_place(path: Path, *, replace: bool) -> None:
    """Refuse a place that an index must not take. Worth asking before candidates are encoded, which may take hours.

    Raises:
        UsageError: something is there and ``replace`` is false, or what is there is no index.
    """
    if not path.exists():
        return
    if not replace:
        raise UsageError(f"{path} already exists; choose another place or pass --overwrite")
    if not path.is_dir() or (
        any(path.iterdir()) and not any((path / name).exists() for name in ("index.json", *PARTS))
    ):
        raise UsageError(f"{path} is no index, so it is not replaced; choose another place")


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuse candidates that an index cannot hold, before any of them is encoded.

    Raises:
        DataError: names the first five by position.

    >>> check_candidates([Candidate("a", "hello"), Candidate("a", "bye"), Candidate("b", " ")])
    Traceback (most recent call last):
    polyrank.errors.DataError: candidate 1: id 'a' is that of candidate 0 too; candidate 2: its text is empty; ...
    """
    _refuse(_candidate_faults(candidates))


def _refuse(faults: dict[int, str]) -> None:
    if faults:
        named = [f"candidate {place}: {faults[place]}" for place in sorted(faults)[:MAX_FAULTS_NAMED]]
        more = f" and {len(faults) - len(named)} more" if len(faults) > len(named) else ""
        raise DataError(f"{'; '.join(named)}{more}; correct them, nothing was written")


def _candidate_faults(candidates: Sequence[Candidate]) -> dict[int, str]:
    faults: dict[int, str] = {}
    seen: dict[str, int] = {}
    for place, candidate in enumerate(candidates):
        first = seen.setdefault(candidate.id, place)
        if first != place:
            faults[place] = f"id {candidate.id!r} is that of candidate {first} too"
        elif not candidate.text.strip():
            faults[place] = "its text is empty"
        elif len(candidate.text) > MAX_TEXT_CHARACTERS:
            n, limit = len(candidate.text), MAX_TEXT_CHARACTERS
            faults[place] = f"its text has {n:,} characters, the limit is {limit:,}"
        else:
            try:
                _line(candidate)
            except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate, NaN, or no JSON at all
                faults[place] = f"it cannot be written as JSON ({error})"
    return faults


def _vector_faults(matrix: Vectors) -> dict[int, str]:
    # a row's smallest and largest number tell both faults, and hold N numbers where isfinite would hold N x D
    low, high = matrix.min(1, initial=0.0), matrix.max(1, initial=0.0)
    faults = {int(place): "its vector is zero" for place in np.flatnonzero((low == 0) & (high == 0))}
    infinite = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    return faults | {int(place): "its vector holds NaN or infinity" for place in infinite}


def _matrix(vectors: Vectors | Sequence[Vectors]) -> tuple[Vectors, dict[int, str]]:
    """The vectors as float32 ``[N, D]``, too large numbers as infinity; and which ones are not as long as the first."""
    faults: dict[int, str] = {}
    if not isinstance(vectors, np.ndarray):
        shapes = [np.shape(row) for row in vectors]
        faults = {
            place: f"its vector has shape {shape}, that of candidate 0 has {shapes[0]}"
            for place, shape in enumerate(shapes)
            if shape != shapes[0]
        }
        blank = np.zeros(shapes[0] if shapes else 0, np.float32)
        rows = [blank if place in faults else row for place, row in enumerate(vectors)]
        vectors = np.stack(rows) if rows else blank[None, :0][:0]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, dtype="<f4"), faults


def _line(candidate: Candidate) -> bytes:
    row = {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _canonical(document: dict[str, Any]) -> bytes:
    """The one way to write index.json, so that every byte of it is determined by what it says."""
    return json.dumps(document, indent=2, sort_keys=True).encode()


def _checksum(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    place = path / "index.json"
    try:
        data = place.read_bytes()
        document = dict(json.loads(data))
        version = document["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"{path} is no index: it has no index.json; build one with polyrank index build") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{place} is damaged ({error}); build the index again") from error
    if isinstance(version, int) and version > FORMAT:
        raise ArtifactError(
            f"{place}: written by polyrank {document.get('written_by')} in format {version}, this reads up to {FORMAT};"
            " upgrade polyrank"
        )
    if data != _canonical(document) or document.get("checksum") != _checksum(document):
        raise ArtifactError(f"{place} is damaged: its checksum does not match; build the index again")
    return document


@contextmanager
def _verified(path: Path, name: str, document: dict[str, Any]) -> Iterator[BinaryIO]:
    """A part of the index, open at its start, once all of its bytes have been found to be those that were written."""
    place = path / name
    try:
        stream = place.open("rb")
    except FileNotFoundError as error:
        raise ArtifactError(f"{place} is missing; build the index again") from error
    except OSError as error:
        raise ArtifactError(f"{place} cannot be read ({error.strerror}); build the index again") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        written = document.get("bytes", {}).get(name, size)
        if size != written:
            raise ArtifactError(f"{place} is damaged: it has {size:,} bytes, not {written:,}; build the index again")
        if hashlib.file_digest(stream, "sha256").hexdigest() != document["files"].get(name):
            raise ArtifactError(f"{place} is damaged: its SHA-256 does not match index.json; build the index again")
        stream.seek(0)
        yield stream


def verify_index(path: Place) -> list[str]:
    """Everything that is wrong with an index, as sentences; empty when it is sound."""
    path = Path(path)
    while True:
        before = _identity(path)
        problems = _problems(path)
        if not problems or _identity(path) == before:
            return problems


def _problems(path: Path) -> list[str]:
    try:
        document = _read_document(path)
    except ArtifactError as error:
        # without index.json there is nothing to compare the other parts with, but some faults show without it
        lost = [name for name in PARTS if path.is_dir() and not (path / name).exists()]
        blank = [name for name in PARTS if (path / name).is_file() and not (path / name).stat().st_size]
        return [
            str(error),
            *(f"{path / name} is missing; build the index again" for name in lost),
            *(f"{path / name} is damaged: it has 0 bytes; build the index again" for name in blank),
        ]
    problems = []
    for name in PARTS:
        try:
            with _verified(path, name, document):
                pass
        except ArtifactError as error:
            problems.append(str(error))
    return problems


def open_index(path: Place, *, fingerprint: str | None = None) -> Index:
    """Open an index; every byte is verified before it is parsed.

    All of it is of one writing, also while another process replaces the folder.

    Args:
        path: the folder.
        fingerprint: of the encoder that will query it; None: not checked now.

    Raises:
        ArtifactError: missing, damaged, too new, or made by another encoder.
    """
    path = Path(path)
    while True:
        before = _identity(path)
        try:
            return _open(path, fingerprint)
        except ArtifactError:
            if _identity(path) == before:
                raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells one folder from another that took its place: read again when it changes, nothing is damaged."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _open(path: Path, fingerprint: str | None) -> Index:
    document = _read_document(path)
    if fingerprint is not None:
        check_fingerprint(document["fingerprint"], fingerprint, path)
    # what is parsed is what was verified: the same open file, whatever the name means by now
    with _verified(path, "candidates.jsonl", document) as stream:
        rows = [json.loads(line) for line in stream]
    candidates = tuple(Candidate(row["id"], row["text"], row["metadata"]) for row in rows)
    with _verified(path, "vectors.npy", document) as stream:
        vectors = _map(stream)
    if vectors.shape != (document["n"], document["dimension"]) or len(candidates) != document["n"]:
        raise ArtifactError(
            f"{path}: index.json, candidates.jsonl and vectors.npy are of different sizes; build the index again"
        )
    return Index(path, candidates, vectors, document)


def _map(stream: BinaryIO) -> Vectors:
    """The array of an open .npy file, in memory only where it is looked at."""
    np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if 0 in shape:  # an empty array cannot be mapped
        return np.zeros(shape, np.float32)
    return np.memmap(stream, dtype, "r", stream.tell(), shape)


def check_fingerprint(of_index: str, of_encoder: str, path: Path) -> None:
    """Refuse to compare vectors of two encoders.

    Raises:
        ArtifactError: with both fingerprints.
    """
    if of_index != of_encoder:
        raise ArtifactError(
            f"{path} was made by encoder {of_index[:16]}, and this one is {of_encoder[:16]}; build the index again"
        )
