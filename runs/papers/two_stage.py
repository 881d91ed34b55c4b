"""Two stages as in the papers: the second decides alone, or both scores of the shortlist are combined in some way.

Shapes: B contexts, K candidates of each, N rows of a pool, n candidates of a shortlist.
"""

from collections.abc import Callable, Sequence

import numpy as np

from polyrank.config.checked import whole_number
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.inputs import as_texts, matched_lists
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.scorers.two_stage import SHORTLIST, Combine, rerank


class TwoStageScorer(Scorer):
    """Candidates outside the shortlist come after it, in the retriever's order.

    Args:
        retriever: scores everything.
        reranker: scores the shortlist.
        n_retrieved: length of the shortlist.
        combine: how both scores become one, such as ``np.add`` or one of ``combining.COMBINE``.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    def __init__(
        self,
        retriever: Scorer,
        reranker: Scorer,
        *,
        n_retrieved: int = SHORTLIST,
        combine: Combine,
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
