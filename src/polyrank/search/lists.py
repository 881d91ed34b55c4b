"""Searches by lists: an engine or an inner-product index lists the largest products, which are scored in full here.

**An inner-product index** of a block gives an approximate search: candidates that no list contains are missed.

**The engine of a remote index** can prove an answer.

The score is a mean of a candidate's products (``polyrank.search.scoring``), so it is at most the largest of them. A
candidate that no list contains has products of at most the least of each list, so its score is at most the largest of
those. If that is below the k-th best score, the result is proven. Otherwise the lists grow until they prove
it, hold everything, or reach the engine's limit. The engine's products are in fp32, so each may be off by the rounding
(``rounding_of_product``) for the longest vector in the index.

A prior adds the same number to all products of a candidate and to its score. The engine's vectors have one more number
for it, so that the lists are of the sums, and nothing else changes.
"""

from dataclasses import replace
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.index.protocol import Block
from polyrank.index.remote.reader import RemoteEngine
from polyrank.search.best import Best, Result
from polyrank.search.blocks import Floats, derive, n_alive
from polyrank.search.scoring import prior_of, real_vectors, rounding_of_product

FIRST, GROWTH = 12, 4  # products listed at first beyond twice k, and how many times longer the next lists are
APPROXIMATE = 100  # products listed by an approximate search at least
LONGEST = 16_384  # Milvus lists at most so many
SHORTLIST = 100  # by the mean and as many by the maximum: recall@10 of 0.95 to 1 in every regime that was measured
Positions = NDArray[np.int64]


def search_remote(
    contexts: Floats, mask: NDArray[np.bool_], engine: RemoteEngine, k: int, *, prior: float = 0.0, exact: bool = True
) -> list[Result]:
    """The k best candidates of each context, best first, ties by row.

    Args:
        contexts: ``[B, M, D]``.
        mask: ``[B, M]``, true where a context vector is real.
        engine: lists products.
        k: how many; the index may hold fewer.
        prior: adds ``prior * log(1 + count)`` to each score.
        exact: whether lists grow until the answer is proven; otherwise they are requested once.

    Raises:
        UsageError: k is below one, or above the engine's limit; or there is a prior, and the engine has no counts.
        ArtifactError: a candidate is damaged.
    """
    if not 1 <= k <= LONGEST:
        raise UsageError(f"k is {k:,}; a remote index returns 1 to {LONGEST:,} candidates")
    exact = exact and engine.exact  # longer lists of an approximate engine prove nothing
    norm = engine.norm_bound() if exact else 0.0
    return [
        _search(Best(real_vectors(row, real), k), engine, norm, prior, exact)
        for row, real in zip(contexts, mask, strict=True)
    ]


def _search(best: Best, engine: RemoteEngine, norm: float, prior: float, exact: bool) -> Result:
    vectors = engine.weighing(best.contexts.numpy(), prior)  # [M, W]
    errors = np.linalg.norm(vectors.astype(np.float64), axis=1) * norm * rounding_of_product(vectors.shape[1])
    limits = np.full(len(vectors), np.inf)  # of the products of candidates that no list contains
    seen: set[str] = set()
    n = min(2 * best.k + FIRST if exact else max(2 * best.k, APPROXIMATE), LONGEST)
    best.ways.append(f"remote {engine.kind}")
    while True:
        asked = np.flatnonzero(_may_reach(limits, best))
        lists = engine.nearest(vectors[asked], n)
        new = [key for key in dict.fromkeys(key for keys, _ in lists for key in keys) if key not in seen]
        seen.update(new)
        block = engine.fetch(new) if new else None
        if block is not None and len(block.rows):
            if prior:
                block = replace(block, offsets=prior_of(engine.counts(block.rows), prior))
            best.offer(block, np.arange(len(block.rows)))
        for i, (keys, products) in zip(asked, lists, strict=True):
            limits[i] = products[-1] + errors[i] if len(keys) >= n else -np.inf
        whole = any(len(keys) < n for keys, _ in lists)  # such a list contains every candidate
        proven = exact and (whole or not _may_reach(limits, best).any())
        if proven or not exact or n == LONGEST:
            return best.result(exact=proven)
        n = min(GROWTH * n, LONGEST)


def _may_reach(limits: NDArray[np.float64], best: Best) -> NDArray[np.bool_]:
    """Whether a candidate that no list contains may reach the k-th best score, as scores are rounded."""
    return ~(limits.astype(np.float32) < best.threshold)


class ProductIndex(Protocol):
    """An inner-product index of the vectors of one block (``polyrank.index.local.ann.Ann`` is one)."""

    def search(self, queries: Floats, k: int) -> tuple[Floats, Positions]:
        """Products and positions, ``[M, k]`` each, best first; -1 fills up short lists."""


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
        lists.append(flat[np.sort(np.unique(flat, return_index=True)[1])[:n_listed]])
    if block.offsets is not None:  # the index of products ignores them
        order = derive("by offset", block.offsets, lambda values: np.argsort(-values, kind="stable"))
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
