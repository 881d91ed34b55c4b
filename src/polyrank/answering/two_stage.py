"""Two stages as the papers have them: a retriever makes a shortlist, and a re-ranker orders it.

A ranker adds its terms instead; this class is for scores that are combined in another way, or not at all.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyrank.answering.choice import Choice
from polyrank.answering.protocol import Answer, Answering
from polyrank.config.checked import whole_number
from polyrank.index import Filter
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context
from polyrank.scorers.protocols import Scorer, check_finite
from polyrank.scorers.two_stage import SHORTLIST, Combine, reranker_alone


class TwoStage(Answering):
    """Retrieve, then re-rank.

    Args:
        retriever: makes the shortlist.
        reranker: scores it; a Cross-encoder or any other Scorer.
        n_retrieved: length of the shortlist.
        combine: how both scores become one, see ``polyrank.ranking.ensembles``; by default the re-ranker decides alone.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    n_stages = 2

    def __init__(
        self,
        retriever: Answering,
        reranker: Scorer,
        *,
        n_retrieved: int = SHORTLIST,
        combine: Combine = reranker_alone,
    ) -> None:
        self.retriever, self.reranker, self.scorer, self.combine = retriever, reranker, reranker, combine
        self.index, self.encoder = retriever.index, retriever.encoder
        self.n_retrieved = whole_number(n_retrieved, "n_retrieved", least=1)
        if retriever.encoder is not None:
            reranker.follow(retriever.encoder)

    def best(self, contexts: Sequence[Context], choice: Choice) -> list[Answer]:
        """The best of the shortlist, best first, with the scores of both stages; ties by the retriever's order.

        At most ``n_retrieved`` replies are returned, because the re-ranker scores no others. The retriever applies the
        filter and the other conditions of the choice, so every reply of the shortlist may be returned.
        """
        first_stage = self.retriever.best(contexts, replace(choice, k=self.n_retrieved))
        shortlists = [answer.ranked for answer in first_stage]
        scored = self.reranker.score(contexts, [[reply.text for reply in shortlist] for shortlist in shortlists])
        answers = []
        for shortlist, second in zip(shortlists, scored, strict=True):
            check_finite(second)
            first = np.array([reply.score for reply in shortlist], np.float32)
            total = self.combine(first, second) if len(first) else second
            ranked = tuple(
                replace(
                    shortlist[i],
                    score=float(total[i]),
                    stages={"retriever": float(first[i]), "reranker": float(second[i])},
                )
                for i in top_rows(total, choice.k)
            )
            answers.append(Answer(ranked, None, not ranked))
        return answers

    def __repr__(self) -> str:
        return f"TwoStage({self.retriever!r}, {self.reranker!r}, n_retrieved={self.n_retrieved})"

    def any_passes(self, filter: Filter) -> bool:
        return self.retriever.any_passes(filter)

    def candidate(self, id_: str) -> Candidate:
        return self.retriever.candidate(id_)
