"""Abstention: return "no good answer" below a confidence threshold, which is calibrated on examples.

NumPy only. An answer is right if the best reply is right. If an example has no right reply, every answer is wrong.
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
ROUNDING = 2.0**-6  # relative: how much rounding to bf16 can change a score
N_SCORES = 10  # a measure uses this many of the best scores


def confidence(scores: ArrayLike, measure: Measure) -> float:
    """Confidence in the best reply; minus infinity if there are too few replies to measure it.

    Args:
        scores: scores of the replies to one context, best first.
        measure: "score": the raw score; "margin": the score minus the second best score; "softmax": the probability
            among the best ten. The latter two compare replies, so that a single reply has no confidence.

    >>> confidence([3.0, 1.0, 0.5], "score"), confidence([3.0, 1.0, 0.5], "margin")
    (3.0, 2.0)
    >>> confidence([0.0, 0.0], "softmax"), confidence([0.0], "softmax")
    (0.5, -inf)
    """
    best = np.asarray(scores, np.float64)[:N_SCORES]
    if len(best) < (1 if measure == "score" else 2):
        return -inf
    if measure == "score":
        return float(best[0])
    if measure == "margin":
        return float(best[0] - best[1])
    return float(1 / np.exp(best - best[0]).sum())


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the precision/coverage curve.

    Args:
        threshold: the system answers at this confidence or above.
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
    """A rule for when to return no answer.

    Args:
        measure: the measure of confidence.
        threshold: abstain if the confidence is lower.
    """

    measure: Measure
    threshold: float

    def abstains(self, scores: ArrayLike) -> bool:
        """Whether the best of ``scores`` (best first) is not good enough to answer.

        >>> Abstention("margin", 0.5).abstains([2.0, 1.8])
        True
        """
        return confidence(scores, self.measure) < self.threshold


def coverage_curve(confidences: ArrayLike, right: ArrayLike) -> list[Point]:
    """One point for each distinct confidence, from the strictest threshold to the one that always answers.

    Args:
        confidences: confidence for each example ``[E]``.
        right: whether the best reply was right ``[E]``.

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
    """Area under the precision/coverage curve, computed by steps: the mean precision over all coverages.

    >>> area([Point(0.9, 0.5, 1.0, 0.0), Point(0.1, 1.0, 0.5, 0.0)])
    0.75
    """
    total, before = 0.0, 0.0
    for point in curve:
        total += (point.coverage - before) * point.precision
        before = point.coverage
    return total


COVERAGES = (0.05, 0.1, 0.25, 0.5, 1.0)


def describe_curve(curve: Sequence[Point]) -> str:
    """The precision/coverage curve in words: the best precision at several minimum coverages.

    >>> describe_curve([Point(0.9, 0.1, 0.8, 0.0), Point(0.1, 1.0, 0.5, 0.0)])
    '80% right if 10% of the contexts get an answer, 50% if 100%'
    """
    best: dict[float, Point] = {}
    for coverage in COVERAGES:
        reached = [p for p in curve if p.coverage >= coverage] or curve
        point = max(reached, key=lambda p: (p.precision, p.coverage))
        best[point.coverage] = point
    first, *others = best.values()
    start = f"{first.precision:.0%} right if {first.coverage:.0%} of the contexts get an answer"
    return ", ".join([start, *(f"{point.precision:.0%} if {point.coverage:.0%}" for point in others)])


def calibrate(
    scores: Sequence[ArrayLike], right: ArrayLike, *, precision: float, measure: Measure | None = None
) -> tuple[Abstention, list[Point]]:
    """Choose the threshold with the highest coverage among those that reach a precision.

    Args:
        scores: scores of the replies to each context, best first.
        right: whether the best reply was right ``[E]``.
        precision: the required share of right answers, 0 to 1.
        measure: the measure of confidence; None: the one with the largest area under its curve.

    Returns:
        The abstention rule, whose threshold is slightly below a confidence of the examples, and the
        precision/coverage curve.

    Raises:
        DataError: ``scores`` is empty, no example has a finite confidence, or no threshold reaches ``precision``.
    """
    good: NDArray[np.bool_] = np.asarray(right, np.bool_)
    if not len(scores):
        raise DataError(
            "a threshold needs examples to calibrate on, got none; give some with and without a right answer"
        )
    curves = {
        name: coverage_curve([confidence(row, name) for row in scores], good)
        for name in (MEASURES if measure is None else (measure,))
    }
    # with too few replies the confidence is -inf, which is not a usable threshold
    finite = {name: [point for point in curve if np.isfinite(point.threshold)] for name, curve in curves.items()}
    if not any(finite.values()):
        raise DataError("no example has a reply with a finite confidence; retrieve more replies, or grow the index")
    chosen = max((name for name in finite if finite[name]), key=lambda name: area(curves[name]))
    precise = [point for point in finite[chosen] if point.precision >= precision]
    if not precise:
        best = min(max(point.precision for point in finite[chosen]), precision - 0.001)  # also as it is printed
        raise DataError(
            f"no threshold reaches a precision of {precision:.1%}, the best is {best:.1%} on {len(scores):,} examples"
            f" ({describe_curve(finite[chosen])}); require less or use a better model"
        )
    threshold = max(precise, key=lambda point: point.coverage).threshold
    return Abstention(chosen, _lowered(threshold, [point.threshold for point in finite[chosen]])), curves[chosen]


def _lowered(threshold: float, others: Sequence[float]) -> float:
    """A slightly lower threshold, at most half-way to the next one: it answers the same examples.

    In bf16 a score depends on the other rows of its batch. The example that set the threshold must still reach it.

    >>> _lowered(0.5, [0.75, 0.5, 0.25]), _lowered(0.5, [0.5, 0.4990234375])
    (0.4921875, 0.49951171875)
    """
    lower = max((other for other in others if other < threshold), default=-inf)
    between = max((threshold + lower) / 2.0, threshold - ROUNDING * abs(threshold))
    return between if between > lower else threshold
