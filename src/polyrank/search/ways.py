"""The table of ways of scanning: what each can be used for, what it costs, and how it bounds scores.

A way reads candidates in fp32, bf16 or int8, and multiplies them with the context's vectors or with a few columns that
span nearly all of them. docs/search.md and the functions that compute the bounds explain why they hold.

``Policy`` chooses the cheapest for one context, by the machine's profile and a look at some of the candidates: it
estimates the k-th best score from the moments of a sample's scores, and counts how many of the sample have bounds above
it. It ignores the offsets of blocks. A wrong estimate costs only time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from statistics import NormalDist

from torch import Tensor

from polyrank.index.protocol import Block
from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.blocks import ROUNDING_OF_RESULT, to_bf16
from polyrank.search.profile import Line, Profile
from polyrank.search.query import Estimate, Machine, Query, Sample, Size, Way, sample_of
from polyrank.search.scan import scan_bf16, scan_fp32, scan_in_tiles, scan_int8
from polyrank.search.scoring import loose_bounds, mean_of

N_COLUMNS = (2, 4, 8, 16)
FEW = 4096  # scanning so many candidates takes no longer than choosing a way


def _usable_compiled(dimension: int, machine: Machine) -> bool:
    return machine.compiled and dimension <= kernels.WIDEST


def _usable_in_tiles(bits: kernels.Bits) -> Callable[[int, Machine], bool]:
    return lambda dimension, machine: machine.compiled and kernels.in_tiles(bits, dimension)


def _exps(size: Size, machine: Machine, profile: Profile) -> float:
    return size.n_vectors * (profile.compiled_exp if machine.compiled else profile.exp)


def _product(size: Size, line: Line, n_columns: int) -> float:
    """Cost of a product by torch, which waits either for memory or for arithmetic."""
    return size.dimension / 768 * max(line[0], line[1] * n_columns)


def _compiled_product(size: Size, line: Line, n_columns: int) -> float:
    return size.dimension / 768 * (line[0] + line[1] * n_columns)


def _cost_of_plain(size: Size, machine: Machine, profile: Profile) -> float:
    return _product(size, profile.plain, size.n_vectors) + _exps(size, machine, profile)


def _cost_of_bf16(size: Size, machine: Machine, profile: Profile) -> float:
    if not machine.bf16:
        return inf
    return _product(size, profile.bf16, size.n_vectors) + _exps(size, machine, profile)


def _cost_of_int8(size: Size, machine: Machine, profile: Profile) -> float:
    if machine.amx:
        return inf
    return _compiled_product(size, profile.int8, size.n_vectors) + _exps(size, machine, profile)


def _cost_in_tiles(size: Size, machine: Machine, profile: Profile, *, bits: kernels.Bits) -> float:
    if bits == 32 and size.n_vectors < kernels.FEWEST_COLUMNS:
        return inf
    line = {32: profile.plain_tiles, 16: profile.bf16_tiles, 8: profile.int8_tiles}[bits]
    n_columns = size.n_vectors if machine.amx else -(-size.n_vectors // kernels.COLUMNS) * kernels.COLUMNS
    return _compiled_product(size, line, n_columns)


def _cost_of_columns(size: Size, machine: Machine, profile: Profile, *, bits: kernels.Bits, n_columns: int) -> float:
    compiled = _usable_compiled(size.dimension, machine)
    if n_columns >= size.n_vectors or not size.few_columns or (bits == 32 and compiled):
        return inf
    product = (
        _product(size, profile.plain, n_columns)
        if bits == 32
        else _compiled_product(size, profile.int8_amx if machine.amx else profile.int8, n_columns)
    )
    look = (profile.subspace[0] + size.dimension / 768 * profile.subspace[1] * size.n_vectors) * 1e5 / size.n_rows
    return product + profile.exp * n_columns + look


def _prepare_plain(way: Way, best: Best) -> Query:
    return Query(best, way, best.contexts)


def _prepare_bf16(way: Way, best: Best) -> Query:
    values, errors = to_bf16(best.contexts)
    return Query(best, way, best.contexts, bf16=values, context_error=float(errors.max()))


def _prepare_int8(way: Way, best: Best) -> Query:
    columns = kernels.to_int16(best.contexts)
    left_out = best.contexts.double() - columns.as_doubles(best.contexts.shape[1])
    error = float(left_out.norm(dim=1).max()) * (1.0 + 1e-6)
    return Query(best, way, best.contexts, int16=columns, context_error=error)


def _prepare_columns(way: Way, best: Best) -> Query:
    subspace = best.subspace(int16=way.bits == 8).narrow(way.n_columns)
    return Query(best, way, subspace.columns, subspace, subspace.int16)


def _estimate_bf16(query: Query, sample: Sample, products: Tensor, machine: Machine, *, tiles: bool) -> Estimate:
    error = sample.norms * (ROUNDING_OF_RESULT * query.best.norm * 0.3 + query.context_error)  # about
    if not tiles:  # torch gives the products themselves in bf16
        error += products.abs().amax(1) * ROUNDING_OF_RESULT
    return Estimate(loose_bounds(products.clone(), error, compiled=machine.compiled))


def _estimate_int8(query: Query, sample: Sample, products: Tensor, _: Machine, *, tiles: bool) -> Estimate:
    error = sample.int8_errors * query.best.norm
    if tiles:
        return Estimate(loose_bounds(products, error, compiled=True))
    return Estimate(products.amax(1) + error, lambda: loose_bounds(products, error, compiled=True))


def _estimate_columns(query: Query, sample: Sample, _: Tensor, _machine: Machine) -> Estimate:
    subspace = query.subspace
    assert subspace is not None
    quantized = query.int16 is not None
    products = sample.vectors @ subspace.columns.T
    errors = sample.int8_errors if quantized else None
    coarse, error = subspace.coarse_bounds(products, sample.norms, errors, query.best.norm, compiled=quantized)
    return Estimate(coarse, lambda: subspace.fine_bounds(products, error, compiled=quantized))


def _tiles(name: str, bits: kernels.Bits) -> Way:
    prepare = {32: _prepare_plain, 16: _prepare_bf16, 8: _prepare_int8}[bits]
    estimate = {32: None, 16: partial(_estimate_bf16, tiles=True), 8: partial(_estimate_int8, tiles=True)}[bits]
    return Way(name, bits, _usable_in_tiles(bits), partial(_cost_in_tiles, bits=bits), prepare, scan_in_tiles, estimate)


def _columns(n_columns: int, bits: kernels.Bits) -> Way:
    name, usable, scan = (
        (f"{n_columns} columns", _always, scan_fp32)
        if bits == 32
        else (f"{n_columns} columns int8", _usable_compiled, scan_int8)
    )
    cost = partial(_cost_of_columns, bits=bits, n_columns=n_columns)
    return Way(name, bits, usable, cost, _prepare_columns, scan, _estimate_columns, n_columns)


def _always(_dimension: int, _machine: Machine) -> bool:
    return True


WAYS = {
    way.name: way
    for way in (
        Way("plain", 32, _always, _cost_of_plain, _prepare_plain, scan_fp32),
        _tiles("plain tiles", 32),
        Way("bf16", 16, _always, _cost_of_bf16, _prepare_bf16, scan_bf16, partial(_estimate_bf16, tiles=False)),
        _tiles("bf16 tiles", 16),
        Way("int8", 8, _usable_compiled, _cost_of_int8, _prepare_int8, scan_int8, partial(_estimate_int8, tiles=False)),
        _tiles("int8 tiles", 8),
        *(_columns(n, 32) for n in N_COLUMNS),
        *(_columns(n, 8) for n in N_COLUMNS),
    )
}


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
