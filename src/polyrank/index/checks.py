"""What an index refuses to hold, named by position. Knows nothing of files."""

import hashlib
import json
from collections.abc import Container, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import DataError
from polyrank.records import Candidate

MAX_TEXT_CHARACTERS = 100_000
MAX_FAULTS_NAMED = 5
MAX_METADATA_BYTES = 64 * 1024  # of one candidate's, as JSON: every filter and every answer reads them
MAX_DEPTH = 16  # of metadata

Vectors = NDArray[np.float32]
Faults = dict[int, str]


def check_candidates(candidates: Sequence[Candidate], max_metadata_bytes: int = MAX_METADATA_BYTES) -> None:
    """Refuse candidates that an index cannot hold, before any of them is encoded.

    Args:
        candidates: to be added.
        max_metadata_bytes: of each candidate's metadata as JSON, at most what any index takes.

    Raises:
        DataError: names the first five by position.

    >>> check_candidates([Candidate("a", "hello"), Candidate("a", "bye"), Candidate("b", " ")])
    Traceback (most recent call last):
    polyrank.errors.DataError: candidate 1: id 'a' is that of candidate 0 too; candidate 2: its text is empty; ...
    """
    refuse(candidate_faults(candidates, max_metadata_bytes))


def refuse(faults: Faults) -> None:
    """Raise a DataError that names the first five, if there are any."""
    if faults:
        named = [f"candidate {position}: {faults[position]}" for position in sorted(faults)[:MAX_FAULTS_NAMED]]
        more = f" and {len(faults) - len(named)} more" if len(faults) > len(named) else ""
        raise DataError(f"{'; '.join(named)}{more}; correct them, nothing was written")


def candidate_faults(candidates: Iterable[Candidate], max_metadata_bytes: int = MAX_METADATA_BYTES) -> Faults:
    """Ids that come twice, empty and over-long texts, too much metadata, and what JSON cannot hold."""
    faults: Faults = {}
    seen: dict[str, int] = {}
    for position, candidate in enumerate(candidates):
        first = seen.setdefault(candidate.id, position)
        if first != position:
            faults[position] = f"id {candidate.id!r} is that of candidate {first} too"
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
            except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate, NaN, or no JSON at all
                faults[position] = f"it cannot be written as JSON ({error})"
                continue
            if n_bytes > max_metadata_bytes:
                faults[position] = (
                    f"its metadata take {n_bytes:,} bytes as JSON, the limit is {max_metadata_bytes:,}; keep what"
                    " filters and readers need"
                )
            elif text.count("[") + text.count("{") > MAX_DEPTH and _depth(candidate.metadata) > MAX_DEPTH:
                faults[position] = f"its metadata is nested deeper than {MAX_DEPTH}"
    return faults


def _depth(value: object) -> int:
    """How deeply lists and dictionaries are nested; counted level by level, so that no depth is too much for it.

    >>> _depth({"a": [1, {}]}), _depth("x")
    (3, 0)
    """
    depth, level = 0, [value]
    while level := [entry for entry in level if isinstance(entry, dict | list | tuple)]:
        depth += 1
        level = [inner for entry in level for inner in (entry.values() if isinstance(entry, dict) else entry)]
    return depth


def metadata_json(candidate: Candidate) -> str:
    """The one way to write a candidate's metadata."""
    return json.dumps(candidate.metadata, ensure_ascii=False, allow_nan=False, sort_keys=True)


def row_digest(row: int, id_: str, text: str, metadata: str, change: int, vector: bytes) -> bytes:
    """SHA-256 of everything that a row says, each part with its length."""
    parts = (str(row).encode(), id_.encode(), text.encode(), metadata.encode(), str(change).encode(), vector)
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def id_faults(candidates: Sequence[Candidate], known: Container[str]) -> Faults:
    """Ids that are in the index already and may not be replaced."""
    fault = "is in the index already with other content; set `replace=True` to replace it"
    return {i: f"id {c.id!r} {fault}" for i, c in enumerate(candidates) if c.id in known}


def vector_faults(vectors: Vectors) -> Faults:
    """Rows of ``[N, D]`` that are zero or not finite."""
    # a row's smallest and largest number tell both faults, and hold N numbers where isfinite would hold N x D
    low, high = vectors.min(1, initial=0.0), vectors.max(1, initial=0.0)
    faults = {int(position): "its vector is zero" for position in np.flatnonzero((low == 0) & (high == 0))}
    infinite = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    return faults | {int(position): "its vector holds NaN or infinity" for position in infinite}


def as_vectors(vectors: Vectors | Sequence[Vectors], n: int, dimension: int | None) -> tuple[Vectors, Faults]:
    """Vectors as float32 ``[n, D]``, too large numbers as infinity; and rows that are not as long as they should be.

    Args:
        vectors: an array, or one row each.
        n: how many candidates they are for.
        dimension: D; None: the first row's.

    Raises:
        DataError: there is not one for each candidate.
    """
    if len(vectors) != n:
        shape = vectors.shape if isinstance(vectors, np.ndarray) else (len(vectors),)
        raise DataError(f"{n} candidates came with vectors of shape {shape}; give one for each")
    faults: Faults = {}
    if isinstance(vectors, np.ndarray) and vectors.ndim == 2:
        width = vectors.shape[1] if dimension is None else dimension
        if vectors.shape[1] != width:
            faults = dict.fromkeys(range(n), f"its vector has {vectors.shape[1]} numbers, this index takes {width}")
            vectors = np.ones((n, width), np.float32)
    else:
        shapes = [np.shape(row) for row in vectors]
        width = dimension if dimension is not None else (shapes[0][0] if shapes and len(shapes[0]) == 1 else 0)
        faults = {
            position: f"its vector has shape {shape}, this index takes ({width},)"
            for position, shape in enumerate(shapes)
            if shape != (width,)
        }
        blank = np.ones(width, np.float32)
        rows = [blank if position in faults else row for position, row in enumerate(vectors)]
        vectors = np.stack(rows) if rows else np.empty((0, width), np.float32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(vectors, dtype="<f4"), faults
