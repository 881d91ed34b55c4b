"""Files of candidates: a reply catalogue, or the pool that pool examples refer to."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from polyrank.data import fields
from polyrank.data.lines import check_object, numbered_lines, row_error, write_rows
from polyrank.data.rows import rows
from polyrank.data.values import Row, rows_of
from polyrank.errors import DataError
from polyrank.loading.data import data_file, resolve_data
from polyrank.records import Candidate

CandidateLike: TypeAlias = Candidate | str | Mapping[str, Any]
"""A candidate: its text, a row with "text" and optionally "id" and "metadata", or a Candidate."""


def read_pool(
    path: Path | str | Iterable[CandidateLike], *, notify: Callable[[str], None] = lambda text: None
) -> list[Candidate]:
    """Read candidates from a file, a folder, or a pattern such as ``part-*.parquet``, in order.

    JSON lines, CSV and Parquet rows have ``text`` and optionally ``id``; all other fields that are not null become
    metadata, in addition to the ``metadata`` of JSON lines. A ``.txt`` file has one reply per line; blank lines are
    ignored. A candidate without an id gets one from its text (``text_id``). Identical candidates count once. Any file
    may be gzipped and named ``.gz``.

    Args:
        path: the file; a folder of ``.jsonl``, ``.csv`` or ``.parquet`` files; or a pattern of names. Also a list or a
            table in memory, see ``pool_of``.
        notify: called with the number of repeated candidates.

    Raises:
        DataError: ``file:line: what is wrong; what to do``; also if an id repeats or there are none.
    """
    if not isinstance(path, str | Path):
        return pool_of(path)
    return list(stream_pool(Path(path), notify=notify))


def stream_pool(path: Path, *, notify: Callable[[str], None] = lambda text: None) -> Iterator[Candidate]:
    """The candidates of ``read_pool``, one at a time, in memory that does not grow with the files.

    Args, Raises: as for ``read_pool``; ids that were seen are kept in a temporary database.
    """
    files = [data.path for data in resolve_data(path)]
    candidates = ((file, line, candidate) for file in files for line, candidate in numbered_candidates(file))
    return _unique(path, candidates, notify)


def numbered_candidates(path: Path) -> Iterator[tuple[int, Candidate]]:
    """Each candidate of a file with its line, including repeated ones."""
    return (_lines if data_file(path).form == "text" else _rows)(path)


def pool_of(candidates: Iterable[CandidateLike]) -> list[Candidate]:
    """Candidates from memory, with the same checks as for files; equal texts without an id count once.

    Args:
        candidates: texts, rows with ``text`` and optionally ``id`` and ``metadata``, or Candidates; or a table that
            ``polyrank.data.values.rows_of`` supports. A candidate without an id gets one from its text.

    Raises:
        DataError: ``candidate 3: what is wrong; what to do``.
    """
    result, unnamed = [], dict[str, Candidate]()
    for number, value in enumerate(rows_of(candidates)):
        if isinstance(value, Candidate):
            result.append(value)
            continue
        try:
            row = {"text": value} if isinstance(value, str) else check_object(value, escaped=True)
            candidate = _candidate(row)
        except (ValueError, TypeError) as error:
            raise DataError(f"candidate {number}: {error}") from error
        if row.get("id") not in (None, "") or candidate.text not in unnamed:
            result.append(candidate)
        elif not candidate.is_same(unnamed[candidate.text]):
            raise DataError(f"candidate {number}: its text is repeated with other metadata; give each of them an id")
        if row.get("id") in (None, ""):
            unnamed[candidate.text] = candidate
    return result


def text_id(text: str) -> str:
    """The id of a reply that has none: a hash of its text, the same in every file.

    >>> text_id("Restart the router.")
    '5da5a691949c9d4c'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def import_pool(source: Path | str, output: Path | str) -> int:
    """Convert a candidate file of DSTC7 subtask 2 (one ``id<TAB>text`` per line, no header) to JSON lines.

    A text may be empty and may contain tabs.

    Args:
        source: the published file, under any name; gzip if named ``.gz``.
        output: JSON lines to write; gzipped if named ``.gz``.

    Returns:
        The number of candidates.

    Raises:
        DataError: a line has no tab, an id is used twice, or the file cannot be read.
    """
    source = Path(source)
    pool = list(_unique(source, ((source, line, candidate) for line, candidate in _tabbed(source))))
    write_pool(output, pool)
    return len(pool)


