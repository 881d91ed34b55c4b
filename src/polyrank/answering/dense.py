"""Dense search of an index, here or on a server: context vectors in, ranked replies and how they were found out."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.index import AnyIndex, Filter, Index
from polyrank.index.remote import RemoteIndex
from polyrank.records import Candidate, Ranked
from polyrank.scorers.protocols import Floats
from polyrank.search import Mode, Result, search
from polyrank.search.remote import search_remote


class DenseSearch(Protocol):
    """The best ``k`` of an index, as it is now, for each context."""

    def __call__(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, mode: Mode, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]: ...


def search_of(index: AnyIndex) -> DenseSearch:
    """How an index is searched."""
    return LocalSearch(index) if isinstance(index, Index) else RemoteSearch(index)


class LocalSearch:
    """Every vector is here."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def __call__(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, mode: Mode, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        while True:
            opening = self.index.opening
            blocks, indexes = self.index.view(filter)
            results = search(vectors, mask, blocks, k, mode=mode, indexes=indexes)
            try:
                rows = [self.index.candidates(result.rows.tolist(), opening=opening) for result in results]
                return [(_ranked(candidates, result), result) for candidates, result in zip(rows, results, strict=True)]
            except ArtifactError:
                # a reply was removed, or the index replaced, between the search and the reading of its text; it may be
                # another thread that took it in
                changed = self.index.refresh() or self.index.opening != opening
                if not changed and self.index.view(filter)[0] is blocks:
                    raise


class RemoteSearch:
    """A server lists the largest products, see ``polyrank.search.remote``."""

    def __init__(self, index: RemoteIndex) -> None:
        self.index = index

    def __call__(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, mode: Mode, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        engine = self.index.engine(filter)
        results = search_remote(vectors, mask, engine, k, exact=mode == "exact")
        return [
            (_ranked([engine.candidates[row] for row in result.rows.tolist()], result), result) for result in results
        ]


def _ranked(candidates: list[Candidate], result: Result) -> list[Ranked]:
    scored = zip(candidates, result.scores, strict=True)
    return [Ranked(c.id, c.text, float(score), c.metadata) for c, score in scored]
