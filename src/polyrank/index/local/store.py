"""The source of truth of an index: one SQLite file of candidates and vectors, with checksums on top of SQLite's.

Every row has a SHA-256 of its contents. The digest of the whole index is the sum of the live rows' digests, modulo
2^256: each change updates it with one addition, and it reveals a row that was lost, altered or restored. Rows never
change: replacing a candidate removes its row and adds a new one. No torch.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from polyrank._version import __version__
from polyrank.errors import ArtifactError
from polyrank.index.checks import Vectors, metadata_json, row_digest
from polyrank.index.filters import Filter
from polyrank.index.protocol import CandidatePage
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate
from polyrank.storage import sqlite
from polyrank.storage.document import check_format, checksum
from polyrank.storage.quantized import Precision, to_rows
from polyrank.storage.time_limit import limited_search

FORMAT = 4
MODULUS = 1 << 256
PAGE_BYTES = 8 * 2**20  # of texts and metadata, after which a page ends early
REMEDY = "restore the index from a snapshot or build it again"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE candidates (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT NOT NULL,
    change INTEGER NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY, change INTEGER NOT NULL, digest BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Meta:
    """An index's description of itself.

    Args:
        fingerprint: of the encoder that made the vectors.
        model: path of that encoder's folder when the index was built.
        dimension: D.
        change: number of the last change.
        n: number of live candidates.
        digest: of the live rows.
        matrix: name of the derived matrix's folder; empty for none.
        matrix_change: the change that the matrix reflects; removals up to it have been dropped from the list.
        ann: kind of the inner-product index next to the matrix, see ``polyrank.index.local.ann``; empty for none.
        precision: of the vectors, see ``polyrank.storage.quantized``.
        format, written_by: of the file.
    """

    fingerprint: str
    model: str
    dimension: int
    change: int = 0
    n: int = 0
    digest: int = 0
    matrix: str = ""
    matrix_change: int = 0
    ann: str = ""
    precision: Precision = "fp32"
    format: int = FORMAT
    written_by: str = __version__

    def has_same_rows(self, other: "Meta") -> bool:
        """Whether both describe the same change and rows; a compaction leaves them the same."""
        return (self.change, self.n, self.digest) == (other.change, other.n, other.digest)


@dataclass(frozen=True, slots=True)
class Row:
    """A stored candidate.

    Args:
        row: its number, never reused.
        candidate: id, text and metadata.
        vector: as stored, see ``polyrank.storage.quantized``.
        change: number of the change that added it.
        digest: SHA-256 of the other fields.
    """

    row: int
    candidate: Candidate
    vector: bytes
    change: int
    digest: bytes


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open the index's file; a reader's connection cannot change it.

    Raises:
        ArtifactError: the file is missing or not a database.
        ResourceError: the disk is full or failing.
    """
    check_exists(path)
    with sqlite_errors(path):
        return sqlite.open_database(path / INDEX_FILE, write=write)


def check_exists(path: Path) -> None:
    """Refuse a folder that is not an index.

    Raises:
        ArtifactError: it does not exist, or lacks the index's file.
    """
    if not path.exists():
        raise ArtifactError(f"{path} is not an index: it does not exist; build an index with polyrank index build")
    if not (path / INDEX_FILE).exists():
        raise ArtifactError(f"{path} is not an index: it lacks {INDEX_FILE}; build an index with polyrank index build")


def sqlite_errors(path: Path) -> AbstractContextManager[None]:
    """Translate SQLite's errors to polyrank's: damage, a full or failing disk, a lock."""
    return sqlite.sqlite_errors(path / INDEX_FILE, REMEDY)


def create(path: Path, meta: Meta) -> sqlite3.Connection:
    """Create the file in an empty folder, inside a transaction that the caller commits; not yet durable."""
    with sqlite_errors(path), ExitStack() as resources:
        connection = sqlite3.connect(path / INDEX_FILE, isolation_level=None)
        resources.callback(connection.close)
        # readers see this file only after the whole folder was synced and renamed
        connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {SCHEMA}")
        connection.execute("BEGIN")
        write_meta(connection, meta)
        resources.pop_all()
        return connection


