"""Combine the scores of a retriever and a re-ranker for the same candidates. NumPy only."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import read_choice
from polyrank.config.pipeline import Ensemble, Scale
from polyrank.errors import UsageError
from polyrank.ranking.metrics import placement_of, reciprocal_rank
from polyrank.ranking.weights import fit_weights, totals_by_halves

Floats = NDArray[np.float32]
SCALES: tuple[Scale, ...] = get_args(Scale)
BY_LIST = ("z-score", "softmax")
"""The scales on which the total of a candidate depends on the others."""


def combine(retrieved: Floats, reranked: Floats, how: Ensemble) -> Floats:
    """Add the retriever's and the re-ranker's score of each candidate of a shortlist.

    The sum is ``g + w s`` with a weight w, or ``g + s`` of the scores themselves ("raw"), of ``1 / (1 + exp(-x))``
    ("sigmoid"), of ``(x - mean) / std`` over the shortlist ("z-score", zero if all scores are equal), or of their
    probabilities over the shortlist ("softmax"). "sigmoid-reranked" follows the paper: ``s`` is a sigmoid and ``g`` the
    raw score.

    Args:
        retrieved: the retriever's scores ``[n]``.
        reranked: the re-ranker's scores of the same candidates ``[n]``.
        how: the weight, or the common scale.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning: the ensemble g + s, with
        g of Eq. 3 and s of Eq. 5; the paper states no other normalisation.

    >>> combine(np.array([2.0, 0.0]), np.array([0.0, 3.0]), 0.5)
    array([2. , 1.5], dtype=float32)
    >>> combine(np.array([5.0, 1.0]), np.array([0.5, 0.5]), "z-score")
    array([ 1., -1.], dtype=float32)
    """
    g, s = np.asarray(retrieved, np.float64), np.asarray(reranked, np.float64)
    weight = weight_of(how)
    if weight is not None:
        total = g + weight * s
    elif how == "sigmoid-reranked":
        total = g + _sigmoid(s)
    else:
        total = _SCALES[how](g) + _SCALES[how](s)
    return total.astype(np.float32)


def choose_ensemble(
    retrieved: Sequence[Floats],
    reranked: Sequence[Floats],
    relevant: Sequence[Sequence[int]],
    dialogues: NDArray[np.int64],
    *,
    alone: bool = True,
) -> tuple[Ensemble | None, dict[str, float], list[Floats]]:
    """The ensemble with the best mean reciprocal rank on validation lists, or None if the re-ranker alone wins.

    The choice is among all scales and the weight that makes the right replies most likely, see ``fit_weights``. To
    judge the weight, each half of the dialogues is ranked with the one of the other half; to judge the choice, with the
    best ensemble of the other half.

    Args:
        retrieved: the retriever's scores, ``[n]`` for each list.
        reranked: the re-ranker's scores of the same candidates, ``[n]`` for each list.
        relevant: indices of the right candidates of each list, at least one.
        dialogues: the number of each list's dialogue ``[L]``.
        alone: whether the re-ranker can rank alone.

    Returns:
        The choice; the mean reciprocal rank of each scale, of the weight ("weight", if both stages have one) and of
        the re-ranker alone ("none"); and the total scores of each list, by which the choice is judged.

    >>> choose_ensemble([np.array([1.0, 0.0])], [np.array([0.4, 0.5])], [(0,)], np.array([0]))[0]
    'raw'
    """
    totals = {"none": list(reranked)} if alone else {}
    for scale in SCALES:
        totals[scale] = [combine(g, s, scale) for g, s in zip(retrieved, reranked, strict=True)]
    weight = _weight_of_second(retrieved, reranked, relevant)
    if weight is not None:
        totals["weight"] = totals_by_halves((retrieved, reranked), relevant, dialogues)
    ranks = {how: np.array(reciprocal_ranks(lists, relevant), np.float64) for how, lists in totals.items()}

    def best_of(lists: NDArray[np.bool_]) -> str:
        return max(ranks, key=lambda how: _mean(ranks[how][lists]))

    everything = np.ones(len(dialogues), np.bool_)
    best, half = best_of(everything), dialogues % 2
    judged = list(totals[best])
    for side in (0, 1):
        if (others := half != side).any():
            how = best_of(others)
            for number in np.flatnonzero(~others).tolist():
                judged[number] = totals[how][number]
    figures = {how: _mean(each) for how, each in ranks.items()}
    return weight if best == "weight" else read_ensemble(best), figures, judged


def _weight_of_second(
    first: Sequence[Floats], second: Sequence[Floats], relevant: Sequence[Sequence[int]]
) -> float | None:
    """The weight of the second stage's scores relative to the first's; None if one of them adds nothing."""
    g, s = fit_weights((first, second), relevant) if relevant else (0.0, 0.0)
    return float(f"{s / g:.4g}") if g and s else None


def read_ensemble(name: str) -> Ensemble | None:
    """The ensemble of this name or weight; None for "none", the re-ranker alone.

    Raises:
        UsageError: the name is unknown, or the weight is not a number above 0.

    >>> read_ensemble("0.5")
    0.5
    """
    if name == "none":
        return None
    try:
        weight = float(name)
    except ValueError:
        scale: Scale = read_choice(name, Scale, "ensemble", also="none, a number as the weight")
        return scale
    if not 0 < weight < np.inf:
        raise UsageError(f"the ensemble {name} is the weight of the second stage; give a number above 0")
    return weight


def weight_of(ensemble: Ensemble | None) -> float | None:
    """The weight of the second stage's scores, if both stages' scores are added as they are; otherwise None.

    >>> weight_of("raw"), weight_of(0.5), weight_of("z-score")
    (1.0, 0.5, None)
    """
    return 1.0 if ensemble == "raw" else ensemble if isinstance(ensemble, int | float) else None


def reciprocal_ranks(lists: Sequence[NDArray[np.floating]], relevant: Sequence[Sequence[int]]) -> list[float]:
    """The reciprocal rank of the best right answer of each list."""
    return [reciprocal_rank(placement_of(values, right)) for values, right in zip(lists, relevant, strict=True)]


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(x, -60, 60)))


def _z_score(x: NDArray[np.float64]) -> NDArray[np.float64]:
    std = x.std()
    return (x - x.mean()) / std if std > 0 else np.zeros_like(x)


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(x - x.max(initial=-np.inf))
    return np.asarray(weights / weights.sum(), np.float64)


_SCALES: dict[Ensemble, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "sigmoid": _sigmoid,
    "z-score": _z_score,
    "softmax": _softmax,
}
