"""SQLite files: connections for reading or writing, explicit transactions, and SQLite's errors as polyrank's errors.

This module knows connections and disk failures; it does not know any table.
"""

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from polyrank.errors import ArtifactError, LockedError, PolyrankError, ReadOnlyError, ResourceError, UsageError
from polyrank.storage import forks
from polyrank.storage.closing import Closing
from polyrank.storage.time_limit import deadline_error, time_is_over

PATIENCE = 30.0  # seconds to wait for other connections
STEPS = 1_000  # steps of SQLite's virtual machine between two checks of the time limit
DISK_TROUBLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM")


class Connected(Closing):
    """A holder of a connection, which ``close`` or garbage collection closes; no process uses that of its parent."""

    _connection: sqlite3.Connection

    def __init__(self) -> None:
        self._lock = forks.new_lock()

    def _use(self, connection: sqlite3.Connection) -> None:
        """Hold this connection from now on."""
        self._connection, self._inherited = connection, False
        self._release = weakref.finalize(self, connection.close)
        forks.watch(self)

    def after_fork(self) -> None:
        """In a child process: leave the connection to the parent. The next use opens another."""
        if (connection := self._release.detach()) is not None:
            forks.abandon(connection)
            self._inherited = True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._release()


class ReadConnection(sqlite3.Connection):
    """A connection to a read-only file, which SQLite assumes never changes."""


def open_database(file: Path, *, write: bool) -> sqlite3.Connection:
    """Open an existing file. Commits of a writer are synced; a reader's connection cannot change the file.

    Raises:
        sqlite3.Error: see ``sqlite_errors``.
    """
    setting = "PRAGMA synchronous=FULL" if write else "PRAGMA query_only=ON"
    try:
        return _checked(connect(file, "rw"), "SELECT 1 FROM sqlite_master", setting)
    except sqlite3.OperationalError:  # the file is not writable: read-only media, a full disk
        if write or log_size(file):  # an immutable connection would ignore the log
            raise
    return _checked(connect(file, "ro&immutable=1", ReadConnection), setting)


def _checked(connection: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    """Execute the statements and return the connection; close it if one fails."""
    with ExitStack() as resources:
        resources.callback(connection.close)
        for statement in statements:
            connection.execute(statement).fetchall()
        resources.pop_all()
    return connection


def connect(file: Path, mode: str, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection in one of SQLite's modes ("rw", "rwc", "ro"), without implicit transactions."""
    # any thread may use it, under the lock of its owner
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=PATIENCE, factory=kind
    )
    connection.set_progress_handler(time_is_over, STEPS)
    return connection


def use_log(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, so that readers can continue during a write.

    Raises:
        sqlite3.OperationalError: others locked the file for all of ``PATIENCE``. For this statement SQLite's own
            timeout does not apply.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def log_size(file: Path) -> int:
    """Bytes of SQLite's log, which holds commits that are not yet in the file."""
    try:
        return file.with_name(f"{file.name}-wal").stat().st_size
    except OSError:
        return 0


@contextmanager
def sqlite_errors(file: Path, remedy: str) -> Iterator[None]:
    """Raise SQLite's errors as polyrank's: damage, a full or failing disk, a lock.

    Args:
        file: the database, for errors.
        remedy: what the user can do if it is damaged.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeError, sqlite3.Warning) as error:
        raise _translated(file, remedy, error) from error


def _translated(file: Path, remedy: str, error: Exception) -> PolyrankError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return UsageError(f"{file.parent} is closed; open it again")
    refused = name.startswith("SQLITE_CANTOPEN") and file.parent.is_dir() and not os.access(file.parent, os.W_OK)
    if refused or name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return ReadOnlyError(f"cannot write to {file}: {error}; make it writable")
    if name.startswith(DISK_TROUBLE) and "SHORT_READ" not in name and "CORRUPT" not in name:
        return ResourceError(f"cannot use {file}: {error}; free some space or repair the disk and try again")
    if name.startswith("SQLITE_INTERRUPT") and (late := deadline_error()) is not None:
        return late
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LockedError(f"{file} is locked by another process; wait until it has finished")
    if name.startswith("SQLITE_NOTADB"):
        return ArtifactError(f"{file} is another kind of file, or its start is damaged; check the path, or {remedy}")
    return ArtifactError(f"{file} is damaged ({error}); {remedy}")


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    """Commit everything in the block or nothing; a reader gets one consistent view."""
    try:
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
