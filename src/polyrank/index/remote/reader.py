"""A remote index opened for reading: every method sends requests to the server. No torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank._version import __version__
from polyrank.errors import ArtifactError, PolyrankError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Filter
from polyrank.index.protocol import Block, CandidatePage, H, Index, Search, check_fingerprint
from polyrank.index.remote.address import Address, read_address
from polyrank.index.remote.facts import Columns
from polyrank.index.remote.rows import ROWS_AT_A_TIME, counts_of, key_of, norm_exponent, read_row, weighing_vectors
from polyrank.index.remote.store import FLAT, KEY, TIMEOUT_S, CollectionDescription
from polyrank.index.remote.stores import open_store, read_columns
from polyrank.records import Candidate
from polyrank.storage.document import check_format
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import Precision
from polyrank.storage.time_limit import limited_search

FORMAT = 4


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A remote index's description of itself, stored as a property of its collection.

    Args:
        fingerprint: of the encoder that made the vectors.
        model: path of that encoder's folder when the index was built.
        dimension: D.
        partition_by: the field that divides the candidates, written as in a filter; empty: they are not divided.
        format, written_by: of the collection.
    """

    fingerprint: str
    model: str
    dimension: int
    partition_by: str = ""
    format: int = FORMAT
    written_by: str = __version__