def finish(connection: sqlite3.Connection) -> None:
    """Commit a new file and switch it to the journal mode of normal use."""
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path, *, write: bool) -> Iterator[None]:
    """All or nothing; readers get one consistent view."""
    with sqlite_errors(path), sqlite.transaction(connection, write=write):
        yield


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A separate connection with one consistent view, so that no other thread waits for this one."""
    with closing(connect(path, write=False)) as connection, transaction(connection, path, write=False):
        yield connection


def read_meta(connection: sqlite3.Connection, path: Path) -> Meta:
    """Read and check the index's description of itself.

    Raises:
        ArtifactError: damaged, or in a newer format.
    """
    with sqlite_errors(path):
        values = dict(connection.execute("SELECT key, value FROM meta"))
    if {type(part) for pair in values.items() for part in pair} - {str}:
        values = {}
    version = values.get("format", "")
    if version.isdecimal():
        check_format(path / INDEX_FILE, {**values, "format": int(version)}, FORMAT, "build the index again")
    sound = values.pop("checksum", None) == checksum(values)
    if not sound or set(values) != {field.name for field in fields(Meta)}:
        raise ArtifactError(f"{path / INDEX_FILE} is damaged: the checksum of its settings does not match; {REMEDY}")
    with sqlite_errors(path):  # if a column's name is damaged, queries return other columns, or none
        if connection.execute(_TABLES).fetchall() != _expected_tables():
            raise ArtifactError(
                f"{path / INDEX_FILE} is damaged: its tables are not those that polyrank made; {REMEDY}"
            )
    numbers = {key: int(values[key]) for key in ("dimension", "change", "n", "digest", "matrix_change", "format")}
    return Meta(**(values | numbers))


_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"


@cache
def _expected_tables() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return connection.execute(_TABLES).fetchall()


def write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    """Replace the index's description of itself, inside the caller's transaction."""
    values = {key: str(value) for key, value in asdict(meta).items()}
    values["checksum"] = checksum(values)
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def insert(connection: sqlite3.Connection, meta: Meta, candidates: Sequence[Candidate], vectors: Vectors) -> Meta:
    """Add rows inside the caller's transaction; the caller writes the returned Meta."""
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'candidates'").fetchone()
    first = 1 + (last[0] if last else 0)
    rows, blobs, total = [], [], 0
    for row, (candidate, blob) in enumerate(zip(candidates, to_rows(vectors, meta.precision), strict=True), first):
        metadata = metadata_json(candidate)
        digest = row_digest(row, candidate.id, candidate.text, metadata, meta.change, blob)
        rows.append((row, candidate.id, candidate.text, metadata, meta.change, digest))
        blobs.append((row, blob))
        total += int.from_bytes(digest, "little")
    connection.executemany("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.executemany("INSERT INTO vectors VALUES (?, ?)", blobs)
    return replace(meta, n=meta.n + len(rows), digest=(meta.digest + total) % MODULUS)


def delete(connection: sqlite3.Connection, meta: Meta, path: Path, rows: Sequence[int]) -> Meta:
    """Remove rows and list them as removed inside the caller's transaction; the caller writes the returned Meta."""
    total = 0
    for row in read_rows(connection, path, rows):
        connection.execute("DELETE FROM candidates WHERE row = ?", (row.row,))
        connection.execute("DELETE FROM vectors WHERE row = ?", (row.row,))
        connection.execute("INSERT INTO removed VALUES (?, ?, ?)", (row.row, meta.change, row.digest))
        total += int.from_bytes(row.digest, "little")
    return replace(meta, n=meta.n - len(rows), digest=(meta.digest - total) % MODULUS)


_COLUMNS = "c.row, c.id, c.text, c.metadata, c.change, c.digest, v.vector"


def read_rows(connection: sqlite3.Connection, path: Path, rows: Sequence[int]) -> list[Row]:
    """Rows by number, in the given order, each checked.

    Raises:
        ArtifactError: a row is missing or altered.
    """
    result = []
    with sqlite_errors(path):
        for row in rows:
            values = connection.execute(
                f"SELECT {_COLUMNS} FROM candidates c JOIN vectors v ON v.row = c.row WHERE c.row = ?", (int(row),)
            ).fetchone()
            if values is None:
                raise _row_error(path, row, "it is missing")
            result.append(_checked_row(path, values))
    return result


def row_numbers(connection: sqlite3.Connection, path: Path, ids: Sequence[str]) -> dict[str, int]:
    """Row numbers by id; unknown ids are left out."""
    rows: dict[str, int] = {}
    with sqlite_errors(path):
        for id_ in dict.fromkeys(ids):
            try:
                row = connection.execute("SELECT row FROM candidates WHERE id = ?", (id_,)).fetchone()
            except UnicodeEncodeError:  # an id with a lone surrogate cannot be stored
                continue
            if row is not None:
                rows[id_] = row[0]
    return rows


def find(connection: sqlite3.Connection, path: Path, ids: Sequence[str]) -> dict[str, Candidate]:
    """Candidates by id, inside the caller's transaction; unknown ids are left out."""
    stored = read_rows(connection, path, list(row_numbers(connection, path, ids).values()))
    return {row.candidate.id: row.candidate for row in stored}


def page(
    connection: sqlite3.Connection, path: Path, after: int, n: int, words: Sequence[str], filter: Filter | None
) -> CandidatePage:
    """See ``polyrank.index.Index.page``; inside the caller's transaction."""
    n_live = read_meta(connection, path).n
    try:
        sought = [word for word in words if word.encode()]
    except UnicodeEncodeError:  # no stored text contains a lone surrogate
        return CandidatePage((), None, n_live)
    holds = "(instr(lower(text), lower(?)) OR instr(lower(id), lower(?)))"  # LIKE reads a text up to its first NUL
    condition = " AND ".join(["row > ?", *(holds for _ in sought)])
    values = [after, *(word for word in sought for _ in range(2))]
    if filter is not None:
        condition, values = f"{condition} AND {filter.where}", [*values, *filter.bound]
    size = "length(CAST(text AS BLOB)) + length(CAST(metadata AS BLOB))"  # length alone counts up to a NUL
    query = f"SELECT row, {size} FROM candidates WHERE {condition} ORDER BY row LIMIT ?"
    with sqlite_errors(path), limited_search():
        sizes = connection.execute(query, (*values, min(n, n_live) + 1)).fetchall()
    before = accumulate((n_bytes for _, n_bytes in sizes), initial=0)
    rows = [row for (row, _), n_bytes in zip(sizes, before, strict=False) if n_bytes < PAGE_BYTES][:n]
    candidates = tuple(row.candidate for row in read_rows(connection, path, rows))
    return CandidatePage(candidates, rows[-1] if len(rows) < len(sizes) else None, n_live)


def scan_rows(connection: sqlite3.Connection, path: Path, *, after: int = 0) -> Iterator[Row]:
    """Rows above number ``after`` in ascending order, each checked.

    Raises:
        ArtifactError: a row is altered or has lost its vector.
    """
    with sqlite_errors(path):
        query = f"SELECT {_COLUMNS} FROM candidates c LEFT JOIN vectors v ON v.row = c.row WHERE c.row > ?"
        for values in connection.execute(f"{query} ORDER BY c.row", (after,)):
            yield _checked_row(path, values)


def scan_all_rows(connection: sqlite3.Connection, path: Path, meta: Meta) -> Iterator[Row]:
    """All live rows in ascending order; after the last one, their number and digest are checked.

    Raises:
        ArtifactError: a row is altered or has lost its vector, or rows are missing.
    """
    n, digest = 0, 0
    for row in scan_rows(connection, path):
        n, digest = n + 1, digest + int.from_bytes(row.digest, "little")
        yield row
    check_rows(path, meta, n, digest)


def removed_rows(connection: sqlite3.Connection, path: Path, change: int) -> dict[int, int]:
    """Digests of the rows removed after a change, by row number.

    Raises:
        ArtifactError: an entry is altered.
    """
    query = "SELECT r.row, r.digest, c.row FROM removed r LEFT JOIN candidates c ON c.row = r.row WHERE r.change > ?"
    with sqlite_errors(path):
        removals = connection.execute(query, (change,)).fetchall()
    for row, digest, live in removals:
        # row numbers are never reused: if a live row is listed as removed, the entry's number is damaged
        if (type(row), type(digest), live) != (int, bytes, None):
            raise _row_error(path, row, "its removal is damaged")
    return {row: int.from_bytes(digest, "little") for row, digest, _ in removals}


def check_rows(path: Path, meta: Meta, n: int, digest: int) -> None:
    """Check that the rows are the ones that were written.

    Args:
        path: the index folder.
        meta: the count and the digest as written.
        n: number of rows present.
        digest: sum of their digests.

    Raises:
        ArtifactError: rows are missing, extra or different.
    """
    if n != meta.n or digest % MODULUS != meta.digest:
        raise ArtifactError(
            f"{path / INDEX_FILE} is damaged: its {n:,} rows are not the {meta.n:,} that were written; {REMEDY}"
        )


def count_since(connection: sqlite3.Connection, path: Path, change: int) -> int:
    """Number of rows added and removed after a change, in time proportional to that number."""
    with sqlite_errors(path):
        added = 0
        for (number,) in connection.execute("SELECT change FROM candidates ORDER BY row DESC"):
            if not isinstance(number, int) or number <= change:  # later changes have higher row numbers
                break
            added += 1
        query = "SELECT count(*) FROM removed WHERE change > ?"
        return added + int(connection.execute(query, (change,)).fetchone()[0])


def _checked_row(path: Path, values: tuple[Any, ...]) -> Row:
    row, id_, text, metadata, change, digest, vector = values
    if [type(value) for value in values] != [int, str, str, str, int, bytes, bytes]:
        raise _row_error(path, row, "a part of it is missing or has another type")
    if row_digest(row, id_, text, metadata, change, vector) != digest:
        raise _row_error(path, row, "its SHA-256 does not match")
    return Row(row, Candidate(id_, text, json.loads(metadata)), vector, change, digest)


def _row_error(path: Path, row: object, what: str) -> ArtifactError:
    return ArtifactError(f"{path / INDEX_FILE} is damaged: candidate row {row}: {what}; {REMEDY}")
