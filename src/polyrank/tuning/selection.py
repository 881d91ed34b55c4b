"""Which terms make a better ranker: forward selection by held-out likelihood. It knows features, not terms or texts.

Shapes: L lists, K candidates of each, F features of all terms together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank
from polyrank.ranking.weights import Design, fit_design

N_FOLDS, N_PARTITIONS = 10, 3
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TermColumns:
    """The features of a term.

    Args:
        columns: of the features.
        prior: standard deviation of the weights' prior, see ``fit_weights``.
        signed: whether its weights may be below 0.
    """

    columns: tuple[int, ...]
    prior: float
    signed: bool


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The figures of a choice of terms on dialogues that its weights have not seen, for each list ``[L]``.

    Every dialogue is ranked with weights of the other folds; the numbers are means over several random partitions.

    Args:
        log_likelihood: of the right candidates.
        reciprocal_rank: of the best right candidate.
        hit: how often it is first.
    """

    log_likelihood: Doubles
    reciprocal_rank: Doubles
    hit: Doubles


class Selection:
    """The features of lists, and the choice among their terms.

    Args:
        features: ``[K, F]`` of each list.
        relevant: indices of the right candidates of each list.
        dialogues: the number of each list's dialogue, ``[L]``. All lists of a dialogue are in the same fold.
        blocks: the terms.
        active: for each list, whether the features may change its ranks; of the others, whose right candidate is not in
            the shortlist, ``figures`` has the numbers. None: all.
        figures: reciprocal rank and hit of the inactive lists, ``[L]`` each.
        seed: of the partitions.
    """

    def __init__(
        self,
        features: Sequence[NDArray[np.floating]],
        relevant: Sequence[Sequence[int]],
        dialogues: NDArray[np.int64],
        blocks: Sequence[TermColumns],
        *,
        active: NDArray[np.bool_] | None = None,
        figures: tuple[Doubles, Doubles] | None = None,
        seed: int = 0,
    ) -> None:
        self.blocks, self.n = tuple(blocks), len(features)
        active = np.ones(self.n, np.bool_) if active is None else active
        self.active: list[int] = np.flatnonzero(active).tolist()
        self.relevant = [relevant[n] for n in self.active]
        self.design = Design.of([features[n] for n in self.active], self.relevant)
        self.dialogues = dialogues
        zeros = np.zeros(self.n)
        self._ranks, self._hits = figures or (zeros, zeros)
        self._seed = seed
        self._known: dict[tuple[int, ...], HeldOut] = {}

    @cached_property
    def _folds(self) -> list[NDArray[np.int64]]:
        """For each partition, the fold of each active list; fewer folds than ten for fewer dialogues."""
        distinct, number = np.unique(self.dialogues[self.active], return_inverse=True)
        generator = np.random.Generator(np.random.PCG64(self._seed))
        folds = np.arange(len(distinct)) % min(N_FOLDS, len(distinct))
        return [generator.permutation(folds)[number] for _ in range(N_PARTITIONS)]

    def fit(
        self, chosen: Sequence[int], lists: NDArray[np.int64] | None = None, start: Doubles | None = None
    ) -> Doubles:
        """The weights of the standardized features of some terms, from some of the active lists or all."""
        columns = self._columns(chosen)
        priors = [self.blocks[b].prior for b in sorted(chosen) for _ in self.blocks[b].columns]
        signed = [self.blocks[b].signed for b in sorted(chosen) for _ in self.blocks[b].columns]
        return fit_design(self.design.some(lists, columns), priors=priors, signed=signed, start=start)

    def weights(self, chosen: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """The weights of the features of each chosen term, from all lists."""
        columns = self._columns(chosen)
        values = dict(zip(columns, self.fit(chosen) / self.design.deviations[columns], strict=True))
        return {b: tuple(float(values[column]) for column in self.blocks[b].columns) for b in sorted(chosen)}

    def log_likelihood(self, chosen: Sequence[int]) -> float:
        """The mean log-likelihood of the right candidates, with weights from the same lists.

        It compares single terms, of one weight each, also on the lists of two dialogues, of which one is too few to
        give the other a weight.
        """
        return float(self.design.some(None, self._columns(chosen)).log_likelihood(self.fit(chosen)).mean())

    def held_out(self, chosen: Sequence[int]) -> HeldOut:
        """The figures of a choice; see HeldOut."""
        key = tuple(sorted(chosen))
        if key not in self._known:
            self._known[key] = self._held_out(key)
        return self._known[key]

    def _held_out(self, chosen: tuple[int, ...]) -> HeldOut:
        design = self.design.some(None, self._columns(chosen))
        whole = self.fit(chosen)
        likelihood = np.zeros(self.n)
        ranks, hits = self._ranks.copy(), self._hits.copy()
        ranks[self.active] = hits[self.active] = 0.0
        ends = np.append(design.starts[1:], len(design.x))
        for folds in self._folds:
            totals = np.empty(len(design.x))
            for fold in range(int(folds.max()) + 1):
                inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
                w = self.fit(chosen, outside if len(outside) else None, whole)
                likelihood[np.array(self.active)[inside]] += design.some(inside).log_likelihood(w) / len(self._folds)
                for n in inside.tolist():
                    totals[design.starts[n] : ends[n]] = design.x[design.starts[n] : ends[n]] @ w
            for n, right in enumerate(self.relevant):
                placement = placement_of(totals[design.starts[n] : ends[n]], right)
                ranks[self.active[n]] += reciprocal_rank(placement) / len(self._folds)
                hits[self.active[n]] += hit_at(placement, 1) / len(self._folds)
        return HeldOut(likelihood, ranks, hits)

    def best(self, chosen: Sequence[int], candidates: Sequence[int]) -> int | None:
        """The term that raises the held-out likelihood of the chosen ones most; None: none surely does.

        A gain counts if it exceeds its standard error over dialogues: with less, a ranker of fewer terms is as good.
        """
        before = self.held_out(chosen).log_likelihood
        gains = {b: self.held_out([*chosen, b]).log_likelihood - before for b in candidates}
        best = max(gains, key=lambda b: float(gains[b].mean()), default=None)
        if best is None or gains[best].mean() <= standard_error(gains[best], self.dialogues):
            return None
        return best

    def _columns(self, chosen: Sequence[int]) -> list[int]:
        return [column for b in sorted(chosen) for column in self.blocks[b].columns]


def standard_error(values: Doubles, dialogues: NDArray[np.int64]) -> float:
    """Of the mean of values ``[L]``, of which those of one dialogue depend on each other.

    >>> round(standard_error(np.array([1.0, 3.0]), np.array([0, 1])), 4)  # deviations of 1 from the mean, times 1/2
    0.7071
    """
    totals = np.bincount(dialogues, values - values.mean())
    return float(np.sqrt(np.sum(totals**2)) / len(values))
