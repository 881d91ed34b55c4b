"""Shortlists from an inner-product index, and the proof that nothing outside them can enter the top k.

An exact index that returned the n best candidates of a query bounds every other one by the worst product that it
returned. So a candidate that no list holds scores at most

- ``max_i t_i``, with ``t_i`` the worst product of the list of context vector i, since a score is a mean of products;
- ``t + max_i |x_i - m| Y``, with ``t`` the worst of the list of the mean vector ``m`` and ``Y`` the largest norm of a
  candidate: the bound for flat products, at the price of a single query.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyrank.search.best import Best
from polyrank.search.blocks import Block, Floats, norms_of

SHORTLIST = 100  # by the mean and as many by the maximum: recall@10 of 0.95 to 1 in every regime that was measured
GROWTH = 4  # of a list that proved nothing
SCAN_FROM = 8  # a list of one in so many candidates: a scan is cheaper
Rows = NDArray[np.int64]


class ProductIndex(Protocol):
    """An inner-product index of the vectors of one block (``polyrank.index.ann.Ann`` is one)."""

    @property
    def exact(self) -> bool: ...

    def search(self, queries: Floats, k: int) -> tuple[Floats, Rows]:
        """Products and positions, ``[M, k]`` each, best first; -1 where there are no more."""
        ...


def certify(best: Best, block: Block, index: ProductIndex) -> bool:
    """Offer shortlists until nothing else of the block can be among the best.

    Returns:
        Whether that was proven; if not, lists grew so long that a scan is cheaper.
    """
    n, n_vectors = len(block.rows), len(best.contexts)
    norms = norms_of(block.vectors)
    largest = float(norms.max())
    mean, radius = _mean_and_radius(best.contexts)
    slack = largest * best.rounding * (1.0 + 1e-3)
    seen = np.zeros(n, np.bool_)
    ways = [(mean[None], radius * largest), (best.contexts.numpy(), 0.0)] if n_vectors > 1 else [(mean[None], 0.0)]
    if radius * largest > 2.0 * np.log(max(n_vectors, 2)):  # the mean says too little about so spread a context
        ways = ways[1:] or ways
    for queries, beyond in ways:
        n_listed = min(max(SHORTLIST // 2, 2 * best.k), n)
        while n_listed == n or n_listed * len(queries) * SCAN_FROM <= n:
            products, places = index.search(queries, n_listed)
            _offer_new(best, block, places, seen)
            worst = float(products[:, -1].max()) + beyond + slack
            if n_listed == n or worst < best.threshold:
                return True
            n_listed = min(n_listed * GROWTH, n)
    return False


def shortlist(best: Best, block: Block, index: ProductIndex) -> bool:
    """Offer the candidates with the best products: some by the mean vector, as many by the best of all vectors.

    Returns:
        Whether that was all of them.
    """
    n, n_vectors = len(block.rows), len(best.contexts)
    mean, _ = _mean_and_radius(best.contexts)
    queries = np.concatenate([mean[None], best.contexts.numpy()]) if n_vectors > 1 else mean[None]
    n_dead = 0 if block.alive is None else int(n - block.alive.sum())
    n_listed = max(SHORTLIST, 2 * best.k)
    n_listed = min(n, n_listed + min(n_dead, n_listed))
    seen = np.zeros(n, np.bool_)
    products, places = index.search(queries, n_listed)
    _offer_new(best, block, places[:1], seen)
    if n_vectors > 1:
        order = np.argsort(-products[1:].ravel(), kind="stable")
        flat = places[1:].ravel()[order]
        flat = flat[flat >= 0]
        first = np.sort(np.unique(flat, return_index=True)[1])[:n_listed]
        _offer_new(best, block, flat[first], seen)
    return bool(seen.all() if block.alive is None else seen[block.alive].all())


def _offer_new(best: Best, block: Block, places: Rows, seen: NDArray[np.bool_]) -> None:
    new = np.unique(places[places >= 0])
    new = new[~seen[new]]
    seen[new] = True
    best.offer(block, new)


def _mean_and_radius(contexts: Tensor) -> tuple[Floats, float]:
    """The mean vector ``[D]``, rounded, and the largest distance from it."""
    mean = contexts.double().mean(0).float()
    return mean.numpy(), float((contexts.double() - mean.double()).norm(dim=1).max()) * (1.0 + 1e-6)
