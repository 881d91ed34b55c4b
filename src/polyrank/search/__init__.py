"""Top-k for Bi- and Poly-encoders over blocks of candidate vectors: exact, fast, certified, approximate.

All four compute scores the same way (fp64, rounded once); they differ in how they avoid computing them. This package
knows nothing of texts, models or files.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.search import kernels
from polyrank.search.best import Best, Found
from polyrank.search.bf16 import time_of_halves
from polyrank.search.blocks import Block, Floats
from polyrank.search.certified import ProductIndex, certify, shortlist
from polyrank.search.fast import plan
from polyrank.search.scan import Query, scan
from polyrank.search.scoring import real_vectors, score_rows

__all__ = ["Block", "Found", "Mode", "ProductIndex", "score_rows", "search"]

Mode = Literal["exact", "fast", "certified", "approximate"]


def search(
    contexts: Floats,
    mask: NDArray[np.bool_],
    blocks: Sequence[Block],
    k: int,
    *,
    mode: Mode = "fast",
    indexes: Sequence[ProductIndex | None] | None = None,
    device: torch.device | str = "cpu",
    compiled: bool = True,
) -> list[Found]:
    """The k best candidates of each context, best first, ties by row.

    Args:
        contexts: ``[B, M, D]``.
        mask: ``[B, M]``, true where a context vector is real; each context has at least one.
        blocks: the candidates; rows are distinct over all of them, vectors ``[n, D]`` do not change while they live.
        k: how many; fewer come back when fewer are alive.
        mode: ``exact`` computes all scores in fp32 and the best again; ``fast`` rules candidates out by upper bounds
            and returns the same; ``certified`` grows shortlists from exact indexes until nothing else can be among the
            best, or scans, and returns the same; blocks whose index is not exact, and all where AMX scans faster than
            an exact index is asked, are scanned as ``fast`` does;
            ``approximate`` scores one shortlist per block.
        indexes: for the last two modes, an inner-product index of each block's vectors, or ``None``: scan that block.
        device: where a scan in fp32 multiplies.
        compiled: whether the loops of ``polyrank-kernels`` are used where that is installed; they also keep a copy of
            the vectors in int8. On processors with instructions for bf16, ``fast`` may keep one in that.

    Raises:
        UsageError: k is below one, shapes disagree, the mode is unknown, or a context has no vectors.
        ArtifactError: a candidate's vector is not finite.

    >>> from types import SimpleNamespace
    >>> pool = SimpleNamespace(vectors=np.eye(3, dtype=np.float32), rows=np.arange(3), alive=None)
    >>> found = search(np.array([[[1.0, 3.0, 2.0]]], np.float32), np.array([[True]]), [pool], 2, mode="exact")[0]
    >>> found.rows.tolist(), found.scores.tolist(), found.exact
    ([1, 2], [3.0, 2.0], True)
    """
    blocks = [block for block in blocks if len(block.rows)] if indexes is None else list(blocks)
    _check(contexts, mask, blocks, k, mode, indexes)
    place = torch.device(device)
    compiled = compiled and kernels.package() is not None
    best = [Best(real_vectors(row, real), k) for row, real in zip(contexts, mask, strict=True)]
    by_tiles = compiled and place.type == "cpu" and kernels.in_tiles(8, contexts.shape[2])
    proven = [True] * len(best)
    with torch.inference_mode():
        scanned: list[tuple[Block, list[int]]] = []
        for number, block in enumerate(blocks):
            index = indexes[number] if indexes is not None and mode in ("certified", "approximate") else None
            # nothing can be proven by an index that is not exact, and a scan by AMX is cheaper than one that is
            idle = mode == "certified" and index is not None and (by_tiles or not index.exact)
            if index is None or not len(block.rows) or idle:
                scanned.append((block, list(range(len(best)))))
            elif mode == "certified":
                scanned.append((block, [i for i in range(len(best)) if not certify(best[i], block, index)]))
            else:
                for i, one in enumerate(best):
                    proven[i] &= shortlist(one, block, index)
        scanned = [(block, todo) for block, todo in scanned if todo and len(block.rows)]
        if mode == "exact" or not scanned:
            queries = [Query(one) for one in best]
        else:
            halves = time_of_halves() if place.type == "cpu" else None
            there = [block for block, _ in scanned]
            queries = [plan(one, there, compiled=compiled, halves=halves) for one in best]
        for block, todo in scanned:
            scan([queries[i] for i in todo], block, place, compiled=compiled)
    return [one.found(exact=sure) for one, sure in zip(best, proven, strict=True)]


def _check(
    contexts: Floats,
    mask: NDArray[np.bool_],
    blocks: Sequence[Block],
    k: int,
    mode: str,
    indexes: Sequence[ProductIndex | None] | None,
) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; ask for one candidate at least")
    if mode not in ("exact", "fast", "certified", "approximate"):
        raise UsageError(f"mode {mode!r} is unknown; use exact, fast, certified or approximate")
    if contexts.ndim != 3 or mask.shape != contexts.shape[:2]:
        raise UsageError(f"contexts {contexts.shape} and mask {mask.shape} are not [B, M, D] and [B, M]; reshape them")
    for block in blocks:
        if block.vectors.shape != (len(block.rows), contexts.shape[2]):
            raise UsageError(
                f"a block has vectors {block.vectors.shape} for {len(block.rows)} rows and contexts have"
                f" {contexts.shape[2]} dimensions; search with the encoder that made the index"
            )
    if indexes is not None and len(indexes) != len(blocks):
        raise UsageError(f"{len(indexes)} indexes for {len(blocks)} blocks; give one, or None, for each")
