"""SQLite files as we use them: opened to read or to write, in transactions by name, with errors of ours.

Knows connections and what can go wrong with the disk below them; refuses to know any table.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from math import inf
from pathlib import Path

from polyrank.errors import ArtifactError, DeadlineError, LockedError, PolyrankError, ResourceError

PATIENCE = 30.0  # seconds to wait for other connections
STEPS = 1_000  # of SQLite's virtual machine between two looks at the clock
CANNOT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOMEM")


class Allowance:
    """How long each search through a table may take, in the thread that has it: see ``allowing`` and ``search``.

    Args:
        seconds: for one search.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end, self._cancelled = seconds, inf, False

    @property
    def spent(self) -> bool:
        """Whether the search ends now, whatever it has read."""
        return self._cancelled or time.monotonic() > self.end

    def cancel(self) -> None:
        """Have the search end at once. Any thread may call it."""
        self._cancelled = True


_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(allowance: Allowance) -> Iterator[None]:
    """Limit the searches of this thread; without it, they take as long as they need."""
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@contextmanager
def search() -> Iterator[None]:
    """A query whose cost others choose. ``sqlite_errors`` around it raise DeadlineError where it takes too long."""
    allowance = _allowance.get()
    if allowance is None:
        yield
        return
    allowance.end = time.monotonic() + allowance.seconds
    try:
        yield
    finally:
        allowance.end = inf


def _spent() -> bool:
    allowance = _allowance.get()
    return allowance is not None and allowance.spent


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
    connection.set_progress_handler(_spent, STEPS)
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
    if name.startswith(CANNOT) and "SHORT_READ" not in name and "CORRUPT" not in name:
        return ResourceError(f"cannot work on {file}: {error}; free some space or mend the disk and do it again")
    if name.startswith("SQLITE_INTERRUPT") and (allowance := _allowance.get()) is not None:
        return DeadlineError(
            f"the search took longer than {allowance.seconds:g} s and was given up; search for fewer words or terms"
        )
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
