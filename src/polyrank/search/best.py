"""The best candidates so far, with the scores that are returned: computed in fp64, rounded once to fp32.

Every way of scanning computes upper bounds and offers candidates here in the order of their bounds. So all ways return
the same rows and scores; they differ in how many candidates they offer.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.index.protocol import Block
from polyrank.search.blocks import Floats, Rows, add_offsets, as_tensor, norms_of
from polyrank.search.scoring import close_bounds, precise_scores, rounding_of_product
from polyrank.search.subspace import Subspace, find_subspace

FIRST = 32  # candidates scored before the threshold is looked at again
MANY = 64  # above, a batch goes through fp32 first
WAITING = 8192  # deferred candidates at most, so that memory stays flat


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search for one context.

    Args:
        rows: ``[k']``, best first, ties by row; fewer than k if there are fewer candidates.
        scores: ``[k']``, of these rows.
        exact: whether these are proven to be the top k of all candidates.
        n_scored: candidates whose score was computed in full.
        ways: how the search was done: names of ways of scanning (see ``polyrank.search.ways``), or "shortlist".
    """

    rows: Rows
    scores: Floats
    exact: bool
    n_scored: int
    ways: tuple[str, ...] = ()


class Best:
    """Collects the top k for one context.

    Args:
        contexts: its real vectors, ``[M, D]``.
        k: how many to keep.
    """

    def __init__(self, contexts: Floats, k: int) -> None:
        self.k = k
        self.contexts = torch.from_numpy(contexts)
        self.norm = float(torch.linalg.vector_norm(self.contexts.double(), dim=1).max())
        self.rounding = self.norm * rounding_of_product(contexts.shape[1])
        self.n_scored = 0
        self.ways: list[str] = []
        self._precise = self.contexts.double()
        self._rows, self._scores = np.empty(0, np.int64), np.empty(0, np.float32)
        self._waiting: list[tuple[NDArray[np.intp], Floats]] = []
        self._n_waiting = 0
        self._subspaces: dict[bool, Subspace] = {}

    def subspace(self, *, int16: bool) -> Subspace:
        """Columns that span nearly all of the context's vectors, computed once; see ``find_subspace``."""
        if int16 not in self._subspaces:
            self._subspaces[int16] = find_subspace(self.contexts, int16=int16)
        return self._subspaces[int16]

    @property
    def threshold(self) -> float:
        """The k-th best score so far, which a candidate must reach."""
        return float(self._scores[-1]) if len(self._scores) == self.k else -np.inf

    def offer(
        self, block: Block, positions: NDArray[np.intp], bounds: Floats | None = None, *, close: bool = False
    ) -> None:
        """Score in full the candidates whose bound reaches the threshold, the largest bounds first.

        Args:
            block: of the candidates.
            positions: ``[n]``, in the block; removed candidates are skipped.
            bounds: ``[n]``, upper bounds of their scores; ``None``: unknown.
            close: whether the bounds are as close as fp32 allows.
        """
        if block.alive is not None:
            alive = block.alive[positions]
            positions, bounds = positions[alive], None if bounds is None else bounds[alive]
        if bounds is None:
            bounds = np.full(len(positions), np.inf, np.float32)
        n_batch = max(FIRST, self.k)
        while len(positions):
            reach = ~(bounds < self.threshold)  # NaN passes too, and is refused in ``_take``
            positions, bounds = positions[reach], bounds[reach]
            if n_batch < len(positions):
                order = np.argpartition(-bounds, n_batch)
                batch, order = order[:n_batch], order[n_batch:]
                now, positions, bounds = positions[batch], positions[order], bounds[order]
            else:
                now, positions = positions, positions[:0]
            if close or len(now) <= MANY:
                self._take(block, now)
            else:
                self._sift(block, now)
            n_batch = min(4 * n_batch, max(1024, self.k))

    def defer(self, block: Block, positions: NDArray[np.intp], bounds: Floats) -> None:
        """Offer later, together with the next ones of the same block: fewer offers score fewer candidates."""
        self._waiting.append((positions, bounds))
        self._n_waiting += len(positions)
        if self._n_waiting > WAITING:
            self.settle(block)

    def settle(self, block: Block) -> None:
        """Offer the deferred candidates."""
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        if waiting:
            self.offer(block, np.concatenate([w[0] for w in waiting]), np.concatenate([w[1] for w in waiting]))

    def result(self, *, exact: bool) -> Result:
        """The result."""
        return Result(self._rows, self._scores, exact, self.n_scored, tuple(dict.fromkeys(self.ways)))

    def _sift(self, block: Block, positions: NDArray[np.intp]) -> None:
        """Score in fp64 only those candidates that fp32 cannot rule out."""
        gathered = as_tensor(block.vectors[positions])
        error = torch.from_numpy(norms_of(block.vectors)[positions]) * self.rounding
        products = gathered @ self.contexts.T
        bounds = close_bounds(products, error, torch.empty_like(products)).numpy()
        n_before = self.n_scored
        self.offer(replace(block, alive=None), positions, add_offsets(bounds, block, positions), close=True)
        self.n_scored = n_before + len(positions)

    def _take(self, block: Block, positions: NDArray[np.intp]) -> None:
        if not len(positions):
            return
        offsets = None if block.offsets is None else block.offsets[positions]
        scores = precise_scores(self._precise, block.vectors[positions], offsets)
        if not np.isfinite(scores).all():
            raise ArtifactError("a candidate's score is not finite; its vector is damaged, so build the index again")
        self.n_scored += len(positions)
        rows = np.concatenate([self._rows, block.rows[positions]])
        scores = np.concatenate([self._scores, scores])
        order = np.lexsort((rows, -scores))
        rows, scores = rows[order], scores[order]
        new = np.concatenate([[True], rows[1:] != rows[:-1]])  # a shortlist and a scan may offer the same
        self._rows, self._scores = rows[new][: self.k], scores[new][: self.k]
