"""A local index opened for reading: candidates by row, and blocks of vectors that follow the writer. No torch.

Most vectors are in the memory-mapped matrix; rows added since are in blocks in memory, and removed rows are marked.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.index.checks import Vectors
from polyrank.index.filters import Filter, rows_where
from polyrank.index.local import store
from polyrank.index.local.blocks import BlockUpdate
from polyrank.index.local.counts import RowCounts
from polyrank.index.local.filtered import FilteredViews, View
from polyrank.index.local.lock import acknowledged_change, check_acknowledged
from polyrank.index.local.matrix import REMEDY, Matrix, Verification, open_matrix
from polyrank.index.protocol import Block, CandidatePage, H, Index, Search, check_fingerprint
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import Precision, bytes_per_vector, from_rows
from polyrank.storage.sqlite import Connected, ReadConnection, log_size


class LocalIndex(Connected, Index):
    """Candidates and their vectors in the files of a folder, as of the last ``refresh``.

    Any number of readers can work next to one writer, in the same process or in others. Row numbers are valid for one
    opening of the folder.

    Args:
        path: the index folder.
        searched: whether to load the vectors; opening without them takes almost no time.

    Raises:
        ArtifactError: missing, damaged, or too new.
    """

    def __init__(self, path: AnyPath, *, searched: bool = True) -> None:
        super().__init__()
        self.path, self._searched = Path(path), searched
        self._verification: Verification | None = None
        self.opening = 1
        connection, self._state = self._open()
        self._use(connection)

    def after_fork(self) -> None:
        """In a child process: leave the connection to the parent. The next use opens another."""
        super().after_fork()
        self._verification = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Lock out other threads, with a connection of this process."""
        with self._lock:
            if self._inherited:
                self._reopen()
            yield

    def _reopen(self) -> None:
        """Read the folder that is now at the path."""
        connection, state = self._open()
        try:
            check_fingerprint(state.meta.fingerprint, self.fingerprint, self.path)
        except ArtifactError:
            connection.close()
            raise
        self._release()
        self._use(connection)
        self._state = state
        self.opening += 1  # last: a thread that reads it before taking a view has this opening, or is refused

    def _open(self) -> "tuple[sqlite3.Connection, _Loaded]":
        """A new connection and the state that it shows."""
        while True:
            # before opening, so that the next refresh notices a folder that replaces this one meanwhile
            file = _file_identity(self.path, immutable=True)
            try:
                with ExitStack() as resources:
                    connection = store.connect(self.path, write=False)
                    resources.callback(connection.close)
                    state = self._load(connection, None)
                    resources.pop_all()
                immutable = isinstance(connection, ReadConnection)
                return connection, replace(state, file=file if immutable else file[:2])
            except ArtifactError:
                if _file_identity(self.path) == file[:2]:
                    raise

    @property
    def fingerprint(self) -> str:
        return self._state.meta.fingerprint

    @property
    def model(self) -> str:
        return self._state.meta.model

    @property
    def dimension(self) -> int:
        return self._state.meta.dimension

    @property
    def precision(self) -> Precision:
        return self._state.meta.precision

    @property
    def change(self) -> int:
        return self._state.meta.change

    def __len__(self) -> int:
        return self._state.meta.n

    def __repr__(self) -> str:
        return (
            f"LocalIndex({str(self.path)!r}, {len(self):,} candidates, {self.dimension} dimensions, {self.precision})"
        )

    def blocks(self) -> tuple[Block, ...]:
        """A consistent view of all live vectors; later changes do not affect it."""
        return self._state.view[0]

    def view(self, filter: Filter | None = None) -> View:
        """``blocks`` and the inner-product index of each block (or None), from the same change.

        Args:
            filter: only candidates whose metadata pass; None: all. The first call evaluates the filter for all rows,
                later calls for rows added since. If needed for a consistent view, it refreshes the index.

        Raises:
            ArtifactError: the index is damaged.
        """
        assert self._searched, "this index was opened without its vectors"
        while filter is not None:
            state = self._state
            view = state.filtered.view(filter, state.view, state.meta)
            if view is not None:
                return view
            self.refresh()
        return self._state.view

    def rows_where(self, filter: Filter) -> NDArray[np.int64]:
        """Numbers of the live rows that pass, ascending, from one change."""
        blocks, _ = self.view(filter)
        parts = [block.rows if block.alive is None else block.rows[block.alive] for block in blocks]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def candidates(self, rows: Sequence[int], *, opening: int | None = None) -> list[Candidate]:
        """Candidates by row number, in the given order.

        Args:
            rows: row numbers.
            opening: ``opening`` from before the view that the rows come from; None: no other thread refreshes.

        Raises:
            ArtifactError: a row is damaged or was removed, or another index replaced this one; search again after
                ``refresh``.
        """
        with self._reading():
            if opening not in (None, self.opening):
                raise ArtifactError(f"{self.path} was replaced by another index; search again")
            return [row.candidate for row in store.read_rows(self._connection, self.path, rows)]

    def search(self, search: Search[H], filter: Filter | None = None) -> list[tuple[list[Candidate], H]]:
        while True:
            opening, state = self.opening, self._state
            blocks, indexes = self.view(filter)
            if self._state is not state:  # counts must be of the same change as the view
                continue
            try:
                hits = search.of_blocks(blocks, indexes, partial(state.counts.of_rows, meta=state.meta))
                return [(self.candidates(one.rows.tolist(), opening=opening), one) for one in hits]
            except ArtifactError:
                # between the search and the reading of its texts, a reply was removed or the index replaced, and
                # another thread may have refreshed already
                changed = self.refresh() or self.opening != opening
                if not changed and self.view(filter)[0] is blocks:
                    raise

    def find(self, ids: Sequence[str]) -> dict[str, Candidate]:
        with self._reading(), store.transaction(self._connection, self.path, write=False):
            return store.find(self._connection, self.path, ids)

    def vectors(self, ids: Sequence[str]) -> dict[str, Vectors]:
        with self._reading(), store.transaction(self._connection, self.path, write=False):
            rows = store.read_rows(
                self._connection, self.path, list(store.row_numbers(self._connection, self.path, ids).values())
            )
        decoded = from_rows([row.vector for row in rows], self.precision) if rows else ()
        return {row.candidate.id: vector for row, vector in zip(rows, decoded, strict=True)}

    def _page(self, after: int, n: int, words: Sequence[str], filter: Filter | None) -> CandidatePage:
        with self._reading(), store.transaction(self._connection, self.path, write=False):
            return store.page(self._connection, self.path, after, n, words, filter)

    def iter_candidates(self, filter: Filter | None = None) -> Iterator[tuple[int, Candidate]]:
        with store.reading(self.path) as connection:
            passing = None if filter is None else set(rows_where(connection, filter).tolist())
            for row in store.scan_all_rows(connection, self.path, store.read_meta(connection, self.path)):
                if passing is None or row.row in passing:
                    yield row.row, row.candidate

    def refresh(self) -> bool:
        """See ``Index``. Takes microseconds and returns False if nothing changed.

        A thread verifies a compaction's matrix, which takes about a second per GB, before ``refresh`` uses it. A reader
        that missed the change before the compaction waits for it.
        """
        with self._lock:
            immutable = isinstance(self._connection, ReadConnection)
            if self._inherited or _file_identity(self.path, immutable=immutable) != self._state.file:  # replaced
                self._reopen()
                return True
            verified = self._verification is not None and not self._verification.is_alive()
            if self._version(self._connection) == self._state.version and not verified:
                return False
            previous = self._state
            now = self._load(self._connection, previous)
            self._state = replace(now, file=previous.file, filtered=previous.filtered, counts=previous.counts)
            previous.filtered.drop_other_views(now.view)
            return now.meta.change != previous.meta.change

    def info(self) -> dict[str, Any]:
        meta = self._state.meta
        keys = ("format", "written_by", "fingerprint", "model", "n", "dimension", "change", "ann", "precision")
        return {key: getattr(meta, key) for key in keys} | {
            "blocks": [len(block.rows) for block in self.blocks()],
            "bytes": {
                INDEX_FILE: (self.path / INDEX_FILE).stat().st_size,
                "vectors": meta.n * bytes_per_vector(meta.dimension, meta.precision),
            },
        }

    def _version(self, connection: sqlite3.Connection) -> int:
        """A number that changes with every commit of another connection."""
        with store.sqlite_errors(self.path):
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def _load(self, connection: sqlite3.Connection, previous: "_Loaded | None") -> "_Loaded":
        """The state as of the last change, derived from the previous state where possible."""
        try:
            return self._load_once(connection, previous, rebuild=False)
        except FileNotFoundError:
            # a writer replaced the matrix meanwhile; if it is missing now too, read the vectors from SQLite
            return self._load_once(connection, previous, rebuild=True)

    def _load_once(self, connection: sqlite3.Connection, previous: "_Loaded | None", *, rebuild: bool) -> "_Loaded":
        version = self._version(connection)
        expected = acknowledged_change(self.path)
        with store.transaction(connection, self.path, write=False):
            meta = store.read_meta(connection, self.path)
            check_acknowledged(self.path, meta.change, expected)
            if previous is not None and (previous.meta.change, previous.matrix) == (meta.change, meta.matrix):
                return replace(previous, meta=meta, version=version)
            if not self._searched:
                return _Loaded(meta, meta.matrix, ((), ()), version, FilteredViews(self.path), RowCounts(self.path))
            view = self._loaded_blocks(meta, previous, rebuild)
            view.update(connection, self.path, meta)
        indexes = (view.ann, *(None for _ in view.blocks[1:])) if view.blocks else ()
        views = tuple(view.blocks), indexes
        return _Loaded(meta, view.matrix, views, version, FilteredViews(self.path), RowCounts(self.path))

    def _loaded_blocks(self, meta: store.Meta, previous: "_Loaded | None", rebuild: bool) -> BlockUpdate:
        """The blocks to update: those of a matrix that was written since the previous state, otherwise its own."""
        if previous is None or previous.meta.change < meta.matrix_change:  # removals since then are not listed
            self._verification = None
            return self._from_matrix(meta, rebuild)
        name = previous.matrix
        if name != meta.matrix:  # the new one replaces rows in memory and removed rows
            if self._verification is None or self._verification.path.name != meta.matrix:
                self._verification = Verification(self.path / meta.matrix)
            if not self._verification.is_alive():
                matrix, self._verification, name = self._verification.matrix, None, meta.matrix
                with suppress(ArtifactError):  # without a sound matrix, the previous blocks can still be updated
                    if matrix is not None:
                        return self._of_matrix(matrix, meta)
        blocks, indexes = previous.view
        index = indexes[0] if indexes else None
        return BlockUpdate(name, list(blocks), previous.meta.change, previous.meta.digest, index)

    def _from_matrix(self, meta: store.Meta, rebuild: bool) -> BlockUpdate:
        nothing = BlockUpdate(meta.matrix, [], 0, 0)
        if not meta.matrix:
            return nothing
        try:
            return self._of_matrix(open_matrix(self.path / meta.matrix), meta)
        except FileNotFoundError:
            if not rebuild:
                raise
            return nothing

    def _of_matrix(self, matrix: Matrix, meta: store.Meta) -> BlockUpdate:
        block = matrix.block
        fits = not len(block.rows) or block.vectors.shape == (len(block.rows), meta.dimension)
        if matrix.change != meta.matrix_change or not fits:
            raise ArtifactError(f"{self.path / meta.matrix} belongs to another index; {REMEDY}")
        blocks = [block] if len(block.rows) else []
        return BlockUpdate(meta.matrix, blocks, matrix.change, matrix.digest, matrix.ann)


