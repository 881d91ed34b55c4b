"""The highest scores of a row, with ties broken by row number, so that equal scores always return the same rows.

NumPy only.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]


def blank_last(scores: Floats, texts: Sequence[str]) -> Floats:
    """Scores ``[n]`` with those of blank texts below all others: a network's score of nothing means nothing.

    >>> blank_last(np.array([1, 3, 2], np.float32), ["yes", " ", "no"])
    array([1., 0., 2.], dtype=float32)
    """
    blank = [row for row, text in enumerate(texts) if not text or text.isspace()]
    if not blank:
        return scores
    result = scores.copy()
    result[blank] = scores.min() - 1
    return result


def top_rows_with_ties(values: Floats, k: int) -> Rows:
    """Rows ``[n]``, in ascending order, whose value is at least the k-th best of ``values`` ``[N]``, ties included.

    >>> top_rows_with_ties(np.array([1, 3, 2, 2], np.float32), 2)
    array([1, 2, 3])
    """
    if k >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(~(values < np.partition(values, -k)[-k]))  # keeps NaN, which is below nothing


def top_rows(values: Floats, k: int) -> list[int]:
    """The ``k`` best rows of ``values`` ``[N]``, best first; the lower row first if values are equal.

    >>> top_rows(np.array([1, 3, 2, 2], np.float32), 2)
    [1, 2]
    """
    rows = top_rows_with_ties(values, k)  # sorting only these is much faster than sorting all
    best: list[int] = rows[np.argsort(-values[rows], kind="stable")][:k].tolist()
    return best
