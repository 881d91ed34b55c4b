"""The blocks of an index that a filter leaves, cached between searches and updated with what was added.

Rows never change, so after a change a filter is evaluated for new rows only; ``polyrank.index.local.postings`` finds
equal values. If few rows of a block pass, their vectors are copied into a separate block; otherwise the other rows are
marked as not alive. The vectors of a block stay the same objects, because searches cache derived data by the identity
of the vectors. No torch.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrank.index.filters import Filter, rows_where
from polyrank.index.local.ann import Ann
from polyrank.index.local.postings import Postings
from polyrank.index.local.store import Meta, read_meta, reading
from polyrank.index.protocol import Block
from polyrank.storage.forks import new_lock
from polyrank.storage.quantized import AnyVectors, take

MAX_FILTERS = 8  # kept in the cache
COPIED_SHARE = 0.125  # of a block: below it, passing vectors are copied; MAX_FILTERS copies equal at most one block

View: TypeAlias = tuple[tuple[Block, ...], tuple[Ann | None, ...]]


class FilteredViews:
    """Filtered views of one opening of an index. Safe to use from several threads.

    Args:
        path: the index folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = new_lock()
        self._kept: OrderedDict[Filter, _Filtered] = OrderedDict()
        self._postings = Postings(path)

    def view(self, filter: Filter, view: View, meta: Meta) -> View | None:
        """A filtered view; None if the file, or another thread, is at another change than ``view``.

        Args:
            filter: the condition.
            view: blocks and their inner-product indexes.
            meta: as of the change that ``view`` shows.

        Raises:
            ArtifactError: the index is damaged or missing.
        """
        with self._lock:
            kept = self._kept.setdefault(filter, _Filtered(self._path, filter, self._postings))
            self._kept.move_to_end(filter)
            while len(self._kept) > MAX_FILTERS:
                self._kept.popitem(last=False)
        return kept.view(view, meta)

    def drop_other_views(self, view: View) -> None:
        """Release the blocks that ``view`` does not have, so that filters that are not used again do not keep them."""
        with self._lock:
            kept = list(self._kept.values())
        for filtered in kept:
            filtered.drop_other_views(view)


@dataclass(frozen=True, slots=True)
class _PassingRows:
    """The rows of a block that pass a filter, alive or not.

    Args:
        whole: the block's vectors.
        mask: ``[n]``, true for rows that pass; None if they are copied.
        copied: if few rows pass, their positions and a block of their vectors.
    """

    whole: AnyVectors
    mask: NDArray[np.bool_] | None
    copied: tuple[NDArray[np.intp], Block] | None

    def restrict(self, block: Block, ann: Ann | None) -> tuple[Block, Ann | None]:
        """The part of the block, as it is now, that passes."""
        if self.copied is not None:
            positions, copy = self.copied
            return replace(copy, alive=None if block.alive is None else block.alive[positions]), None
        assert self.mask is not None, "rows that are not copied are marked"
        return replace(block, alive=self.mask if block.alive is None else self.mask & block.alive), ann


class _Filtered:
    """One filter's view of an index."""

    def __init__(self, path: Path, filter: Filter, postings: Postings) -> None:
        self._path, self._filter, self._postings = path, filter, postings
        self._lock = new_lock()
        self._change, self._last = -1, 0  # evaluated up to this change and this row
        self._rows = np.empty(0, np.int64)  # passing row numbers, ascending
        self._passing: dict[int, _PassingRows] = {}  # by the identity of a block's vectors
        self._latest: tuple[View, View] | None = None  # the last argument and its result

    def view(self, view: View, meta: Meta) -> View | None:
        latest = self._latest
        if latest is not None and latest[0] is view:
            return latest[1]
        with self._lock:
            # rows that were removed before they were evaluated are unknown, so views of different changes do not mix
            if self._change > meta.change or (self._change < meta.change and not self._evaluate(view, meta)):
                return None
            parts = [self._passing_rows(block).restrict(block, ann) for block, ann in zip(*view, strict=True)]
            parts = [(block, ann) for block, ann in parts if (block.rows if block.alive is None else block.alive).any()]
            self._keep_blocks(view)
            filtered = tuple(block for block, _ in parts), tuple(ann for _, ann in parts)
            self._latest = view, filtered
            return filtered

    def drop_other_views(self, view: View) -> None:
        """See ``FilteredViews``. A filter in use drops them by itself."""
        if self._lock.acquire(blocking=False):
            try:
                self._keep_blocks(view)
                self._latest = None
            finally:
                self._lock.release()

    def _keep_blocks(self, view: View) -> None:
        whole = {id(block.vectors) for block in view[0]}
        self._passing = {key: passing for key, passing in self._passing.items() if key in whole}

    def _evaluate(self, view: View, meta: Meta) -> bool:
        """Evaluate the filter for the rows added since; false if the file has changed since the view was read."""
        rows, exact = self._postings.candidates(self._filter.tree, meta) or (None, False)
        if exact and rows is not None:
            self._rows = rows
        else:
            with reading(self._path) as connection:
                if not read_meta(connection, self._path).has_same_rows(meta):
                    return False
                if rows is not None:
                    rows = rows[rows > self._last]
                new = rows_where(connection, self._filter, after=self._last, among=rows)
            self._rows = np.concatenate([self._rows, new])
        self._change = meta.change
        self._last = max([self._last, *(int(block.rows[-1]) for block in view[0] if len(block.rows))])
        return True

    def _passing_rows(self, block: Block) -> _PassingRows:
        passing = self._passing.get(id(block.vectors))
        if passing is None:
            places = np.searchsorted(block.rows, self._rows)
            there = places < len(block.rows)
            there[there] = block.rows[places[there]] == self._rows[there]
            positions = places[there]
            mask = copied = None
            if len(positions) <= COPIED_SHARE * len(block.rows):
                copied = positions, Block(take(block.vectors, positions), block.rows[positions])
            else:
                mask = np.zeros(len(block.rows), np.bool_)
                mask[positions] = True
            passing = self._passing[id(block.vectors)] = _PassingRows(block.vectors, mask, copied)
        return passing
