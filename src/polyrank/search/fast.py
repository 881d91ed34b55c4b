"""Which columns to scan with: as few as leave few candidates, by a look at some of the candidates.

The look estimates the k-th best score from the mean and the deviation of a sample's, and counts how many of the sample
stay above it with so many columns. A wrong estimate costs time and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from operator import itemgetter
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.bf16 import ROUNDING_OF_RESULT, halve
from polyrank.search.blocks import Block, as_tensor, derive, norms_of
from polyrank.search.scan import Query
from polyrank.search.scoring import loose_bounds, mean_of
from polyrank.search.subspace import Subspace, find_subspace
from polyrank.storage.quantized import AnyVectors

SAMPLE = 256
FEW = 4096  # candidates that are scanned as fast as they are planned for
N_COLUMNS = (2, 4, 8, 16)
# Milliseconds of one AVX-512 core for 100,000 candidates of 768 dimensions; their proportions are what counts.
READ, COLUMN = 45.0, 1.6  # fp32: the least that a product costs, and each column
READ_CODES, COLUMN_OF_CODES = 5.5, 2.2  # int8
READ_TILES, COLUMN_OF_TILES = 8.5, 0.2  # int8 by AMX
# By AMX with bounds and all: fp32, bf16, int8.
IN_TILES: dict[kernels.Bits, tuple[float, float]] = {32: (32.0, 0.42), 16: (13.5, 0.19), 8: (7.0, 0.2)}
READ_HALVES = 12.0  # bf16
EXP, COMPILED_EXP = 0.4, 0.12  # one exp with its sums
LOOK, LOOK_AT_VECTOR = 3.0, 0.03  # to find columns, however many candidates there are
FINE = 1.0  # a product that is bounded finely
APART = 150.0  # a candidate that is scored apart from its neighbours, and its columns' part three times over


@dataclass(frozen=True, slots=True)
class Sample:
    """Evenly spaced candidates of a block.

    Args:
        vectors: ``[n, D]``
        norms: ``[n]``
        lost: ``[n]``, what int8 loses; zeros where that is not to be had.
    """

    vectors: Tensor
    norms: Tensor
    lost: Tensor


@dataclass(frozen=True, slots=True)
class Way:
    """A way to scan, and what it would do to a sample.

    Args:
        query: it.
        coarse: bounds ``[n]`` that all candidates get.
        fine: makes those that candidates get whose coarse bound reaches the best; ``None``: the same.
    """

    query: Query
    coarse: Tensor
    fine: Callable[[], Tensor] | None = None


def plan(best: Best, blocks: list[Block], *, compiled: bool, halves: float | None = None) -> Query:
    """How to scan for one context: with its vectors or a subspace of theirs, in fp32, bf16 or, when compiled, int8.

    Args:
        best: of the context.
        blocks: the candidates.
        compiled: whether the compiled loops are there and wanted.
        halves: how long a product in bf16 takes, as a part of fp32's; ``None``: it is not to be had.
    """
    n_vectors, dimension = best.contexts.shape
    n = sum(len(block.rows) for block in blocks)
    compiled = compiled and dimension <= kernels.WIDEST
    if n < FEW or best.k * 4 > n or (n_vectors <= N_COLUMNS[0] and not compiled and halves is None):
        return Query(best)
    wide, exps = dimension / 768, n_vectors * (COMPILED_EXP if compiled else EXP)
    tiled: dict[int, float] = {}  # costs by AMX
    for bits, (read, column) in IN_TILES.items():
        if compiled and kernels.in_tiles(bits, dimension):
            tiled[bits] = wide * (read + column * n_vectors)
    cheapest, chosen = tiled.get(32, wide * max(READ, COLUMN * n_vectors) + exps), Query(best)
    found: list[Subspace] = []  # once, if at all

    def in_columns(sample: Sample, _: Tensor, n_columns: int) -> Way:
        found[:] = found or [find_subspace(best.contexts, packed=compiled)]
        return _in_columns(best, sample, found[0].narrow(n_columns), compiled=compiled)

    ways: list[tuple[float, Callable[[Sample, Tensor], Way]]] = []  # by the least that each costs
    if compiled:
        cost = tiled.get(8, wide * (READ_CODES + COLUMN_OF_CODES * n_vectors) + exps)
        ways.append((cost, partial(_in_codes, best, coarsely=8 not in tiled)))
    if halves is not None:
        cost = tiled.get(16, wide * max(READ_HALVES, COLUMN * halves * n_vectors) + exps)
        ways.append((cost, partial(_in_halves, best, given=16 not in tiled, compiled=compiled)))
    read, column = (READ_TILES, COLUMN_OF_TILES) if tiled else (READ_CODES, COLUMN_OF_CODES)
    looking = (LOOK + wide * LOOK_AT_VECTOR * n_vectors) * 1e5 / n
    narrow: list[tuple[float, Callable[[Sample, Tensor], Way]]] = []
    fewer = [q for q in N_COLUMNS if q < n_vectors]
    for q in fewer if fewer and _may_fit(best.contexts, fewer[-1]) else ():
        cost = wide * (read + column * q if compiled else max(READ, COLUMN * q)) + EXP * q
        narrow.append((cost + looking, partial(in_columns, n_columns=q)))
    if all(cost >= cheapest for cost, _ in ways + narrow):
        return chosen
    largest = max(blocks, key=lambda block: len(block.rows)).vectors
    sample = derive(f"sample, coded: {compiled}", largest, partial(_sample, coded=compiled))
    products = sample.vectors @ best.contexts.T
    reach = _reach(products, best.k, n)
    apart = wide * (APART + 3.0 * COLUMN * n_vectors) + EXP * n_vectors
    for cost, look in [*sorted(ways, key=itemgetter(0)), *narrow]:  # columns last: to find them takes longest
        if cost >= cheapest:
            continue
        way = look(sample, products)
        bounds = way.coarse
        if way.fine is not None:
            cost += _share(bounds, reach) * FINE * n_vectors
            bounds = way.fine() if cost < cheapest else bounds
        if cost < cheapest:
            cost += _share(bounds, reach) * apart
        if cost < cheapest:
            cheapest, chosen = cost, way.query
    return chosen


def _may_fit(contexts: Tensor, n_columns: int) -> bool:
    """Whether so many columns may hold what vectors have besides their mean.

    Of eigenvalues with sum t and sum of squares s, n are at most sqrt(n s) together: much less than t when the vectors
    point everywhere.
    """
    around = contexts - contexts.mean(0)
    products = around @ around.T
    return float(products.norm()) * sqrt(n_columns - 1) > 0.8 * float(products.trace())


def in_halves(best: Best) -> Query:
    """With the vectors themselves, in bf16."""
    values, lost = halve(best.contexts)
    return Query(best, halves=values, lost=float(lost.max()))


def in_codes(best: Best) -> Query:
    """With the vectors themselves, packed for candidates in int8."""
    packed = kernels.pack(best.contexts)
    left_out = best.contexts.double() - packed.columns(best.contexts.shape[1])
    return Query(best, packed=packed, lost=float(left_out.norm(dim=1).max()) * (1.0 + 1e-6))


def _in_halves(best: Best, sample: Sample, products: Tensor, *, given: bool, compiled: bool) -> Way:
    """given: products are given in bf16 as well."""
    query = in_halves(best)
    error = sample.norms * (ROUNDING_OF_RESULT * best.norm * 0.3 + query.lost)  # about
    if given:
        error += products.abs().amax(1) * ROUNDING_OF_RESULT
    return Way(query, loose_bounds(products.clone(), error, compiled=compiled))


def _in_codes(best: Best, sample: Sample, products: Tensor, *, coarsely: bool) -> Way:
    """coarsely: maxima are looked at first, and candidates' products are kept."""
    query = in_codes(best)
    error = sample.lost * best.norm
    if not coarsely:
        return Way(query, loose_bounds(products, error, compiled=True))
    return Way(query, products.amax(1) + error, lambda: loose_bounds(products, error, compiled=True))


