"""The feedback file: an append-only log in SQLite of shown replies and their outcomes.

An acknowledged entry is on the disk. Every entry has a SHA-256 of its contents and of the previous entry's digest,
which reveals entries that were altered, inserted or removed.

By default polyrank stores no texts: replies are stored as ids, and a context as an HMAC-SHA256 with a random key of
this file, which shows only whether two contexts are equal.
"""

import hashlib
import hmac
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from polyrank._version import __version__
from polyrank.errors import ArtifactError, DataError
from polyrank.feedback.records import Outcome, Reply, RequestFeedback, Shown, in_utc
from polyrank.records import Context
from polyrank.storage import sqlite
from polyrank.storage.closing import Closing
from polyrank.storage.document import check_format, checksum
from polyrank.storage.durable import AnyPath, make_folders, sync_folder

FORMAT = 1
REMEDY = "move it away and start a new one, or restore it from a copy"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, request_id TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('shown', 'outcome')),
    time TEXT NOT NULL, content TEXT NOT NULL, sent BLOB NOT NULL, digest BLOB NOT NULL, UNIQUE (request_id, kind)
);
CREATE TRIGGER kept_meta BEFORE UPDATE ON meta BEGIN SELECT raise(ABORT, 'feedback is only added to'); END;
CREATE TRIGGER lasting_meta BEFORE DELETE ON meta BEGIN SELECT raise(ABORT, 'feedback is only added to'); END;
CREATE TRIGGER kept BEFORE UPDATE ON entries BEGIN SELECT raise(ABORT, 'feedback is only added to'); END;
CREATE TRIGGER lasting BEFORE DELETE ON entries BEGIN SELECT raise(ABORT, 'feedback is only added to'); END;
CREATE TRIGGER new BEFORE INSERT ON entries
    WHEN EXISTS (
        SELECT 1 FROM entries
        WHERE number = NEW.number OR (request_id = NEW.request_id AND kind = NEW.kind)
    )
    BEGIN SELECT raise(ABORT, 'feedback is only added to'); END;
"""


class FeedbackStore(Closing):
    """A feedback file, open for appending and reading.

    Any number of processes may have the file open, and any number of threads may use one store.

    Args:
        path: the file; created if it does not exist.
        keep_text: whether to store texts: of contexts and replies, and final texts.
        write: False: open for reading only; the file must exist.

    Raises:
        ArtifactError: the file is not a feedback file, damaged, or in a newer format; or missing, if only read.
        ResourceError: the disk is full or failing.
        LockedError: another process has held the file for half a minute.
    """

    def __init__(self, path: AnyPath, *, keep_text: bool = False, write: bool = True) -> None:
        self.path, self.keep_text = Path(path), keep_text
        self._lock = threading.Lock()
        if self.path.is_dir():
            raise ArtifactError(f"{self.path} is a folder; use the path of a file for the feedback")
        if write:
            make_folders(self.path.resolve().parent)
        elif not self.path.exists():
            raise ArtifactError(f"{self.path} does not exist; use a feedback file that polyrank serve has written")
        with ExitStack() as resources:
            with self._errors():
                self._connection = _create(self.path) if write else sqlite.open_database(self.path, write=False)
                resources.callback(self._connection.close)
                self._key = _read_key(self.path, self._connection)
            # ``close`` or garbage collection closes the connection
            self._release = weakref.finalize(self, resources.pop_all().close)

    def record(self, *entries: Shown | Outcome) -> int:
        """Append entries, all of them or, after an error, none; durable when this returns.

        Recording the same entry again changes nothing, whatever its time, so a client that got no answer may retry.

        Args:
            entries: a Shown precedes its Outcome, in the same call or an earlier one.

        Returns:
            How many of them were new.

        Raises:
            DataError: the request has a different entry of this kind, the outcome's request or reply was not shown, or
                an edited outcome lacks its final text although texts are kept.
            ResourceError: the disk is full or failing; nothing was added.
            LockedError: another process has held the file for half a minute.
        """
        with self._lock, self._errors(), sqlite.transaction(self._connection, write=True):
            return sum(self._add(entry) for entry in entries)

    def requests(self, *, since: datetime | None = None) -> Iterator[RequestFeedback]:
        """All requests in the order in which they were recorded, each with its outcome if there is one.

        Reads one consistent view, even if entries are added meanwhile.

        Args:
            since: skip requests shown before this time.

        Raises:
            ArtifactError: an entry is altered.
        """
        since = None if since is None else in_utc(since)
        with self._errors():
            connection = sqlite.open_database(self.path, write=False)
        with closing(connection), self._errors(), sqlite.transaction(connection, write=False):
            outcomes = self._outcomes(connection)
            query = "SELECT request_id, time, content FROM entries WHERE kind = 'shown' ORDER BY number"
            for request_id, time, content in connection.execute(query):
                shown, code = _shown(request_id, time, content)
                if since is None or shown.time >= since:
                    yield RequestFeedback(shown, outcomes.get(request_id), code)

    def _outcomes(self, connection: sqlite3.Connection) -> dict[str, Outcome]:
        """Outcomes by request; checks every entry on the way."""
        outcomes, before = {}, b""
        query = "SELECT number, request_id, kind, time, content, sent, digest FROM entries ORDER BY number"
        for n, (number, *values, digest) in enumerate(connection.execute(query), 1):
            right_kinds = [*map(type, values)] == [str, str, str, str, bytes]
            if number != n or not right_kinds or _digest(before, n, *values) != digest:
                raise ArtifactError(f"{self.path} is damaged: entry {n:,} is not what was written; {REMEDY}")
            before, (request_id, kind, time, content, _) = digest, values
            if kind == "outcome":
                outcomes[request_id] = Outcome(request_id, time=datetime.fromisoformat(time), **json.loads(content))
        return outcomes

    def __len__(self) -> int:
        """Number of requests."""
        with self._lock, self._errors():
            return int(self._connection.execute("SELECT count(*) FROM entries WHERE kind = 'shown'").fetchone()[0])

    def context_code(self, context: Context) -> str:
        """The code stored instead of a context's text: within this file, equal contexts have equal codes."""
        return self._hmac([context.turns, context.background]).hex()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._release()

    def _errors(self) -> AbstractContextManager[None]:
        return sqlite.sqlite_errors(self.path, REMEDY)

    def _hmac(self, value: object) -> bytes:
        return hmac.digest(self._key, _json(value).encode(), "sha256")

    def _add(self, entry: Shown | Outcome) -> bool:
        """Add an entry inside the caller's transaction; whether it is new."""
        kind, request_id = entry.kind, entry.request_id
        sent = self._hmac(entry.content())
        known = self._find(request_id, kind)
        if known is not None:
            if known[2] == sent:
                return False
            what = "another list of replies" if kind == "shown" else "another outcome"
            raise DataError(f"request {request_id!r} already has {what}; send this one under another id")
        if entry.kind == "outcome":
            self._check(entry)
        query = "SELECT number, digest FROM entries ORDER BY number DESC LIMIT 1"
        last, before = self._connection.execute(query).fetchone() or (0, b"")
        row = (last + 1, request_id, kind, entry.time.isoformat(), _json(self._content(entry)), sent)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _digest(before, *row)))
        return True

    def _check(self, outcome: Outcome) -> None:
        row = self._find(outcome.request_id, "shown")
        if row is None:
            raise DataError(f"request {outcome.request_id!r} is unknown; send the shown replies with the outcome")
        if outcome.reply_id is not None and _shown(outcome.request_id, *row[:2])[0].rank(outcome.reply_id) is None:
            raise DataError(
                f"reply {outcome.reply_id!r} was not shown for request {outcome.request_id!r}; use a reply that was, or"
                " send refused with the final text"
            )
        if self.keep_text and outcome.action == "edited" and outcome.final_text is None:
            raise DataError(f"request {outcome.request_id!r} was edited without a final text; send the text")

    def _content(self, entry: Shown | Outcome) -> dict[str, Any]:
        """The part of an entry that is stored."""
        content = entry.content(with_texts=self.keep_text)
        if entry.kind == "shown":
            content["context_code"] = None if entry.context is None else self.context_code(entry.context)
        return content

    def _find(self, request_id: str, kind: str) -> tuple[str, str, bytes] | None:
        """Time, content and code of an entry."""
        query = "SELECT time, content, sent FROM entries WHERE request_id = ? AND kind = ?"
        row: tuple[str, str, bytes] | None = self._connection.execute(query, (request_id, kind)).fetchone()
        return row


