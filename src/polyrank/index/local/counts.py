"""How often each reply of an index was said: the number in the metadata field `count` of its row. No torch."""

import sqlite3
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.index.counts import COUNT_FIELD, as_count
from polyrank.index.local.store import Meta, read_meta, reading
from polyrank.storage.forks import new_lock


class RowCounts:
    """Counts by row, of one opening of an index. Rows never change, so each is read once. Safe to use from threads.

    Args:
        path: the index folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = new_lock()
        self._change = -1  # up to which the counts are read
        self._rows, self._counts = np.empty(0, np.int64), np.empty(0, np.float64)  # rows are ascending

    def of_rows(self, rows: NDArray[np.int64], meta: Meta) -> NDArray[np.float64]:
        """The counts of rows ``[n]``; 0 for removed rows.

        Args:
            rows: numbers of rows.
            meta: of the change that the rows are of.

        Raises:
            ArtifactError: the index has changed since; search again after ``refresh``.
        """
        with self._lock:
            if self._change != meta.change:
                self._read_new(meta)
            places = np.searchsorted(self._rows, rows)
            counted = places < len(self._rows)
            counted[counted] = self._rows[places[counted]] == rows[counted]
            counts = np.zeros(len(rows))
            counts[counted] = self._counts[places[counted]]
            return counts

    def _read_new(self, meta: Meta) -> None:
        """Read the counts of the rows added since the last call."""
        with reading(self._path) as connection:
            if not read_meta(connection, self._path).has_same_rows(meta):
                raise ArtifactError(f"{self._path} has changed since it was last read; search again")
            rows, counts = _read_counts(connection, after=int(self._rows[-1]) if len(self._rows) else 0)
        self._rows, self._counts = np.concatenate([self._rows, rows]), np.concatenate([self._counts, counts])
        self._change = meta.change


def _read_counts(connection: sqlite3.Connection, *, after: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    # json_extract returns 1 for true, which is not a count
    count = (
        f"CASE WHEN json_type(metadata, '$.{COUNT_FIELD}') <> 'true' THEN json_extract(metadata, '$.{COUNT_FIELD}') END"
    )
    rows = connection.execute(f"SELECT row, {count} FROM candidates WHERE row > ? ORDER BY row", (after,)).fetchall()
    return np.array([row for row, _ in rows], np.int64), np.array([as_count(value) for _, value in rows], np.float64)
