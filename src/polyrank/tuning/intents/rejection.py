"""Rejecting out-of-scope utterances: a threshold on confidence, calibrated on utterances in and out of scope.

numpy only. Shapes: N utterances, L intents. A label of -1 is out of scope.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import read_choice
from polyrank.errors import DataError
from polyrank.ranking.abstention import MEASURES, Abstention, Measure, confidence

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Aim = Literal["balanced", "accuracy", "f1"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """The effect of a threshold on utterances in and out of scope.

    Args:
        n_in_scope, n_out_of_scope: numbers of utterances.
        in_scope_accuracy: share of utterances in scope that are not rejected and get the right intent.
        recall: share of utterances out of scope that are rejected.
        precision: share of rejected utterances that are out of scope; 1 if none is rejected.
        accuracy: share of all utterances with the right result.
    """

    n_in_scope: int
    n_out_of_scope: int
    in_scope_accuracy: float
    recall: float
    precision: float
    accuracy: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall.

        >>> Rejection(1, 2, 1.0, 0.5, 1.0, 2 / 3).f1
        0.6666666666666666
        """
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def value(self, aim: Aim) -> float:
        """The figure that ``calibrate_rejection`` maximizes for an aim."""
        if aim == "f1":
            return self.f1
        return self.accuracy if aim == "accuracy" else (self.in_scope_accuracy + self.recall) / 2

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "f1": self.f1}


def read_aim(name: str) -> Aim:
    """An aim by its name.

    Raises:
        UsageError: the name is unknown.
    """
    aim: Aim = read_choice(name, Aim, "aim of a threshold")
    return aim


def confidences(scores: Floats, measure: Measure) -> NDArray[np.float64]:
    """The confidence in the best intent of each utterance, ``[N]``, from scores ``[N, L]``.

    >>> confidences(np.array([[0.0, 2.0, 1.5]], np.float32), "margin")
    array([0.5])
    """
    ordered = -np.sort(-scores, axis=1)
    return np.array([confidence(row, measure) for row in ordered], np.float64)


def evaluate_rejection(scores: Floats, labels: Labels, abstention: Abstention) -> Rejection:
    """Measure the effect of a threshold.

    Args:
        scores: ``[N, L]``.
        labels: ``[N]``, -1 for out of scope.
        abstention: the threshold.
    """
    rejected = confidences(scores, abstention.measure) < abstention.threshold
    return _rejection(rejected, scores.argmax(1) == labels, labels < 0)


def _rejection(rejected: NDArray[np.bool_], right: NDArray[np.bool_], outside: NDArray[np.bool_]) -> Rejection:
    n_right, n_rejected_outside = int((right & ~rejected & ~outside).sum()), int((rejected & outside).sum())
    n_outside, n_rejected = int(outside.sum()), int(rejected.sum())
    n_inside = len(outside) - n_outside
    return Rejection(
        n_in_scope=n_inside,
        n_out_of_scope=n_outside,
        in_scope_accuracy=n_right / n_inside if n_inside else 0.0,
        recall=n_rejected_outside / n_outside if n_outside else 0.0,
        precision=n_rejected_outside / n_rejected if n_rejected else 1.0,
        accuracy=(n_right + n_rejected_outside) / len(outside) if len(outside) else 0.0,
    )


def calibrate_rejection(
    scores: Floats, labels: Labels, *, aim: Aim = "balanced", measure: Measure | None = None
) -> tuple[Abstention, Rejection]:
    """Choose the best measure of confidence and threshold.

    Thresholds are midpoints between neighbouring confidences; of equally good ones the lowest is chosen.

    Args:
        scores: ``[N, L]``.
        labels: ``[N]``, -1 for out of scope.
        aim: "balanced": mean of the accuracy in scope and the recall out of scope; "accuracy": share of all utterances
            with the right result; "f1": F1 of rejection.
        measure: None: try all.

    Raises:
        DataError: all utterances are in scope, or none is.
    """
    outside = labels < 0
    if outside.all() or not outside.any():
        kind = "in scope" if outside.all() else "out of scope"
        raise DataError(
            f"none of the {len(labels):,} development utterances is {kind}, and a threshold needs both kinds; give some"
        )
    right = scores.argmax(1) == labels
    best: tuple[float, Abstention] | None = None
    for candidate in MEASURES if measure is None else (measure,):
        values = confidences(scores, candidate)
        levels = np.unique(values)
        for threshold in (levels[0], *(levels[1:] + levels[:-1]) / 2):
            value = _rejection(values < threshold, right, outside).value(aim)
            if best is None or value > best[0]:
                best = value, Abstention(candidate, float(threshold))
    assert best is not None, "there is at least one utterance"
    return best[1], evaluate_rejection(scores, labels, best[1])
