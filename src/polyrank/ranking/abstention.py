"""When to say "no good answer": a threshold on confidence, calibrated on examples of which some have no answer.

numpy only. An answer is right when the best reply is right; where no reply is right, every answer is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyrank.errors import DataError
from polyrank.ranking.statistics import wilson

Measure = Literal["score", "margin", "softmax"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
ROUNDING = 2.0**-6  # relative: how far a score may move in bf16
N_SCORES = 10  # how many of the best scores a measure looks at


def confidence(scores: ArrayLike, measure: Measure) -> float:
    """How sure the best reply is.

    "score": its raw score; "margin": how far it is above the second; "softmax": its probability among the best ten.

    Args:
        scores: of the replies to one context, best first; none: no confidence at all.
        measure: which.

    >>> confidence([3.0, 1.0, 0.5], "score"), confidence([3.0, 1.0, 0.5], "margin")
    (3.0, 2.0)
    >>> round(confidence([0.0, 0.0], "softmax"), 3)
    0.5
    """
    best = np.asarray(scores, np.float64)[:N_SCORES]
    if not len(best):
        return -inf
    if measure == "score":
        return float(best[0])
    if measure == "margin":
        return float(best[0] - best[1]) if len(best) > 1 else inf
    return float(1 / np.exp(best - best[0]).sum())


@dataclass(frozen=True, slots=True)
class Point:
    """What a threshold gives.

    Args:
        threshold: answers are given at this confidence and above.
        coverage: share of contexts that get an answer.
        precision: share of answers that are right.
        low: lower end of the 95% interval of ``precision`` (Wilson).
    """

    threshold: float
    coverage: float
    precision: float
    low: float


@dataclass(frozen=True, slots=True)
class Abstention:
    """When to say that there is no good answer.

    Args:
        measure: of confidence.
        threshold: below it there is no good answer.
    """

    measure: Measure
    threshold: float

    def abstains(self, scores: ArrayLike) -> bool:
        """Whether the best of ``scores`` (best first) is no good answer.

        >>> Abstention("margin", 0.5).abstains([2.0, 1.8])
        True
        """
        return confidence(scores, self.measure) < self.threshold


def coverage_curve(confidences: ArrayLike, right: ArrayLike) -> list[Point]:
    """Every threshold that makes a difference, from the strictest to the one that always answers.

    Args:
        confidences: ``[E]``.
        right: ``[E]``, whether the best reply was right.

    >>> [(p.threshold, p.coverage, p.precision) for p in coverage_curve([0.9, 0.2, 0.2, 0.1], [1, 0, 1, 0])]
    [(0.9, 0.25, 1.0), (0.2, 0.75, 0.6666666666666666), (0.1, 1.0, 0.5)]
    """
    values, good = np.asarray(confidences, np.float64), np.asarray(right, np.bool_)
    order = np.argsort(-values, kind="stable")
    values, hits = values[order], np.cumsum(good[order])
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True)) if len(values) else np.empty(0, np.intp)
    n = np.arange(1, len(values) + 1)
    return [
        Point(float(values[i]), float(n[i] / len(values)), float(hits[i] / n[i]), wilson(int(hits[i]), int(n[i]))[0])
        for i in ends
    ]


def area(curve: Sequence[Point]) -> float:
    """Mean precision over all coverages: the area under the precision/coverage curve, by steps.

    >>> area([Point(0.9, 0.5, 1.0, 0.0), Point(0.1, 1.0, 0.5, 0.0)])
    0.75
    """
    total, before = 0.0, 0.0
    for point in curve:
        total += (point.coverage - before) * point.precision
        before = point.coverage
    return total


COVERAGES = (0.05, 0.1, 0.25, 0.5, 1.0)


def attainable(curve: Sequence[Point]) -> str:
    """The precision/coverage curve in words: the best precision with at least so many answers.

    >>> attainable([Point(0.9, 0.1, 0.8, 0.0), Point(0.1, 1.0, 0.5, 0.0)])
    'right are 80% of the answers to 10% of the contexts, 50% to 100%'
    """
    best: dict[float, Point] = {}
    for coverage in COVERAGES:
        point = max((p for p in curve if p.coverage >= coverage), key=lambda p: (p.precision, p.coverage))
        best[point.coverage] = point
    first, *others = best.values()
    told = [f"{first.precision:.0%} of the answers to {first.coverage:.0%} of the contexts"]
    return "right are " + ", ".join([*told, *(f"{point.precision:.0%} to {point.coverage:.0%}" for point in others)])


def calibrate(
    scores: Sequence[ArrayLike], right: ArrayLike, *, precision: float, measure: Measure | None = None
) -> tuple[Abstention, list[Point]]:
    """The threshold that answers most often while answers are right often enough.

    Args:
        scores: of the replies to each context, best first.
        right: ``[E]``, whether the best reply was right.
        precision: wanted share of right answers, 0 to 1.
        measure: of confidence; None: the one with the largest area under its curve.

    Returns:
        The threshold, a little below a confidence, and the precision/coverage curve.

    Raises:
        DataError: there is nothing to calibrate on, or no threshold is precise enough.
    """
    good: NDArray[np.bool_] = np.asarray(right, np.bool_)
    if not len(scores):
        raise DataError("there are no examples to calibrate a threshold on; give some, with and without a right answer")
    curves = {
        known: coverage_curve([confidence(row, known) for row in scores], good)
        for known in (MEASURES if measure is None else (measure,))
    }
    # no reply has no confidence, a single one an infinite margin: neither tells where to draw a line
    drawn = {known: [point for point in curve if np.isfinite(point.threshold)] for known, curve in curves.items()}
    if not any(drawn.values()):
        raise DataError("no example has a reply whose confidence can be told; retrieve more replies, or grow the index")
    chosen = max((known for known in drawn if drawn[known]), key=lambda known: area(curves[known]))
    enough = [point for point in drawn[chosen] if point.precision >= precision]
    if not enough:
        best = max(point.precision for point in curves[chosen])
        raise DataError(
            f"no threshold makes {precision:.0%} of the answers right, the best is {best:.0%} on {len(scores):,}"
            f" examples ({attainable(curves[chosen])}); ask for less or use a better model"
        )
    strictest = max(enough, key=lambda point: point.coverage).threshold
    return Abstention(chosen, _below(strictest, [point.threshold for point in drawn[chosen]])), curves[chosen]


def _below(threshold: float, others: Sequence[float]) -> float:
    """A little lower, at most half-way to the next: the same examples are answered.

    In bf16 a score moves with what it is computed beside; the example that drew the line is to stay above it.

    >>> _below(0.5, [0.75, 0.5, 0.25]), _below(0.5, [0.5, 0.4990234375])
    (0.4921875, 0.49951171875)
    """
    lower = max((other for other in others if other < threshold), default=-inf)
    between = max((threshold + lower) / 2.0, threshold - ROUNDING * abs(threshold))
    return between if between > lower else threshold
