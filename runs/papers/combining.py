"""How the papers make one score ``[n]`` of a retriever's and a re-ranker's for the same candidates.

Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning: the ensemble g + s, with g of
Eq. 3 and s of Eq. 5. The paper states no other normalisation than the sigmoid of Eq. 5.
"""

import numpy as np
from numpy.typing import NDArray

from polyrank.scorers.two_stage import Combine

Floats = NDArray[np.float32]


def reranker_alone(first: Floats, second: Floats) -> Floats:
    """The second stage decides alone."""
    del first
    return second


def as_printed(retrieved: Floats, reranked: Floats) -> Floats:
    """``g + 1 / (1 + exp(-s))``: Eq. 5 as it is printed.

    >>> as_printed(np.array([2.0, 0.0]), np.array([0.0, 0.0]))
    array([2.5, 0.5], dtype=float32)
    """
    s = np.clip(np.asarray(reranked, np.float64), -60, 60)
    total: Floats = (np.asarray(retrieved, np.float64) + 1 / (1 + np.exp(-s))).astype(np.float32)
    return total


def by_z_score(retrieved: Floats, reranked: Floats) -> Floats:
    """The sum of ``(x - mean) / std`` over the shortlist, zero where all scores are equal: both stages count alike.

    >>> by_z_score(np.array([5.0, 1.0]), np.array([0.5, 0.5]))
    array([ 1., -1.], dtype=float32)
    """

    def z(x: Floats) -> NDArray[np.float64]:
        values = np.asarray(x, np.float64)
        std = values.std()
        return (values - values.mean()) / std if std > 0 else np.zeros_like(values)

    total: Floats = (z(retrieved) + z(reranked)).astype(np.float32)
    return total


COMBINE: dict[str, Combine] = {"none": reranker_alone, "raw": np.add, "as-printed": as_printed, "z-score": by_z_score}
"""How both stages' scores become one."""
