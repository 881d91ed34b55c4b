"""The table of ways of scanning: what each can be used for, what it costs, and how it bounds scores.

A way reads candidates in fp32, bf16 or int8, and multiplies them with the context's vectors or with a few columns that
span nearly all of them. docs/search.md and the functions that compute the bounds explain why they hold.
"""

from collections.abc import Callable
from functools import partial
from math import inf

from torch import Tensor

from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.bf16 import ROUNDING_OF_RESULT, to_bf16
from polyrank.search.profile import Line, Profile
from polyrank.search.query import Estimate, Machine, Query, Size, Way
from polyrank.search.sample import Sample
from polyrank.search.scan import scan_bf16, scan_fp32, scan_in_tiles, scan_int8
from polyrank.search.scoring import loose_bounds

N_COLUMNS = (2, 4, 8, 16)


def _usable_compiled(dimension: int, machine: Machine) -> bool:
    return machine.compiled and dimension <= kernels.WIDEST


def _usable_in_tiles(bits: kernels.Bits) -> Callable[[int, Machine], bool]:
    return lambda dimension, machine: machine.has_tiles(bits, dimension)


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


def _estimate_columns(query: Query, sample: Sample, _: Tensor, machine: Machine) -> Estimate:
    subspace = query.subspace
    assert subspace is not None
    quantized = query.int16 is not None
    products = sample.vectors @ subspace.columns.T
    errors = sample.int8_errors if quantized else None
    coarse, error = subspace.coarse_bounds(products, sample.norms, errors, query.best.norm, compiled=quantized)
    return Estimate(coarse, lambda: subspace.fine_bounds(products, error, compiled=quantized))


def _tiles(name: str, bits: kernels.Bits) -> Way:
    prepare = {32: _prepare_plain, 16: _prepare_bf16, 8: _prepare_int8}[bits]
    estimate = {
        32: None,
        16: partial(_estimate_bf16, tiles=True),
        8: partial(_estimate_int8, tiles=True),
    }[bits]
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
