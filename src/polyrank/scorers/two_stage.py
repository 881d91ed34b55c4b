"""Two stages for given candidates: one scores everything, the other the best of it again.

Shapes: B contexts, K candidates of each, N rows of a pool, n candidates of a shortlist.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from polyrank.config.checked import whole_number
from polyrank.ranking.top import top_rows_with_ties
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.inputs import as_texts, matched_lists
from polyrank.scorers.protocols import Floats, Scorer

SHORTLIST = 100
Combine = Callable[[Floats, Floats], Floats]
"""The total ``[n]`` of both stages' scores ``[n]`` of a shortlist."""


def reranker_alone(first: Floats, second: Floats) -> Floats:
    """The second stage decides alone."""
    del first
    return second


class TwoStageScorer(Scorer):
    """Candidates outside the shortlist come after it, in the retriever's order.

    Args:
        retriever: scores everything.
        reranker: scores the shortlist.
        n_retrieved: length of the shortlist.
        combine: how both scores become one, such as ``np.add`` or one of ``polyrank.ranking.ensembles``.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    def __init__(
        self,
        retriever: Scorer,
        reranker: Scorer,
        *,
        n_retrieved: int = SHORTLIST,
        combine: Combine = reranker_alone,
    ) -> None:
        self.parts = self.retriever, self.reranker = retriever, reranker
        self.combine = combine
        self.n_retrieved = whole_number(n_retrieved, "n_retrieved", least=1)
        reranker.follow(retriever)

    def __repr__(self) -> str:
        return f"TwoStageScorer({self.retriever!r}, {self.reranker!r}, n_retrieved={self.n_retrieved})"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        first = self.retriever.score(queries, lists)
        return rerank(first, lists, self.n_retrieved, lambda texts: self.reranker.score(queries, texts), self.combine)

    @property
    def chooser(self) -> Scorer:
        """See ``Scorer``."""
        return self.retriever

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> Scorer:
        """See ``Scorer``; both stages are fitted."""
        stages = self.retriever.fitted_to(texts), self.reranker.fitted_to(texts)
        return TwoStageScorer(*stages, n_retrieved=self.n_retrieved, combine=self.combine)

    def score_pool(self, contexts: Sequence[ContextLike], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``."""
        queries, shared = contexts_of(contexts), as_texts(pool, "pool")
        first, lists = list(self.retriever.score_pool(queries, shared)), [shared] * len(queries)

        def second(texts: Sequence[Sequence[str]]) -> list[Floats]:
            return self.reranker.score(queries, texts)

        rows = rerank(first, lists, self.n_retrieved, second, self.combine)
        return np.array(rows, np.float32).reshape(len(queries), len(shared))


def rerank(
    first: Sequence[Floats],
    lists: Sequence[Sequence[str]],
    n: int,
    second: Callable[[Sequence[Sequence[str]]], Sequence[Floats]],
    combine: Combine,
    excluded: Sequence[Collection[int]] = (),
) -> list[Floats]:
    """The scores of each list after its best have been scored again: ``[K]`` per list.

    Equal texts count once in a shortlist: they tie, and a copy must not displace another reply.

    Args:
        first: of the first stage, ``[K]`` per list.
        lists: the texts.
        n: the length of a shortlist.
        second: scores the texts of the shortlists.
        combine: makes one score of both.
        excluded: rows of each list that are not in its shortlist; empty: none.
    """
    without = excluded or [()] * len(lists)
    shortlists = [shortlist_of(*row) for row in zip(first, lists, [n] * len(lists), without, strict=True)]
    texts = [[texts[i] for i in rows] for texts, rows in zip(lists, shortlists, strict=True)]
    results = []
    for values, candidates, rows, shown, scores in zip(first, lists, shortlists, texts, second(texts), strict=True):
        total = dict(zip(shown, combine(values[rows], scores) if rows else scores, strict=True))
        rest = below(min(total.values(), default=np.float32(0)), values)
        results.append(np.array([total.get(text, low) for text, low in zip(candidates, rest, strict=True)], np.float32))
    return results


def shortlist_of(values: Floats, texts: Sequence[str], n: int, excluded: Collection[int] = ()) -> list[int]:
    """Rows of the best n distinct texts, without the excluded rows; ties by text, in any order of the candidates.

    >>> shortlist_of(np.array([1, 3, 3, 2], np.float32), ["yes", "no", "no", "hi"], 2)
    [2, 3]
    """
    out = set(excluded)
    last = {text: row for row, text in enumerate(texts) if row not in out}
    rows = np.fromiter(last.values(), np.intp, len(last))
    return sorted(rows[top_rows_with_ties(values[rows], n)].tolist(), key=lambda i: (-values[i], texts[i]))[:n]


def below(worst: np.float32, values: Floats) -> Floats:
    """Scores ``[n]`` below ``worst`` in the order of ``values``, with the same ties however close they are.

    >>> below(np.float32(3), np.array([0.5, 0.50000006, 0.5, -np.inf, np.nan], np.float32))
    array([ 1.,  2.,  1.,  0., nan], dtype=float32)
    """
    ranks = np.unique(-values, return_inverse=True)[1]
    step = max(1.0, 2.0 * float(np.spacing(np.abs(worst))))
    result: Floats = (float(worst) - step * (ranks + 1)).astype(np.float32)
    result[np.isnan(values)] = np.nan
    return result
