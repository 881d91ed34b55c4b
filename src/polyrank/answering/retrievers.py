"""Retrievers of ranked replies for a context: dense search over an index, or lexical search over candidates."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from polyrank.answering.choice import Choice, search_until_kept
from polyrank.answering.protocol import Answer, Answering
from polyrank.errors import UsageError
from polyrank.index import Filter, Index
from polyrank.index.filters import positions_where
from polyrank.index.local.filtered import MAX_FILTERS
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, Ranked
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Floats


class LexicalRetriever(Answering):
    """BM25 or TF-IDF over candidates.

    Args:
        scorer: if it is not fitted, word statistics come from the candidates.
        candidates: to choose from. Of an index, its live candidates as of each call; after a change they are all read
            again.
        distinct: return each text once, with the id of its best candidate.
    """

    def __init__(
        self,
        scorer: BM25 | TfIdf,
        candidates: Sequence[Candidate] | Index,
        *,
        distinct: bool = True,
    ) -> None:
        self.scorer, self.encoder, self.distinct = scorer, None, distinct
        self.index = candidates if isinstance(candidates, Index) else None
        pool = _Pool(() if isinstance(candidates, Index) else candidates)
        self._cached = (0, 0), pool  # replaced as a whole, because threads may share it

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """See ``Answering``. A filter does not change scores: word statistics are of all candidates.

        Raises:
            DataError: there is a filter, and JSON cannot hold the metadata of a candidate in memory.
        """
        pool = self._current()
        some = pool.everywhere if choice.filter is None else pool.positions(choice.filter)
        scores = self.scorer.score_pool(contexts, pool.texts)

        def answer(context: Context, values: Floats) -> Answer:
            def search(n: int) -> tuple[list[Ranked], None]:
                rows = top_rows(values, n)
                return _ranked([pool.candidates[some[row]] for row in rows], values[rows]), None

            keep = partial(choice.of, context=context, distinct=self.distinct)
            ranked, _ = search_until_kept(search, keep, choice.k)
            return Answer(tuple(ranked), None, not ranked)

        return [answer(context, row[some]) for context, row in zip(contexts, scores, strict=True)]

    def __repr__(self) -> str:
        where = repr(self.index) if self.index is not None else f"{len(self._cached[1].texts):,} candidates in memory"
        return f"LexicalRetriever({self.scorer!r}, {where})"

    def any_passes(self, filter: Filter) -> bool:
        return len(self._current().positions(filter)) > 0

    def explained(self, context: Context, candidate: str, max_words: int, filter: Filter | None = None) -> Explanation:
        """How the score comes about, with the word statistics of the candidates if the scorer was not fitted."""
        return self.scorer.fitted_to(lambda: self._current().texts).explained(context, candidate, max_words)

    def candidate(self, id_: str) -> Candidate:
        for candidate in self._current().candidates:
            if candidate.id == id_:
                return candidate
        raise UsageError(f"no candidate has the id {id_!r}; give an id that respond returns")

    def _current(self) -> "_Pool":
        """The present candidates."""
        if self.index is not None:
            self.index.refresh()
            if (now := self.index.version) != self._cached[0]:
                self._cached = now, _Pool([candidate for _, candidate in self.index.iter_candidates()])
        return self._cached[1]


class _Pool:
    """Candidates with their texts, and the positions that pass the latest filters."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]
        self.everywhere = np.arange(len(self.candidates))
        self.positions = lru_cache(MAX_FILTERS)(partial(positions_where, self.candidates))


def _ranked(candidates: Sequence[Candidate], scores: Floats) -> list[Ranked]:
    return [Ranked(c.id, c.text, float(score), c.metadata) for c, score in zip(candidates, scores, strict=True)]
