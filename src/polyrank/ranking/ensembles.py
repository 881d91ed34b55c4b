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
RATIOS = tuple(2.0 ** (step / 2) for step in sorted(range(-6, 7), key=abs))  # nearest to 1 first


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


def choose_weights(scores: Sequence[Sequence[Floats]], relevant: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Weights for a sum of scorers, chosen by mean reciprocal rank on validation lists.

    The search starts at ``1 / std`` of each scorer's scores within a list, which brings all scorers to the same scale.
    It then tries an eighth to eight times each weight except the first, in steps of the square root of 2, one weight
    after the other, until no change improves the figure. A scorer with constant scores keeps the weight 1.

    Args:
        scores: for each scorer, one array of scores per list; all scorers score the same candidates.
        relevant: indices of the right candidates of each list; lists without right candidates are ignored.

    Returns:
        A weight above 0 for each scorer; only their ratios matter.

    >>> choose_weights([[np.array([3.0, 5.0])], [np.array([0.5, 0.5])]], [(0,)])
    (1.0, 1.0)
    >>> choose_weights([[np.array([6.0, 2.0])], [np.array([0.5, 0.0])]], [(0,)])
    (0.5, 4.0)
    """
    start = [1.0 / _spread(lists) for lists in scores]
    scaled = [[np.asarray(values, np.float64) * w for values in lists] for lists, w in zip(scores, start, strict=True)]

    def quality(ratios: Sequence[float]) -> float:
        totals = [sum(r * x for r, x in zip(ratios, row, strict=True)) for row in zip(*scaled, strict=True)]
        return _mean_reciprocal_rank(totals, relevant)

    ratios = [1.0] * len(scores)
    best, before = quality(ratios), -1.0
    while best > before:
        before = best
        for number in range(1, len(scores)):
            for ratio in RATIOS:
                tried = [*ratios[:number], ratio, *ratios[number + 1 :]]
                if (reached := quality(tried)) > best:
                    best, ratios = reached, tried
    return tuple(w * ratio for w, ratio in zip(start, ratios, strict=True))


def log_probability_scale(scores: Sequence[Floats], relevant: Sequence[Sequence[int]]) -> float:
    """The factor that makes scores log-probabilities: it minimizes the cross-entropy of ``softmax(factor * score)``.

    A re-ranker that was trained to correct such scores can be added to them. The cross-entropy is convex in the factor,
    so a bisection of its slope finds it, between 1e-3 and 1e3 over the standard deviation of the scores.

    Args:
        scores: one array of scores per list.
        relevant: indices of the right candidates of each list; lists without right candidates are ignored.

    >>> scores = [np.array([2.0, 0.0])] * 4  # right in three of four: log(3) more
    >>> round(2 * log_probability_scale(scores, [(0,), (0,), (0,), (1,)]), 6), round(np.log(3).item(), 6)
    (1.098612, 1.098612)
    """
    answered = [(values.astype(np.float64), [*right]) for values, right in zip(scores, relevant, strict=True) if right]

    def slope(factor: float) -> float:
        return sum(_softmax_mean(values, factor) - _softmax_mean(values[right], factor) for values, right in answered)

    middle = -np.log(_spread(scores))
    low, high = middle - np.log(1e3), middle + np.log(1e3)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(float(np.exp(middle))) < 0 else (low, middle)
    return float(np.exp(middle))


def _softmax_mean(values: NDArray[np.float64], factor: float) -> float:
    """The mean of the values, weighted by ``softmax(factor * value)``."""
    weights = np.exp(factor * (values - values.max()))
    return float(weights @ values / weights.sum())


def _spread(lists: Sequence[Floats]) -> float:
    """The standard deviation of scores within lists; 1 if the scores differ only by rounding."""
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
