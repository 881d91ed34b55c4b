"""Why this reply: the share of each turn and token in a score, exact if the score is a sum of such terms."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from polyrank.errors import ArtifactError, UsageError
from polyrank.index import Filter, as_filter
from polyrank.records import Context, ContextLike
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.protocols import Scorer

if TYPE_CHECKING:
    from polyrank.answering.replies import Replies


def explain(
    scorer: "Scorer | Replies",
    context: ContextLike,
    candidate: str,
    *,
    max_words: int = 64,
    filter: Filter | str | None = None,
) -> Explanation:
    """How the score of a candidate comes about.

    For a Bi-encoder that averages, a Poly-encoder, BM25, TF-IDF and rankers of them, the shares are the terms of the
    score. For any other scorer they are how much the score falls without the turn or the word, which takes a score
    for each.

    Args:
        scorer: any Scorer; or an open index, whose candidates may have counts.
        context: one turn, a list of turns, oldest first, or a Context.
        candidate: its text.
        max_words: how many words of each side are left out one by one, if that is the method: the last words of a
            context, the first of a candidate. Whole turns are always tried.
        filter: of the answer: a count is that of the candidates that pass.

    Raises:
        UsageError: the context or the candidate has no visible character.
        ArtifactError: the score is not finite.

    >>> from polyrank import BM25
    >>> why = explain(BM25(b=0.0).fit(["wifi", "bill"]), ["hi", "my wifi"], "wifi")
    >>> why.method, [(turn.text, round(turn.share, 4)) for turn in why.turns]  # ln 2 / 2.5
    ('sum of words', [('hi', 0.0), ('my wifi', 0.2773)])
    """
    query = Context.of(context)
    if not candidate.strip():
        raise UsageError("the candidate is empty, so it cannot be explained; give its text")
    if max_words < 0:
        raise UsageError(f"max_words = {max_words}; give 0 or more")
    explained: Callable[..., Explanation] = scorer.explained
    conditions = () if filter is None else (as_filter(filter),)  # which only an index has
    explanation = explained(query, candidate, max_words, *conditions)
    if not np.isfinite(explanation.score):
        raise ArtifactError("the score is not finite; the model's weights are damaged or diverged in training")
    return explanation
