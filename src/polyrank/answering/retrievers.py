"""Retrievers: a context in, ranked replies out. Dense search over an index, or lexical search over candidates."""

from collections.abc import Sequence
from copy import copy
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.dense import search_of
from polyrank.errors import UsageError
from polyrank.index import AnyIndex, Filter, as_filter
from polyrank.index.filtered import MAX_FILTERS
from polyrank.index.filters import positions_where
from polyrank.index.reader import check_fingerprint
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, ContextLike, Ranked, contexts_of
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.search import Mode, Result


class Retriever:
    """Dense search: every live candidate of the index, as of each call.

    Args:
        encoder: of contexts.
        index: candidates encoded by the same encoder, here or on a server.
        mode: "exact" finds the best replies; "approximate" nearly, by the index's own inner-product index.
            See ``polyrank.search.search``.
        distinct: give each text once, with the id of its first row, whatever else has that text.

    Raises:
        ArtifactError: the index was made by another encoder.
    """

    def __init__(self, encoder: Encoder, index: AnyIndex, *, mode: Mode = "exact", distinct: bool = True) -> None:
        check_fingerprint(index.fingerprint, encoder.fingerprint, index.path)
        self.encoder, self.index, self.mode, self.distinct = encoder, index, mode, distinct
        self._searching = search_of(index)

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            UsageError: there is none.
        """
        self.index.refresh()
        return self.index.candidate(id_)

    def respond(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row. Fewer when there are fewer.

        Args:
            contexts: what to answer.
            k: how many.
            filter: leaves the candidates whose metadata pass, see ``polyrank.read_filter``; None: all.

        Raises:
            UsageError: ``k`` is less than one, or the filter cannot be read.
            ArtifactError: the index is damaged, or the encoder's scores are not finite.
        """
        return [ranked for ranked, _ in self.find(contexts, k, filter=filter)]

    def find(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[tuple[list[Ranked], Result]]:
        """As ``respond``, with what the search says of each: whether it is exact, and what it took."""
        _check_k(k)
        condition = as_filter(filter)
        self.index.refresh()
        if not contexts:
            return []
        vectors, mask = self.encoder.encode_contexts(contexts_of(contexts))
        results = self._search(vectors, mask, k, condition)
        if not self.distinct:
            return results
        return [self._widened(vectors[[i]], mask[[i]], k, condition, *found) for i, found in enumerate(results)]

    def _widened(
        self,
        vectors: Floats,
        mask: NDArray[np.bool_],
        k: int,
        filter: Filter | None,
        ranked: list[Ranked],
        result: Result,
    ) -> tuple[list[Ranked], Result]:
        """The best k texts of one context, by searches for more rows while equal texts leave too few."""
        n = k
        while len(texts := _distinct(ranked)) < k and len(ranked) == n:
            n *= 2
            ((ranked, result),) = self._search(vectors, mask, n, filter)
        return texts[:k], result

    def _search(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        return self._searching(vectors, mask, k, self.mode, filter)


class LexicalRetriever:
    """BM25 or TF-IDF over candidates, with the surface of a Retriever.

    Args:
        scorer: fitted, or it takes word statistics from the candidates.
        candidates: to choose from; an index: its live ones, as of each call; one on a server is read whole each time.
        distinct: give each text once, with the id of its first candidate, whatever else has that text.
    """

    def __init__(
        self, scorer: BM25 | TfIdf, candidates: Sequence[Candidate] | AnyIndex, *, distinct: bool = True
    ) -> None:
        self.scorer, self.distinct = scorer, distinct
        self.index = candidates if isinstance(candidates, AnyIndex) else None
        # replaced as a whole, since threads may share this
        self._cached = (0, 0), _Pool(() if isinstance(candidates, AnyIndex) else candidates)

    def respond(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row. Fewer when there are fewer candidates.

        Args:
            contexts: what to answer.
            k: how many.
            filter: as of ``Retriever``. Scores are those that the candidates have among all: word statistics that
                come from the candidates come from all of them.

        Raises:
            UsageError: ``k`` is less than one, or the filter cannot be read.
            DataError: there is a filter, and the metadata of a candidate in memory cannot be written as JSON.
            ArtifactError: the index is damaged.
        """
        _check_k(k)
        condition = as_filter(filter)
        pool = self._current()
        some = pool.everywhere if condition is None else pool.positions(condition)
        scores = self.scorer.score_pool(contexts_of(contexts), pool.texts)
        return [self._best(pool.candidates, some, row[some], k) for row in scores]

    def fitted(self) -> BM25 | TfIdf:
        """The scorer with the word statistics that it ranks by, which may come from the candidates."""
        if self.scorer.is_fitted:
            return self.scorer
        return copy(self.scorer).fit(list(dict.fromkeys(self._current().texts)))

    def candidate(self, id_: str) -> Candidate:
        """The candidate of an id.

        Raises:
            UsageError: there is none.
        """
        for candidate in self._current().candidates:
            if candidate.id == id_:
                return candidate
        raise UsageError(f"there is no candidate {id_!r} to be found; give the id of one that respond gives")

    def _current(self) -> "_Pool":
        """The candidates as of now."""
        if self.index is not None:
            self.index.refresh()
            now = self.index.opening, self.index.change  # a new index begins its count of changes anew
            if now != self._cached[0]:
                self._cached = now, _Pool([candidate for _, candidate in self.index.iter_candidates()])
        return self._cached[1]

    def _best(
        self, candidates: Sequence[Candidate], positions: NDArray[np.int64], values: Floats, k: int
    ) -> list[Ranked]:
        """The best ``k`` of the candidates at some positions, by score, then by position; ``values``: one for each."""
        n = k
        while True:
            best = [(candidates[positions[i]], float(values[i])) for i in top_rows(values, n)]
            ranked = [Ranked(c.id, c.text, score, c.metadata) for c, score in best]
            texts = _distinct(ranked) if self.distinct else ranked
            if len(texts) >= k or len(ranked) < n:
                return texts[:k]
            n *= 2


class _Pool:
    """Candidates with their texts, and which of them pass the latest filters."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]
        self.everywhere = np.arange(len(self.candidates))
        self.positions = lru_cache(MAX_FILTERS)(partial(positions_where, self.candidates))


def _check_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; ask for one reply at least")


def _distinct(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The best of each text, in the same order."""
    best: dict[str, Ranked] = {}
    for reply in ranked:
        best.setdefault(reply.text, reply)
    return list(best.values())
