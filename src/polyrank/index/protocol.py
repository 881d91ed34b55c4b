"""The interface of every kind of index, wherever it stores its candidates. No torch.

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

from polyrank.config.checked import whole_number
from polyrank.errors import ArtifactError, UsageError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Filter, as_filter
from polyrank.records import Candidate
from polyrank.storage.closing import Closing
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import AnyVectors, Precision

if TYPE_CHECKING:  # needs faiss
    from polyrank.index.local.ann import Ann
    from polyrank.index.remote.reader import RemoteEngine

MAX_WORDS, MAX_WORD_CHARACTERS = 250, 10_000  # of one page: SQLite limits conditions and patterns


@dataclass(frozen=True, slots=True)
class Block:
    """Vectors to search.

    Args:
        vectors: ``[n, D]``, read-only; indexing it returns fp32.
        rows: ``[n]``, the row number of each vector, ascending.
        alive: ``[n]``, false for rows removed since the block was made; None: all rows are live.
        offsets: ``[n]``, added to each score by a search; None: nothing.
    """

    vectors: AnyVectors
    rows: NDArray[np.int64]
    alive: NDArray[np.bool_] | None = None
    offsets: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class CandidatePage:
    """A part of an index.

    Args:
        candidates: in the order of their rows.
        next: the row after which the next page starts; None: this is the last page.
        n: number of live candidates in the whole index.
    """

    candidates: tuple[Candidate, ...]
    next: int | None
    n: int


class Hits(Protocol):
    """The result of a search for one context, such as ``polyrank.search.Result``."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row numbers, best first."""


H = TypeVar("H", bound=Hits)
Counts = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class Search(Protocol[H]):
    """A search for the best candidates of some contexts. The index calls the method that fits how it stores vectors."""

    def of_blocks(self, blocks: "Sequence[Block]", indexes: "Sequence[Ann | None]", counts: "Counts") -> list[H]:
        """The best of all blocks.

        Args:
            blocks: the candidates.
            indexes: the inner-product index of each block; None: the block has none.
            counts: returns how often the replies of some rows were said.
        """

    def of_engine(self, engine: "RemoteEngine") -> list[H]:
        """The best of the candidates that an engine lists."""


class CandidateStore(Closing, ABC):
    """Candidates by id, and the encoder that made their vectors.

    Attributes:
        path: the index folder.
    """

    path: Path

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of the encoder that made the vectors."""

    @property
    @abstractmethod
    def change(self) -> int:
        """Number of the last change that this object knows."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of candidates."""

    @abstractmethod
    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        """Candidates by id; unknown ids are left out.

        Raises:
            ArtifactError: a candidate is damaged.
        """


