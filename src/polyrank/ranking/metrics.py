"""Ranking metrics that say what ties are worth: the expectation under uniformly random tie-breaking.

R@k asks whether a right answer is among the first k, as the papers do, whose lists have one right answer. A constant
scorer then gets exactly k/C, a scorer that knows the answer gets 1 however many candidates are right, and the order in
which candidates come changes nothing. Everything is computed from counts (how many score higher, how many tie), so it
is exact.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates of one score, among them right ones.

    Args:
        n_above: candidates that score strictly higher.
        n_tied: candidates of this score, right ones included.
        n_relevant: right ones of this score.
    """

    n_above: int
    n_tied: int
    n_relevant: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the right candidates of one example came: their groups from the best score down."""

    n_candidates: int
    groups: tuple[Group, ...]

    @property
    def n_relevant(self) -> int:
        """All right candidates."""
        return sum(group.n_relevant for group in self.groups)


def placement_of(scores: ArrayLike, relevant: Collection[int]) -> Placement:
    """Where the right candidates came.

    Args:
        scores: ``[C]``, higher is better.
        relevant: indices of the right ones; may be empty.

    Raises:
        ValueError: a score is NaN, or there are no scores.

    >>> placement_of([0.5, 0.9, 0.5], [2])
    Placement(n_candidates=3, groups=(Group(n_above=1, n_tied=2, n_relevant=1),))
    """
    values = np.asarray(scores)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"scores of shape {values.shape}; one score for each candidate is due")
    if np.isnan(values).any():
        raise ValueError(f"the score of candidate {int(np.isnan(values).argmax())} is NaN; no rank can be given")
    right = values[sorted(set(relevant))]
    groups = [
        Group(int((values > score).sum()), int((values == score).sum()), int((right == score).sum()))
        for score in np.unique(right)[::-1]
    ]
    return Placement(len(values), tuple(groups))


def hit_at(placement: Placement, k: int) -> float:
    """R@k: P(at least one right candidate is among the first k). Elsewhere also hits@k, success@k or accuracy@k.

    With t tied at the best right score, r of them right, and s places left: ``1 - C(t - r, s) / C(t, s)``.

    >>> hit_at(placement_of([1.0, 1.0, 1.0, 1.0], [2]), 1), hit_at(placement_of([1.0, 1.0, 0.0], [0, 1]), 1)
    (0.25, 1.0)
    """
    if not placement.groups:
        return 0.0
    best = placement.groups[0]
    places = min(k - best.n_above, best.n_tied)
    if places <= 0:
        return 0.0
    if best.n_relevant == 1:
        return places / best.n_tied
    return 1.0 - comb(best.n_tied - best.n_relevant, places) / comb(best.n_tied, places)


def recall_at(placement: Placement, k: int) -> float:
    """recall@k: expected share of the right candidates that are among the first k. With one right one, ``hit_at``.

    It cannot reach 1 where more than k are right, so it chooses no model here.

    >>> recall_at(placement_of([3.0, 2.0, 1.0], [0, 2]), 1)
    0.5
    """
    found = [g.n_relevant * min(max(k - g.n_above, 0), g.n_tied) / g.n_tied for g in placement.groups]
    return sum(found) / placement.n_relevant if found else 0.0


def reciprocal_rank(placement: Placement) -> float:
    """E[1 / rank of the best right candidate], ranks from 1.

    With t tied and r of them right, the first right one is j-th of them with probability C(t - j, r - 1) / C(t, r).

    >>> reciprocal_rank(placement_of([1.0, 1.0], [0]))
    0.75
    """
    if not placement.groups:
        return 0.0
    best = placement.groups[0]
    t, r = best.n_tied, best.n_relevant
    if r == 1:
        return float((1.0 / np.arange(best.n_above + 1, best.n_above + t + 1)).sum() / t)
    ways = comb(t, r)
    return sum(comb(t - j, r - 1) / ways / (best.n_above + j) for j in range(1, t - r + 2))


def average_precision(placement: Placement) -> float:
    """Expected average precision: the mean over right candidates of the precision at their rank.

    Source: McSherry and Najork, Computing Information Retrieval Performance Measures Efficiently in the Presence of
        Tied Scores (ECIR 2008), section 3.

    >>> average_precision(placement_of([3.0, 2.0, 1.0], [0, 2]))
    0.8333333333333333
    """
    total, n_right_above = 0.0, 0
    for group in placement.groups:
        j = np.arange(1, group.n_tied + 1)
        beside = (j - 1) * (group.n_relevant - 1) / max(group.n_tied - 1, 1)
        precision = (n_right_above + 1 + beside) / (group.n_above + j)
        total += group.n_relevant * float(precision.mean())
        n_right_above += group.n_relevant
    return total / placement.n_relevant if placement.groups else 0.0


def metric_values(placements: Sequence[Placement], ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Per-example values ``[N]`` of R@k, recall@k (where an example has several right ones), MRR and MAP.

    Only k below the smallest candidate list are meaningful and given; k = 1 always is.
    """
    smallest = min((p.n_candidates for p in placements), default=1)
    kept = [k for k in ks if k < smallest or k == 1]
    several = any(p.n_relevant > 1 for p in placements)
    values = {f"R@{k}": [hit_at(p, k) for p in placements] for k in kept}
    if several:
        values |= {f"recall@{k}": [recall_at(p, k) for p in placements] for k in kept}
    values["MRR"] = [reciprocal_rank(p) for p in placements]
    values["MAP"] = [average_precision(p) for p in placements]
    return {name: np.array(numbers, dtype=np.float64) for name, numbers in values.items()}


def with_duplicates(candidates: Sequence[str], relevant: Collection[int]) -> tuple[int, ...]:
    """The right indices and those of equal texts: a copy of the right answer is as right.

    >>> with_duplicates(["thanks", "no", "thanks"], [0])
    (0, 2)
    """
    right = {candidates[i] for i in relevant}
    return tuple(i for i, text in enumerate(candidates) if text in right)
