"""One pass over blocks: products with a few columns, bounds from them, and the promising candidates offered.

Flat memory at any number of candidates: a chunk of rows at a time, into buffers that each thread keeps.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.bf16 import ROUNDING_OF_RESULT, SMALLEST, halves_of
from polyrank.search.blocks import ROUNDING, Block, Floats, as_tensor, norms_of
from polyrank.search.scoring import close_bounds, loose_bounds, rounding_of_mean, steepness
from polyrank.search.subspace import Subspace

COLUMNS = 512  # of one product; contexts share it up to here
PRODUCTS = 2**19  # of one chunk: 2 MB stay in cache
ROWS = (1024, 32768)  # of one chunk, at least and at most


@dataclass(frozen=True, slots=True)
class Query:
    """One context in a scan.

    Args:
        best: collects its results.
        subspace: its vectors in few columns; ``None``: the vectors themselves are the columns.
        packed: the columns in int16: candidates are read in int8.
        halves: the vectors in bf16: candidates are read in bf16. Without any of these, all is fp32.
        lost: with packed columns and no subspace, or halves: the largest norm of what that loses of a vector.
    """

    best: Best
    subspace: Subspace | None = None
    packed: kernels.Packed | None = None
    halves: Tensor | None = None
    lost: float = 0.0

    @property
    def bits(self) -> Literal[8, 16, 32]:
        """Of a candidate's numbers as they are read."""
        return 8 if self.packed is not None else 16 if self.halves is not None else 32

    @property
    def n_columns(self) -> int:
        return len(self.best.contexts if self.subspace is None else self.subspace.columns)

    @property
    def columns(self) -> Tensor:
        return self.best.contexts if self.subspace is None else self.subspace.columns


