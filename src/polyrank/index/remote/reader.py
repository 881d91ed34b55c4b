"""A remote index, open for reading: whatever it is asked, it asks the server. No torch."""

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
from polyrank.index.protocol import Block, H, Index, Page, Search, check_fingerprint
from polyrank.index.remote.address import Address, read_address
from polyrank.index.remote.facts import condition
from polyrank.index.remote.milvus import KEY, TIMEOUT_S, MilvusCollection
from polyrank.index.remote.rows import FIELDS, ROWS_AT_A_TIME, checked, key_of
from polyrank.records import Candidate
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import Precision
from polyrank.storage.time_limit import limited_search

FORMAT = 1


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What a remote index says of itself; a property of its collection.

    Args:
        fingerprint: of the encoder that made the vectors.
        model: where that encoder's folder was.
        format, written_by: of the collection.
    """

    fingerprint: str
    model: str
    format: int = FORMAT
    written_by: str = __version__


class RemoteIndex(Index):
    """Candidates and their vectors in a Milvus collection.

    An answer is of what is there at that moment; nothing is kept but the connection.

    Args:
        path: the folder that names the server and the collection.
        timeout_s: for each request to the server, with all attempts.

    Raises:
        ArtifactError: the folder or the collection is missing, damaged or too new.
        OfflineError: the server does not answer.
        MissingExtraError: pymilvus is not installed.
    """

    def __init__(self, path: AnyPath, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        self.server = MilvusCollection(read_address(self.path), timeout_s=timeout_s)
        self.opening, self.n_changes = 0, 0
        self._collection = ""
        self._norm = 1.0
        self.refresh()

    def refresh(self) -> bool:
        """See ``Index``. Always true, since nothing tells what others changed."""
        collection, text, dimension = self.server.describe()
        now = _read_info(text, self.server.address)
        if self.opening:
            check_fingerprint(now.fingerprint, self.fingerprint, self.path)
        if collection != self._collection:
            self.opening += 1
            self._kind = self.server.kind()
        self._collection, self._info, self._dimension = collection, now, dimension
        self.n_changes += 1
        return True

    @property
    def fingerprint(self) -> str:
        return self._info.fingerprint

    @property
    def model(self) -> str:
        return self._info.model

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def precision(self) -> Precision:
        return "fp32"

    @property
    def change(self) -> int:
        return self.n_changes

    @property
    def exact(self) -> bool:
        """Whether the server looks at every vector, so that the lists it gives can prove an answer."""
        return self._kind == "FLAT"

    def __repr__(self) -> str:
        return f"RemoteIndex({str(self.path)!r}, {self.server.address}, {self.dimension} dimensions)"

    def __len__(self) -> int:
        return self.server.count()

    def engine(self, filter: Filter | None = None) -> "MilvusEngine":
        """What lists the largest products of what passes a filter."""
        return MilvusEngine(self, _condition(filter))

    def search(self, search: Search[H], filter: Filter | None = None) -> list[tuple[list[Candidate], H]]:
        engine = self.engine(filter)
        hits = search.of_engine(engine)
        return [([engine.candidates[row] for row in one.rows.tolist()], one) for one in hits]

    def norm_bound(self) -> float:
        """No vector is longer, as the server itself says just now."""
        while (longer := self.server.first(f"norm > {self._norm!r}", "norm")) is not None:
            self._norm = 2.0 * max(self._norm, float(longer))
        return self._norm

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        rows = self.get([key for key in map(key_of, dict.fromkeys(ids)) if key])
        return {candidate.id: candidate for _, candidate, _ in rows}

    def vectors(self, ids: Sequence[str]) -> dict[str, Vectors]:
        rows = self.get([key for key in map(key_of, dict.fromkeys(ids)) if key])
        return {candidate.id: vector for _, candidate, vector in rows}

    def get(self, keys: Sequence[str]) -> list[tuple[int, Candidate, Vectors]]:
        """Rows, candidates and vectors by key, in any order, of those that are there.

        Raises:
            ArtifactError: one is damaged.
        """
        result = []
        for start in range(0, len(keys), ROWS_AT_A_TIME):
            part = keys[start : start + ROWS_AT_A_TIME]
            result += [checked(row, self.server.address) for row in self.server.get(part, FIELDS)]
        return result

    def page(self, *, after: int = 0, n: int = 50, words: Sequence[str] = (), filter: Filter | None = None) -> Page:
        """See ``Index``. Costs what is stored: everything that passes the filter is fetched."""
        with limited_search():
            pairs = [
                (row, candidate)
                for row, candidate in self.iter_candidates(filter)
                if row > after and all(_holds(candidate, word) for word in words)
            ]
        shown = tuple(candidate for _, candidate in pairs[:n])
        return Page(shown, pairs[n - 1][0] if len(pairs) > n else None, len(self))

    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        """See ``Index``. The server gives a range of keys at a time, each as of its own moment."""
        rows = self.server.scan(_condition(filter), FIELDS)
        pairs = (checked(row, self.server.address)[:2] for row in rows)
        yield from sorted(pairs, key=lambda pair: (pair[0], pair[1].id))

    def info(self) -> dict[str, Any]:
        address = {"remote": str(self.server.address), "collection": self._collection, "kind": self._kind}
        return asdict(self._info) | {"n": len(self), "dimension": self.dimension, "precision": "fp32"} | address

    def close(self) -> None:
        """Let go of the connection."""
        self.server.close()


class MilvusEngine:
    """A remote index through a filter, an ``Engine``; remembers the candidates that it fetched.

    Args:
        index: to ask.
        condition: of the server's; empty: all.
    """

    def __init__(self, index: RemoteIndex, condition: str) -> None:
        self._index, self._condition = index, condition
        self.candidates: dict[int, Candidate] = {}  # by row

    @property
    def exact(self) -> bool:
        """Whether lists are proven to be the largest products."""
        return self._index.exact

    def norm_bound(self) -> float:
        """No vector is longer."""
        return self._index.norm_bound()

    def nearest(self, vectors: Vectors, n: int) -> list[tuple[list[str], NDArray[np.float32]]]:
        """Keys and products ``[n']`` of the largest products with each of ``[m, D]``, best first."""
        lists = self._index.server.nearest(vectors, n, self._condition, graph=not self.exact)
        return [([key for key, _ in hits], np.array([product for _, product in hits], np.float32)) for hits in lists]

    def fetch(self, keys: Sequence[str]) -> Block:
        """Rows and vectors of the keys that are there still."""
        rows = sorted(self._index.get(keys), key=lambda row: row[0])
        self.candidates |= {row: candidate for row, candidate, _ in rows}
        vectors = np.stack([vector for _, _, vector in rows]) if rows else np.empty((0, self._index.dimension), "<f4")
        return Block(vectors, np.array([row for row, _, _ in rows], np.int64))


def remote_problems(path: AnyPath) -> list[str]:
    """Everything that is wrong with a remote index, as sentences: every row of it is read."""
    problems: list[str] = []
    try:
        with RemoteIndex(path) as index:
            address, n = index.server.address, 0
            for row in index.server.scan("", FIELDS):
                n += 1
                try:
                    _, candidate, vector = checked(row, address)
                    if row[KEY] != key_of(candidate.id) or vector.shape != (index.dimension,):
                        problems.append(f"{address}: candidate {candidate.id!r} is stored as another; add it again")
                except ArtifactError as error:
                    problems.append(str(error))
            if n != len(index):
                problems.append(f"{address} lists {n:,} candidates and counts {len(index):,}; build it again")
    except PolyrankError as error:
        problems.append(str(error))
    return problems


def _read_info(text: str, address: Address) -> CollectionInfo:
    try:
        info = CollectionInfo(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{address} does not say how it was made; build it again with `overwrite=True`") from error
    if info.format > FORMAT:
        raise ArtifactError(
            f"{address}: written by polyrank {info.written_by} in format {info.format}, this version reads up to"
            f" {FORMAT}; upgrade polyrank"
        )
    return info


def _condition(filter: Filter | None) -> str:
    return "" if filter is None else condition(filter.tree)


def _holds(candidate: Candidate, word: str) -> bool:
    """Whether a word is part of the text or the id, ASCII letters in either case, as SQLite has it."""
    return any(_lower(word) in _lower(text) for text in (candidate.text, candidate.id))


def _lower(text: str) -> str:
    return text.translate({upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)})
