"""The values of a metadata field by row, so that filters for equal values read no metadata. No torch.

Every tenant of a catalogue has another filter, so filters for ``tenant = "..."`` seldom repeat; their field does.
"""

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index.filters import Tree, Value, sqlite_path, value_kind
from polyrank.index.local.store import Meta, read_meta, reading, sqlite_errors
from polyrank.storage.forks import new_lock
from polyrank.storage.time_limit import limited_search

MAX_FIELDS = 4
MAX_VALUES, MAX_BYTES = 100_000, 32 * 2**20  # of one field, beyond which filters for it are evaluated by SQLite
ROWS_AT_A_TIME = 50_000  # after a time limit, the next search continues with the last of these parts
MAX_STALE = 10_000  # removed rows that are kept, in addition to as many as there are live ones

Rows = NDArray[np.int64]
_NONE: Rows = np.empty(0, np.int64)


class Postings:
    """Which rows have which values, of one opening of an index. Rows never change, so each is read once.

    Args:
        path: the index folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = new_lock()
        self._fields: OrderedDict[tuple[str, ...], _Field] = OrderedDict()

    def candidates(self, tree: Tree, meta: Meta) -> tuple[Rows, bool] | None:
        """Rows that may pass a filter, alive or not, ascending, and whether all of them pass; None: unknown.

        Args:
            tree: of the filter.
            meta: of the change that the rows must be of.
        """
        match tree:
            case ("in", path, values):
                with self._lock:
                    field = self._fields.setdefault(path, _Field(sqlite_path(path)))
                    self._fields.move_to_end(path)
                    while len(self._fields) > MAX_FIELDS:
                        self._fields.popitem(last=False)
                    return (field.rows_of(values), True) if field.is_read(self._path, meta) else None
            case ("and", *parts):
                known = [rows for part in parts if (rows := self.candidates(part, meta)) is not None]
                exact = len(known) == len(parts) and all(whole for _, whole in known)
                return (_joined(np.intersect1d, known), exact) if known else None
            case ("or", *parts):
                either = [self.candidates(part, meta) for part in parts]
                found = [one for one in either if one is not None]
                exact = all(whole for _, whole in found)
                return (_joined(np.union1d, found), exact) if len(found) == len(parts) else None
        return None


def _joined(join: Any, parts: Iterable[tuple[Rows, bool]]) -> Rows:
    first, *others = (rows for rows, _ in parts)
    for rows in others:
        first = join(first, rows)
    return first


class _Field:
    """The values of one field."""

    def __init__(self, path: str) -> None:
        self._sqlite_path = path
        self._forget()

    def _forget(self) -> None:
        self._change, self._last = -1, 0  # complete as of this change; read up to this row
        self._rows, self._codes = _NONE, np.empty(0, np.int32)
        self._order: NDArray[np.intp] | None = None  # of the codes; sorted when a search needs it
        self._code_of: dict[tuple[str, Any], int] = {}
        self._n_bytes, self._several = 0, False
        self._too_many = False

    def is_read(self, path: Path, meta: Meta) -> bool:
        """Whether the values are known as of a change; reads those of the rows that were added since."""
        if self._too_many or self._change == meta.change:
            return not self._too_many
        if self._change > meta.change:
            return False
        if len(self._rows) > 2 * meta.n + MAX_STALE and not self._several:
            self._forget()
        with reading(path) as connection, sqlite_errors(path), limited_search():
            if not read_meta(connection, path).has_same_rows(meta):
                return False
            (end,) = connection.execute("SELECT coalesce(max(row), 0) FROM candidates").fetchone()
            while self._last < end and not self._too_many:
                self._read(connection, min(self._last + ROWS_AT_A_TIME, end))
        self._change = meta.change
        return not self._too_many

    def _read(self, connection: sqlite3.Connection, last: int) -> None:
        """Read the rows up to number ``last``; an array is the values of its elements."""
        query = (
            "SELECT c.row, j.type, j.value FROM candidates c, json_each(c.metadata, ?1) j"
            " WHERE c.row > ?2 AND c.row <= ?3 AND json_type(c.metadata, ?1) <> 'object'"
        )
        found = connection.execute(query, (self._sqlite_path, self._last, last)).fetchall()
        rows = np.array([row for row, _, _ in found], np.int64)
        codes = [self._code(kind, value) for _, kind, value in found]
        self._several = self._several or len(np.unique(rows)) < len(rows)
        self._rows, self._codes = np.append(self._rows, rows), np.append(self._codes, np.array(codes, np.int32))
        self._last, self._order = last, None
        if len(self._code_of) > MAX_VALUES or self._n_bytes > MAX_BYTES:
            self._forget()
            self._too_many = True

    def _code(self, kind: str, value: Any) -> int:
        key = (kind, value) if kind == "text" else ("number", value) if kind in ("integer", "real") else (kind, None)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._code_of)
            self._n_bytes += len(value) if kind == "text" else 0
        return code

    def rows_of(self, values: Iterable[Value]) -> Rows:
        """The rows that have one of the values."""
        if self._order is None:
            self._order = np.argsort(self._codes, kind="stable")
            self._starts = np.searchsorted(self._codes, range(len(self._code_of) + 1), sorter=self._order)
        codes = {self._code_of[key] for key in map(_key, values) if key in self._code_of}
        parts = [self._rows[self._order[self._starts[code] : self._starts[code + 1]]] for code in codes]
        return parts[0] if len(parts) == 1 and not self._several else np.unique(np.concatenate([_NONE, *parts]))


@lru_cache(maxsize=1024)
def _number(text: str) -> Any:
    """A number as SQLite reads it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute("SELECT json_extract(?, '$')", (text,)).fetchone()[0]


def _key(value: Value) -> tuple[str, Any]:
    match value_kind(value):
        case "text":
            return "text", value
        case "constant":
            return json.dumps(value), None
    return "number", _number(json.dumps(value))
