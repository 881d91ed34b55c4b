"""Two stages as a Scorer of given lists or a pool: a retriever makes a shortlist, an accurate re-ranker orders it."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrank.config.checked import whole_number
from polyrank.config.pipeline import SHORTLIST, Ensemble
from polyrank.errors import UsageError
from polyrank.ranking.ensembles import combine, read_ensemble
from polyrank.ranking.top import top_rows_with_ties
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.inputs import as_texts, matched_lists
from polyrank.scorers.protocols import Floats, Scorer

if TYPE_CHECKING:  # lexical stages need no torch
    from polyrank.scorers.network import NetworkScorer
    from polyrank.text.cut import Cut


class TwoStageScorer(Scorer):
    """Candidates outside the shortlist come after it, in the retriever's order.

    Args:
        retriever: scores everything.
        reranker: scores the shortlist.
        n_retrieved: length of the shortlist.
        ensemble: add the two stages' scores on this scale; None: see ``ensemble_of``.

    Raises:
        UsageError: ``n_retrieved`` is below 1, or the re-ranker corrects another encoder's scores.
    """

    def __init__(
        self, retriever: Scorer, reranker: Scorer, *, n_retrieved: int = SHORTLIST, ensemble: Ensemble | None = None
    ) -> None:
        self.retriever, self.reranker = retriever, reranker
        self.n_retrieved = whole_number(n_retrieved, "n_retrieved", least=1)
        self.ensemble = ensemble_of(retriever.fingerprint, reranker, ensemble)
        reranker.follow(retriever)

    def __repr__(self) -> str:
        return f"TwoStageScorer({self.retriever!r}, {self.reranker!r}, n_retrieved={self.n_retrieved})"

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        return self._rerank(queries, self.retriever.score(queries, lists), lists, [()] * len(lists))

    def fitted_to(self, texts: Callable[[], Sequence[str]]) -> Scorer:
        """See ``Scorer``; both stages are fitted."""
        stages = self.retriever.fitted_to(texts), self.reranker.fitted_to(texts)
        return TwoStageScorer(*stages, n_retrieved=self.n_retrieved, ensemble=self.ensemble)

    def score_pool(
        self, contexts: Sequence[ContextLike], pool: Sequence[str], *, excluded: Sequence[Collection[int]] = ()
    ) -> Floats:
        """One shared pool for every context: ``[B, N]``; ``excluded`` rows of each are not in its shortlist."""
        queries, shared = contexts_of(contexts), as_texts(pool, "pool")
        first = list(self.retriever.score_pool(queries, shared))
        rows = self._rerank(queries, first, [shared] * len(queries), excluded or [()] * len(queries))
        return np.array(rows, np.float32).reshape(len(queries), len(shared))

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the retriever reads, or else the re-ranker."""
        first = self.retriever.n_context_tokens(context)
        return self.reranker.n_context_tokens(context) if first is None else first

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """Those of both stages."""
        return (*self.retriever.networks, *self.reranker.networks)

    @property
    def cut(self) -> "tuple[Cut, ...]":
        """The texts that either stage truncated."""
        return (*self.retriever.cut, *self.reranker.cut)

    def _rerank(
        self,
        contexts: Sequence[Context],
        first: Sequence[Floats],
        candidates: Sequence[Sequence[str]],
        excluded: Sequence[Collection[int]],
    ) -> list[Floats]:
        # equal texts count once in the shortlist: they tie, and a copy must not displace another reply
        shortlists = [
            shortlist_of(values, texts, self.n_retrieved, out)
            for values, texts, out in zip(first, candidates, excluded, strict=True)
        ]
        texts = [[pool[i] for i in shortlist] for pool, shortlist in zip(candidates, shortlists, strict=True)]
        results = []
        for values, pool, shortlist, second in zip(
            first, candidates, shortlists, self.reranker.score(contexts, texts), strict=True
        ):
            total = dict(
                zip([pool[i] for i in shortlist], total_score(values[shortlist], second, self.ensemble), strict=True)
            )
            rest = _below(min(total.values(), default=np.float32(0)), values)
            results.append(np.array([total.get(text, low) for text, low in zip(pool, rest, strict=True)], np.float32))
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


def _below(worst: np.float32, values: Floats) -> Floats:
    """Scores ``[n]`` below ``worst`` in the order of ``values``, with the same ties however close they are.

    >>> _below(np.float32(3), np.array([0.5, 0.50000006, 0.5, -np.inf, np.nan], np.float32))
    array([ 1.,  2.,  1.,  0., nan], dtype=float32)
    """
    ranks = np.unique(-values, return_inverse=True)[1]
    step = max(1.0, 2.0 * float(np.spacing(np.abs(worst))))
    result: Floats = (float(worst) - step * (ranks + 1)).astype(np.float32)
    result[np.isnan(values)] = np.nan
    return result


def ensemble_of(first_stage: str, reranker: Scorer, ensemble: Ensemble | None) -> Ensemble | None:
    """How two stages add their scores, if the user gives no ensemble.

    A re-ranker that corrects an encoder's scores adds raw scores. The score of any other re-ranker
    decides alone: None.

    Args:
        first_stage: the fingerprint of the first stage's encoder; empty if it has none.
        reranker: the second stage.
        ensemble: as the user gave it, which always applies.

    Raises:
        UsageError: the ensemble is unknown, or the re-ranker corrects another encoder's scores, whose
            size may differ.
    """
    if ensemble is not None:
        return read_ensemble(str(ensemble))
    if not reranker.corrects:
        return None
    if first_stage != reranker.corrects:
        encoder = reranker.first_stage or reranker.corrects[:12]
        raise UsageError(
            f"{reranker.name} corrects the scores of another encoder, {encoder}; retrieve with that one, or choose an"
            " ensemble"
        )
    return "raw"


def total_score(first: Floats, second: Floats, ensemble: Ensemble | None) -> Floats:
    """The scores of both stages as one ``[n]``."""
    return second if ensemble is None or not len(second) else combine(first, second, ensemble)