def write_pool(path: Path | str, pool: Iterable[Candidate]) -> None:
    """Write candidates as JSON lines, atomically, gzipped if named ``.gz``; ``read_pool`` reads them again.

    Raises:
        DataError: a candidate holds a lone surrogate.
    """
    write_rows(Path(path), map(row_of, pool))


def row_of(candidate: Candidate) -> Row:
    """A candidate as the row of a file that ``read_pool`` reads.

    >>> row_of(Candidate("a", "hello"))
    {'id': 'a', 'text': 'hello'}
    """
    row: Row = {"id": candidate.id, "text": candidate.text}
    return row | {"metadata": candidate.metadata} if candidate.metadata else row


def _unique(
    path: Path, candidates: Iterator[tuple[Path, int, Candidate]], notify: Callable[[str], None] = lambda text: None
) -> Iterator[Candidate]:
    """The candidates without repeated ones; the ids so far are in a temporary database."""
    n = n_repeated = 0
    with closing(sqlite3.connect("", isolation_level=None)) as seen:  # on disk, except for SQLite's cache
        seen.executescript(
            "PRAGMA journal_mode=OFF;"
            " CREATE TABLE ids (id BLOB PRIMARY KEY, digest BLOB, file TEXT, line INT) WITHOUT ROWID; BEGIN"
        )
        for file, line, candidate in candidates:
            id_ = candidate.id.encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(json.dumps([candidate.text, candidate.metadata], sort_keys=True).encode()).digest()
            if seen.execute("INSERT OR IGNORE INTO ids VALUES (?, ?, ?, ?)", (id_, digest, str(file), line)).rowcount:
                n += 1
                yield candidate
                continue
            n_repeated += 1
            row = seen.execute("SELECT digest, file, line FROM ids WHERE id = ?", (id_,)).fetchone()
            if row[0] != digest:
                where = f"line {row[2]}" if row[1] == str(file) else f"{row[1]}:{row[2]}"
                problem = f"id {candidate.id!r} is already used at {where}; give each candidate its own"
                if candidate.id == text_id(candidate.text):
                    problem = f"the text of {where} is repeated with other metadata; give each of them an id"
                raise row_error(file, line, problem)
    if not n:
        raise DataError(f"{path}: holds no candidates; give a file with at least one")
    if n_repeated:
        notify(f"{path}: {n_repeated:,} of {n_repeated + n:,} replies repeat an earlier one and count once")


def _lines(path: Path) -> Iterator[tuple[int, Candidate]]:
    for number, line in numbered_lines(path):
        if not line.isspace():
            text = line.rstrip("\r\n")
            yield number, Candidate(text_id(text), text)


def _tabbed(path: Path) -> Iterator[tuple[int, Candidate]]:
    for number, line in numbered_lines(path):
        id_, tab, text = line.rstrip("\r\n").partition("\t")
        if not tab:
            raise row_error(path, number, "no tab; write the id, a tab and the text")
        yield number, Candidate(id_, text)


def _rows(path: Path) -> Iterator[tuple[int, Candidate]]:
    for number, row in rows(path):
        try:
            yield number, _candidate(row)
        except ValueError as error:
            raise row_error(path, number, error) from error


def _candidate(row: Row) -> Candidate:
    if name := next((name for name in ("_id", "docid") if name in row and "id" not in row), None):  # of a BEIR corpus
        title, rest = row.get("title"), {key: value for key, value in row.items() if key not in (name, "title")}
        row = rest | {"id": row[name], "text": f"{title or ''} {fields.text(row, 'text')}".strip()}
    text = fields.text(row, "text")
    return Candidate(fields.optional_id(row, text_id(text)), text, fields.metadata(row, without=("id", "text")))
