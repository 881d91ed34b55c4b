"""Per-intent figures and confusions of intents. numpy only.

Shapes: N utterances, L intents. A label of -1 is out of scope, and so is a prediction of -1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.ranking.abstention import Abstention
from polyrank.tuning.intents.reading import OUT_OF_SCOPE
from polyrank.tuning.intents.rejection import confidences

Labels = NDArray[np.int64]


def predict_labels(scores: NDArray[np.float32], abstention: Abstention | None) -> Labels:
    """The numbers of the best intents ``[N]`` from scores ``[N, L]``; -1 if the threshold rejects."""
    best: Labels = scores.argmax(1).astype(np.int64)
    if abstention is not None:
        best[confidences(scores, abstention.measure) < abstention.threshold] = -1
    return best


def confusion(labels: Labels, predictions: Labels, n_intents: int) -> NDArray[np.int64]:
    """Counts ``[L + 1, L + 1]``: rows are labels, columns predictions; the last of each is out of scope.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, -1]), 2)
    array([[1, 1, 0],
           [0, 0, 1],
           [0, 0, 0]])
    """
    matrix = np.zeros((n_intents + 1, n_intents + 1), np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    return matrix


def per_intent(matrix: NDArray[np.int64], intents: Sequence[str]) -> list[dict[str, Any]]:
    """Precision, recall, F1 and support of each intent that is labelled or predicted, lowest F1 first.

    >>> rows = per_intent(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]), ["a", "b"])
    >>> [(row["intent"], row["precision"], row["recall"], row["support"]) for row in rows]
    [('a', 1.0, 0.5, 2), ('b', 0.6666666666666666, 1.0, 2)]
    """
    rows = []
    for i, name in enumerate((*intents, OUT_OF_SCOPE)):
        hits, support, n_predicted = int(matrix[i, i]), int(matrix[i].sum()), int(matrix[:, i].sum())
        if support or n_predicted:
            rows.append(
                {
                    "intent": name,
                    "precision": hits / n_predicted if n_predicted else 0.0,
                    "recall": hits / support if support else 0.0,
                    "f1": 2 * hits / (support + n_predicted),
                    "support": support,
                }
            )
    return sorted(rows, key=lambda row: row["f1"])


def most_confused(matrix: NDArray[np.int64], intents: Sequence[str], n: int = 10) -> list[dict[str, Any]]:
    """The most frequent mistakes.

    >>> most_confused(np.array([[1, 2, 0], [0, 3, 1], [0, 0, 0]]), ["a", "b"], n=1)
    [{'intent': 'a', 'taken_for': 'b', 'count': 2}]
    """
    names = (*intents, OUT_OF_SCOPE)
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:n]
    pairs = [divmod(int(cell), len(names)) for cell in order]
    return [{"intent": names[i], "taken_for": names[j], "count": int(wrong[i, j])} for i, j in pairs if wrong[i, j]]
