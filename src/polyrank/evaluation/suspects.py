"""Examples whose labels are most likely wrong: a model prefers another candidate, or a copy counts as wrong.

A margin is the probability of the given answer less that of the best other candidate, in a softmax of scores with the
scale that fits the labels best; over several models, the mean. Source: Northcutt et al., Confident Learning:
Estimating Uncertainty in Dataset Labels (JAIR 2021), section 3 (normalized margin).
"""

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.data.same_words import same_words, template
from polyrank.errors import UsageError
from polyrank.evaluation.protocols import Evaluation, rankable
from polyrank.ranking.weights import fit_weights
from polyrank.records import Example
from polyrank.storage.durable import write_file

ALIKE = 0.8
"""The share of common words, of all words of two texts, from which they count as near-copies."""


def find_suspects(evaluations: Sequence[Evaluation], examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Examples with a margin below 0 or a near-copy of the answer among the wrong candidates, by rising margin.

    Args:
        evaluations: of the same candidate lists by one or more models.
        examples: the lists; more are allowed.

    Returns:
        For each, ready for JSON: ``id``, ``context``, ``given`` (the answer), ``other`` (the best other candidate),
        ``margin``, and ``near_copies``, the wrong candidates that have nearly the words of the answer.

    Raises:
        UsageError: the evaluations are not of candidate lists.
    """
    if any(evaluation.protocol != "lists" for evaluation in evaluations):
        raise UsageError("suspects are found in candidate lists, and a pool has none; leave the pool out")
    answerable = {id(record) for record in evaluations[0].answerable}
    rows = zip(rankable(examples), *(evaluation.records for evaluation in evaluations), strict=True)
    lists = [row for row in rows if id(row[1]) in answerable]
    if not lists:
        return []
    relevant = [list(record.relevant) for _, record, *_ in lists]
    shares: list[NDArray[np.float64]] = [np.zeros(len(example.candidates)) for example, *_ in lists]
    for model in range(1, len(evaluations) + 1):
        scores = [np.asarray(row[model].scores, np.float64) for row in lists]
        (scale,) = fit_weights([values[:, None] for values in scores], relevant)
        for share, values in zip(shares, scores, strict=True):
            odds = np.exp(max(float(scale), 0.0) * (values - values.max()))
            share += odds / odds.sum() / len(evaluations)
    found = []
    for (example, *_), right, share in zip(lists, relevant, shares, strict=True):
        wrong = [i for i in range(len(share)) if i not in right]
        given, other = (max(numbers, key=share.__getitem__) for numbers in (right, wrong))
        texts = example.candidates
        suspect = {
            "id": example.id,
            "context": list(example.context),
            "given": texts[given],
            "other": texts[other],
            "margin": round(float(share[given] - share[other]), 4),
            "near_copies": [texts[i] for i in wrong if is_near_copy(texts[i], texts[given])],
        }
        if suspect["margin"] < 0 or suspect["near_copies"]:
            found.append(suspect)
    return sorted(found, key=itemgetter("margin"))


def is_near_copy(text: str, other: str) -> bool:
    """Whether two texts differ in numbers, a name after a greeting, or few words.

    >>> is_near_copy("Your code is 12.", "your code is 34"), is_near_copy("it arrives today", "it arrives tomorrow")
    (True, False)
    """
    words, others = ({*same_words(one).split()} for one in (text, other))
    return template(text) == template(other) or len(words & others) >= ALIKE * max(len(words | others), 1)


def write_suspects(path: Path, suspects: Sequence[dict[str, Any]]) -> None:
    """Write suspects as JSON lines."""
    write_file(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in suspects).encode())
