"""One pass over blocks: products with a few columns, bounds from them, and the promising candidates offered.

Flat memory at any number of candidates: a chunk of rows at a time, into buffers that each thread keeps.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.search.best import Best, close_bounds
from polyrank.search.blocks import Block, Floats, as_tensor, norms_of
from polyrank.search.subspace import Subspace

COLUMNS = 512  # of one product; contexts share it up to here
PRODUCTS = 2**20  # of one chunk: 4 MB stay in cache
ROWS = (1024, 8192)  # of one chunk, at least and at most


@dataclass(frozen=True, slots=True)
class Query:
    """One context in a scan.

    Args:
        best: collects its results.
        subspace: its vectors in few columns; ``None``: the vectors themselves are the columns.
    """

    best: Best
    subspace: Subspace | None = None

    @property
    def columns(self) -> Tensor:
        return self.best.contexts if self.subspace is None else self.subspace.columns


class _Buffers(threading.local):
    """Memory that is taken once: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._taken: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, columns: int, device: torch.device) -> Tensor:
        key = f"{name} {device}"
        found = self._taken.get(key)
        if found is None or found.numel() < rows * columns:
            found = self._taken[key] = torch.empty(rows * columns, device=device)
        return found[: rows * columns].view(rows, columns)


_buffers = _Buffers()


def scan(queries: Sequence[Query], block: Block, device: torch.device) -> None:
    """Offer to each query's best all candidates of a block that can be among them."""
    groups: list[list[Query]] = []
    for query in queries:
        n_columns = sum(len(other.columns) for other in groups[-1]) if groups else COLUMNS
        if n_columns + len(query.columns) > COLUMNS:
            groups.append([])
        groups[-1].append(query)
    stacks = [torch.cat([query.columns for query in group]).to(device) for group in groups]
    widest = max(len(stack) for stack in stacks)
    n_rows = min(max(PRODUCTS // widest, ROWS[0]), ROWS[1])
    norms = norms_of(block.vectors)
    for start in range(0, len(block.rows), n_rows):
        part = slice(start, min(start + n_rows, len(block.rows)))
        if block.alive is not None and not block.alive[part].any():
            continue
        vectors = as_tensor(block.vectors[part]).to(device)
        for group, stack in zip(groups, stacks, strict=True):
            products = _buffers.take("products", len(vectors), len(stack), device)
            torch.mm(vectors, stack.T, out=products)
            begin = 0
            for query in group:
                end = begin + len(query.columns)
                _offer(query, block, start, products[:, begin:end], norms[part])
                begin = end


def _offer(query: Query, block: Block, start: int, products: Tensor, norms: Floats) -> None:
    """Bound the candidates of one chunk and offer the promising; ``products`` ``[n, columns]``, ``norms`` ``[n]``."""
    if query.subspace is None:
        spare = _buffers.take("spare", len(products), products.shape[1], products.device)
        error = torch.from_numpy(norms).to(products.device) * query.best.rounding
        bounds = close_bounds(products, error, spare).cpu().numpy()
        places = _reaching(bounds, query.best.threshold)
        n_before = query.best.n_scored
        query.best.offer(block, start + places, bounds[places], close=True)
        alive = block.alive
        query.best.n_scored = n_before + (
            len(norms) if alive is None else int(np.count_nonzero(alive[start : start + len(norms)]))
        )
        return
    coarse, error = query.subspace.coarse_bounds(products, torch.from_numpy(norms).to(products.device))
    left = coarse.cpu().numpy()
    # While nothing is known, a few of the most promising tell what the others have to reach.
    if query.best.threshold == -np.inf and len(left) > 4 * query.best.k:
        first = np.argpartition(-left, 2 * query.best.k)[: 2 * query.best.k]
        query.best.offer(block, start + first, left[first])
        left[first] = -np.inf
    places = _reaching(left, query.best.threshold)
    if not len(places):
        return
    chosen = torch.from_numpy(places).to(products.device)
    bounds = query.subspace.fine_bounds(products[chosen], error[chosen]).cpu().numpy()
    query.best.offer(block, start + places, bounds)


def _reaching(bounds: Floats, threshold: float) -> NDArray[np.intp]:
    return np.flatnonzero(~(bounds < threshold))