class Index(CandidateStore):
    """An index opened for reading. Safe to use from several threads.

    Attributes:
        opening: number of times the folder was opened; it rises when another index replaced the folder.
        reports_changes: whether ``version`` is equal while nothing changes.
    """

    opening: int
    reports_changes: bool = True

    @property
    @abstractmethod
    def model(self) -> str:
        """Path of the encoder's folder when the index was built."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Dimension D of the vectors."""

    @property
    @abstractmethod
    def precision(self) -> Precision:
        """How the vectors are stored, see ``polyrank.storage.quantized``."""

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever the index does, also if another index replaced it."""
        return self.opening, self.change

    @abstractmethod
    def refresh(self) -> bool:
        """Load what was committed since the last refresh. Returns whether anything may have changed.

        Raises:
            ArtifactError: the new state is damaged or from another encoder; the index keeps its earlier state.
        """

    @abstractmethod
    def search(self, search: Search[H], filter: Filter | None = None) -> list[tuple[list[Candidate], H]]:
        """Run a search. Returns its hits, each with its candidates.

        Args:
            search: the search to run.
            filter: only candidates whose metadata pass are searched; None: all.

        Raises:
            ArtifactError: the index is damaged.
        """

    def candidate(self, id_: str) -> Candidate:
        """The candidate with this id, as of the last change.

        Raises:
            UsageError: the index has no such candidate.
            ArtifactError: the candidate is damaged.
        """
        if (candidate := self.find([id_]).get(id_)) is None:
            raise UsageError(f"{self.path} has no candidate {id_!r}; use an id that polyrank respond prints")
        return candidate

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> dict[str, Vectors]:
        """Stored vectors ``[D]`` by id, decoded; unknown ids are left out.

        Raises:
            ArtifactError: a vector is damaged.
        """

    def page(
        self, *, after: int = 0, n: int = 50, words: Sequence[str] = (), filter: Filter | str | None = None
    ) -> CandidatePage:
        """One page of candidates in row order, as of the last change.

        Args:
            after: the page starts after this row, which need not exist: it may have been removed.
            n: at most this many candidates; a local index returns fewer if they are long.
            words: the text or the id must contain each word, ignoring the case of ASCII letters. Each contains "".
            filter: only candidates whose metadata pass, such as ``lang = "en"``; None: all.

        Raises:
            UsageError: an argument is invalid.
            ArtifactError: the index is damaged.
        """
        after, n = whole_number(after, "after", least=0), whole_number(n, "n", least=1)
        _check_words(words)
        return self._page(after, n, words, as_filter(filter))

    @abstractmethod
    def _page(self, after: int, n: int, words: Sequence[str], filter: Filter | None) -> CandidatePage:
        """See ``page``, which checks the arguments."""

    @abstractmethod
    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        """All live rows and their candidates in row order, read from the latest change without a refresh.

        Args:
            filter: only candidates whose metadata pass; None: all.

        Raises:
            ArtifactError: a candidate is damaged; or, after the last one, some are missing.
        """

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Format, encoder, sizes and settings, for ``polyrank index info``."""


class IndexWriter(CandidateStore):
    """Changes an index. Only one writer per index exists on a machine."""

    @property
    @abstractmethod
    def is_current(self) -> bool:
        """Whether its folder is still the one that was opened; it may have been moved, removed or replaced."""

    @property
    def is_compacting(self) -> bool:
        """Whether ``close`` would wait for a compaction."""
        return False

    def wait_compacted(self) -> None:
        """Wait for a running compaction; others can make changes meanwhile."""

    @abstractmethod
    def add(
        self, candidates: Sequence[Candidate], vectors: Vectors | Sequence[Vectors], *, replace: bool = False
    ) -> int:
        """Add candidates. If any of them is invalid, nothing is written.

        Args:
            candidates: with distinct ids and non-empty texts.
            vectors: ``[n, D]``, finite and not zero.
            replace: whether candidates with the same ids are replaced; otherwise a known id is an error.

        Returns:
            The number of the change, once it is durable.

        Raises:
            DataError: names the first five invalid candidates by position.
            ResourceError: the disk is full or failing.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> int:
        """Remove candidates; unknown ids are ignored. Returns how many were removed."""

    @abstractmethod
    def compact(self) -> None:
        """Rebuild the derived files that searches read, and wait for it."""

    @abstractmethod
    def snapshot(self, path: AnyPath) -> None:
        """Copy the index as it is now into a new folder, completely or not at all.

        Raises:
            UsageError: ``path`` already exists or is inside the index, or this kind of index cannot be copied.
            ResourceError: the disk is full.
        """


def _check_words(words: Sequence[str]) -> None:
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    if not is_list or not all(isinstance(word, str) for word in words):
        raise UsageError(f"words = {words!r} is not a list of texts; write one such as ['wifi', 'down']")
    longest = max(map(len, words), default=0)
    if len(words) > MAX_WORDS or longest > MAX_WORD_CHARACTERS:
        raise UsageError(
            f"{len(words):,} words of up to {longest:,} characters are too many; the limits are {MAX_WORDS} words and"
            f" {MAX_WORD_CHARACTERS:,} characters, so search for fewer"
        )


def check_fingerprint(of_index: str, of_encoder: str | None, path: Path) -> None:
    """Refuse an index whose vectors come from another encoder; ``of_encoder`` None: not checked.

    Raises:
        ArtifactError: the fingerprints differ; the message names both.
    """
    if of_encoder is not None and of_encoder != of_index:
        raise ArtifactError(
            f"{path} was made by encoder {of_index[:16]}, this one is {of_encoder[:16]}; build the index again"
        )