_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"


def _shown(request_id: str, time: str, content: str) -> tuple[Shown, str | None]:
    """A stored Shown, and the code of its context."""
    values = json.loads(content)
    context, code = values.pop("context"), values.pop("context_code")
    replies = tuple(Reply(*reply) for reply in values.pop("replies"))
    context = None if context is None else Context(*map(tuple, context))
    return Shown(request_id, replies, context, time=datetime.fromisoformat(time), **values), code


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _digest(before: bytes, number: int, request_id: str, kind: str, time: str, content: str, sent: bytes) -> bytes:
    """SHA-256 of a row's fields and of the previous row's digest."""
    return hashlib.sha256(_json([before.hex(), number, request_id, kind, time, content, sent.hex()]).encode()).digest()


def _create(path: Path) -> sqlite3.Connection:
    """Open a file for writing, with its tables, which a new file gets; the file's name is durable."""
    with ExitStack() as resources:
        connection = sqlite.connect(path, "rwc")
        resources.callback(connection.close)
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            sqlite.use_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        with sqlite.transaction(connection, write=True):  # if two processes create the file, the second finds it done
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                for statement in _statements():
                    connection.execute(statement)
                values = {"format": str(FORMAT), "written_by": __version__, "key": os.urandom(32).hex()}
                values["checksum"] = checksum(values)
                connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
        sync_folder(path.resolve().parent)  # the process that created it may have died before it did this
        resources.pop_all()
    return connection


def _statements() -> list[str]:
    """The schema's statements one by one, because executescript would end the transaction."""
    statements, text = [], ""
    for line in SCHEMA.strip().splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements


@cache
def _expected_tables() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return connection.execute(_TABLES).fetchall()


def _read_key(path: Path, connection: sqlite3.Connection) -> bytes:
    """The file's key, after checking that it is a feedback file.

    Raises:
        ArtifactError: it is not, is damaged, or has a newer format.
    """
    tables = connection.execute(_TABLES).fetchall()
    if not {"meta", "entries"} <= {name for _, name, _, _ in tables}:
        raise ArtifactError(f"{path} is not a feedback file; use another path")
    values = dict(connection.execute("SELECT key, value FROM meta"))
    version = str(values.get("format", ""))
    if version.isdecimal():
        check_format(path, {**values, "format": int(version)}, FORMAT)
    if values.pop("checksum", None) != checksum(values) or tables != _expected_tables():
        raise ArtifactError(f"{path} is damaged: its settings or tables are not those that polyrank made; {REMEDY}")
    return bytes.fromhex(values["key"])
