"""The best of a row of scores: ties by row, so the same scores always give the same rows. Numpy only."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]


def as_good_as(values: Floats, k: int) -> Rows:
    """Rows ``[n]`` whose value ``[N]`` reaches the k-th best, ties included, in their order.

    >>> as_good_as(np.array([1, 3, 2, 2], np.float32), 2)
    array([1, 2, 3])
    """
    if k >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(~(values < np.partition(values, -k)[-k]))  # what is not a number is not hidden


def top_rows(values: Floats, k: int) -> list[int]:
    """The ``k`` best rows of ``values`` ``[N]``, best first, ties by row.

    >>> top_rows(np.array([1, 3, 2, 2], np.float32), 2)
    [1, 2]
    """
    rows = as_good_as(values, k)  # sorting these alone is much faster than sorting all
    best: list[int] = rows[np.argsort(-values[rows], kind="stable")][:k].tolist()
    return best