def _in_columns(best: Best, sample: Sample, subspace: Subspace, *, compiled: bool) -> Way:
    products = sample.vectors @ subspace.columns.T
    coarse, error = subspace.coarse_bounds(products, sample.norms, sample.lost, best.norm, compiled=compiled)
    query = Query(best, subspace, subspace.packed)
    return Way(query, coarse, lambda: subspace.fine_bounds(products, error, compiled=compiled))


def _sample(vectors: AnyVectors, *, coded: bool) -> Sample:
    places = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.intp)
    norms = torch.from_numpy(norms_of(vectors)[places])
    lost = torch.from_numpy(kernels.codes_of(vectors).lost[places]) if coded else torch.zeros_like(norms)
    return Sample(as_tensor(vectors[places]), norms, lost)


def _reach(products: Tensor, k: int, n: int) -> float:
    """The k-th best score of n candidates, as a sample's mean and deviation suggest."""
    scores = mean_of(products.clone())[0].double().numpy()
    return float(scores.mean() + scores.std() * NormalDist().inv_cdf(1.0 - k / n))


def _share(bounds: Tensor, reach: float) -> float:
    """What part of all candidates has bounds of at least ``reach``: as counted, or as a normal tail would have it."""
    values = bounds.double().numpy()
    mean, deviation = float(values.mean()), float(values.std())
    tail = 1.0 - NormalDist(mean, deviation).cdf(reach) if deviation > 0.0 else float(mean >= reach)
    return max(float((values >= reach).mean()), tail)
