"""Two stages over an index: a fast retriever draws a shortlist, an accurate re-ranker orders it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyrank.config.pipeline import SHORTLIST, Ensemble
from polyrank.index import Filter
from polyrank.ranking.top import top_rows
from polyrank.records import ContextLike, Ranked, contexts_of
from polyrank.scorers.protocols import Responds, Scorer
from polyrank.scorers.two_stage import at_least_one, total_score


class TwoStage:
    """Retrieve, then re-rank.

    Args:
        retriever: gives the shortlist.
        reranker: scores it; a Cross-encoder, or any Scorer.
        n_retrieved: length of the shortlist.
        ensemble: add the two stages' scores on this scale; None: the re-ranker's score alone decides.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    def __init__(
        self, retriever: Responds, reranker: Scorer, *, n_retrieved: int = SHORTLIST, ensemble: Ensemble | None = None
    ) -> None:
        self.retriever, self.reranker = retriever, reranker
        self.n_retrieved, self.ensemble = at_least_one(n_retrieved), ensemble

    def respond(
        self, contexts: Sequence[ContextLike], k: int = 5, *, filter: Filter | str | None = None
    ) -> list[list[Ranked]]:
        """The best ``k`` of the shortlist, best first, with the scores of both stages; ties by the retriever's order.

        At most ``n_retrieved`` replies are given, since no others are seen by the re-ranker. A filter is the
        retriever's: the shortlist holds nothing else than what passes it.
        """
        contexts = contexts_of(contexts)
        shortlists = self.retriever.respond(contexts, self.n_retrieved, filter=filter)
        scored = self.reranker.score(contexts, [[reply.text for reply in shortlist] for shortlist in shortlists])
        results = []
        for shortlist, second in zip(shortlists, scored, strict=True):
            first = np.array([reply.score for reply in shortlist], np.float32)
            total = total_score(first, second, self.ensemble)
            results.append(
                [
                    replace(
                        shortlist[i],
                        score=float(total[i]),
                        stages={"retriever": float(first[i]), "reranker": float(second[i])},
                    )
                    for i in top_rows(total, k)
                ]
            )
        return results
