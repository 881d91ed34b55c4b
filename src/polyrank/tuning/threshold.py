"""The threshold of a ranker, chosen on lists: below it, an answer is not good enough."""

from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.data.same_words import echoes
from polyrank.ranking.abstention import N_SCORES, Abstention, calibrate
from polyrank.ranking.top import top_rows
from polyrank.records import Example
from polyrank.scorers.ranker import Ranker
from polyrank.tuning.scored import Progress

BATCH = 16  # contexts whose scores of the whole catalogue are in memory
MAX_CONTEXTS = 500
NO_ANSWER = 0.2
"""The share of contexts whose right answers are hidden: users ask what no reply answers."""


def choose_threshold(
    ranker: Ranker,
    lists: Sequence[Example],
    *,
    precision: float,
    no_answer: float = NO_ANSWER,
    seed: int = 0,
    progress: Progress = lambda _, batches: batches,
) -> tuple[Abstention, dict[str, Any]]:
    """The rule with the highest coverage among those that reach a precision.

    Each context is answered from all candidates of the lists, as from a catalogue.

    Args:
        ranker: without a threshold.
        lists: with right answers; the first ``MAX_CONTEXTS``.
        precision: the required share of right answers.
        no_answer: hide the right answers of this share of the contexts.
        seed: selects them.
        progress: see ``tune``.

    Returns:
        The rule; and ``n_examples``, ``no_answer``, the ``chosen`` point and the ``curve``, ready for JSON.

    Raises:
        DataError: no threshold is precise enough.
    """
    hidden = choose_hidden(len(lists[:MAX_CONTEXTS]), no_answer, seed)
    scores, right = outcomes(ranker, lists[:MAX_CONTEXTS], hidden, progress=progress)
    rule, curve = calibrate(scores, right, precision=precision)
    point = min((p for p in curve if p.threshold >= rule.threshold), key=attrgetter("threshold"))
    usable = [asdict(p) for p in curve if np.isfinite(p.threshold)]
    return rule, {
        "n_examples": len(scores),
        "no_answer": float(hidden.mean()),
        "chosen": asdict(point),
        "curve": usable,
    }


def outcomes(
    ranker: Ranker,
    lists: Sequence[Example],
    hidden: NDArray[np.bool_],
    *,
    progress: Progress = lambda _, batches: batches,
) -> tuple[list[list[float]], list[bool]]:
    """Scores of the best replies to each context, best first, and whether the best one is right.

    Args:
        ranker: scores all candidates of the lists for each context.
        lists: with right answers.
        hidden: for each list, whether its right answers are removed.
        progress: see ``tune``.
    """
    pool = list(dict.fromkeys(text for example in lists for text in example.candidates))
    scores, right = [], []
    batches = [range(i, min(i + BATCH, len(lists))) for i in range(0, len(lists), BATCH)]
    for batch in progress("threshold", batches):
        part = [lists[n] for n in batch]
        answers = [{example.candidates[i] for i in example.relevant} for example in part]
        said = [echoes(example.context) for example in part]
        excluded = [
            [row for row, text in enumerate(pool) if echo(text) or (hidden[n] and text in answer)]
            for n, answer, echo in zip(batch, answers, said, strict=True)
        ]
        values = ranker.score_pool([example.query for example in part], pool, excluded=excluded)
        for row, out, answer in zip(values, excluded, answers, strict=True):
            kept = row.copy()
            kept[out] = -np.inf
            best = [n for n in top_rows(kept, N_SCORES) if np.isfinite(kept[n])]
            scores.append([float(kept[n]) for n in best])
            right.append(bool(best) and pool[best[0]] in answer)
    return scores, right


def choose_hidden(n: int, no_answer: float, seed: int) -> NDArray[np.bool_]:
    """A mask ``[n]`` of the examples that lose their right answers: this share of them, at random."""
    hidden = np.zeros(n, np.bool_)
    hidden[np.random.Generator(np.random.PCG64(seed)).permutation(n)[: round(n * no_answer)]] = True
    return hidden
