"""Choosing the weights of a re-ranker that compares words on validation lists."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from polyrank.errors import DataError
from polyrank.evaluation.models import Progress
from polyrank.evaluation.protocols import Record, evaluate
from polyrank.frozen.sums import lists_to_fit, weigh
from polyrank.ranking.weights import PRIOR_DEVIATION
from polyrank.records import Example
from polyrank.scorers.protocols import Encoder, Scorer
from polyrank.scorers.repetition import NUMBERS, Repetition, Words
from polyrank.scorers.two_stage import shortlist_of

NUMBER_DEVIATION = 0.3
"""The standard deviation of the prior of each number, in the units of ``priors`` in ``fit_weights``.

Chosen on development lists of five corpora (runs/few_lists.py): 30 lists then rarely lower R@1, 300 lose nothing.
"""


def fit_repetition(
    encoder: Encoder,
    valid: Sequence[Example],
    *,
    reranker: Scorer | None = None,
    n_retrieved: int = 25,
    progress: Progress = lambda _, batches: batches,
) -> tuple[Repetition, dict[str, Any]]:
    """The re-ranker whose sum with an encoder's scores fits validation lists best, see ``fit_weights``.

    Each number has a prior around 0, ``NUMBER_DEVIATION``, since few lists would suggest large ones by chance.

    Args:
        encoder: frozen; the first stage.
        valid: candidate lists with a right answer.
        reranker: another second stage, which is weighed along; None: there is none. As it is slow, lists then have the
            encoder's best candidates only, and those without a right one do not count.
        n_retrieved: how many of the best.
        progress: called with a name and the list of batches, which it wraps.

    Returns:
        The re-ranker; and figures ready for JSON: of the encoder alone (``parts``), of all, and the ``gain`` in R@1,
        as those of ``fit_sum``; and in how many lists a candidate repeats a turn, and a right one does.

    Raises:
        DataError: no list has a right answer, or the encoder's scores do not help to find it.
    """
    lists = lists_to_fit(valid)
    first = evaluate(encoder, lists, progress=lambda batches: progress("lists", batches)).answerable
    slow = []
    if reranker is not None:
        lists, first = _best(lists, first, n_retrieved)
        slow = [evaluate(reranker, lists, progress=lambda batches: progress("re-ranked", batches)).answerable]
    words = Words.of(text for example in valid for text in example.candidates)
    signed: list[Sequence[Record]] = []  # fitted weights are 0 or more, and these may have either sign
    for name in NUMBERS:
        found = evaluate(Repetition(words=words, **dict[str, Any]({name: 1.0})), lists).answerable
        signed += [found, [replace(one, scores=-one.scores) for one in found if one.scores is not None]]
    (own, *others), figures = weigh(
        [first, *signed, *slow],
        over=0,
        priors=[PRIOR_DEVIATION, *[NUMBER_DEVIATION] * len(signed), *[PRIOR_DEVIATION] * len(slow)],
    )
    if not own:
        raise DataError(
            f"the encoder adds nothing to repetition on {len(lists):,} lists; give more lists, or set the penalty and"
            " the overlap yourself"
        )
    numbers = [(a - b) / own for a, b in zip(others[: len(signed) : 2], others[1 : len(signed) : 2], strict=True)]
    rounded = [float(f"{number:.4g}") for number in (*numbers, *(more / own for more in others[len(signed) :]))]
    echoes = [record.scores < 0 for record in signed[2 * NUMBERS.index("penalty")] if record.scores is not None]
    figures["n_echo"] = sum(bool(found.any()) for found in echoes)
    figures["n_echo_right"] = sum(
        bool(found[list(one.relevant)].any()) for found, one in zip(echoes, first, strict=True)
    )
    figures["parts"] = figures["parts"][:1]
    weight = rounded[-1] if slow else 0.0
    stage = Repetition(
        **dict[str, Any](zip(NUMBERS, rounded, strict=False)),
        words=words,
        corrects=encoder.fingerprint,
        reranker=reranker if weight else None,
        weight=weight or 1.0,
    )
    return stage, figures


def _best(lists: Sequence[Example], first: Sequence[Record], n: int) -> tuple[list[Example], tuple[Record, ...]]:
    """Lists of the best n candidates of the first stage, and their scores; those without a right one are left out.

    Raises:
        DataError: none has a right one.
    """
    found = []
    for example, record in zip(lists, first, strict=True):
        assert record.scores is not None, "lists of candidates have scores"
        rows = shortlist_of(record.scores, example.candidates, n)
        texts = tuple(example.candidates[row] for row in rows)
        right = {example.candidates[row] for row in example.relevant}
        relevant = tuple(i for i, text in enumerate(texts) if text in right)
        if relevant and len(texts) > 1:
            short = replace(example, candidates=texts, relevant=relevant)
            found.append((short, replace(record, relevant=relevant, scores=record.scores[rows])))
    if not found:
        raise DataError(f"no list has a right answer among the encoder's {n} best; give more lists")
    return [short for short, _ in found], tuple(record for _, record in found)
