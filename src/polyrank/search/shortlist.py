"""Approximate search: a shortlist from an inner-product index, whose candidates are then scored in full."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.search.best import Best
from polyrank.search.blocks import Block, Floats

SHORTLIST = 100  # by the mean and as many by the maximum: recall@10 of 0.95 to 1 in every regime that was measured
Positions = NDArray[np.int64]


class ProductIndex(Protocol):
    """An inner-product index of the vectors of one block (``polyrank.index.ann.Ann`` is one)."""

    def search(self, queries: Floats, k: int) -> tuple[Floats, Positions]:
        """Products and positions, ``[M, k]`` each, best first; -1 where there are no more."""
        ...


def shortlist(best: Best, block: Block, index: ProductIndex) -> bool:
    """Offer the candidates with the best products: some by the mean vector, as many by the best of all vectors.

    Returns:
        Whether that was all of them.
    """
    n, n_vectors = len(block.rows), len(best.contexts)
    mean = best.contexts.double().mean(0).float().numpy()
    queries = np.concatenate([mean[None], best.contexts.numpy()]) if n_vectors > 1 else mean[None]
    n_dead = 0 if block.alive is None else int(n - block.alive.sum())
    n_listed = max(SHORTLIST, 2 * best.k)
    n_listed = min(n, n_listed + min(n_dead, n_listed))
    seen = np.zeros(n, np.bool_)
    products, positions = index.search(queries, n_listed)
    _offer_new(best, block, positions[:1], seen)
    if n_vectors > 1:
        order = np.argsort(-products[1:].ravel(), kind="stable")
        flat = positions[1:].ravel()[order]
        flat = flat[flat >= 0]
        first = np.sort(np.unique(flat, return_index=True)[1])[:n_listed]
        _offer_new(best, block, flat[first], seen)
    best.ways.append("shortlist")
    return bool(seen.all() if block.alive is None else seen[block.alive].all())


def _offer_new(best: Best, block: Block, positions: Positions, seen: NDArray[np.bool_]) -> None:
    new = np.unique(positions[positions >= 0])
    new = new[~seen[new]]
    seen[new] = True
    best.offer(block, new)
