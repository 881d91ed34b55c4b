"""What every kind of index can do, wherever its candidates are. No torch.

To add a kind, subclass ``Index`` and ``IndexWriter`` in a package next to ``local`` and ``remote``, and list it in
``polyrank.index.opening.KINDS``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Filter
from polyrank.records import Candidate
from polyrank.storage.closing import Closing
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import AnyVectors, Precision

if TYPE_CHECKING:  # faiss's
    from polyrank.index.local.ann import Ann


@dataclass(frozen=True, slots=True)
class Block:
    """Vectors to search.

    Args:
        vectors: ``[n, D]``, read-only; fp32 when some of them are taken.
        rows: ``[n]``, the rows that they are of, ascending.
        alive: ``[n]``, false where a row was removed since; None: all are live.
        offsets: ``[n]``, what a search adds to each score; None: nothing.
    """

    vectors: AnyVectors
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_] | None = None
    offsets: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of an index.

    Args:
        candidates: by row.
        next: the row after which the next page starts; None: these are the last.
        n: live candidates in the whole index.
    """

    candidates: tuple[Candidate, ...]
    next: int | None
    n: int


class Engine(Protocol):
    """Lists the largest products with a vector; see ``polyrank.search.remote``."""

    @property
    def exact(self) -> bool:
        """Whether a list holds the largest products for certain."""
        ...

    def norm_bound(self) -> float:
        """No candidate's vector is longer."""
        ...

    def nearest(self, vectors: Vectors, n: int) -> list[tuple[list[str], NDArray[np.float32]]]:
        """Keys and products ``[n']`` of the largest products with each of ``[m, D]``; fewer than n: these are all."""
        ...

    def fetch(self, keys: Sequence[str]) -> Block:
        """The candidates of these keys that are still there."""
        ...


class Hits(Protocol):
    """What a search returns for one context (``polyrank.search.Result`` is one)."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Best first."""
        ...


H = TypeVar("H", bound=Hits)
Counts = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class Search(Protocol[H]):
    """A search for the best candidates of some contexts, by vectors or by an engine: the index knows which it has."""

    def of_blocks(self, blocks: "Sequence[Block]", indexes: "Sequence[Ann | None]", counts: "Counts") -> list[H]:
        """The best of all blocks.

        Args:
            blocks: the candidates.
            indexes: the inner-product index of each block; None: the block has none.
            counts: returns how often the replies of some rows were said.
        """
        ...

    def of_engine(self, engine: Engine) -> list[H]:
        """The best of those that an engine lists."""
        ...


class CandidateStore(Closing, ABC):
    """Candidates by id, and which encoder their vectors come from.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of the encoder that made the vectors."""

    @property
    @abstractmethod
    def change(self) -> int:
        """Number of the last change known here."""

    @abstractmethod
    def __len__(self) -> int:
        """How many candidates there are."""

    @abstractmethod
    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        """Candidates by id, of those ids that are there.

        Raises:
            ArtifactError: one is damaged.
        """


class Index(CandidateStore):
    """An index, open for reading. Safe to use from several threads.

    Attributes:
        opening: counts how often the folder was opened, again where another index replaced it.
    """

    opening: int

    @property
    @abstractmethod
    def model(self) -> str:
        """Where the encoder's folder was."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @property
    @abstractmethod
    def precision(self) -> Precision:
        """In which the vectors are stored, see ``polyrank.storage.quantized``."""

    @property
    def version(self) -> tuple[int, int]:
        """Equal as long as nothing has changed; a new index counts its changes from the start."""
        return self.opening, self.change

    @abstractmethod
    def refresh(self) -> bool:
        """Take in what was committed since; whether anything may have changed.

        Raises:
            ArtifactError: what was committed is damaged, or of another encoder; the earlier view stays.
        """

    @abstractmethod
    def search(self, search: Search[H], filter: Filter | None = None) -> list[tuple[list[Candidate], H]]:
        """The hits of a search, each with its candidates.

        Args:
            search: for what.
            filter: leaves the candidates whose metadata pass; None: all.

        Raises:
            ArtifactError: the index is damaged.
        """

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id, as of the last change.

        Raises:
            UsageError: there is none.
            ArtifactError: it is damaged.
        """
        if (candidate := self.find([id_]).get(id_)) is None:
            raise UsageError(f"{self.path} has no candidate {id_!r}; give the id of one that respond prints")
        return candidate

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> dict[str, Vectors]:
        """Vectors ``[D]`` by id, of those ids that are there, as they are stored.

        Raises:
            ArtifactError: one is damaged.
        """

    @abstractmethod
    def page(self, *, after: int = 0, n: int = 50, words: Sequence[str] = (), filter: Filter | None = None) -> Page:
        """Candidates by row, as of the last change.

        Args:
            after: the row after which the page starts.
            n: how many.
            words: each of which must be part of the text or of the id, ASCII letters in either case.
            filter: leaves the candidates whose metadata pass; None: all.

        Raises:
            ArtifactError: the index is damaged.
        """

    @abstractmethod
    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        """All live rows and their candidates, by row. Of the last change, whether or not it was taken in.

        Args:
            filter: leaves the candidates whose metadata pass; None: all.

        Raises:
            ArtifactError: one is damaged; or, after the last, some are missing.
        """

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What the index says of itself."""


class IndexWriter(CandidateStore):
    """The only one on this machine that changes an index."""

    @abstractmethod
    def add(
        self, candidates: Sequence[Candidate], vectors: Vectors | Sequence[Vectors], *, replace: bool = False
    ) -> int:
        """Add candidates; faulty ones are refused before anything is written.

        Args:
            candidates: with distinct ids and texts that are not empty.
            vectors: ``[n, D]``, finite and not zero.
            replace: whether candidates of the same ids are replaced; else they are an error.

        Returns:
            The number of the change, once it is durable.

        Raises:
            DataError: names the first five faulty candidates by position.
            ResourceError: the disk is full or failing.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> int:
        """Remove candidates; ids that are not there are fine. Returns how many were there."""

    @abstractmethod
    def compact(self) -> None:
        """Make what searches read again from what is stored, and wait for it."""

    @abstractmethod
    def snapshot(self, path: AnyPath) -> None:
        """Copy the index as it is now into a new folder, whole or not at all.

        Raises:
            UsageError: something is at ``path`` already, or this kind cannot be copied.
            ResourceError: the disk is full.
        """


def check_fingerprint(of_index: str, of_encoder: str, path: Path) -> None:
    """Refuse an index that another encoder's vectors are in.

    Raises:
        ArtifactError: names both fingerprints.
    """
    if of_index != of_encoder:
        raise ArtifactError(
            f"{path} was made by encoder {of_index[:16]}, this one is {of_encoder[:16]}; build the index again"
        )
