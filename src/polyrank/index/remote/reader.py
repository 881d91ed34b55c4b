"""A remote index, open for reading: whatever it is asked, it asks the server. No torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank._version import __version__
from polyrank.errors import ArtifactError, PolyrankError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Filter
from polyrank.index.matrix import Block
from polyrank.index.reader import check_fingerprint
from polyrank.index.remote.address import Address, read_address
from polyrank.index.remote.facts import condition
from polyrank.index.remote.rows import FIELDS, ROWS_AT_A_TIME, checked, key_of
from polyrank.index.remote.server import KEY, TIMEOUT_S, Server
from polyrank.records import Candidate
from polyrank.storage.closing import Closing
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import Precision

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Said:
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


class RemoteIndex(Closing):
    """Candidates and their vectors in a Milvus collection, with the surface of ``polyrank.index.Index``.

    An answer is of what is there at that moment; nothing is kept but the connection. Safe to use from several
    threads.

    Args:
        path: the folder that names the server and the collection.
        timeout_s: for each request to the server, with all attempts.

    Attributes:
        opening: counts how often the collection was found replaced.

    Raises:
        ArtifactError: the folder or the collection is missing, damaged or too new.
        OfflineError: the server does not answer.
        MissingExtraError: pymilvus is not installed.
    """

    precision: Precision = "fp32"

    def __init__(self, path: AnyPath, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = Path(path)
        self.server = Server(read_address(self.path), timeout_s=timeout_s)
        self.opening, self.change = 0, 0
        self._collection = ""
        self._norm = 1.0
        self.refresh()

    def refresh(self) -> bool:
        """Look what the collection says of itself. Always true, since what it holds may have changed.

        Raises:
            ArtifactError: it was replaced by one of another encoder.
        """
        collection, said, dimension = self.server.describe()
        now = _read_said(said, self.server.address)
        if self.opening:
            check_fingerprint(now.fingerprint, self.fingerprint, self.path)
        if collection != self._collection:
            self.opening += 1
            self._kind = self.server.kind()
        self._collection, self._said, self.dimension = collection, now, dimension
        self.change += 1  # nothing tells what others changed
        return True

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the vectors."""
        return self._said.fingerprint

    @property
    def model(self) -> str:
        """Where that encoder's folder was."""
        return self._said.model

    @property
    def exact(self) -> bool:
        """Whether the server looks at every vector, so that the lists it gives can prove an answer."""
        return self._kind == "FLAT"

    def __len__(self) -> int:
        return self.server.count()

    def engine(self, filter: Filter | None = None) -> "Engine":
        """What searches are asked of.

        Args:
            filter: leaves the candidates whose metadata pass, see ``polyrank.index.remote.facts``.
        """
        return Engine(self, "" if filter is None else condition(filter.tree))

    def norm_bound(self) -> float:
        """No vector is longer, as the server itself says just now."""
        while (longer := self.server.first(f"norm > {self._norm!r}", "norm")) is not None:
            self._norm = 2.0 * max(self._norm, float(longer))
        return self._norm

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            UsageError: there is none.
            ArtifactError: it is damaged.
        """
        if (candidate := self.find([id_]).get(id_)) is None:
            raise UsageError(f"{self.path} has no candidate {id_!r}; give the id of one that respond prints")
        return candidate

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        """Candidates by id, of those ids that are there."""
        rows = self.get([key for key in map(key_of, dict.fromkeys(ids)) if key])
        return {candidate.id: candidate for _, candidate, _ in rows}

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

    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        """All rows and their candidates, in the order in which they were added.

        Each page is of its own moment: what others change meanwhile is there or not.

        Args:
            filter: leaves the candidates whose metadata pass; None: all.

        Raises:
            ArtifactError: one is damaged.
        """
        rows = self.server.scan("" if filter is None else condition(filter.tree), FIELDS)
        pairs = (checked(row, self.server.address)[:2] for row in rows)
        yield from sorted(pairs, key=lambda pair: (pair[0], pair[1].id))

    def info(self) -> dict[str, Any]:
        """What the index says of itself."""
        address = {"remote": str(self.server.address), "collection": self._collection, "kind": self._kind}
        return asdict(self._said) | {"n": len(self), "dimension": self.dimension, "precision": "fp32"} | address

    def close(self) -> None:
        """Let go of the connection."""
        self.server.close()


class Engine:
    """A remote index through a filter, as ``polyrank.search.remote`` asks it; remembers the candidates that it fetched.

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


def _read_said(text: str, address: Address) -> Said:
    try:
        said = Said(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{address} does not say how it was made; build it again with --overwrite") from error
    if said.format > FORMAT:
        raise ArtifactError(
            f"{address}: written by polyrank {said.written_by} in format {said.format}, this reads up to {FORMAT};"
            " upgrade polyrank"
        )
    return said
