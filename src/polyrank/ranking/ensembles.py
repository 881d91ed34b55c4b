"""Scores of several models for the same candidates made one: of a retriever and a re-ranker, or a sum. numpy only."""

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
    """Add the two scores of each candidate of one shortlist, after bringing them to one scale.

    ``g + s`` of: the scores themselves ("raw"), ``1 / (1 + exp(-x))`` ("sigmoid"), ``(x - mean) / std`` over the
    shortlist ("z-score", zero where all are equal), or their probabilities over the shortlist ("softmax"). As the paper
    prints it, only ``s`` is a sigmoid, and ``g`` a raw product: "sigmoid-reranked".

    Args:
        retrieved: the retriever's scores ``[n]``.
        reranked: the re-ranker's scores of the same candidates ``[n]``.
        how: the common scale.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning: the ensemble g + s, of g
        as in Eq. 3 and s as in Eq. 5; no other normalisation is stated.

    >>> combine(np.array([2.0, 0.0]), np.array([0.0, 3.0]), "raw")
    array([2., 3.], dtype=float32)
    >>> combine(np.array([5.0, 1.0]), np.array([0.5, 0.5]), "z-score")
    array([ 1., -1.], dtype=float32)
    """
    g, s = np.asarray(retrieved, np.float64), np.asarray(reranked, np.float64)
    total = g + _sigmoid(s) if how == "sigmoid-reranked" else _SCALES[how](g) + _SCALES[how](s)
    return total.astype(np.float32)


def choose_ensemble(
    retrieved: Sequence[Floats], reranked: Sequence[Floats], relevant: Sequence[Sequence[int]]
) -> tuple[Ensemble | None, dict[str, float]]:
    """The normalisation with the best mean reciprocal rank on validation lists; None: the re-ranker alone is as good.

    Args:
        retrieved: one array of retriever's scores per list.
        reranked: the re-ranker's, of the same candidates.
        relevant: indices of the right ones; lists without any say nothing and are passed over.

    Returns:
        The choice, and the mean reciprocal rank of each ("alone": of the re-ranker alone).

    >>> choose_ensemble([np.array([1.0, 0.0])], [np.array([0.4, 0.5])], [(0,)])[0]
    'raw'
    """
    figures = {"alone": _mean_reciprocal_rank(reranked, relevant)}
    for how in ENSEMBLES:
        totals = [combine(g, s, how) for g, s in zip(retrieved, reranked, strict=True)]
        figures[how] = _mean_reciprocal_rank(totals, relevant)
    best = max(ENSEMBLES, key=lambda how: figures[how])
    return (best if figures[best] > figures["alone"] else None), figures


def choose_weights(scores: Sequence[Sequence[Floats]], relevant: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Weights of several scorers whose weighted sum has the best mean reciprocal rank on validation lists.

    Scores lie on scales of their own, so it starts where all spread equally within a list, ``1 / std``. Then each
    weight but the first is tried at an eighth of that up to eight times as much, in steps of the square root of 2, one
    after the other until none gains. A scorer of constants orders nothing; its weight stays 1.

    Args:
        scores: of each scorer, one array per list; all of the same candidates.
        relevant: indices of the right ones of each list; lists without any say nothing and are passed over.

    Returns:
        A weight above 0 for each scorer; only their ratios count.

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


def _spread(lists: Sequence[Floats]) -> float:
    """The standard deviation of scores within lists; 1 where there is none but rounding."""
    size = max(float(np.abs(values).max(initial=0.0)) for values in lists)
    spread = float(np.sqrt(np.mean([np.var(np.asarray(values, np.float64)) for values in lists])))
    return spread if spread > 1e-6 * size else 1.0


def read_ensemble(name: str) -> Ensemble | None:
    """A normalisation by its name; "none" is the re-ranker alone.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "none":
        return None
    ensemble: Ensemble = read_choice(name, Ensemble, "ensemble", also="none")
    return ensemble


def reciprocal_ranks(lists: Sequence[NDArray[np.floating]], relevant: Sequence[Sequence[int]]) -> list[float]:
    """Of each list with a right answer."""
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
