"""Relevance: a raw score as the probability that a candidate is right, fitted on lists. NumPy only.

Shapes: L lists, K candidates of each, R pairs of a context and a candidate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyrank.errors import DataError

RELEVANCE = "relevance"
"""The key of a model's metadata with its ``Relevance``."""

Doubles = NDArray[np.float64]
N_BINS = 10
N_FOLDS = 5
LEAST_SCALE = 1e-6  # so that the order of scores is kept, even of a model that ranks worse than chance


@dataclass(frozen=True, slots=True)
class Relevance:
    """``p(right | score) = sigmoid(scale * score + offset)``, which keeps the order of scores.

    Args:
        scale: above 0.
        offset: any number; at 0.5, the score is ``-offset / scale``.
        error: the expected calibration error on lists that were not used in the fit, see ``calibration_error``.

    Source: Platt, Probabilistic Outputs for Support Vector Machines (1999).

    >>> Relevance(2.0, -4.0, 0.01).of([2.0, 3.0]).round(3)
    array([0.5  , 0.881])
    """

    scale: float
    offset: float
    error: float

    @classmethod
    def read(cls, stated: Mapping[str, float] | None) -> Self | None:
        """From the object that a model or a ranker stores; None: it stores none."""
        return None if stated is None else cls(**stated)

    def of(self, scores: ArrayLike) -> Doubles:
        """The probability for each of some raw scores, of any shape."""
        values: Doubles = 0.5 + 0.5 * np.tanh(0.5 * (self.scale * np.asarray(scores, np.float64) + self.offset))
        return values


def fit_relevance(
    scores: Sequence[ArrayLike], relevant: Sequence[Sequence[int]], groups: ArrayLike | None = None
) -> Relevance:
    """The relevance that fits the pairs of lists best, and its error on pairs of other groups.

    Args:
        scores: raw scores ``[K]`` of each list.
        relevant: indices of the right candidates of each list.
        groups: of the lists, such as their dialogues: each is used to fit or to test. None: each list alone.

    Raises:
        DataError: all candidates are right, or all are wrong.

    >>> relevance = fit_relevance([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]] * 25, [(0,)] * 100)
    >>> relevance.of([0.0, 0.5, 1.0]).round(2), relevance.error < 0.05  # right in three of four
    (array([0.25, 0.5 , 0.75]), True)
    """
    rows = [np.asarray(values, np.float64) for values in scores]
    right = [np.isin(np.arange(len(row)), list(some)) for row, some in zip(rows, relevant, strict=True)]
    x, y = np.concatenate(rows), np.concatenate(right)
    if y.all() or not y.any():
        raise DataError(f"{int(y.sum()):,} of {len(y):,} candidates are right; give lists with right and wrong ones")
    number = np.unique(np.arange(len(rows)) if groups is None else np.asarray(groups), return_inverse=True)[1]
    order = np.random.Generator(np.random.PCG64(0)).permutation(number.max() + 1)
    fold = np.repeat(order[number] % N_FOLDS, [len(row) for row in rows])
    held_out = np.empty(len(x))
    for tested in np.unique(fold):
        inside, outside = fold == tested, fold != tested
        usable = outside if 0 < y[outside].sum() < outside.sum() else np.ones_like(y)
        held_out[inside] = Relevance(*_fitted(x[usable], y[usable]), 0.0).of(x[inside])
    return Relevance(*_fitted(x, y), round(calibration_error(held_out, y), 4))


def calibration_error(probabilities: ArrayLike, right: ArrayLike) -> float:
    """The expected calibration error: ``sum_b n_b / R |mean p_b - share of right_b|`` over ten equal bins of p.

    Args:
        probabilities: of the pairs, ``[R]``.
        right: whether each candidate is right, ``[R]``.

    Source: Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning (AAAI 2015).

    >>> calibration_error([0.25, 0.25, 0.95], [0, 1, 1])  # two thirds of 0.25 and a third of 0.05
    0.1833...
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(right, np.float64)
    bins = np.minimum((p * N_BINS).astype(np.int64), N_BINS - 1)
    return float(np.abs(np.bincount(bins, p - y, N_BINS)).sum() / len(p))


def _fitted(x: Doubles, y: NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and offset of the logistic regression of y on x, by Newton's method.

    Platt's targets, slightly inside 0 and 1, keep the scale finite if scores separate right from wrong.
    """
    n_right, n_wrong = int(y.sum()), int((~y).sum())
    target = np.where(y, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))
    mean, deviation = x.mean(), x.std() or 1.0
    design = np.stack([(x - mean) / deviation, np.ones_like(x)], 1)
    w = np.array([0.0, np.log(n_right / n_wrong)])
    for _ in range(100):
        p = Relevance(1.0, 0.0, 0.0).of(design @ w)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, design.T @ (p - target))
        w -= step
        if np.abs(step).max() < 1e-9:
            break
    scale = w[0] / deviation
    if scale < LEAST_SCALE:
        return LEAST_SCALE, float(np.log(n_right / n_wrong))
    return float(scale), float(w[1] - scale * mean)
