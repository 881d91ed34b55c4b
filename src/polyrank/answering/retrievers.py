"""Retrievers: a context in, ranked replies out. Dense search over an index, or lexical search over candidates."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.protocol import Answer, Answering
from polyrank.errors import UsageError
from polyrank.index import Filter, Index, as_filter, check_fingerprint
from polyrank.index.filters import positions_where
from polyrank.index.local.filtered import MAX_FILTERS
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, ContextLike, Ranked, contexts_of
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.search import Mode, NearestSearch, Result


class Retriever(Answering):
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

    encoder: Encoder
    index: Index

    def __init__(self, encoder: Encoder, index: Index, *, mode: Mode = "exact", distinct: bool = True) -> None:
        check_fingerprint(index.fingerprint, encoder.fingerprint, index.path)
        self.scorer = self.encoder = encoder
        self.index, self.mode, self.distinct = index, mode, distinct

    def answer_all(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[Answer]:
        _check_k(k)
        condition = as_filter(filter)
        self.index.refresh()
        if not contexts:
            return []
        vectors, mask = self.encoder.encode_contexts(contexts_of(contexts))
        found = self._search(vectors, mask, k, condition)
        if self.distinct:
            found = [self._widened(vectors[[i]], mask[[i]], k, condition, *one) for i, one in enumerate(found)]
        return [
            Answer(tuple(ranked), None, not ranked, result.exact, result.n_scored, result.ways)
            for ranked, result in found
        ]

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
        found = self.index.search(NearestSearch(vectors, mask, k, self.mode), filter)
        return [(_ranked(candidates, result.scores), result) for candidates, result in found]


class LexicalRetriever(Answering):
    """BM25 or TF-IDF over candidates.

    Args:
        scorer: fitted, or it takes word statistics from the candidates.
        candidates: to choose from; an index: its live ones, as of each call; one on a server is read whole each time.
        distinct: give each text once, with the id of its first candidate, whatever else has that text.
    """

    def __init__(self, scorer: BM25 | TfIdf, candidates: Sequence[Candidate] | Index, *, distinct: bool = True) -> None:
        self.scorer, self.encoder, self.distinct = scorer, None, distinct
        self.index = candidates if isinstance(candidates, Index) else None
        pool = _Pool(() if isinstance(candidates, Index) else candidates)
        self._cached = (0, 0), pool  # replaced as a whole, since threads may share this

    def answer_all(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[Answer]:
        """See ``Answering``. Scores behind a filter are those that the candidates have among all of them.

        Raises:
            DataError: there is a filter, and the metadata of a candidate in memory cannot be written as JSON.
        """
        _check_k(k)
        condition = as_filter(filter)
        pool = self._current()
        some = pool.everywhere if condition is None else pool.positions(condition)
        scores = self.scorer.score_pool(contexts_of(contexts), pool.texts)
        best = [self._best(pool.candidates, some, row[some], k) for row in scores]
        return [Answer(tuple(ranked), None, not ranked) for ranked in best]

    def explained(self) -> Scorer:
        """The scorer with the word statistics that it ranks by, which may come from the candidates."""
        return self.scorer.fitted_to(lambda: self._current().texts)

    def candidate(self, id_: str) -> Candidate:
        for candidate in self._current().candidates:
            if candidate.id == id_:
                return candidate
        raise UsageError(f"there is no candidate {id_!r}; give the id of one that respond returns")

    def _current(self) -> "_Pool":
        """The candidates as of now."""
        if self.index is not None:
            self.index.refresh()
            if (now := self.index.version) != self._cached[0]:
                self._cached = now, _Pool([candidate for _, candidate in self.index.iter_candidates()])
        return self._cached[1]

    def _best(
        self, candidates: Sequence[Candidate], positions: NDArray[np.int64], values: Floats, k: int
    ) -> list[Ranked]:
        """The best ``k`` of the candidates at some positions, by score, then by position; ``values``: one for each."""
        n = k
        while True:
            best = top_rows(values, n)
            ranked = _ranked([candidates[positions[i]] for i in best], values[best])
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


def _ranked(candidates: Sequence[Candidate], scores: Floats) -> list[Ranked]:
    return [Ranked(c.id, c.text, float(score), c.metadata) for c, score in zip(candidates, scores, strict=True)]


def _check_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; ask for one reply at least")


def _distinct(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The best of each text, in the same order."""
    best: dict[str, Ranked] = {}
    for reply in ranked:
        best.setdefault(reply.text, reply)
    return list(best.values())
