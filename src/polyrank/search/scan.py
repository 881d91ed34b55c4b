"""One pass over blocks: multiply with a few columns, derive bounds, and offer the promising candidates.

Memory is flat at any number of candidates: a chunk of rows at a time, in buffers that each thread keeps.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.index.protocol import Block
from polyrank.search import blocks, kernels
from polyrank.search.best import Best
from polyrank.search.query import Machine, Query
from polyrank.search.scoring import close_bounds, loose_bounds, rounding_of_mean, steepness

COLUMNS = 512  # of one product at most, which several contexts may share
PRODUCTS = 2**19  # of one chunk: 2 MB stay in cache
ROWS = (1024, 32768)  # of one chunk, at least and at most
LEAST_ERROR = 1e-30  # processors with bf16 instructions treat denormal numbers as zeros
Scan = Callable[[Sequence[Query], Block, Machine], None]


class _Buffers(threading.local):
    """Memory that is allocated once: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._taken: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        key = f"{name} {dtype}"
        memory = self._taken.get(key)
        if memory is None or memory.numel() < rows * columns:
            memory = self._taken[key] = torch.empty(rows * columns, dtype=dtype)
        return memory[: rows * columns].view(rows, columns)


_buffers = _Buffers()
LOWEST, SPENT = float(np.finfo(np.float32).min), -np.inf  # a bound of no candidate is below the first


def scan(queries: Sequence[Query], block: Block, machine: Machine) -> None:
    """Offer each query all candidates of a block that may be among its best.

    Args:
        queries: one per context, each with its way of scanning.
        block: not empty.
        machine: its hardware and loops.
    """
    together: dict[tuple[int, Scan], list[Query]] = {}  # same bits, same function
    for query in queries:
        together.setdefault((query.way.bits, query.way.scan), []).append(query)
    for (_, function), some in together.items():
        function(some, block, machine)
    for query in queries:
        query.best.settle(block)
        query.best.ways.append(query.way.name)


def scan_in_tiles(queries: Sequence[Query], block: Block, _: Machine) -> None:
    """Scan by the compiled loops, which turn products into bounds at once; in the bits of the queries' way."""
    bits = queries[0].way.bits
    quantized = (
        kernels.quantized_of(block.vectors) if bits == 8 else blocks.bf16_of(block.vectors) if bits == 16 else None
    )
    norms = blocks.norms_of(block.vectors)
    for group in _groups(queries):
        tiles = kernels.to_tiles([query.int16 or query.columns for query in group], bits)
        limits = [_limits(query) for query in group]
        for part in _chunks(block, 1):
            rows = blocks.as_tensor(block.vectors[part]) if quantized is None else quantized[part]
            row_errors = None if quantized is None else quantized.row_errors[part]
            all_bounds = kernels.bounds_in_tiles(rows, tiles, norms[part], row_errors, limits)
            for query, bounds in zip(group, all_bounds, strict=True):
                (_offer_close if quantized is None else _offer_far)(query.best, block, part, bounds)


def _limits(query: Query) -> tuple[float, ...]:
    """The numbers that bounds in tiles need: as in ``_error`` and ``upper_bounds``."""
    split = kernels.ROUNDING_OF_TILES if query.way.bits == 32 and kernels.has_amx() else 0.0
    alone = query.context_error + query.best.rounding + query.best.norm * split
    of_mean = steepness(query.n_columns), rounding_of_mean(query.n_columns), 4.0 * blocks.ROUNDING
    return query.best.norm * (1.0 + 1e-6) + alone, alone * (1.0 + 1e-6), *of_mean


def _error(query: Query, norms: Tensor, row_errors: Tensor) -> Tensor:
    """How far products of a query's vectors may be off, ``[n]``.

    Args:
        query: without a subspace.
        norms: ``[n]``, of the candidates, never too small.
        row_errors: ``[n]``, norms of their rounding errors in int8 or bf16.
    """
    alone = query.context_error + query.best.rounding
    return (row_errors * (query.best.norm * (1.0 + 1e-6) + alone)).add_(norms, alpha=alone).add_(LEAST_ERROR)


