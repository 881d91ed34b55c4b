"""Rows of a remote index: converts candidates to rows, and checks the rows that come back. No torch.

Each row has a SHA-256 of its contents, as in a local index, which reveals rows that the server altered or mixed up. A
row's key is a hash of the candidate's id, so ids can have any length and characters.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import frexp

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.index.checks import Faults, Vectors, as_vectors, metadata_json, row_digest, vector_faults
from polyrank.index.counts import COUNT_FIELD, as_count
from polyrank.index.remote.address import Address
from polyrank.index.remote.facts import COLUMN, Columns
from polyrank.index.remote.store import KEY, MAX_STRING, Row
from polyrank.records import Candidate

MAX_FACTS = 65_536  # bytes of a row's facts as JSON
ROWS_AT_A_TIME = 512  # per request; fewer if texts are long
BYTES_AT_A_TIME = 16 * 2**20
WIDTHS = 8  # stored vectors have a multiple of this many numbers, as compressed indexes need
COUNT_SCALE = 16.0  # divides log(1 + count) in stored vectors, so that it hardly affects the neighbours in a graph


def key_of(id_: str) -> str:
    """The key of an id's row: 128 bits of SHA-256; empty if the id is not valid Unicode and so cannot be stored."""
    try:
        return hashlib.sha256(id_.encode()).hexdigest()[:32]
    except UnicodeEncodeError:
        return ""


def stored_width(dimension: int) -> int:
    """Numbers per stored vector: D and at least one more, for the count.

    >>> stored_width(384), stored_width(7)
    (392, 8)
    """
    return (dimension // WIDTHS + 1) * WIDTHS


def counts_of(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
    """How often each of n replies was said, ``[n]``."""
    return np.array([as_count(candidate.metadata.get(COUNT_FIELD)) for candidate in candidates], np.float64)


def stored_vectors(candidates: Sequence[Candidate], vectors: Vectors, width: int) -> Vectors:
    """Vectors ``[n, width]`` to store: those of the candidates ``[n, D]``, then ``log(1 + count)`` scaled, then zeros.

    The product with ``weighing_vectors`` is a product of vectors plus a weight times ``log(1 + count)``.
    """
    return _widened(vectors, np.log1p(counts_of(candidates)) / COUNT_SCALE, width)


def weighing_vectors(vectors: Vectors, weight: float, width: int) -> Vectors:
    """Vectors ``[m, width]`` to compare with stored ones: ``[m, D]``, then the weight of ``log(1 + count)`` scaled.

    >>> stored = stored_vectors([Candidate("a", "hi", {"count": 3})], np.ones((1, 2), np.float32), 8)
    >>> asked = weighing_vectors(np.full((1, 2), 5.0, np.float32), 0.5, 8)
    >>> bool(abs((stored @ asked.T).item() - (10 + 0.5 * np.log(4))) < 1e-6)
    True
    """
    return _widened(vectors, np.full(len(vectors), weight * COUNT_SCALE), width)


def _widened(vectors: Vectors, last: NDArray[np.float64], width: int) -> Vectors:
    n, dimension = vectors.shape
    result = np.zeros((n, width), np.float32)
    result[:, :dimension], result[:, dimension] = vectors, last
    return result


def make_rows(
    candidates: Sequence[Candidate],
    vectors: Vectors | Sequence[Vectors],
    first: int,
    dimension: int | None,
    columns: Columns,
) -> tuple[list[Row], Faults, int]:
    """Rows to write, numbered from ``first``, the faults of what the server cannot store, and a bound of norms.

    Args:
        candidates: n candidates.
        vectors: ``[n, D]``.
        first: number of the first row.
        dimension: D; None: the length of the first vector.
        columns: of the collection.

    Returns:
        The rows, the faults by position, and the ``norm_exponent`` of the stored vectors.

    Raises:
        DataError: the number of vectors is not n.
    """
    array, faults = as_vectors(vectors, len(candidates), dimension)
    faults = vector_faults(array) | faults
    stored = stored_vectors(candidates, array, stored_width(array.shape[1]))
    rows: list[Row] = []
    for i, (candidate, vector) in enumerate(zip(candidates, stored, strict=True)):
        try:
            metadata = metadata_json(candidate)
            texts = {"id": candidate.id, "text": candidate.text, "metadata": metadata}
            sizes = {name: len(value.encode()) for name, value in texts.items()}
            filtered_by = columns.of(json.loads(metadata))
        except (TypeError, ValueError, RecursionError):  # candidate_faults reports it
            continue
        if long := [name for name, size in sizes.items() if size > MAX_STRING]:
            faults[i] = f"its {long[0]} has {sizes[long[0]]:,} bytes, the server's limit is {MAX_STRING:,}"
        elif (size := len(json.dumps(filtered_by[COLUMN]))) > MAX_FACTS:
            faults[i] = f"its metadata make {size:,} bytes to filter by, the limit is {MAX_FACTS:,}"
        digest = row_digest(first + i, candidate.id, candidate.text, metadata, 0, vector.tobytes()).hex()
        row: Row = {KEY: key_of(candidate.id), "row": first + i, "digest": digest}
        rows.append(row | texts | filtered_by | {"vector": vector.tolist()})
    return rows, faults, norm_exponent(stored)


def norm_exponent(vectors: Vectors) -> int:
    """The least e such that the Euclidean norm of each of ``[n, D]`` is below ``2 ** e``.

    >>> norm_exponent(np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)), norm_exponent(np.ones((1, 1), np.float32))
    (3, 1)
    """
    longest = np.sqrt(np.square(vectors.astype(np.float64)).sum(1)).max(initial=0.0)
    return frexp(float(longest) * (1.0 + 1e-12))[1]


def request_batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Split rows into batches, one for each request."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += 12 * len(row["vector"]) + 4 * len(row["text"]) + 8 * len(row["metadata"])
        if len(part) == ROWS_AT_A_TIME or size > BYTES_AT_A_TIME:
            yield part
            part, size = [], 0
    if part:
        yield part


def read_row(row: Row, address: Address) -> tuple[int, Candidate, Vectors]:
    """A row's number, candidate and stored vector.

    Raises:
        ArtifactError: the row is not what was written.
    """
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        vector = np.array(row["vector"], "<f4")
        whole = row_digest(row["row"], row["id"], row["text"], row["metadata"], 0, vector.tobytes()).hex()
        if whole == row["digest"]:
            return row["row"], Candidate(row["id"], row["text"], json.loads(row["metadata"])), vector
    name = str(row.get("id"))[:100]
    raise ArtifactError(
        f"{address} is damaged: candidate {name!r} is not what was written; add it again, or build the index again"
    )
