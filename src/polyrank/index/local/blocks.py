"""Blocks of vectors that follow the writer: rows that were added are appended, removed rows are marked. No torch."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.index.local.ann import Ann
from polyrank.index.local.store import Meta, check_rows, removed_rows, scan_rows
from polyrank.index.protocol import Block
from polyrank.storage.quantized import from_rows

MAX_BLOCKS = 8  # above this number, blocks of added rows are joined


class BlockUpdate:
    """Blocks as of one change, brought to a later one by ``update``.

    Args:
        matrix: name of the matrix that the first block belongs to.
        blocks: of vectors ``[n, D]`` each, sorted by row.
        change: that they are as of.
        digest: sum of the digests of their live rows.
        ann: inner-product index of the first block; None: none.
    """

    def __init__(self, matrix: str, blocks: list[Block], change: int, digest: int, ann: Ann | None = None) -> None:
        self.matrix, self.blocks, self.change, self.digest = matrix, blocks, change, digest
        self.ann = ann

    def update(self, connection: sqlite3.Connection, path: Path, meta: Meta) -> None:
        """Add the rows that were added after ``change``, and mark those removed.

        Raises:
            ArtifactError: the live rows are not those of ``meta``.
        """
        last = max((int(block.rows[-1]) for block in self.blocks if len(block.rows)), default=0)
        self._remove(removed_rows(connection, path, self.change))
        rows, vectors = [], []
        for row in scan_rows(connection, path, after=last):
            rows.append(row.row)
            vectors.append(row.vector)
            self.digest += int.from_bytes(row.digest, "little")
        if rows:
            self.blocks.append(Block(from_rows(vectors, meta.precision), np.array(rows, np.int64)))
        n = sum(len(block.rows) if block.alive is None else int(block.alive.sum()) for block in self.blocks)
        check_rows(path, meta, n, self.digest)
        if len(self.blocks) > MAX_BLOCKS:
            start = _first_to_join([len(block.rows) for block in self.blocks])
            self.blocks[start:] = [_joined(self.blocks[start:])]

    def _remove(self, removed: dict[int, int]) -> None:
        """Mark the removed rows of each block; rows that were added and removed since are in no block."""
        gone = np.array(sorted(removed), np.int64)
        for number, block in enumerate(self.blocks):
            at = np.searchsorted(block.rows, gone)
            hit = (at < len(block.rows)) & (block.rows[np.minimum(at, len(block.rows) - 1)] == gone)
            if hit.any():
                alive = np.ones(len(block.rows), np.bool_) if block.alive is None else block.alive.copy()
                alive[at[hit]] = False
                self.blocks[number] = replace(block, alive=alive)
                self.digest -= sum(removed[int(row)] for row in gone[hit])


def _first_to_join(sizes: Sequence[int]) -> int:
    """The first block, except the matrix, that is not larger than all later ones together; otherwise the last but one.

    A block is copied when it about doubles, so many small additions copy few vectors.

    >>> _first_to_join([90, 3, 1, 1, 1]), _first_to_join([90, 30, 1, 1, 1]), _first_to_join([90, 10, 5, 3, 1])
    (1, 2, 3)
    """
    last = len(sizes) - 2
    return next((i for i in range(1, last) if sizes[i] <= sum(sizes[i + 1 :])), last)


def _joined(blocks: Sequence[Block]) -> Block:
    """The live rows of several blocks as one."""
    take: Callable[[Block], Any] = lambda block: slice(None) if block.alive is None else block.alive  # noqa: E731
    return Block(
        np.concatenate([block.vectors[take(block)] for block in blocks]),
        np.concatenate([block.rows[take(block)] for block in blocks]),
    )
