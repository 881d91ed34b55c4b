"""Retrievers of ranked replies for a context: dense search over an index, or lexical search over candidates."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.choice import Choice, search_until_kept
from polyrank.answering.protocol import Answer, Answering
from polyrank.errors import UsageError
from polyrank.index import COUNT_FIELD, Filter, Index, as_count, check_fingerprint
from polyrank.index.filters import positions_where
from polyrank.index.local.filtered import MAX_FILTERS
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, Ranked
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.search import Mode, NearestSearch, Result, prior_of


class Retriever(Answering):
    """Dense search: every live candidate of the index, as of each call.

    Args:
        encoder: of contexts.
        index: candidates encoded by the same encoder, local or on a server.
        mode: "exact" returns the best replies; "approximate" nearly the best, by the index's inner-product index. See
            ``polyrank.search.search``.
        distinct: return each text once, with the id of its best row.
        prior: add this times ``log(1 + count)`` to each score, with the metadata field ``count`` of the candidate.
        device: for the search of a local index, see ``polyrank.search.search``.

    Raises:
        ArtifactError: the index was made by another encoder.
    """

    encoder: Encoder
    index: Index

    def __init__(
        self,
        encoder: Encoder,
        index: Index,
        *,
        mode: Mode = "exact",
        distinct: bool = True,
        prior: float = 0.0,
        device: str = "cpu",
    ) -> None:
        check_fingerprint(index.fingerprint, encoder.fingerprint, index.path)
        self.scorer = self.encoder = encoder
        self.index, self.mode, self.distinct, self.prior = index, mode, distinct, prior
        self.device = device

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        self.index.refresh()
        vectors, mask = self.encoder.encode_contexts(contexts)
        at_once = self._search(vectors, mask, choice.k, choice.filter)

        def answer(i: int, context: Context) -> Answer:
            def search(n: int) -> tuple[list[Ranked], Result]:
                return at_once[i] if n == choice.k else self._search(vectors[[i]], mask[[i]], n, choice.filter)[0]

            keep = partial(choice.of, context=context, distinct=self.distinct)
            ranked, result = search_until_kept(search, keep, choice.k)
            return Answer(tuple(ranked), None, not ranked, result.exact, result.n_scored, result.ways)

        return [answer(i, context) for i, context in enumerate(contexts)]

    def _search(
        self, vectors: Floats, mask: NDArray[np.bool_], k: int, filter: Filter | None
    ) -> list[tuple[list[Ranked], Result]]:
        found = self.index.search(NearestSearch(vectors, mask, k, self.mode, self.prior, self.device), filter)
        return [(_ranked(candidates, result.scores), result) for candidates, result in found]


class LexicalRetriever(Answering):
    """BM25 or TF-IDF over candidates.

    Args:
        scorer: if it is not fitted, word statistics come from the candidates.
        candidates: to choose from. Of an index, its live candidates as of each call; after a change they are all read
            again.
        distinct: return each text once, with the id of its best candidate.
        prior: see ``Retriever``.
    """

    def __init__(
        self,
        scorer: BM25 | TfIdf,
        candidates: Sequence[Candidate] | Index,
        *,
        distinct: bool = True,
        prior: float = 0.0,
    ) -> None:
        self.scorer, self.encoder, self.distinct, self.prior = scorer, None, distinct, prior
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
        if self.prior:
            scores = scores + prior_of(pool.counts, self.prior)

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

    def explained(self) -> Scorer:
        """The scorer, fitted to the candidates if it was not fitted."""
        return self.scorer.fitted_to(lambda: self._current().texts)

    def count(self, text: str, filter: Filter | None = None) -> float:
        pool = self._current()
        rows = range(len(pool.texts)) if filter is None else pool.positions(filter)
        return max((pool.counts[row] for row in rows if pool.texts[row] == text), default=0.0)

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
    """Candidates with their texts and counts, and the positions that pass the latest filters."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]
        self.counts = np.array([as_count(candidate.metadata.get(COUNT_FIELD)) for candidate in candidates])
        self.everywhere = np.arange(len(self.candidates))
        self.positions = lru_cache(MAX_FILTERS)(partial(positions_where, self.candidates))


def _ranked(candidates: Sequence[Candidate], scores: Floats) -> list[Ranked]:
    return [Ranked(c.id, c.text, float(score), c.metadata) for c, score in zip(candidates, scores, strict=True)]
