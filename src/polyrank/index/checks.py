"""Checks of candidates and vectors before an index stores them; faults are named by position. Opens no file."""

import hashlib
import json
from collections.abc import Container, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError
from polyrank.records import Candidate

MAX_TEXT_CHARACTERS = 100_000
MAX_FAULTS_NAMED = 5
MAX_METADATA_BYTES = 64 * 1024  # of one candidate, as JSON: every filter and every answer reads them
MAX_DEPTH = 16  # of nested metadata

Vectors = NDArray[np.float32]
Faults = dict[int, str]


def check_candidates(candidates: Sequence[Candidate], max_metadata_bytes: int = MAX_METADATA_BYTES) -> None:
    """Refuse candidates that an index cannot store, before any of them is encoded.

    Args:
        candidates: the candidates to add.
        max_metadata_bytes: limit on each candidate's metadata as JSON.

    Raises:
        DataError: names the first five invalid candidates by position.

    >>> check_candidates([Candidate("a", "hello"), Candidate("a", "bye"), Candidate("b", " ")])
    Traceback (most recent call last):
    polyrank.errors.DataError: candidate 1: candidate 0 has the same id 'a'; candidate 2: its text is empty; ...
    """
    refuse(candidate_faults(candidates, max_metadata_bytes))


def refuse(faults: Faults) -> None:
    """Raise a DataError that names the first five faults, if there are any."""
    if faults:
        named = [f"candidate {position}: {faults[position]}" for position in sorted(faults)[:MAX_FAULTS_NAMED]]
        more = f" and {len(faults) - len(named)} more" if len(faults) > len(named) else ""
        raise DataError(f"{'; '.join(named)}{more}; nothing was written")


def candidate_faults(candidates: Iterable[Candidate], max_metadata_bytes: int = MAX_METADATA_BYTES) -> Faults:
    """Repeated ids, empty or too long texts, too much metadata, and values that JSON cannot represent."""
    faults: Faults = {}
    seen: dict[str, int] = {}
    for position, candidate in enumerate(candidates):
        first = seen.setdefault(candidate.id, position)
        if first != position:
            faults[position] = f"candidate {first} has the same id {candidate.id!r}"
        elif not candidate.text.strip():
            faults[position] = "its text is empty"
        elif len(candidate.text) > MAX_TEXT_CHARACTERS:
            n, limit = len(candidate.text), MAX_TEXT_CHARACTERS
            faults[position] = f"its text has {n:,} characters, the limit is {limit:,}"
        else:
            try:
                text = metadata_json(candidate)
                n_bytes = len(text.encode())
                (candidate.id + candidate.text).encode()
            except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate, NaN, a type unknown to JSON
                faults[position] = f"it cannot be written as JSON ({error})"
                continue
            if n_bytes > max_metadata_bytes:
                faults[position] = (
                    f"its metadata have {n_bytes:,} bytes as JSON, the limit is {max_metadata_bytes:,}; keep only the"
                    " keys that filters and readers need"
                )
            elif text.count("[") + text.count("{") > MAX_DEPTH and _depth(candidate.metadata) > MAX_DEPTH:
                faults[position] = f"its metadata are nested deeper than {MAX_DEPTH} levels"
    return faults


def _depth(value: object) -> int:
    """How deeply lists and dictionaries are nested; level by level, so that no depth exceeds the recursion limit.

    >>> _depth({"a": [1, {}]}), _depth("x")
    (3, 0)
    """
    depth, level = 0, [value]
    while level := [entry for entry in level if isinstance(entry, dict | list | tuple)]:
        depth += 1
        level = [inner for entry in level for inner in (entry.values() if isinstance(entry, dict) else entry)]
    return depth


def metadata_json(candidate: Candidate) -> str:
    """A candidate's metadata as text: the same for equal metadata."""
    return json.dumps(candidate.metadata, ensure_ascii=False, allow_nan=False, sort_keys=True)


def row_digest(row: int, id_: str, text: str, metadata: str, change: int, vector: bytes) -> bytes:
    """SHA-256 of a row's fields, each preceded by its length."""
    parts = (str(row).encode(), id_.encode(), text.encode(), metadata.encode(), str(change).encode(), vector)
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def id_faults(candidates: Sequence[Candidate], existing: Container[str]) -> Faults:
    """Ids that the index already has and that may not be replaced."""
    fault = "is already in the index; set `replace=True` to replace it"
    return {i: f"id {c.id!r} {fault}" for i, c in enumerate(candidates) if c.id in existing}


def vector_faults(vectors: Vectors) -> Faults:
    """Rows of ``[N, D]`` that are zero or not finite."""
    # each row's minimum and maximum reveal both faults, and need N numbers of memory where isfinite needs N x D
    low, high = vectors.min(1, initial=0.0), vectors.max(1, initial=0.0)
    faults = {int(position): "its vector is zero" for position in np.flatnonzero((low == 0) & (high == 0))}
    infinite = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    return faults | {int(position): "its vector holds NaN or infinity" for position in infinite}


def as_vectors(vectors: Vectors | Sequence[Vectors], n: int, dimension: int | None) -> tuple[Vectors, Faults]:
    """Vectors as float32 ``[n, D]``, with overflow as infinity, and the faults of rows that have another length.

    Args:
        vectors: an array, or a list of rows.
        n: number of candidates.
        dimension: D; None: the length of the first row.

    Raises:
        DataError: the number of vectors is not n.
    """
    if len(vectors) != n:
        shape = vectors.shape if isinstance(vectors, np.ndarray) else (len(vectors),)
        raise DataError(f"{n} candidates have vectors of shape {shape}; pass one vector per candidate")
    faults: Faults = {}
    if isinstance(vectors, np.ndarray) and vectors.ndim == 2:
        width = vectors.shape[1] if dimension is None else dimension
        if vectors.shape[1] != width:
            faults = dict.fromkeys(range(n), f"its vector has {vectors.shape[1]} numbers, this index needs {width}")
            vectors = np.ones((n, width), np.float32)
    else:
        shapes = [np.shape(row) for row in vectors]
        width = dimension if dimension is not None else (shapes[0][0] if shapes and len(shapes[0]) == 1 else 0)
        faults = {
            position: f"its vector has shape {shape}, this index needs ({width},)"
            for position, shape in enumerate(shapes)
            if shape != (width,)
        }
        blank = np.ones(width, np.float32)
        rows = [blank if position in faults else row for position, row in enumerate(vectors)]
        vectors = np.stack(rows) if rows else np.empty((0, width), np.float32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, dtype="<f4"), faults
