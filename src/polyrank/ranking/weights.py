"""Weights of the features of a ranker, fitted on lists with right answers. NumPy only.

Shapes: L lists, R rows (the candidates of all lists), F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
PRIOR_DEVIATION = 10.0
"""Of the prior of a weight, times that of its feature. It is large: it matters only on lists ranked without error."""


@dataclass(frozen=True, slots=True)
class Design:
    """Features of the candidates of lists, centred in each list and divided by their standard deviation.

    Args:
        x: ``[R, F]``.
        starts: the first row of each list, ``[L]``.
        target: the mean of the right candidates of each list, ``[L, F]``.
        deviations: by which the features were divided, ``[F]``.
    """

    x: Doubles
    starts: NDArray[np.int64]
    target: Doubles
    deviations: Doubles

    @classmethod
    def of(cls, features: Sequence[NDArray[np.floating]], relevant: Sequence[Sequence[int]]) -> Self:
        """The design of lists that each have a right candidate.

        Args:
            features: ``[K, F]`` of each list.
            relevant: indices of the right candidates of each list, which share its probability.
        """
        sizes = np.array([len(values) for values in features])
        starts = np.cumsum([0, *sizes[:-1]])
        flat = np.concatenate(list(features)).astype(np.float64)
        means = np.add.reduceat(flat, starts) / sizes[:, None]
        centred = flat - np.repeat(means, sizes, axis=0)
        spread = np.sqrt(np.mean(np.add.reduceat(centred**2, starts) / sizes[:, None], axis=0))
        # features that differ only by rounding are left as they are
        deviations = np.where(spread > 1e-6 * np.abs(flat).max(0, initial=0.0), spread, 1.0)
        x = centred / deviations
        target = np.stack([x[start + np.array(right)].mean(0) for start, right in zip(starts, relevant, strict=True)])
        return cls(x, starts, target, deviations)

    def some(self, lists: NDArray[np.int64] | None = None, columns: Sequence[int] | None = None) -> "Design":
        """The design of some lists, ascending, and of some features."""
        x, starts, target, deviations = self.x, self.starts, self.target, self.deviations
        if columns is not None:
            x, target, deviations = x[:, columns], target[:, columns], deviations[columns]
        if lists is not None:
            ends = np.append(starts[1:], len(x))
            kept = np.zeros(len(starts), np.bool_)
            kept[lists] = True
            x = x[np.repeat(kept, ends - starts)]
            sizes = (ends - starts)[lists]
            starts, target = np.cumsum(sizes) - sizes, target[lists]
        return Design(np.ascontiguousarray(x), starts, target, deviations)

    def log_likelihood(self, w: Doubles) -> Doubles:
        """``log softmax(x w)[right]`` of each list ``[L]``, the mean over its right candidates."""
        values = self.x @ w
        highest = np.maximum.reduceat(values, self.starts)
        sizes = np.diff(np.append(self.starts, len(values)))
        totals = np.add.reduceat(np.exp(values - np.repeat(highest, sizes)), self.starts)
        result: Doubles = self.target @ w - highest - np.log(totals)
        return result


def fit_design(
    design: Design,
    *,
    priors: Sequence[float] | None = None,
    signed: Sequence[bool] | None = None,
    start: Doubles | None = None,
) -> Doubles:
    """The weights ``[F]`` of the standardized features that fit a design; see ``fit_weights``.

    Args:
        design: at least one list.
        priors, signed: for each feature, see ``fit_weights``.
        start: weights to start from, which saves steps; None: ones.
    """
    n_features, n_lists = design.x.shape[1], len(design.starts)
    sizes = np.diff(np.append(design.starts, len(design.x)))
    rows = np.repeat(np.arange(n_lists), sizes)
    penalty = 1 / (n_lists * np.square(priors or [PRIOR_DEVIATION] * n_features))
    free_sign = np.array(signed if signed is not None else [False] * n_features)
    target = design.target.mean(0)

    def loss(w: Doubles) -> tuple[float, Doubles]:
        """The function to minimize, and the probability of each candidate."""
        values = design.x @ w
        highest = np.maximum.reduceat(values, design.starts)
        powers = np.exp(values - highest[rows])
        totals = np.add.reduceat(powers, design.starts)
        mean = float(np.mean(highest + np.log(totals)) - target @ w + w @ (penalty * w) / 2)
        return mean, powers / totals[rows]

    w = np.where(free_sign, 0.0, 1.0) if start is None else np.array(start, np.float64)
    least, p = loss(w)
    for _ in range(100):
        weighted = design.x * p[:, None]
        expected = np.add.reduceat(weighted, design.starts)
        slope = expected.mean(0) - target + penalty * w
        free = free_sign | (w > 0) | (slope < 0)
        curvature = (weighted.T @ design.x - expected.T @ expected) / n_lists + np.diag(penalty)
        step = np.zeros_like(w)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        if slope @ step < 1e-12:  # twice what this step can gain
            break
        for part in 0.5 ** np.arange(40):
            tried = w - part * step
            tried = np.where(free_sign, tried, np.maximum(tried, 0.0))
            reached, shares = loss(tried)
            if reached < least:
                w, least, p = tried, reached, shares
                break
        else:  # only rounding is left
            break
    return w


def fit_weights(
    features: Sequence[NDArray[np.floating]],
    relevant: Sequence[Sequence[int]],
    *,
    priors: Sequence[float] | None = None,
    signed: Sequence[bool] | None = None,
) -> tuple[float, ...]:
    """Weights that make the sum of features log-probabilities, up to a number for each list.

    They minimize the mean cross-entropy ``-log softmax(sum_f w_f x_f)[right]``, plus a penalty that keeps them finite:
    with d_f the standard deviation of a feature within lists, ``w_f d_f`` has a normal prior around 0. This is convex,
    so projected Newton steps find the only minimum. Unless a weight is signed, ``w_f >= 0``: a feature that adds
    nothing gets 0.

    Args:
        features: ``[K, F]`` of each list.
        relevant: indices of the right candidates of each list, which share its probability; lists without right
            candidates are ignored.
        priors: the standard deviation of each prior. The smaller, the more lists it takes to give a feature a weight.
            None: ``PRIOR_DEVIATION`` for all.
        signed: whether each weight may be below 0; None: none may.

    Returns:
        A weight for each feature; 0 if no list has a right candidate.

    Source: Genest and Zidek, Combining Probability Distributions (Statistical Science, 1986), the logarithmic opinion
        pool; Bertsekas, Projected Newton Methods (SIAM J. Control, 1982).

    >>> lists = [np.array([[2.0, 0.0], [0.0, 2.0]])] * 3 + [np.array([[0.0, 0.0], [2.0, 2.0]])]
    >>> w = fit_weights(lists, [(0,)] * 4)  # the first is right in three of four, so its log-odds are log(3)
    >>> [round(2 * weight, 1) for weight in w], round(np.log(3).item(), 1)
    ([1.1, 0.0], 1.1)
    >>> [round(2 * weight, 1) for weight in fit_weights(lists, [(0,)] * 4, priors=[0.2, 0.2])]  # four lists are few
    [0.1, 0.0]
    """
    answered = [number for number, right in enumerate(relevant) if right]
    if not answered:
        return (0.0,) * (features[0].shape[1] if len(features) else 0)
    design = Design.of([features[n] for n in answered], [relevant[n] for n in answered])
    return tuple((fit_design(design, priors=priors, signed=signed) / design.deviations).tolist())
