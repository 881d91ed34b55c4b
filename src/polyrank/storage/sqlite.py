"""SQLite files as we use them: opened to read or to write, in transactions by name, with errors of ours.

Knows connections and what can go wrong with the disk below them; refuses to know any table.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from polyrank.errors import ArtifactError, LockedError, PolyrankError, ReadOnlyError, ResourceError, UsageError
from polyrank.storage.allowance import lateness, spent

PATIENCE = 30.0  # seconds to wait for other connections
STEPS = 1_000  # of SQLite's virtual machine between two looks at the clock
CANNOT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM")


class ReadConnection(sqlite3.Connection):
    """To a file that cannot be written to and is taken not to change."""


def open_database(file: Path, *, write: bool) -> sqlite3.Connection:
    """Open a file that is there; what a writer commits is synced, and a reader's connection cannot change it.

    Raises:
        sqlite3.Error: see ``sqlite_errors``.
    """
    setting = "PRAGMA synchronous=FULL" if write else "PRAGMA query_only=ON"
    try:
        return _checked(connect(file, "rw"), "SELECT 1 FROM sqlite_master", setting)
    except sqlite3.OperationalError:  # it cannot be written to: read-only media, a full disk
        if write or log_size(file):  # what is in the log would not be seen
            raise
    return _checked(connect(file, "ro&immutable=1", ReadConnection), setting)


def _checked(connection: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    """The connection, once it has carried out the statements; closed where it cannot."""
    with ExitStack() as resources:
        resources.callback(connection.close)
        for statement in statements:
            connection.execute(statement).fetchall()
        resources.pop_all()
    return connection


def connect(file: Path, mode: str, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection in one of SQLite's modes ("rw", "rwc", "ro"), without transactions but those begun by name."""
    # it is used under its owner's lock, by any thread
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=PATIENCE, factory=kind
    )
    connection.set_progress_handler(spent, STEPS)
    return connection


def use_log(connection: sqlite3.Connection) -> None:
    """Write ahead, from now on: readers go on beside a writer.

    Raises:
        sqlite3.OperationalError: others held the file for all of ``PATIENCE``; here alone SQLite itself does not wait.
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
    """Bytes of SQLite's log, which holds what was committed and is not yet in the file."""
    try:
        return file.with_name(f"{file.name}-wal").stat().st_size
    except OSError:
        return 0


@contextmanager
def sqlite_errors(file: Path, remedy: str) -> Iterator[None]:
    """SQLite's errors as ours: damage, a full or failing disk, a lock.

    Args:
        file: that is worked on.
        remedy: what the user can do about a damaged one.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeError, sqlite3.Warning) as error:
        raise _translated(file, remedy, error) from error


def _translated(file: Path, remedy: str, error: Exception) -> PolyrankError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return UsageError(f"{file.parent} is closed; open it again")
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return ReadOnlyError(f"cannot write to {file}: {error}; make it writable")
    if name.startswith(CANNOT) and "SHORT_READ" not in name and "CORRUPT" not in name:
        return ResourceError(f"cannot work on {file}: {error}; free some space or mend the disk and do it again")
    if name.startswith("SQLITE_INTERRUPT") and (late := lateness()) is not None:
        return late
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LockedError(f"{file} is locked by another process; wait until it has finished")
    return ArtifactError(f"{file} is damaged ({error}); {remedy}")


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    """All or nothing; for readers, one consistent view."""
    try:
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
