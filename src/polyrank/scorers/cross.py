"""A Cross-encoder bound to its text policy, device and precision: a Scorer."""

from collections.abc import Sequence

import numpy as np

from polyrank.models import CrossEncoder
from polyrank.models.exported import ExportedCross
from polyrank.models.foreign import PairEncoder
from polyrank.records import Context, ContextLike
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.inputs import matched_lists, spread
from polyrank.scorers.left_out import left_out
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.text.offsets import pair_spans


class CrossScorer(NetworkScorer[CrossEncoder | ExportedCross | PairEncoder], Scorer):
    """A Cross-encoder as a Scorer."""

    corrects: str = ""
    """The fingerprint of the encoder whose scores it was trained to correct; empty if there is none."""

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        distinct = [list(dict.fromkeys(texts)) for texts in lists]  # so that copies have equal scores
        flat, ends = self._scores(queries, distinct), np.cumsum([len(texts) for texts in distinct])
        scores = [flat[end - len(texts) : end] for end, texts in zip(ends, distinct, strict=True)]
        return [spread(*row) for row in zip(scores, distinct, lists, strict=True)]

    def _scores(self, queries: Sequence[Context], lists: Sequence[Sequence[str]]) -> Floats:
        """The scores of distinct candidates, one list after the other."""
        pairs = [
            self.texts.pair_ids(query, text) for query, texts in zip(queries, lists, strict=True) for text in texts
        ]
        scores = np.empty(len(pairs), np.float32)
        for batch, values in self.batches(self.model, [ids for ids, _ in pairs], [kinds for _, kinds in pairs]):
            scores[batch] = values.float().cpu().numpy()
        return scores

    def explained(self, context: Context, candidate: str, max_words: int) -> Explanation:
        """How much the score falls without a turn or a word that the network reads."""
        return left_out(self, context, candidate, max_words, pair_spans(self.texts, context, candidate)[1])

    def forget(self) -> None:
        """Does nothing: a Cross-encoder keeps no vectors."""
