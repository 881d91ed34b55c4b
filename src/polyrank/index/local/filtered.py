"""Blocks of an index as a filter leaves them, kept for the next search and brought up to date by what was added.

Rows never change, so what passes once passes for good: after a change only the new rows are looked at. Of a block in
which few rows pass, their vectors are copied into a block of their own; in any other, the rest is marked as not alive.
The vectors that are searched stay the same objects, by which a search remembers what it derives from them. No torch.
"""

import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrank.index.filters import Filter, rows_where
from polyrank.index.local.ann import Ann
from polyrank.index.local.store import Meta, connect, read_meta, transaction
from polyrank.index.protocol import Block
from polyrank.storage.quantized import AnyVectors, take

MAX_FILTERS = 8  # whose results are kept
COPIED_SHARE = 0.125  # of a block: where fewer pass, their vectors are copied, so that all kept filters copy it once

View: TypeAlias = tuple[tuple[Block, ...], tuple[Ann | None, ...]]


class FilteredViews:
    """Views of one opening of an index, each through a filter. Safe to use from several threads.

    Args:
        path: the index folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept: OrderedDict[Filter, _Filtered] = OrderedDict()

    def view(self, filter: Filter, view: View, meta: Meta) -> View | None:
        """A view through a filter; None where the file, or another thread, is at another change than the view is.

        Args:
            filter: a condition.
            view: blocks and their inner-product indexes.
            meta: of the change that they are of.

        Raises:
            ArtifactError: the index is damaged or gone.
        """
        with self._lock:
            kept = self._kept.setdefault(filter, _Filtered(self._path, filter))
            self._kept.move_to_end(filter)
            while len(self._kept) > MAX_FILTERS:
                self._kept.popitem(last=False)
        return kept.view(view, meta)


@dataclass(frozen=True, slots=True)
class _Passing:
    """The rows of a block that pass, whether or not they are alive.

    Args:
        whole: the block's vectors.
        mask: ``[n]``
        copied: where few pass, their positions, and a block of their vectors.
    """

    whole: AnyVectors
    mask: NDArray[np.bool_]
    copied: tuple[NDArray[np.intp], Block] | None

    def of(self, block: Block, ann: Ann | None) -> tuple[Block, Ann | None]:
        """What a filter leaves of the block as it is now."""
        if self.copied is not None:
            positions, copy = self.copied
            return replace(copy, alive=None if block.alive is None else block.alive[positions]), None
        return replace(block, alive=self.mask if block.alive is None else self.mask & block.alive), ann


class _Filtered:
    """An index through one filter."""

    def __init__(self, path: Path, filter: Filter) -> None:
        self._path, self._filter = path, filter
        self._lock = threading.Lock()
        self._change, self._last = -1, 0  # what was looked at: up to this change, up to this row
        self._rows = np.empty(0, np.int64)  # that pass, ascending
        self._passing: dict[int, _Passing] = {}  # by the identity of a block's vectors
        self._latest: tuple[View, View] | None = None  # as it was given, and through the filter

    def view(self, view: View, meta: Meta) -> View | None:
        latest = self._latest
        if latest is not None and latest[0] is view:
            return latest[1]
        with self._lock:
            # what was removed before it was looked at is unknown, so views of different changes are not mixed
            if self._change > meta.change or (self._change < meta.change and not self._look(view, meta)):
                return None
            parts = [self._of(block).of(block, ann) for block, ann in zip(*view, strict=True)]
            parts = [(block, ann) for block, ann in parts if (block.rows if block.alive is None else block.alive).any()]
            whole = {id(block.vectors) for block in view[0]}
            self._passing = {key: passing for key, passing in self._passing.items() if key in whole}
            filtered = tuple(block for block, _ in parts), tuple(ann for _, ann in parts)
            self._latest = view, filtered
            return filtered

    def _look(self, view: View, meta: Meta) -> bool:
        """Evaluate the filter for the rows added since; whether the file is still at the change of the view."""
        # a connection of its own, so that nobody waits for it
        with (
            closing(connect(self._path, write=False)) as connection,
            transaction(connection, self._path, write=False),
        ):
            now = read_meta(connection, self._path)
            if (now.change, now.n, now.digest) != (meta.change, meta.n, meta.digest):
                return False
            self._rows = np.concatenate([self._rows, rows_where(connection, self._filter, after=self._last)])
        self._change = meta.change
        self._last = max([self._last, *(int(block.rows[-1]) for block in view[0] if len(block.rows))])
        return True

    def _of(self, block: Block) -> _Passing:
        passing = self._passing.get(id(block.vectors))
        if passing is None:
            mask = np.isin(block.rows, self._rows, assume_unique=True)
            positions = np.flatnonzero(mask)
            copied = None
            if len(positions) <= COPIED_SHARE * len(mask):
                copied = positions, Block(take(block.vectors, positions), block.rows[positions])
            passing = self._passing[id(block.vectors)] = _Passing(block.vectors, mask, copied)
        return passing
