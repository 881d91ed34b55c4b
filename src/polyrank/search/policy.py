"""Which way to scan for one context: the cheapest, by the machine's profile and a look at some of the candidates.

The look estimates the k-th best score from the moments of a sample's scores, and counts how many of the sample have
bounds above it. It ignores the offsets of blocks. A wrong estimate costs only time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from torch import Tensor

from polyrank.search.best import Best
from polyrank.search.blocks import Block
from polyrank.search.profile import Profile
from polyrank.search.query import Machine, Query, Size, Way
from polyrank.search.sample import sample_of
from polyrank.search.scoring import mean_of
from polyrank.search.ways import N_COLUMNS, WAYS

FEW = 4096  # scanning so many candidates takes no longer than choosing a way


@dataclass(frozen=True, slots=True)
class Policy:
    """Chooses a way of scanning.

    Args:
        machine: what may be used.
        profile: the costs.
        ways: to choose from; at least one is usable.
    """

    machine: Machine
    profile: Profile
    ways: Sequence[Way] = tuple(WAYS.values())

    def choose(self, best: Best, blocks: Sequence[Block]) -> Query:
        """A query that scans blocks, none of them empty, for the context of ``best``."""
        n_vectors, dimension = best.contexts.shape
        n = sum(len(block.rows) for block in blocks)
        usable = [way for way in self.ways if way.usable(dimension, self.machine)]
        few_columns = n >= FEW and any(way.n_columns for way in usable) and _may_fit(best.contexts)
        size = Size(n, n_vectors, dimension, few_columns)
        costs = [(way.cost(size, self.machine, self.profile), way) for way in usable]
        # start from the cheapest way without estimates, or from the cheapest if all have estimates
        cheapest, chosen = min(
            [(cost, way) for cost, way in costs if way.estimate is None] or costs, key=lambda pair: pair[0]
        )
        others = [pair for pair in costs if pair[1].estimate is not None and pair[0] < cheapest]
        query = chosen.query(best)
        if not others or n < FEW or best.k * 4 > n:
            return query
        sample = sample_of(max(blocks, key=lambda block: len(block.rows)).vectors)
        products = sample.vectors @ best.contexts.T
        reach = _reach(products, best.k, n)
        # of many candidates that are scored apart, most are only multiplied in fp32
        apart = dimension / 768 * (self.profile.apart + self.profile.plain[1] * n_vectors)
        apart += self.profile.exp * n_vectors
        # columns last: finding them takes longest
        for cost, way in sorted(others, key=lambda pair: (pair[1].n_columns > 0, pair[0])):
            if cost >= cheapest or way.estimate is None:
                continue
            candidate = way.query(best)
            estimate = way.estimate(candidate, sample, products, self.machine)
            bounds = estimate.coarse
            if estimate.fine is not None:
                cost += _share(bounds, reach) * self.profile.fine * n_vectors
                bounds = estimate.fine() if cost < cheapest else bounds
            if cost < cheapest:
                cost += _share(bounds, reach) * apart
            if cost < cheapest:
                cheapest, query = cost, candidate
        return query


def _may_fit(contexts: Tensor) -> bool:
    """Whether a few columns may span the vectors less their mean.

    Of eigenvalues with sum t and sum of squares s, n are at most sqrt(n s) together: much less than t when the vectors
    point everywhere.
    """
    n_columns = max((n for n in N_COLUMNS if n < len(contexts)), default=1)
    around = contexts - contexts.mean(0)
    products = around @ around.T
    return float(products.norm()) * sqrt(n_columns - 1) > 0.8 * float(products.trace())


def _reach(products: Tensor, k: int, n: int) -> float:
    """The k-th best score of n candidates, as a sample's mean, deviation and skewness suggest.

    Means that lean to the largest products have a long upper tail; the quantile is Cornish and Fisher's.
    """
    scores = mean_of(products.clone())[0].double().numpy()
    deviation, z = float(scores.std()), NormalDist().inv_cdf(1.0 - k / n)
    skewness = float(((scores - scores.mean()) ** 3).mean()) / max(deviation, 1e-30) ** 3
    return float(scores.mean()) + deviation * (z + (z * z - 1.0) / 6.0 * min(max(skewness, 0.0), 1.0))


def _share(bounds: Tensor, reach: float) -> float:
    """The share of candidates with bounds of at least ``reach``: as counted, or by a normal tail if that is larger."""
    values = bounds.double().numpy()
    mean, deviation = float(values.mean()), float(values.std())
    tail = 1.0 - NormalDist(mean, deviation).cdf(reach) if deviation > 0.0 else float(mean >= reach)
    return max(float((values >= reach).mean()), tail)
