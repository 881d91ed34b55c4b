"""Weights of the scores of several models, fitted on lists with right answers. NumPy only."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError

Floats = NDArray[np.float32]
PRIOR_DEVIATION = 10.0
"""Of the prior of a weight, times that of its scores. It is large: it matters only on lists ranked without error."""


def fit_weights(
    scores: Sequence[Sequence[Floats]], relevant: Sequence[Sequence[int]], priors: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Weights that make the sum of several scorers' scores log-probabilities, up to a number for each list.

    They minimize the mean cross-entropy ``-log softmax(sum_p w_p s_p)[right]`` with ``w_p >= 0``, plus a penalty that
    keeps them finite: with d_p the standard deviation of a scorer's scores within lists, ``w_p d_p`` has a normal prior
    around 0. This is convex, so projected Newton steps find the only minimum. A scorer that adds nothing gets 0.

    Args:
        scores: for each scorer, one array of scores per list; all scorers score the same candidates.
        relevant: indices of the right candidates of each list, which share its probability; lists without right
            candidates are ignored.
        priors: the standard deviation of each prior. The smaller, the more lists it takes to give a scorer a weight.
            None: ``PRIOR_DEVIATION`` for all.

    Returns:
        A weight of 0 or more for each scorer; 0 if no list has a right candidate.

    Source: Genest and Zidek, Combining Probability Distributions (Statistical Science, 1986), the logarithmic opinion
        pool; Bertsekas, Projected Newton Methods (SIAM J. Control, 1982).

    >>> right, wrong = [np.array([2.0, 0.0])], [np.array([0.0, 2.0])]
    >>> lists = right * 3 + wrong  # right in three of four, so the log-odds are log(3)
    >>> [round(2 * w, 1) for w in fit_weights([lists, wrong * 4], [(0,)] * 4)], round(np.log(3).item(), 1)
    ([1.1, 0.0], 1.1)
    >>> [round(2 * w, 1) for w in fit_weights([lists], [(0,)] * 4, priors=[0.2])]  # four lists are few
    [0.1]
    """
    answered = [number for number, right in enumerate(relevant) if right]
    if not answered:
        return (0.0,) * len(scores)
    sizes = [len(scores[0][number]) for number in answered]
    starts, rows = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)

    def means(x: NDArray[np.float64]) -> NDArray[np.float64]:
        of_lists: NDArray[np.float64] = np.add.reduceat(x, starts) / np.array(sizes)[:, None]
        return of_lists

    flat = np.stack([np.concatenate([lists[n] for n in answered]) for lists in scores], axis=1).astype(np.float64)
    deviations = np.array([deviation([lists[n] for n in answered]) for lists in scores])
    x = (flat - means(flat)[rows]) / deviations  # [T, P]: the candidates of all lists
    target = np.mean(
        [x[start + np.array(relevant[n])].mean(0) for start, n in zip(starts, answered, strict=True)], axis=0
    )
    penalty = 1 / (len(sizes) * np.square(priors or [PRIOR_DEVIATION] * len(scores)))

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The function to minimize, and the probability of each candidate."""
        values = x @ w
        highest = np.maximum.reduceat(values, starts)
        powers = np.exp(values - highest[rows])
        totals = np.add.reduceat(powers, starts)
        mean = float(np.mean(highest + np.log(totals)) - target @ w + w @ (penalty * w) / 2)
        return mean, powers / totals[rows]

    w = np.ones(len(scores))
    least, p = loss(w)
    for _ in range(100):
        expected = np.add.reduceat(x * p[:, None], starts)
        slope = expected.mean(0) - target + penalty * w
        free = (w > 0) | (slope < 0)
        curvature = ((x * p[:, None]).T @ x - expected.T @ expected) / len(sizes) + np.diag(penalty)
        step = np.zeros_like(w)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        if slope @ step < 1e-12:  # twice what this step can gain
            break
        for part in 0.5 ** np.arange(40):
            tried = np.maximum(w - part * step, 0.0)
            reached, shares = loss(tried)
            if reached < least:
                w, least, p = tried, reached, shares
                break
        else:  # only rounding is left
            break
    return tuple((w / deviations).tolist())


def check_weights(weights: Sequence[float], n_parts: int, whole: str, parts: str) -> None:
    """Validate the weights of a combination of models, before any of them is loaded.

    Args:
        weights: one for each part.
        n_parts: how many models there are.
        whole, parts: what to call the combination and the models in errors.

    Raises:
        UsageError: there are fewer than two models, another number of weights, or a weight is not above 0.

    >>> check_weights([1.0, 0.0], 2, "a sum", "encoders")
    Traceback (most recent call last):
    polyrank.errors.UsageError: weights 1,0 must be above 0; leave out encoders with weight 0
    """
    if n_parts < 2:
        raise UsageError(f"{whole} of {n_parts}; give two {parts} or more")
    if len(weights) != n_parts:
        raise UsageError(f"weights {listed(weights)} for {n_parts} {parts}; give one weight for each")
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise UsageError(f"weights {listed(weights)} must be above 0; leave out {parts} with weight 0")


def listed(weights: Sequence[float]) -> str:
    """Weights as the command line takes them.

    >>> listed([1.0, 0.7])
    '1,0.7'
    """
    return ",".join(f"{weight:g}" for weight in weights)


def deviation(lists: Sequence[Floats]) -> float:
    """The standard deviation of scores within lists; 1 if the scores differ only by rounding.

    >>> deviation([np.array([1.0, 3.0]), np.array([7.0, 5.0])])
    1.0
    """
    size = max(float(np.abs(values).max(initial=0.0)) for values in lists)
    spread = float(np.sqrt(np.mean([np.var(np.asarray(values, np.float64)) for values in lists])))
    return spread if spread > 1e-6 * size else 1.0


def totals_by_halves(
    scores: Sequence[Sequence[Floats]],
    relevant: Sequence[Sequence[int]],
    dialogues: NDArray[np.int64],
    priors: Sequence[float] | None = None,
) -> list[Floats]:
    """The weighted sum for each list. Each half of the dialogues has the weights that fit the other half.

    Args:
        scores, relevant, priors: see ``fit_weights``.
        dialogues: the number of each list's dialogue. If one half is empty, the weights that fit all lists apply.
    """
    half = dialogues % 2
    totals: dict[int, Floats] = {}
    for side in (0, 1):
        own = np.flatnonzero(half == side).tolist()
        others = np.flatnonzero(half != side).tolist() or own
        fitted = fit_weights([[lists[n] for n in others] for lists in scores], [relevant[n] for n in others], priors)
        totals |= zip(own, weighted_totals(fitted, [[lists[n] for n in own] for lists in scores]), strict=True)
    return [totals[number] for number in range(len(dialogues))]


def weighted_totals(weights: Sequence[float], scores: Sequence[Sequence[Floats]]) -> list[Floats]:
    """The weighted sum for each list, from the scores of each model."""
    return [sum(w * x for w, x in zip(weights, row, strict=True)) for row in zip(*scores, strict=True)]