def scan_fp32(queries: Sequence[Query], block: Block, machine: Machine) -> None:
    """Scan columns and candidates in fp32."""
    groups = _groups(queries)
    stacks = [blocks.lay_out(torch.cat([query.columns for query in group]), len(block.rows)) for group in groups]
    norms = blocks.norms_of(block.vectors)
    for part in _chunks(block, max(stack.shape[1] for stack in stacks)):
        vectors, sizes = blocks.as_tensor(block.vectors[part]), torch.from_numpy(norms[part])
        for group, stack in zip(groups, stacks, strict=True):
            products = _buffers.take("products", len(vectors), stack.shape[1])
            torch.mm(vectors, stack, out=products)
            for query, dots in _shares(group, products):
                if query.subspace is not None:
                    _offer_by_columns(query, block, part, dots, sizes, None)
                    continue
                spare = None if machine.compiled else _buffers.take("spare", len(dots), dots.shape[1])
                bounds = close_bounds(dots, sizes * query.best.rounding, spare).numpy()
                _offer_close(query.best, block, part, bounds)


def scan_int8(queries: Sequence[Query], block: Block, _: Machine) -> None:
    """Scan columns in int16 and candidates in int8 by the compiled loops."""
    rows, norms = kernels.quantized_of(block.vectors), blocks.norms_of(block.vectors)
    for group in _groups(queries):
        columns = kernels.join([query.int16 for query in group if query.int16 is not None])
        for part in _chunks(block, len(columns.scales)):
            products = _buffers.take("products", part.stop - part.start, len(columns.scales))
            kernels.products(rows, part, columns, products)
            row_errors, sizes = torch.from_numpy(rows.row_errors[part]), torch.from_numpy(norms[part])
            for query, dots in _shares(group, products):
                if query.subspace is not None:
                    _offer_by_columns(query, block, part, dots, sizes, row_errors)
                    continue
                error = _error(query, sizes, row_errors)
                best = dots.amax(1) if dots.shape[1] > 1 else dots[:, 0]
                fine = partial(_bounds_at, dots, error)
                _offer_far(query.best, block, part, (best + error).numpy(), fine)


def _bounds_at(products: Tensor, error: Tensor, positions: Tensor) -> Tensor:
    return loose_bounds(products[positions], error[positions], compiled=True)


def scan_bf16(queries: Sequence[Query], block: Block, machine: Machine) -> None:
    """Scan context vectors and candidates in bf16 by torch."""
    rows, norms = blocks.bf16_of(block.vectors), blocks.norms_of(block.vectors)
    for group in _groups(queries):
        columns = blocks.lay_out(torch.cat([query.bf16 for query in group if query.bf16 is not None]), len(block.rows))
        for part in _chunks(block, columns.shape[1]):
            shape = part.stop - part.start, columns.shape[1]
            rounded = _buffers.take("products", *shape, torch.bfloat16)
            torch.mm(rows.values[part], columns, out=rounded)
            products = _buffers.take("products", *shape).copy_(rounded)
            row_errors, sizes = torch.from_numpy(rows.row_errors[part]), torch.from_numpy(norms[part])
            for query, dots in _shares(group, products):
                spare = None if machine.compiled else _buffers.take("spare", len(dots), dots.shape[1])
                bounds = bounds_in_bf16(query, dots, sizes, row_errors, spare, compiled=machine.compiled)
                _offer_far(query.best, block, part, bounds.numpy())


def bounds_in_bf16(
    query: Query, products: Tensor, norms: Tensor, row_errors: Tensor, spare: Tensor | None = None, *, compiled: bool
) -> Tensor:
    """Upper bounds ``[n]`` of scores, from products in bf16.

    Args:
        query: with vectors in bf16.
        products: ``[n, M]``; overwritten unless compiled.
        norms: ``[n]``, of the candidates, never too small.
        row_errors: ``[n]``, norms of their rounding errors in bf16.
        spare: see ``loose_bounds``.
        compiled: whether to use the compiled loop.
    """
    error = _error(query, norms, row_errors)
    error.add_(products.abs().amax(1), alpha=blocks.ROUNDING_OF_RESULT)
    return loose_bounds(products, error, spare, compiled=compiled)