class RemoteIndex(Index):
    """Candidates and their vectors in a collection of a server.

    Each answer shows the collection at that moment; only the connection and the description are kept. A search is
    proven for the candidates of the last refresh; later ones may have longer vectors.

    Args:
        path: the folder that names the server and the collection.
        timeout_s: for each request to the server, including its repetitions.

    Attributes:
        change: number of refreshes and own changes.
        collection: the collection's own name.
        kind: of the vectors' index, the server's name; empty if it does not compare inner products.

    Raises:
        ArtifactError: the folder or the collection is missing, damaged or too new.
        OfflineError: the server does not answer.
        MissingExtraError: the server's client is not installed.
    """

    # set by ``refresh``
    fingerprint = model = collection = ""
    dimension = change = 0
    reports_changes = False
    kind = ""
    _description: CollectionDescription
    precision: Precision = "fp32"

    def __init__(self, path: AnyPath, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        self.server = open_store(read_address(self.path), timeout_s=timeout_s)
        self.opening = 0
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> bool:
        """See ``Index``. Always true, because the server does not report changes by others."""
        description = self.server.describe()
        info = _read_info(description.info, self.server.address)
        if self.opening:
            check_fingerprint(info.fingerprint, self.fingerprint, self.path)
        if description.name != self.collection:
            self.opening += 1
            self.kind = self.server.kind()
        self.collection, self._info, self._description = description.name, info, description
        self.fingerprint, self.model, self.dimension = info.fingerprint, info.model, info.dimension
        self.change += 1
        return True

    @property
    def exact(self) -> bool:
        """Whether the server compares every vector, so that its lists can prove an answer."""
        return self.kind == FLAT

    @property
    def width(self) -> int:
        """Numbers per stored vector, see ``stored_vectors``."""
        return self._description.width

    @property
    def columns(self) -> Columns:
        """The columns by which the collection is filtered."""
        return read_columns(self._info.partition_by, self.server.address)

    def _condition(self, filter: Filter | None) -> Any:
        return "" if filter is None else self.server.condition(self.columns, filter.tree)

    def __repr__(self) -> str:
        return f"RemoteIndex({str(self.path)!r}, {self.server.address}, {self.dimension} dimensions)"

    def __len__(self) -> int:
        return self.server.count()

    def engine(self, filter: Filter | None = None) -> "RemoteEngine":
        """Lists the largest products of candidates that pass a filter."""
        return RemoteEngine(self, self._condition(filter))

    def search(self, search: Search[H], filter: Filter | None = None) -> list[tuple[list[Candidate], H]]:
        engine = self.engine(filter)
        hits = search.of_engine(engine)
        return [([engine.candidates[row] for row in one.rows.tolist()], one) for one in hits]

    def norm_bound(self) -> float:
        """An upper bound on the norms of all stored vectors, as of the last refresh."""
        return self._description.norm

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        return {candidate.id: candidate for _, candidate, _ in self._rows(ids)}

    def vectors(self, ids: Sequence[str]) -> dict[str, Vectors]:
        return {candidate.id: vector for _, candidate, vector in self._rows(ids)}

    def _rows(self, ids: Sequence[str]) -> list[tuple[int, Candidate, Vectors]]:
        return self.get([key for key in map(key_of, dict.fromkeys(ids)) if key])

    def get(self, keys: Sequence[str]) -> list[tuple[int, Candidate, Vectors]]:
        """Row numbers, candidates and vectors by key, in any order; unknown keys are left out.

        Raises:
            ArtifactError: a row is damaged.
        """
        result = []
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            part = keys[start : start + ROWS_AT_A_TIME]
            for row in self.server.get(part):
                number, candidate, vector = read_row(row, self.server.address)
                result.append((number, candidate, vector[: self.dimension]))
        return result

    def _page(self, after: int, n: int, words: Sequence[str], filter: Filter | None) -> CandidatePage:
        """See ``Index.page``. Fetches every candidate that passes the filter."""
        with limited_search():
            pairs = [
                (row, one)
                for row, one in self.iter_candidates(filter)
                if row > after and all(any(_lower(w) in _lower(text) for text in (one.text, one.id)) for w in words)
            ]
        shown = tuple(candidate for _, candidate in pairs[:n])
        return CandidatePage(shown, pairs[n - 1][0] if len(pairs) > n else None, len(self))

    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        """See ``Index``. Each request shows one range of keys at its moment."""
        rows = self.server.scan(self._condition(filter))
        pairs = (read_row(row, self.server.address)[:2] for row in rows)
        yield from sorted(pairs, key=lambda pair: (pair[0], pair[1].id))

    def info(self) -> dict[str, Any]:
        server = {"remote": str(self.server.address), "collection": self.collection, "kind": self.kind}
        size = {"n": len(self), "n_indexed": self.server.n_indexed(), "dimension": self.dimension, "precision": "fp32"}
        return asdict(self._info) | size | server

    def close(self) -> None:
        """Close the connection."""
        self.server.close()


class RemoteEngine:
    """Lists the largest products of a remote index with a vector, through a filter; see ``polyrank.search.lists``.

    Args:
        index: the index.
        condition: the server's; empty: all candidates.

    Attributes:
        exact: whether ``nearest`` is guaranteed to return the largest products.
        kind: of the vectors' index, for reports.
        candidates: those fetched so far, by row.
    """

    def __init__(self, index: RemoteIndex, condition: Any) -> None:
        self._index, self._condition = index, condition
        self.exact, self.kind = index.exact, index.kind.lower()
        self.candidates: dict[int, Candidate] = {}

    def norm_bound(self) -> float:
        """An upper bound on the norms of all stored vectors ``[W]``."""
        return self._index.norm_bound()

    def weighing(self, vectors: Vectors, weight: float) -> Vectors:
        """``[m, W]`` from ``[m, D]``: their products with stored vectors include ``weight * log(1 + count)``."""
        return weighing_vectors(vectors, weight, self._index.width)

    def counts(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """How often the replies of fetched rows were said, ``[n]``."""
        return counts_of([self.candidates[row] for row in rows.tolist()])

    def nearest(self, vectors: Vectors, n: int) -> list[tuple[list[str], NDArray[np.float32]]]:
        """Keys and products ``[n']`` of the largest products with each of ``[m, W]``; n' < n: the list is complete."""
        lists = self._index.server.nearest(vectors, n, self._condition, kind=self._index.kind)
        return [([key for key, _ in hits], np.array([product for _, product in hits], np.float32)) for hits in lists]

    def fetch(self, keys: Sequence[str]) -> Block:
        """The candidates with these keys; removed ones are left out."""
        rows = sorted(self._index.get(keys), key=lambda row: row[0])
        self.candidates |= {row: candidate for row, candidate, _ in rows}
        vectors = np.stack([vector for _, _, vector in rows]) if rows else np.empty((0, self._index.dimension), "<f4")
        return Block(vectors, np.array([row for row, _, _ in rows], np.int64))


def remote_problems(path: AnyPath) -> list[str]:
    """Everything that is wrong with a remote index, one sentence each; reads every row."""
    problems: list[str] = []
    try:
        with RemoteIndex(path) as index:
            address, n = index.server.address, 0
            for row in index.server.scan(""):
                n += 1
                try:
                    _, candidate, vector = read_row(row, address)
                    if row[KEY] != key_of(candidate.id) or vector.shape != (index.width,):
                        problems.append(f"{address}: candidate {candidate.id!r} has the wrong key; add it again")
                    if 2.0 ** norm_exponent(vector[None]) > index.norm_bound():
                        problems.append(
                            f"{address}: candidate {candidate.id!r} has a longer vector than recorded; add it again"
                        )
                except ArtifactError as error:
                    problems.append(str(error))
            if n != len(index):
                problems.append(f"{address} lists {n:,} candidates but counts {len(index):,}; build it again")
    except PolyrankError as error:
        problems.append(str(error))
    return problems


def _read_info(text: str, address: Address) -> CollectionInfo:
    remedy = "build it again with `overwrite=True`"
    try:
        values = json.loads(text)
        check_format(str(address), values, FORMAT, remedy)
        return CollectionInfo(**values)
    except (TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{address} lacks a valid description; {remedy}") from error


def _lower(text: str) -> str:  # letters of ASCII only, as SQLite does
    return text.translate({upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)})