class _Buffers(threading.local):
    """Memory that is taken once: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._taken: dict[str, Tensor] = {}

    def take(
        self, name: str, rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        key = f"{name} {device} {dtype}"
        found = self._taken.get(key)
        if found is None or found.numel() < rows * columns:
            found = self._taken[key] = torch.empty(rows * columns, device=device, dtype=dtype)
        return found[: rows * columns].view(rows, columns)


_buffers = _Buffers()
CPU = torch.device("cpu")


def scan(queries: Sequence[Query], block: Block, device: torch.device, *, compiled: bool) -> None:
    """Offer to each query's best all candidates of a block that can be among them.

    Args:
        queries: for the contexts.
        block: not empty.
        device: where fp32 columns are multiplied.
        compiled: whether the compiled loops are there and wanted.
    """
    compiled = compiled and device.type == "cpu"
    tiled = [query for query in queries if compiled and _suits_tiles(query)]
    others = [query for query in queries if not (compiled and _suits_tiles(query))]
    for bits in (8, 16, 32):
        for group in _groups([query for query in tiled if query.bits == bits]):
            _scan_in_tiles(group, block)
    for group in _groups([query for query in others if query.bits == 8]):
        _scan_codes(group, block)
    for group in _groups([query for query in others if query.bits == 16]):
        _scan_halves(group, block, compiled=compiled)
    groups = _groups([query for query in others if query.bits == 32])
    if groups:
        _scan_vectors(groups, block, device, compiled=compiled)
    for query in queries:
        query.best.settle(block)


def _suits_tiles(query: Query) -> bool:
    """Whether AMX can scan for this query: with all vectors, and more than few of them if they are in fp32."""
    if query.subspace is not None or (query.bits == 32 and query.n_columns < kernels.FEWEST_COLUMNS):
        return False
    return kernels.in_tiles(query.bits, query.columns.shape[1])


def _scan_in_tiles(group: Sequence[Query], block: Block) -> None:
    """By AMX, where candidates are as the queries, which are alike, want them; no product is kept."""
    laid = kernels.lay([query.packed or query.columns for query in group], group[0].bits)
    coded = kernels.codes_of(block.vectors) if laid.bits == 8 else halves_of(block.vectors) if laid.bits == 16 else None
    norms = norms_of(block.vectors)
    limits = [_limits(query) for query in group]
    for part in _chunks(block, 1):
        rows = as_tensor(block.vectors[part]) if coded is None else coded[part]
        lost = None if coded is None else coded.lost[part]
        found = kernels.bounds_in_tiles(rows, laid, norms[part], lost, limits)
        for query, bounds in zip(group, found, strict=True):
            (_offer_close if coded is None else _offer_far)(query.best, block, part, bounds)


def _limits(query: Query) -> tuple[float, ...]:
    """What AMX needs to know for bounds: as in ``_error`` and ``upper_bounds``."""
    split = kernels.ROUNDING_OF_TILES if query.bits == 32 else 0.0
    alone = query.lost + query.best.rounding + query.best.norm * split
    of_mean = steepness(query.n_columns), rounding_of_mean(query.n_columns), 4.0 * ROUNDING
    return query.best.norm * (1.0 + 1e-6) + alone, alone * (1.0 + 1e-6), *of_mean


def _error(query: Query, norms: Tensor, lost: Tensor) -> Tensor:
    """How far products of a query's vectors may be off, ``[n]``.

    Args:
        query: with what its columns lose of its vectors.
        norms: ``[n]``, of the candidates, never too small.
        lost: ``[n]``, norms of what their coding loses.
    """
    alone = query.lost + query.best.rounding
    return (lost * (query.best.norm * (1.0 + 1e-6) + alone)).add_(norms, alpha=alone).add_(SMALLEST)


def _scan_vectors(groups: Sequence[Sequence[Query]], block: Block, device: torch.device, *, compiled: bool) -> None:
    """For columns and candidates in fp32; columns lie as the product reads them, which can be half again as fast."""
    stacks = [torch.cat([query.columns for query in group]).to(device).T.contiguous() for group in groups]
    norms = norms_of(block.vectors)
    for part in _chunks(block, max(stack.shape[1] for stack in stacks)):
        vectors = as_tensor(block.vectors[part]).to(device)
        for group, stack in zip(groups, stacks, strict=True):
            products = _buffers.take("products", len(vectors), stack.shape[1], device)
            torch.mm(vectors, stack, out=products)
            for query, own in _shares(group, products):
                if query.subspace is None:
                    error = torch.from_numpy(norms[part]).to(device) * query.best.rounding
                    spare = None if compiled else _buffers.take("spare", len(own), own.shape[1], device)
                    bounds = close_bounds(own, error, spare).cpu().numpy()
                    _offer_close(query.best, block, part, bounds)
                else:
                    _offer_coarse(query, block, part, own, torch.from_numpy(norms[part]).to(device), None)


def _scan_codes(group: Sequence[Query], block: Block) -> None:
    """The same for packed columns and candidates in int8."""
    packed = kernels.join([query.packed for query in group if query.packed is not None])
    codes, norms = kernels.codes_of(block.vectors), norms_of(block.vectors)
    for part in _chunks(block, len(packed.scales)):
        products = _buffers.take("products", part.stop - part.start, len(packed.scales), CPU)
        kernels.products(codes, part, packed, products)
        lost, sizes = torch.from_numpy(codes.lost[part]), torch.from_numpy(norms[part])
        for query, own in _shares(group, products):
            if query.subspace is not None:
                _offer_coarse(query, block, part, own, sizes, lost)
                continue
            error = _error(query, sizes, lost)
            best = own.amax(1) if own.shape[1] > 1 else own[:, 0]
            _offer_loose(query.best, block, part, (best + error).numpy(), own, error)


def _scan_halves(group: Sequence[Query], block: Block, *, compiled: bool) -> None:
    """The same for vectors and candidates in bf16."""
    columns = torch.cat([query.halves for query in group if query.halves is not None]).T.contiguous()
    halves, norms = halves_of(block.vectors), norms_of(block.vectors)
    for part in _chunks(block, columns.shape[1]):
        shape = part.stop - part.start, columns.shape[1]
        given = _buffers.take("products", *shape, CPU, torch.bfloat16)
        torch.mm(halves.values[part], columns, out=given)
        products = _buffers.take("products", *shape, CPU).copy_(given)
        lost, sizes = torch.from_numpy(halves.lost[part]), torch.from_numpy(norms[part])
        for query, own in _shares(group, products):
            spare = None if compiled else _buffers.take("spare", len(own), own.shape[1], CPU)
            _offer_far(
                query.best, block, part, bounds_in_halves(query, own, sizes, lost, spare, compiled=compiled).numpy()
            )


def bounds_in_halves(
    query: Query, products: Tensor, norms: Tensor, lost: Tensor, spare: Tensor | None = None, *, compiled: bool
) -> Tensor:
    """Upper bounds ``[n]`` of scores, from products that were taken and given in bf16.

    Args:
        query: with vectors in bf16.
        products: ``[n, M]``; overwritten unless compiled.
        norms: ``[n]``, of the candidates, never too small.
        lost: ``[n]``, norms of what bf16 loses of them.
        spare: see ``loose_bounds``.
        compiled: whether to take the compiled loop.
    """
    error = _error(query, norms, lost)
    error.add_(products.abs().amax(1), alpha=ROUNDING_OF_RESULT)
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
    """Ranges of rows, less those without a live one."""
    n, n_rows = len(block.rows), min(max(PRODUCTS // n_columns, ROWS[0]), ROWS[1])
    parts = [slice(start, min(start + n_rows, n)) for start in range(0, n, n_rows)]
    return parts if block.alive is None else [part for part in parts if block.alive[part].any()]


def _offer_close(best: Best, block: Block, part: slice, bounds: Floats) -> None:
    """All candidates of a chunk were scored in fp32; those near the top are scored again."""
    n_before = best.n_scored
    places = _reaching(bounds, best.threshold)
    best.offer(block, part.start + places, bounds[places], close=True)
    n_alive = len(bounds) if block.alive is None else int(np.count_nonzero(block.alive[part]))
    best.n_scored = n_before + n_alive


def _offer_far(best: Best, block: Block, part: slice, bounds: Floats) -> None:
    """Bounds may be above the scores by much."""
    _offer_first(best, block, part, bounds)
    places = _reaching(bounds, best.threshold)
    best.defer(block, part.start + places, bounds[places])


def _offer_coarse(
    query: Query, block: Block, part: slice, products: Tensor, norms: Tensor, lost: Tensor | None
) -> None:
    """Products are with a subspace's columns: bounds at two prices."""
    assert query.subspace is not None
    coarse, error = query.subspace.coarse_bounds(products, norms, lost, query.best.norm, compiled=lost is not None)
    bounds = coarse.cpu().numpy()
    _offer_first(query.best, block, part, bounds)
    places = _reaching(bounds, query.best.threshold)
    if len(places):
        chosen = torch.from_numpy(places).to(products.device)
        fine = query.subspace.fine_bounds(products[chosen], error[chosen], compiled=lost is not None).cpu().numpy()
        query.best.defer(block, part.start + places, fine)


def _offer_loose(best: Best, block: Block, part: slice, bounds: Floats, products: Tensor, error: Tensor) -> None:
    """Products are with all vectors and may be off by much; ``bounds`` are the maxima with that."""
    _offer_first(best, block, part, bounds)
    places = _reaching(bounds, best.threshold)
    if len(places):
        chosen = torch.from_numpy(places)
        best.defer(block, part.start + places, loose_bounds(products[chosen], error[chosen], compiled=True).numpy())


def _offer_first(best: Best, block: Block, part: slice, bounds: Floats) -> None:
    """While nothing is known, the most promising few tell what the others must reach; their bounds are spent."""
    n_first = 2 * best.k
    if best.threshold == -np.inf and len(bounds) > 2 * n_first:
        first = np.argpartition(-bounds, n_first)[:n_first]
        best.offer(block, part.start + first, bounds[first])
        bounds[first] = -np.inf


def _reaching(bounds: Floats, threshold: float) -> NDArray[np.intp]:
    """Where; what is not a number is looked at too, and refused there."""
    return np.flatnonzero(~(bounds < threshold))
