"""Which columns to scan with: as few as leave few candidates, by a look at some of the candidates.

The look estimates the k-th best score from the mean and the deviation of a sample's, and counts how many of the sample
stay above it with so many columns. A wrong estimate costs time and nothing else.
"""

from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from polyrank.search.best import Best
from polyrank.search.blocks import Block, as_tensor, norms_of
from polyrank.search.scan import Query
from polyrank.search.scoring import mean_of
from polyrank.search.subspace import find_subspace

SAMPLE = 256
FEW = 4096  # candidates that are scanned as fast as they are planned for
N_COLUMNS = (2, 4, 8, 16, 32)
# Costs of one candidate in multiplications with an addition, as measured: so many columns cost as much as one (the
# candidate has to be read), one exp with its sums, and one product of a candidate that lies apart from its neighbours.
READING = 12
EXP = 30
APART = 3


def plan(best: Best, blocks: list[Block]) -> Query:
    """How to scan for one context: with its vectors, or with a subspace of theirs."""
    n_vectors, dimension = best.contexts.shape
    n = sum(len(block.rows) for block in blocks)
    if n_vectors < N_COLUMNS[0] + 1 or n < FEW or best.k * 4 > n:
        return Query(best)
    vectors, norms = _sample(blocks)
    full = find_subspace(best.contexts)
    products = vectors @ full.columns.T
    scores = mean_of(vectors @ best.contexts.T, torch.empty(len(vectors), n_vectors))[0].double()
    reach = float(scores.mean() + scores.std() * NormalDist().inv_cdf(1.0 - best.k / n))
    cheapest, chosen = float(dimension * max(n_vectors, READING) + EXP * n_vectors), None
    for n_columns in N_COLUMNS:
        if n_columns > len(full.columns):
            break
        subspace = full.narrow(n_columns)
        coarse, error = subspace.coarse_bounds(products[:, :n_columns], norms)
        cost = dimension * max(n_columns, READING) + EXP * n_columns / 4
        cost += _share(coarse, reach) * (n_columns + 2 * EXP) * n_vectors
        if cost < cheapest:
            fine = subspace.fine_bounds(products[:, :n_columns], error)
            cost += _share(fine, reach) * (APART * dimension + EXP) * n_vectors
        if cost < cheapest:
            cheapest, chosen = cost, subspace
    return Query(best, chosen)


def _sample(blocks: list[Block]) -> tuple[Tensor, Tensor]:
    """Evenly spaced candidates of the largest block: vectors ``[n, D]`` and norms ``[n]``."""
    block = max(blocks, key=lambda block: len(block.rows))
    places = np.linspace(0, len(block.rows) - 1, min(SAMPLE, len(block.rows))).astype(np.intp)
    return as_tensor(block.vectors[places]), torch.from_numpy(norms_of(block.vectors)[places])


def _share(bounds: Tensor, reach: float) -> float:
    """What part of all candidates has bounds of at least ``reach``: as counted, or as a normal tail would have it."""
    mean, deviation = float(bounds.double().mean()), float(bounds.double().std())
    tail = 1.0 - NormalDist(mean, deviation).cdf(reach) if deviation > 0.0 else float(mean >= reach)
    return max(float((bounds >= reach).double().mean()), tail)