def _groups(queries: Sequence[Query]) -> list[list[Query]]:
    """Queries that share a product."""
    groups: list[list[Query]] = []
    for query in queries:
        n_columns = sum(other.n_columns for other in groups[-1]) if groups else COLUMNS
        if n_columns + query.n_columns > COLUMNS:
            groups.append([])
        groups[-1].append(query)
    return groups


def _shares(group: Sequence[Query], products: Tensor) -> list[tuple[Query, Tensor]]:
    """Each query with its columns of the products."""
    edges = accumulate((query.n_columns for query in group), initial=0)
    return [(query, products[:, start:stop]) for query, (start, stop) in zip(group, pairwise(edges), strict=True)]


def _chunks(block: Block, n_columns: int) -> list[slice]:
    """Ranges of rows, except those without a live row."""
    n, n_rows = len(block.rows), min(max(PRODUCTS // n_columns, ROWS[0]), ROWS[1])
    parts = [slice(start, min(start + n_rows, n)) for start in range(0, n, n_rows)]
    return parts if block.alive is None else [part for part in parts if block.alive[part].any()]


def _offer_close(best: Best, block: Block, part: slice, bounds: blocks.Floats) -> None:
    """The bounds come from fp32 scores; candidates near the top are scored again in fp64."""
    bounds, n_before = blocks.add_offsets(bounds, block, part), best.n_scored
    positions = _reaching(bounds, best.threshold)
    best.offer(block, part.start + positions, bounds[positions], close=True)
    n_alive = len(bounds) if block.alive is None else int(np.count_nonzero(block.alive[part]))
    best.n_scored = n_before + n_alive


def _offer_far(
    best: Best, block: Block, part: slice, coarse: blocks.Floats, fine: Callable[[Tensor], Tensor] | None = None
) -> None:
    """The bounds may be far above the scores.

    Args:
        best: of the query.
        block, part: of the candidates.
        coarse: their bounds ``[n]``.
        fine: computes closer bounds at some positions in ``part``, for candidates whose coarse bound reaches the best.
    """
    bounds = blocks.add_offsets(coarse, block, part)
    _offer_first(best, block, part, bounds)
    positions = _reaching(bounds, best.threshold)
    if len(positions):
        at, bounds = part.start + positions, bounds[positions]
        if fine is not None:
            bounds = blocks.add_offsets(fine(torch.from_numpy(positions)).numpy(), block, at)
        best.defer(block, at, bounds)


def _offer_by_columns(
    query: Query, block: Block, part: slice, products: Tensor, norms: Tensor, row_errors: Tensor | None
) -> None:
    """The products are with a subspace's columns."""
    subspace, quantized = query.subspace, row_errors is not None
    assert subspace is not None
    coarse, error = subspace.coarse_bounds(products, norms, row_errors, query.best.norm, compiled=quantized)

    def fine(positions: Tensor) -> Tensor:
        return subspace.fine_bounds(products[positions], error[positions], compiled=quantized)

    _offer_far(query.best, block, part, coarse.numpy(), fine)


def _offer_first(best: Best, block: Block, part: slice, bounds: blocks.Floats) -> None:
    """Before any score is known, offer the few largest bounds, which sets the threshold, and mark them as spent.

    Bounds of candidates that are not alive are spent too; a filter makes many.
    """
    n_first = 2 * best.k
    if block.alive is not None:
        bounds[~block.alive[part]] = SPENT
    if best.threshold == -np.inf and len(bounds) > 2 * n_first:
        first = np.argpartition(-bounds, n_first)[:n_first]
        best.offer(block, part.start + first, bounds[first])
        bounds[first] = SPENT


def _reaching(bounds: blocks.Floats, threshold: float) -> NDArray[np.intp]:
    """Positions of bounds that reach the threshold and are not spent. NaN counts too, and is refused later."""
    return np.flatnonzero(~(bounds < max(threshold, LOWEST)))