class KnownVectors:
    """Vectors by text of an index, so that no text is encoded twice when it is built again.

    Args:
        index: made by the encoder that would otherwise encode the texts.
    """

    def __init__(self, index: LocalIndex) -> None:
        self._blocks = index.blocks()
        rows = {row for block in self._blocks for row in block.rows.tolist()}
        # rows that a writer has added since are not in the blocks
        self._rows = {candidate.text: row for row, candidate in index.iter_candidates() if row in rows}

    def __contains__(self, text: str) -> bool:
        return text in self._rows

    def __getitem__(self, text: str) -> Vectors:
        row = self._rows[text]
        for block in self._blocks:
            at = int(np.searchsorted(block.rows, row))
            if at < len(block.rows) and block.rows[at] == row:
                vector: Vectors = block.vectors[np.array([at])][0]
                return vector
        raise KeyError(text)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """All that an index has loaded, from one change; replaced as a whole.

    Args:
        meta: as of that change.
        matrix: name of the matrix that the view contains; that of ``meta`` may still be verified.
        view: blocks, and the inner-product index of each.
        version: SQLite's number of the commit that was read.
        filtered: filtered views, kept across changes of one opening.
        counts: how often replies were said, kept likewise.
        file: identity of the file that was read, see ``_file_identity``.
    """

    meta: store.Meta
    matrix: str
    view: View
    version: int
    filtered: FilteredViews
    counts: RowCounts
    file: tuple[int, ...] = ()


def _file_identity(path: Path, *, immutable: bool = False) -> tuple[int, ...]:
    """Identifies the file; one opened as immutable also by its time and sizes, which reveal a change."""
    try:
        status = (path / INDEX_FILE).stat()
    except FileNotFoundError:
        return (0, 0)
    identity = (status.st_dev, status.st_ino)
    return (*identity, status.st_mtime_ns, status.st_size, log_size(path / INDEX_FILE)) if immutable else identity
