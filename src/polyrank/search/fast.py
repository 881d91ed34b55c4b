"""Which columns to scan with: as few as leave few candidates, by a look at some of the candidates.

The look estimates the k-th best score from the mean and the deviation of a sample's, and counts how many of the sample
stay above it with so many columns. A wrong estimate costs time and nothing else.
"""

from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.blocks import Block, as_tensor, norms_of
from polyrank.search.scan import Query
from polyrank.search.scoring import loose_bounds, mean_of
from polyrank.search.subspace import find_subspace

SAMPLE = 256
FEW = 4096  # candidates that are scanned as fast as they are planned for
N_COLUMNS = (2, 4, 8, 16)
# Milliseconds of one AVX-512 core for 100,000 candidates of 768 dimensions; their proportions are what counts.
READ, COLUMN = 45.0, 1.6  # fp32: the least that a product costs, and each column
READ_CODES, COLUMN_OF_CODES = 5.5, 2.2  # int8
EXP, COMPILED_EXP = 0.4, 0.12  # one exp with its sums
FINE = 1.0  # a product that is bounded finely
APART = 150.0  # a candidate that is scored apart from its neighbours, and its columns' part three times over


def plan(best: Best, blocks: list[Block], *, compiled: bool) -> Query:
    """How to scan for one context: with its vectors or a subspace of theirs, over fp32 or, when compiled, int8."""
    n_vectors, dimension = best.contexts.shape
    n = sum(len(block.rows) for block in blocks)
    compiled = compiled and dimension <= kernels.WIDEST
    if n < FEW or best.k * 4 > n or (n_vectors <= N_COLUMNS[0] and not compiled):
        return Query(best)
    vectors, norms, lost = _sample(blocks, compiled)
    more = lost * best.norm
    products = vectors @ best.contexts.T
    scores = mean_of(products.clone())[0].double()
    reach = float(scores.mean() + scores.std() * NormalDist().inv_cdf(1.0 - best.k / n))
    wide = dimension / 768
    apart = wide * (APART + 3.0 * COLUMN * n_vectors) + EXP * n_vectors
    exp = COMPILED_EXP if compiled else EXP
    cheapest, chosen = wide * max(READ, COLUMN * n_vectors) + exp * n_vectors, Query(best)
    if compiled:
        cost = wide * (READ_CODES + COLUMN_OF_CODES * n_vectors) + COMPILED_EXP * n_vectors
        if cost < cheapest:
            cost += _share(products.amax(1) + more, reach) * FINE * n_vectors
            cost += _share(loose_bounds(products, more), reach) * apart
        if cost < cheapest:
            packed = kernels.pack(best.contexts)
            left_out = best.contexts.double() - packed.columns(dimension)
            cheapest = cost
            chosen = Query(best, packed=packed, lost=float(left_out.norm(dim=1).max()) * (1.0 + 1e-6))
    if n_vectors <= N_COLUMNS[0]:
        return chosen
    whole = find_subspace(best.contexts, packed=compiled)
    products = vectors @ whole.columns.T
    for n_columns in N_COLUMNS:
        scanning = READ_CODES + COLUMN_OF_CODES * n_columns if compiled else max(READ, COLUMN * n_columns)
        cost = wide * scanning + EXP * n_columns
        if n_columns > len(whole.columns) or cost > cheapest:
            break
        subspace = whole.narrow(n_columns)
        coarse, error = subspace.coarse_bounds(products[:, :n_columns], norms, more)
        cost += _share(coarse, reach) * FINE * n_vectors
        if cost < cheapest:
            cost += _share(subspace.fine_bounds(products[:, :n_columns], error), reach) * apart
        if cost < cheapest:
            cheapest, chosen = cost, Query(best, subspace, subspace.packed)
    return chosen


def _sample(blocks: list[Block], coded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of evenly spaced candidates of the largest block: vectors ``[n, D]``, norms ``[n]``, what codes lose ``[n]``."""
    block = max(blocks, key=lambda block: len(block.rows))
    places = np.linspace(0, len(block.rows) - 1, min(SAMPLE, len(block.rows))).astype(np.intp)
    norms = torch.from_numpy(norms_of(block.vectors)[places])
    lost = torch.from_numpy(kernels.codes_of(block.vectors).lost[places]) if coded else torch.zeros_like(norms)
    return as_tensor(block.vectors[places]), norms, lost


def _share(bounds: Tensor, reach: float) -> float:
    """What part of all candidates has bounds of at least ``reach``: as counted, or as a normal tail would have it."""
    mean, deviation = float(bounds.double().mean()), float(bounds.double().std())
    tail = 1.0 - NormalDist(mean, deviation).cdf(reach) if deviation > 0.0 else float(mean >= reach)
    return max(float((bounds >= reach).double().mean()), tail)
