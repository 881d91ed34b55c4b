"""Connections to SQLite files: what a reader may see where it cannot write, and waiting for others."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.errors import (
    ArtifactError,
    DeadlineError,
    LockedError,
    PolyrankError,
    ReadOnlyError,
    ResourceError,
    UsageError,
)
from polyrank.feedback import FeedbackStore
from polyrank.index import LocalWriter, open_writer, write_index
from polyrank.records import Candidate
from polyrank.storage.sqlite import ReadConnection, log_size, open_database, sqlite_errors, transaction, use_log
from polyrank.storage.time_limit import TimeLimit, limit_searches


def unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make SQLite refuse to open files for writing, as on read-only media; root may write to any other file."""
    connect = sqlite3.connect

    def refuse(database: str, **settings: Any) -> sqlite3.Connection:
        if "mode=rw" in database:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(database, **settings)

    monkeypatch.setattr(sqlite3, "connect", refuse)


def test_a_file_that_cannot_be_written_is_read_unless_its_log_has_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that assumes an unchanging file would not see them."""
    file = tmp_path / "a b?#.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        use_log(writer)
        writer.execute("CREATE TABLE numbers (n)")
        writer.execute("INSERT INTO numbers VALUES (1)")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert log_size(file) == 0
        with closing(open_database(file, write=False)) as reader:  # one that follows the writer
            assert not isinstance(reader, ReadConnection)
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader.execute("DELETE FROM numbers")
            unwritable(monkeypatch)
            with closing(open_database(file, write=False)) as other:
                assert isinstance(other, ReadConnection)
                assert other.execute("SELECT n FROM numbers").fetchall() == [(1,)]
            writer.execute("INSERT INTO numbers VALUES (2)")
            assert log_size(file) > 0
            assert reader.execute("SELECT n FROM numbers").fetchall() == [(1,), (2,)]
            for write in (False, True):
                with pytest.raises(sqlite3.OperationalError, match="unable to open"):
                    open_database(file, write=write)
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with closing(open_database(file, write=False)) as other:
            assert other.execute("SELECT n FROM numbers").fetchall() == [(1,), (2,)]
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            open_database(file, write=True)


def test_a_child_process_opens_a_connection_of_its_own_and_leaves_that_of_its_parent_open(tmp_path: Path) -> None:
    with FeedbackStore(tmp_path / "feedback.db") as store:
        of_parent = store._connection
        store.after_fork()
        assert len(store) == 0
        assert store._connection is not of_parent
    assert of_parent.execute("SELECT 1").fetchone() == (1,)
    store.after_fork()  # of a store that was closed before


def test_commits_of_every_connection_that_writes_are_synced(tmp_path: Path) -> None:
    """SQLite syncs the log after each commit if the setting is 2; if it is 1, a power loss undoes the last commits."""
    file, index = tmp_path / "feedback.db", tmp_path / "index"
    write_index(index, [Candidate("a", "hi")], np.ones((1, 2), np.float32), fingerprint="f", model="m")
    for _ in range(2):  # a new file, then an existing one
        with FeedbackStore(file) as store, open_writer(index) as writer:
            assert isinstance(writer, LocalWriter)
            for connection in (store._connection, writer._connection):
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_transaction_that_writes_locks_at_its_start_and_ends_with_any_exception(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as own,
        closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as other,
    ):
        use_log(own)
        own.execute("CREATE TABLE numbers (n)")

        def fail(error: type[BaseException]) -> None:
            with transaction(own, write=True):
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    other.execute("INSERT INTO numbers VALUES (2)")  # before the first statement of the block
                own.execute("INSERT INTO numbers VALUES (1)")
                raise error

        for error in (KeyError, KeyboardInterrupt):
            with pytest.raises(error):
                fail(error)
            assert not own.in_transaction
        with transaction(own, write=False):
            assert own.execute("SELECT n FROM numbers").fetchall() == []
            other.execute("INSERT INTO numbers VALUES (3)")
            assert own.execute("SELECT n FROM numbers").fetchall() == []
        assert own.execute("SELECT n FROM numbers").fetchall() == [(3,)]


TRANSLATED = {  # names of SQLite's errors: the class and the message, in which {} is the file
    ("BUSY", "BUSY_SNAPSHOT", "LOCKED_SHAREDCACHE"): (
        LockedError, "{} is locked by another process; wait until it has finished",
    ),
    ("READONLY_DIRECTORY", "PERM"): (ReadOnlyError, "cannot write to {}: trouble; make it writable"),
    ("FULL", "IOERR_WRITE", "CANTOPEN", "NOMEM"): (
        ResourceError, "cannot use {}: trouble; free some space or repair the disk and try again",
    ),
    ("CORRUPT", "IOERR_SHORT_READ", "IOERR_CORRUPTFS", "INTERRUPT", "ERROR"): (
        ArtifactError, "{} is damaged (trouble); restore it",
    ),
    ("NOTADB",): (
        ArtifactError, "{} is another kind of file, or its start is damaged; check the path, or restore it",
    ),
}  # fmt: skip


def test_each_error_of_sqlite_has_its_class_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short read and a damaged file system are damage, though their names begin like those of a failing disk."""
    file = tmp_path / "feedback.db"

    def raised(error: Exception, name: str = "") -> tuple[type, str]:
        if name:
            error.sqlite_errorname = f"SQLITE_{name}"  # type: ignore[attr-defined]
        with pytest.raises(PolyrankError) as caught, sqlite_errors(file, "restore it"):
            raise error
        return caught.type, str(caught.value)

    for names, (kind, message) in TRANSLATED.items():
        for name in names:
            assert raised(sqlite3.OperationalError("trouble"), name) == (kind, message.format(file)), name
    for other in (sqlite3.Warning("trouble"), UnicodeError("trouble"), sqlite3.ProgrammingError("trouble")):
        assert raised(other) == (ArtifactError, f"{file} is damaged (trouble); restore it")
    closed = sqlite3.ProgrammingError("Cannot operate on a closed database.")
    assert raised(closed) == (UsageError, f"{tmp_path} is closed; open it again")
    with limit_searches(TimeLimit(3.0)):
        assert raised(sqlite3.OperationalError("interrupted"), "INTERRUPT")[0] is DeadlineError
    monkeypatch.setattr("polyrank.storage.sqlite.os.access", lambda *_: False)  # root may write everywhere
    assert raised(sqlite3.OperationalError("trouble"), "CANTOPEN")[0] is ReadOnlyError
    with pytest.raises(KeyError), sqlite_errors(file, "restore it"):
        raise KeyError


def test_the_journal_is_changed_once_others_have_released_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself does not wait for this."""
    file = tmp_path / "new.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    with closing(other), closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as own:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            own.execute("PRAGMA journal_mode=WAL")
        with monkeypatch.context() as patch:
            patch.setattr("polyrank.storage.sqlite.PATIENCE", 0.0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                use_log(own)
            sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE numbers (n)").connection.close()
            patch.setattr("polyrank.storage.sqlite.PATIENCE", 5.0)
            read_only = sqlite3.connect(f"file:{tmp_path}/other.db?mode=ro", uri=True)
            began = time.monotonic()
            with closing(read_only), pytest.raises(sqlite3.OperationalError, match="readonly"):
                use_log(read_only)
            assert time.monotonic() - began < 4  # others would not change that
        changing = threading.Event()
        own.set_trace_callback(lambda _: changing.set())

        def release() -> None:
            changing.wait(60)
            other.execute("ROLLBACK")

        thread = threading.Thread(target=release)
        thread.start()
        use_log(own)
        thread.join()
        assert own.execute("PRAGMA journal_mode").fetchone() == ("wal",)
