"""Approximate search: a shortlist from an inner-product index, whose candidates are then scored in full."""

from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.search.best import Best
from polyrank.search.blocks import Block, Floats, derive, n_alive, offsets_of

SHORTLIST = 100  # by the mean and as many by the maximum: recall@10 of 0.95 to 1 in every regime that was measured
Positions = NDArray[np.int64]


class ProductIndex(Protocol):
    """An inner-product index of the vectors of one block (``polyrank.index.local.ann.Ann`` is one)."""

    def search(self, queries: Floats, k: int) -> tuple[Floats, Positions]:
        """Products and positions, ``[M, k]`` each, best first; -1 fills up short lists."""
        ...


def shortlist(best: Best, block: Block, index: ProductIndex) -> int:
    """Offer the candidates with the best products: some by the mean vector, as many by the best of all vectors.

    Where the block has offsets, as many again with the largest of those.

    Returns:
        How many of them are alive. If that is less than k, and not all candidates, none is offered.
    """
    n, n_vectors, n_live = len(block.rows), len(best.contexts), n_alive(block)
    mean = best.contexts.double().mean(0).float().numpy()
    queries = np.concatenate([mean[None], best.contexts.numpy()]) if n_vectors > 1 else mean[None]
    # longer in proportion to candidates that are not alive
    n_listed = min(n, ceil(max(SHORTLIST, 2 * best.k) * n / max(n_live, 1)))
    products, positions = index.search(queries, n_listed)
    lists = [positions[0]]
    if n_vectors > 1:
        order = np.argsort(-products[1:].ravel(), kind="stable")
        flat = positions[1:].ravel()[order]
        flat = flat[flat >= 0]
        first = np.sort(np.unique(flat, return_index=True)[1])[:n_listed]
        lists.append(flat[first])
    if (offsets := offsets_of(block)) is not None:  # the index of products ignores them
        order = derive("by offset", offsets, lambda values: np.argsort(-values, kind="stable"))
        lists.append(order[:n_listed])
    seen = np.zeros(n, np.bool_)
    for number, some in enumerate(lists):
        new = np.unique(some[some >= 0])
        lists[number] = new[~seen[new]]
        seen[new] = True
    n_seen = int(np.count_nonzero(seen if block.alive is None else seen & block.alive))
    if n_seen >= min(best.k, n_live):
        for some in lists:
            best.offer(block, some)
        best.ways.append("shortlist")
    return n_seen
