"""When an utterance has none of the intents: a threshold on confidence, calibrated on utterances of both kinds.

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
    """What a threshold does to utterances of both kinds.

    Args:
        n_in_scope, n_out_of_scope: how many there were.
        in_scope_accuracy: share of those in scope that are not rejected and get the right intent.
        recall: share of those out of scope that are rejected.
        precision: share of the rejected that are out of scope; 1 where none is rejected.
        accuracy: share of all that are treated rightly.
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
        """What is made as large as possible: see ``calibrate_rejection``."""
        if aim == "f1":
            return self.f1
        return self.accuracy if aim == "accuracy" else (self.in_scope_accuracy + self.recall) / 2

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "f1": self.f1}


def read_aim(name: str) -> Aim:
    """An aim by its name.

    Raises:
        UsageError: there is none of that name.
    """
    aim: Aim = read_choice(name, Aim, "aim of a threshold")
    return aim


def confidences(scores: Floats, measure: Measure) -> NDArray[np.float64]:
    """Of the best intent of each utterance ``[N]``; scores ``[N, L]``.

    >>> confidences(np.array([[0.0, 2.0, 1.5]], np.float32), "margin")
    array([0.5])
    """
    ordered = -np.sort(-scores, axis=1)
    return np.array([confidence(row, measure) for row in ordered], np.float64)


def evaluate_rejection(scores: Floats, labels: Labels, abstention: Abstention) -> Rejection:
    """What a threshold does.

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
    """The measure of confidence and the threshold that do best.

    Thresholds lie half-way between two neighbouring confidences; of equally good ones the one that rejects least wins.

    Args:
        scores: ``[N, L]``.
        labels: ``[N]``, -1 for out of scope.
        aim: "balanced": mean of the accuracy in scope and the recall out of scope, whatever their numbers;
            "accuracy": share of all that are treated rightly; "f1": of those out of scope.
        measure: None: the best of all.

    Raises:
        DataError: one of the two kinds is missing.
    """
    outside = labels < 0
    if outside.all() or not outside.any():
        kind = "in scope" if outside.all() else "out of scope"
        raise DataError(
            f"none of the {len(labels):,} development utterances is {kind}; a threshold needs both kinds, give some"
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
