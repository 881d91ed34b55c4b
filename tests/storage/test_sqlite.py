"""Connections to SQLite files: what a reader may see where it cannot write, and waiting for others."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.feedback import FeedbackStore
from polyrank.index import LocalWriter, open_writer, write_index
from polyrank.records import Candidate
from polyrank.storage.sqlite import ReadConnection, log_size, open_database, use_log


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


def test_the_journal_is_changed_once_others_have_released_the_file(tmp_path: Path) -> None:
    """SQLite itself does not wait for this."""
    file = tmp_path / "new.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    with closing(other), closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as own:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            own.execute("PRAGMA journal_mode=WAL")
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
