"""Top-k for Bi- and Poly-encoders over blocks of candidate vectors: exact, or approximate by an index's shortlist.

Scores are always computed the same way (fp64, rounded once); ways of searching differ in how they avoid computing them.
This package does not know texts or models, and reads no file except the machine's profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.config.names import Mode
from polyrank.devices.choice import cpu_has_bf16, free_cores
from polyrank.errors import UsageError
from polyrank.index.protocol import Block, Counts
from polyrank.index.remote.reader import RemoteEngine
from polyrank.search import kernels
from polyrank.search.best import Best, Result
from polyrank.search.blocks import Floats, derive, n_alive
from polyrank.search.lists import ProductIndex, search_remote, shortlist
from polyrank.search.on_device import LEAST, device_vectors, scan_on_device
from polyrank.search.profile import load_profile
from polyrank.search.query import Machine
from polyrank.search.scan import scan
from polyrank.search.scoring import prior_of, real_vectors, score_rows
from polyrank.search.ways import WAYS, Policy

__all__ = ["Block", "Mode", "NearestSearch", "ProductIndex", "Result", "prior_of", "score_rows", "search"]


def search(
    contexts: Floats,
    mask: NDArray[np.bool_],
    blocks: Sequence[Block],
    k: int,
    *,
    mode: Mode = "exact",
    indexes: Sequence[ProductIndex | None] | None = None,
    device: torch.device | str = "cpu",
    compiled: bool = True,
    ways: Sequence[str] = tuple(WAYS),
) -> list[Result]:
    """The k best candidates of each context, best first, ties by row.

    Args:
        contexts: ``[B, M, D]``.
        mask: ``[B, M]``, true where a context vector is real; each context has at least one.
        blocks: the candidates; rows are distinct over all of them, vectors ``[n, D]`` do not change while they live.
        k: how many; fewer are returned if fewer are alive.
        mode: ``exact`` scans in the fastest way that is proven to return the same as computing every score;
            ``approximate`` scores one shortlist per block and reports whether that was exact. If a shortlist has fewer
            than k live candidates although the block has more, the block is scanned.
        indexes: for the approximate mode, an inner-product index of each block's vectors, or ``None``: scan that block.
        device: "cuda" keeps a copy of each block that fits and bounds its scores; the CPU scans all others.
        compiled: whether to use the loops of ``polyrank-kernels``, if installed; they also keep a copy of the vectors
            in int8. On processors with bf16 instructions, a search may keep a copy in bf16.
        ways: of scanning, to choose from (see ``polyrank.search.ways``); ``["plain"]`` scores every candidate in fp32.

    Raises:
        UsageError: k is below one, shapes disagree, the mode is unknown, a context has no vectors, or this machine
            supports none of the ways.
        ArtifactError: a candidate's vector is not finite.

    >>> pool = Block(np.eye(3, dtype=np.float32), np.arange(3))
    >>> result = search(np.array([[[1.0, 3.0, 2.0]]], np.float32), np.array([[True]]), [pool], 2)[0]
    >>> result.rows.tolist(), result.scores.tolist(), result.exact, result.n_scored, result.ways
    ([1, 2], [3.0, 2.0], True, 3, ('plain',))
    """
    blocks = [block for block in blocks if len(block.rows)] if indexes is None else list(blocks)
    _check(contexts, mask, blocks, k, mode, indexes)
    machine = Machine(compiled and kernels.package() is not None, cpu_has_bf16())
    usable = [WAYS[name] for name in ways if name in WAYS and WAYS[name].usable(contexts.shape[2], machine)]
    if not usable:
        raise UsageError(f"this machine supports none of the ways {', '.join(ways)}; use some of {', '.join(WAYS)}")
    best = [Best(real_vectors(row, real), k) for row, real in zip(contexts, mask, strict=True)]
    exact = [True] * len(best)
    with torch.inference_mode():
        everyone = range(len(best))
        to_scan: list[list[Block]] = [[] for _ in everyone]  # for each context
        for number, block in enumerate(blocks):
            index = indexes[number] if indexes is not None and mode == "approximate" else None
            n = n_alive(block)
            for i in everyone if n else ():
                n_listed = 0 if index is None else shortlist(best[i], block, index)
                if n_listed < min(k, n):  # no shortlist, or one that is too short
                    to_scan[i].append(block)
                elif n_listed < n:
                    exact[i] = False
        if torch.device(device).type == "cuda":
            to_scan = _scan_on_device(best, blocks, to_scan, torch.device(device))
        if any(to_scan):
            policy = Policy(machine, load_profile(), usable)
            queries = {i: policy.choose(best[i], to_scan[i]) for i in everyone if to_scan[i]}
            with free_cores():
                for block in blocks:
                    some = [query for i, query in queries.items() if any(block is one for one in to_scan[i])]
                    if some:
                        scan(some, block, machine)
    return [one.result(exact=sure) for one, sure in zip(best, exact, strict=True)]


@dataclass(frozen=True, slots=True)
class NearestSearch:
    """A query for ``polyrank.index.Index.search``: the k best of an index. See ``search`` for the other arguments.

    Args:
        prior: adds ``prior * log(1 + count)`` to each score, by how often a reply was said.
        device: see ``search``. Only for ``of_blocks``.
    """

    contexts: Floats
    mask: NDArray[np.bool_]
    k: int
    mode: Mode = "exact"
    prior: float = 0.0
    device: torch.device | str = "cpu"

    def of_blocks(
        self, blocks: Sequence[Block], indexes: Sequence[ProductIndex | None], counts: Counts
    ) -> list[Result]:
        """The k best by vectors."""
        if self.prior:
            # rows never change, and the same array of them comes again with the next search
            name, offsets = f"prior {self.prior!r}", lambda rows: prior_of(counts(rows), self.prior)
            blocks = [replace(block, offsets=derive(name, block.rows, offsets)) for block in blocks]
        return search(self.contexts, self.mask, blocks, self.k, mode=self.mode, indexes=indexes, device=self.device)

    def of_engine(self, engine: RemoteEngine) -> list[Result]:
        """The k best by an engine's lists of products."""
        exact = self.mode == "exact"
        return search_remote(self.contexts, self.mask, engine, self.k, prior=self.prior, exact=exact)


def _scan_on_device(
    best: Sequence[Best], blocks: Sequence[Block], to_scan: Sequence[Sequence[Block]], device: torch.device
) -> list[list[Block]]:
    """Scan the blocks that a device keeps. Returns the blocks that are left for each context."""
    left = [list(some) for some in to_scan]
    for block in blocks:
        some = [i for i, listed in enumerate(left) if any(block is one for one in listed)]
        if some and len(block.rows) >= LEAST and (copy := device_vectors(block.vectors, device)) is not None:
            scan_on_device([best[i] for i in some], block, copy)
            for i in some:
                left[i] = [one for one in left[i] if one is not block]
    return left


def _check(
    contexts: Floats,
    mask: NDArray[np.bool_],
    blocks: Sequence[Block],
    k: int,
    mode: str,
    indexes: Sequence[ProductIndex | None] | None,
) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; request at least one candidate")
    if mode not in get_args(Mode):
        raise UsageError(f"mode {mode!r} is unknown; use exact or approximate")
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
