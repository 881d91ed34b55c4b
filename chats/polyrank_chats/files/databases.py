"""Rows of SQLite databases, which are read from memory so that their files never change, and of Parquet files."""

import io
import sqlite3
from contextlib import closing

from polyrank_chats.errors import DataError, MissingLibraryError, UsageError
from polyrank_chats.files.members import FREE_BYTES, Member, check_size
from polyrank_chats.messages import Rows
from polyrank_chats.options import Options
from polyrank_chats.values import CELL_BYTES

MAGIC = b"SQLite format 3\0"
VERSIONS = slice(18, 20)  # of the file format in its header: 2 stands for a write-ahead log, which memory has not


def table_rows(member: Member, data: bytes, options: Options) -> Rows:
    """Rows of the tables in ``options.sheet``, or of the only table, with their numbers. BLOBs become None.

    Raises:
        DataError: the database is damaged, holds no table, has a log that is not merged, or is too large.
        UsageError: no table is chosen among several, or the database has no table of this name.
    """
    log = member.path.with_name(f"{member.path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise DataError(
            f"{member.path}: recent rows are only in its log {log.name}; close the program that writes it, or run:"
            f" sqlite3 {member.path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    image = bytearray(data)
    image[VERSIONS] = b"\1\1"
    rows: Rows = []
    n_bytes = 0
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(bytes(image))
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(FREE_BYTES, len(data)))  # a view may compute cells
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            for name in _chosen_tables(member, connection, options):
                quoted = name.replace('"', '""')
                cursor = connection.execute(f'SELECT * FROM "{quoted}"')
                keys = [column[0] for column in cursor.description]
                for values in cursor:
                    n_bytes += sum(len(v) + CELL_BYTES if isinstance(v, str) else CELL_BYTES for v in values)
                    check_size(member.path, n_bytes, options.max_bytes, len(data))
                    cells = (None if isinstance(value, bytes) else value for value in values)
                    rows.append((len(rows) + 1, dict(zip(keys, cells, strict=True))))
    except sqlite3.Error as error:
        raise DataError(f"{member.path}: is a damaged SQLite database ({error}); restore or export it again") from error
    return rows


def _chosen_tables(member: Member, connection: sqlite3.Connection, options: Options) -> list[str]:
    known = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*'"
    ).fetchall()
    names, tables = [name for name, _ in known], [name for name, kind in known if kind == "table"]
    if not names:
        raise DataError(f"{member.path}: is an SQLite database without tables; give a file with messages")
    if unknown := [name for name in options.sheet if name not in names]:
        raise UsageError(f"{member.path} has no table {unknown[0]!r}; it has {', '.join(names)}")
    if not options.sheet and len(tables) != 1:
        raise UsageError(
            f"{member.path} is an SQLite database with {len(names):,} tables; choose one with the option sheet:"
            f" {', '.join(names)}"
        )
    return list(options.sheet) or tables


def parquet_rows(member: Member, data: bytes, options: Options) -> Rows:
    """Rows of a Parquet file with their numbers.

    Raises:
        DataError: the file is damaged, holds texts that are not UTF-8, or unpacks to too much.
        MissingLibraryError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError("pyarrow", "parquet") from error
    rows: Rows = []
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        declared = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        check_size(member.path, declared, options.max_bytes, len(data))
        n_bytes = 0
        for batch in file.iter_batches(batch_size=1024):
            for column in batch.columns:
                decoded = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                n_bytes += decoded.nbytes + CELL_BYTES * len(decoded)
            check_size(member.path, n_bytes, options.max_bytes, len(data))
            rows += enumerate(batch.to_pylist(), len(rows) + 1)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"not a valid Parquet file ({str(error).splitlines()[0]})"
        raise DataError(f"{member.path}: {problem}; download or export it again") from error
    return rows
