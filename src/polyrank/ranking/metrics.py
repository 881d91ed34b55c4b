"""Ranking metrics with a tie rule: the expected value under uniformly random tie-breaking.

R@k is the probability that a right answer is among the first k, as in the papers, whose lists have one right answer. A
constant scorer gets exactly k/C, a perfect scorer gets 1 however many candidates are right, and the order of the
candidates does not matter. The metrics are exact, because they are computed from counts (how many candidates score
higher, how many tie).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates with the same score, at least one of them right.

    Args:
        n_above: number of candidates that score strictly higher.
        n_tied: number of candidates with this score, including right ones.
        n_relevant: number of right candidates with this score.
        gain: sum of their grades; None: each counts 1.
    """

    n_above: int
    n_tied: int
    n_relevant: int
    gain: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of the right candidates of one example: their groups, best score first.

    Args:
        n_candidates: of the example.
        groups: of the right candidates.
        grades: of the right candidates, best first; empty: no grades, each counts 1.
    """

    n_candidates: int
    groups: tuple[Group, ...]
    grades: tuple[int, ...] = ()

    @property
    def n_relevant(self) -> int:
        """Number of right candidates."""
        return sum(group.n_relevant for group in self.groups)


def placement_of(scores: ArrayLike, relevant: Collection[int], grades: Mapping[int, int] | None = None) -> Placement:
    """Rank the right candidates by their scores.

    Args:
        scores: score of each candidate ``[C]``; higher is better.
        relevant: indices of the right candidates; may be empty.
        grades: how relevant each one is, by its index; None: no grades.

    Raises:
        ValueError: a score is NaN, or ``scores`` is empty or not one-dimensional.

    >>> placement_of([0.5, 0.9, 0.5], [2])
    Placement(n_candidates=3, groups=(Group(n_above=1, n_tied=2, n_relevant=1, gain=None),), grades=())
    """
    values = np.asarray(scores)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"scores have shape {values.shape}; give one score for each candidate")
    if np.isnan(values).any():
        raise ValueError(f"the score of candidate {int(np.isnan(values).argmax())} is NaN, which has no rank")
    rows = sorted(set(relevant))
    right = values[rows]
    groups = []
    for score in sorted(set(right.tolist()), reverse=True):
        gain = None if grades is None else sum(grades[row] for row in rows if values[row] == score)
        above, tied, equal = (int(np.count_nonzero(some)) for some in (values > score, values == score, right == score))
        groups.append(Group(above, tied, equal, gain))
    return Placement(len(values), tuple(groups), tuple(sorted((grades or {}).values(), reverse=True)))


def hit_at(placement: Placement, k: int) -> float:
    """R@k: P(at least one right candidate is among the first k). Also known as hits@k, success@k or accuracy@k.

    If t candidates tie at the best right score, r of them right, for s remaining places:
    ``1 - C(t - r, s) / C(t, s)``.

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
    """recall@k: expected share of the right candidates that are among the first k.

    With one right candidate it equals ``hit_at``. It cannot reach 1 if more than k candidates are right, so polyrank
    does not select models by it.

    >>> recall_at(placement_of([3.0, 2.0, 1.0], [0, 2]), 1)
    0.5
    """
    counts = [g.n_relevant * min(max(k - g.n_above, 0), g.n_tied) / g.n_tied for g in placement.groups]
    return sum(counts) / placement.n_relevant if counts else 0.0


def reciprocal_rank(placement: Placement) -> float:
    """E[1 / rank of the best right candidate]; ranks start at 1.

    If t candidates tie and r of them are right, the first right one is the j-th with probability
    C(t - j, r - 1) / C(t, r).

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
    """Expected average precision: the mean of the precision at the rank of each right candidate.

    Source: McSherry and Najork, Computing Information Retrieval Performance Measures Efficiently in the Presence of
        Tied Scores (ECIR 2008), section 3.

    >>> average_precision(placement_of([3.0, 2.0, 1.0], [0, 2]))
    0.8333333333333333
    """
    total, n_right_above = 0.0, 0
    for group in placement.groups:
        j = np.arange(1, group.n_tied + 1)
        n_right_tied = (j - 1) * (group.n_relevant - 1) / max(group.n_tied - 1, 1)  # expected before place j
        precision = (n_right_above + 1 + n_right_tied) / (group.n_above + j)
        total += group.n_relevant * float(precision.mean())
        n_right_above += group.n_relevant
    return total / placement.n_relevant if placement.groups else 0.0


def ndcg_at(placement: Placement, k: int) -> float:
    """nDCG@k: the discounted gain of the first k, relative to the best order; its expected value under ties.

    ``DCG@k = sum over ranks r <= k of grade(r) / log2(1 + r)``. A candidate without a grade that is right counts 1.

    Source: Järvelin and Kekäläinen, Cumulated Gain-Based Evaluation of IR Techniques (2002), with the grade as gain, as
        in trec_eval and BEIR; ties as in McSherry and Najork (2008), section 2.

    >>> found = ndcg_at(placement_of([3.0, 2.0, 1.0], [0, 1], {0: 1, 1: 2}), 10)
    >>> round(found, 6) == round((1 + 2 / float(np.log2(3))) / (2 + 1 / float(np.log2(3))), 6)
    True
    """

    def discounts(first: int, last: int) -> NDArray[np.float64]:
        return np.asarray(1.0 / np.log2(1.0 + np.arange(first, min(last, k) + 1)))

    best = np.array(placement.grades[:k] or [1] * min(k, placement.n_relevant), np.float64)
    total = sum(
        (group.n_relevant if group.gain is None else group.gain)
        / group.n_tied
        * float(discounts(group.n_above + 1, group.n_above + group.n_tied).sum())
        for group in placement.groups
    )
    return total / float((best * discounts(1, len(best))).sum()) if len(best) else 0.0


def metric_values(placements: Sequence[Placement], ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Values for each example ``[N]`` of R@k, MRR, MAP; recall@k if one has several right candidates; graded: nDCG@10.

    Values of k that reach the length of the smallest candidate list are left out, except k = 1.
    """
    smallest = min((p.n_candidates for p in placements), default=1)
    kept = [k for k in ks if k < smallest or k == 1]
    several = any(p.n_relevant > 1 for p in placements)
    values = {f"R@{k}": [hit_at(p, k) for p in placements] for k in kept}
    if several:
        values |= {f"recall@{k}": [recall_at(p, k) for p in placements] for k in kept}
    if any(p.grades for p in placements):
        values["nDCG@10"] = [ndcg_at(p, 10) for p in placements]
    values["MRR"] = [reciprocal_rank(p) for p in placements]
    values["MAP"] = [average_precision(p) for p in placements]
    return {name: np.array(numbers, dtype=np.float64) for name, numbers in values.items()}


def with_duplicates(candidates: Sequence[str], relevant: Collection[int]) -> tuple[int, ...]:
    """The right indices plus those of candidates with equal text: a copy of the right answer is also right.

    >>> with_duplicates(["thanks", "no", "thanks"], [0])
    (0, 2)
    """
    right = {candidates[i] for i in relevant}
    return tuple(i for i, text in enumerate(candidates) if text in right)
