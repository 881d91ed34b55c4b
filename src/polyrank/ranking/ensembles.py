"""Combine the scores of several models for the same candidates: a retriever and a re-ranker, or a sum. NumPy only."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import read_choice
from polyrank.config.pipeline import Ensemble
from polyrank.ranking.metrics import placement_of, reciprocal_rank

Floats = NDArray[np.float32]
ENSEMBLES: tuple[Ensemble, ...] = get_args(Ensemble)
PRIOR_DEVIATION = 10.0
"""Of the prior of a weight, times that of its scores. It is large: it matters only on lists ranked without error."""


def combine(retrieved: Floats, reranked: Floats, how: Ensemble) -> Floats:
    """Add the retriever's and the re-ranker's score of each candidate of a shortlist, on a common scale.

    The sum is ``g + s`` of the scores themselves ("raw"), of ``1 / (1 + exp(-x))`` ("sigmoid"), of
    ``(x - mean) / std`` over the shortlist ("z-score", zero if all scores are equal), or of their probabilities over
    the shortlist ("softmax"). "sigmoid-reranked" follows the paper: ``s`` is a sigmoid and ``g`` the raw score.

    Args:
        retrieved: the retriever's scores ``[n]``.
        reranked: the re-ranker's scores of the same candidates ``[n]``.
        how: the common scale.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning: the ensemble g + s, with
        g of Eq. 3 and s of Eq. 5; the paper states no other normalisation.

    >>> combine(np.array([2.0, 0.0]), np.array([0.0, 3.0]), "raw")
    array([2., 3.], dtype=float32)
    >>> combine(np.array([5.0, 1.0]), np.array([0.5, 0.5]), "z-score")
    array([ 1., -1.], dtype=float32)
    """
    g, s = np.asarray(retrieved, np.float64), np.asarray(reranked, np.float64)
    total = g + _sigmoid(s) if how == "sigmoid-reranked" else _SCALES[how](g) + _SCALES[how](s)
    return total.astype(np.float32)


def choose_ensemble(
    retrieved: Sequence[Floats], reranked: Sequence[Floats], relevant: Sequence[Sequence[int]], *, alone: bool = True
) -> tuple[Ensemble | None, dict[str, float]]:
    """The normalisation with the best mean reciprocal rank on validation lists, or None if the re-ranker alone wins.

    Args:
        retrieved: the retriever's scores, one array per list.
        reranked: the re-ranker's scores of the same candidates.
        relevant: indices of the right candidates of each list; lists without right candidates are ignored.
        alone: whether the re-ranker can rank alone.

    Returns:
        The choice, and the mean reciprocal rank of each normalisation ("alone": of the re-ranker alone).

    >>> choose_ensemble([np.array([1.0, 0.0])], [np.array([0.4, 0.5])], [(0,)])[0]
    'raw'
    """
    figures = {"alone": _mean_reciprocal_rank(reranked, relevant)} if alone else {}
    for how in ENSEMBLES:
        totals = [combine(g, s, how) for g, s in zip(retrieved, reranked, strict=True)]
        figures[how] = _mean_reciprocal_rank(totals, relevant)
    best = max(ENSEMBLES, key=lambda how: figures[how])
    return (best if figures[best] > figures.get("alone", -1.0) else None), figures


def fit_weights(scores: Sequence[Sequence[Floats]], relevant: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Weights that make the sum of several scorers' scores log-probabilities, up to a number for each list.

    They minimize the mean cross-entropy ``-log softmax(sum_p w_p s_p)[right]`` with ``w_p >= 0``, plus a small penalty
    that keeps them finite: with d_p the standard deviation of a scorer's scores within lists, ``w_p d_p`` has a normal
    prior around 0 with standard deviation ``PRIOR_DEVIATION``. This is convex, so projected Newton steps find the only
    minimum. A scorer that adds nothing gets 0.

    Args:
        scores: for each scorer, one array of scores per list; all scorers score the same candidates.
        relevant: indices of the right candidates of each list, which share its probability; lists without right
            candidates are ignored.

    Returns:
        A weight of 0 or more for each scorer.

    Source: Genest and Zidek, Combining Probability Distributions (Statistical Science, 1986), the logarithmic opinion
        pool; Bertsekas, Projected Newton Methods (SIAM J. Control, 1982).

    >>> right, wrong = [np.array([2.0, 0.0])], [np.array([0.0, 2.0])]
    >>> lists = right * 3 + wrong  # right in three of four, so the log-odds are log(3)
    >>> [round(2 * w, 1) for w in fit_weights([lists, wrong * 4], [(0,)] * 4)], round(np.log(3).item(), 1)
    ([1.1, 0.0], 1.1)
    """
    answered = [number for number, right in enumerate(relevant) if right]
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
    penalty = 1 / (len(sizes) * PRIOR_DEVIATION**2)

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The function to minimize, and the probability of each candidate."""
        values = x @ w
        highest = np.maximum.reduceat(values, starts)
        powers = np.exp(values - highest[rows])
        totals = np.add.reduceat(powers, starts)
        mean = float(np.mean(highest + np.log(totals)) - target @ w + penalty / 2 * w @ w)
        return mean, powers / totals[rows]

    w = np.ones(len(scores))
    least, p = loss(w)
    for _ in range(100):
        expected = np.add.reduceat(x * p[:, None], starts)
        slope = expected.mean(0) - target + penalty * w
        free = (w > 0) | (slope < 0)
        curvature = ((x * p[:, None]).T @ x - expected.T @ expected) / len(sizes) + penalty * np.eye(len(w))
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


def deviation(lists: Sequence[Floats]) -> float:
    """The standard deviation of scores within lists; 1 if the scores differ only by rounding.

    >>> deviation([np.array([1.0, 3.0]), np.array([7.0, 5.0])])
    1.0
    """
    size = max(float(np.abs(values).max(initial=0.0)) for values in lists)
    spread = float(np.sqrt(np.mean([np.var(np.asarray(values, np.float64)) for values in lists])))
    return spread if spread > 1e-6 * size else 1.0


def read_ensemble(name: str) -> Ensemble | None:
    """The normalisation of this name; None for "none", the re-ranker alone.

    Raises:
        UsageError: the name is unknown.
    """
    if name == "none":
        return None
    ensemble: Ensemble = read_choice(name, Ensemble, "ensemble", also="none")
    return ensemble


def reciprocal_ranks(lists: Sequence[NDArray[np.floating]], relevant: Sequence[Sequence[int]]) -> list[float]:
    """The reciprocal rank of each list that has a right answer."""
    answered = ((values, right) for values, right in zip(lists, relevant, strict=True) if right)
    return [reciprocal_rank(placement_of(values, right)) for values, right in answered]


def _mean_reciprocal_rank(lists: Sequence[NDArray[np.floating]], relevant: Sequence[Sequence[int]]) -> float:
    ranks = reciprocal_ranks(lists, relevant)
    return float(np.mean(ranks)) if ranks else 0.0


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(x, -60, 60)))


def _z_score(x: NDArray[np.float64]) -> NDArray[np.float64]:
    std = x.std()
    return (x - x.mean()) / std if std > 0 else np.zeros_like(x)


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(x - x.max(initial=-np.inf))
    return np.asarray(weights / weights.sum(), np.float64)


_SCALES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "raw": lambda x: x,
    "sigmoid": _sigmoid,
    "z-score": _z_score,
    "softmax": _softmax,
}
