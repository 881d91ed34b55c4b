"""The file of feedback: a log in SQLite of what was shown and what became of it, to which one can only add.

What is acknowledged is on the disk. Every entry has a SHA-256 of all that it says and of the digest of the entry before
it, so one that is altered, put in, or lost from among the others shows.

Texts are written only where that was asked for. Otherwise of replies there are their ids, and of a context an
HMAC-SHA256 by a key that each file draws for itself, which tells equal contexts and nothing more.
"""

import hashlib
import hmac
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
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
REMEDY = "move it away and begin a new one, or restore it from a copy"

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
    """A file of feedback, open to be added to and read.

    Any number of processes may have it open, and any number of threads may use one of them.

    Args:
        path: the file; made where there is none.
        keep_text: whether texts are written: the context's, the replies' and the final one.
        write: False: only to read, and the file must be there.

    Raises:
        ArtifactError: it is something else, damaged, or of a newer format; or not there, to read.
        ResourceError: the disk is full or failing.
        LockedError: another process has held it for half a minute.
    """

    def __init__(self, path: AnyPath, *, keep_text: bool = False, write: bool = True) -> None:
        self.path, self.keep_text = Path(path), keep_text
        self._lock = threading.Lock()
        if self.path.is_dir():
            raise ArtifactError(f"{self.path} is a folder; name a file for the feedback")
        if write:
            make_folders(self.path.resolve().parent)
        elif not self.path.exists():
            raise ArtifactError(f"there is no file {self.path}; name one that polyrank serve has written")
        with ExitStack() as resources:
            with self._errors():
                self._connection = _create(self.path) if write else sqlite.open_database(self.path, write=False)
                resources.callback(self._connection.close)
                self._key = _read_key(self.path, self._connection)
            # ``close`` calls it, or the collector where nobody does
            self._release = weakref.finalize(self, resources.pop_all().close)

    def record(self, *entries: Shown | Outcome) -> int:
        """Add what was shown, outcomes, or both: all of it or, with an error, nothing; durable when this returns.

        The same again changes nothing, whatever its time: a client that heard no answer may send it once more.

        Args:
            entries: an Outcome comes after its Shown, in the same call or an earlier one.

        Returns:
            How many of them were new.

        Raises:
            DataError: another entry of the request is there, an outcome is of a request or a reply that was not shown,
                or an edited one has no final text where texts are kept.
            ResourceError: the disk is full or failing, and nothing was added.
            LockedError: another process has held the file for half a minute.
        """
        with self._lock, self._errors(), sqlite.transaction(self._connection, write=True):
            return sum(self._add(entry) for entry in entries)

    def requests(self, *, since: datetime | None = None) -> Iterator[RequestFeedback]:
        """What was shown, in the order in which it was recorded, each with its outcome where there is one.

        One consistent view, whatever is added meanwhile.

        Args:
            since: only what was shown then or later.

        Raises:
            ArtifactError: an entry is not what was written.
        """
        since = None if since is None else in_utc(since)
        with self._errors():
            connection = sqlite.open_database(self.path, write=False)
        try:
            with self._errors(), sqlite.transaction(connection, write=False):
                outcomes = self._outcomes(connection)
                query = "SELECT request_id, time, content FROM entries WHERE kind = 'shown' ORDER BY number"
                for request_id, time, content in connection.execute(query):
                    shown, code = _shown(request_id, time, content)
                    if since is None or shown.time >= since:
                        yield RequestFeedback(shown, outcomes.get(request_id), code)
        finally:
            connection.close()

    def _outcomes(self, connection: sqlite3.Connection) -> dict[str, Outcome]:
        """By request; every entry is checked on the way."""
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
        """How many requests there are."""
        with self._lock, self._errors():
            return int(self._connection.execute("SELECT count(*) FROM entries WHERE kind = 'shown'").fetchone()[0])

    def context_code(self, context: Context) -> str:
        """What stands for a context where no texts are kept: equal ones have equal codes, in this file alone."""
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
        """Whether it is new; part of the caller's transaction."""
        kind, request_id = "outcome" if isinstance(entry, Outcome) else "shown", entry.request_id
        sent = self._hmac(_all_of(entry))
        known = self._find(request_id, kind)
        if known is not None:
            if known[2] == sent:
                return False
            what = "another list was shown" if kind == "shown" else "another outcome is recorded"
            raise DataError(f"of request {request_id!r} {what}; send what differs under another id")
        if isinstance(entry, Outcome):
            self._check(entry)
        query = "SELECT number, digest FROM entries ORDER BY number DESC LIMIT 1"
        last, before = self._connection.execute(query).fetchone() or (0, b"")
        row = (last + 1, request_id, kind, entry.time.isoformat(), _json(self._content(entry)), sent)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _digest(before, *row)))
        return True

    def _check(self, outcome: Outcome) -> None:
        row = self._find(outcome.request_id, "shown")
        if row is None:
            raise DataError(f"request {outcome.request_id!r} is not known; send what was shown along with its outcome")
        if outcome.reply_id is not None and _shown(outcome.request_id, *row[:2])[0].rank(outcome.reply_id) is None:
            raise DataError(
                f"reply {outcome.reply_id!r} was not shown for request {outcome.request_id!r}; name one that was, or"
                " send it as refused with the final text"
            )
        if self.keep_text and outcome.action == "edited" and outcome.final_text is None:
            raise DataError(f"request {outcome.request_id!r} was edited without a final text; give the text")

    def _content(self, entry: Shown | Outcome) -> dict[str, Any]:
        """What is written of an entry."""
        everything = _all_of(entry)
        if isinstance(entry, Outcome):
            return everything if self.keep_text else everything | {"final_text": None}
        everything["context_code"] = None if entry.context is None else self.context_code(entry.context)
        if not self.keep_text:
            everything |= {"context": None, "replies": [(reply.id, reply.score, None) for reply in entry.replies]}
        return everything

    def _find(self, request_id: str, kind: str) -> tuple[str, str, bytes] | None:
        """Time, content and code of an entry."""
        query = "SELECT time, content, sent FROM entries WHERE request_id = ? AND kind = ?"
        row: tuple[str, str, bytes] | None = self._connection.execute(query, (request_id, kind)).fetchone()
        return row


_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"


def _shown(request_id: str, time: str, content: str) -> tuple[Shown, str | None]:
    """What was shown, and the code of its context."""
    values = json.loads(content)
    context, code = values.pop("context"), values.pop("context_code")
    replies = tuple(Reply(*reply) for reply in values.pop("replies"))
    context = None if context is None else Context(*map(tuple, context))
    return Shown(request_id, replies, context, time=datetime.fromisoformat(time), **values), code


def _all_of(entry: Shown | Outcome) -> dict[str, Any]:
    """Everything that an entry says, but for its request and its time."""
    if isinstance(entry, Outcome):
        return {"action": entry.action, "reply_id": entry.reply_id, "final_text": entry.final_text}
    return {
        "context": None if entry.context is None else [entry.context.turns, entry.context.background],
        "replies": [(reply.id, reply.score, reply.text) for reply in entry.replies],
        "conversation": entry.conversation,
        "model": entry.model,
        "fingerprint": entry.fingerprint,
        "change": entry.change,
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _digest(before: bytes, number: int, request_id: str, kind: str, time: str, content: str, sent: bytes) -> bytes:
    """SHA-256 of everything that a row says, and of the digest of the row before."""
    return hashlib.sha256(_json([before.hex(), number, request_id, kind, time, content, sent.hex()]).encode()).digest()


def _create(path: Path) -> sqlite3.Connection:
    """Open a file to write, with its tables, which are made where it is new; its name is durable."""
    connection = sqlite.connect(path, "rwc")
    try:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            sqlite.use_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        with sqlite.transaction(connection, write=True):  # two that come at once: the second finds it made
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                for statement in _statements():
                    connection.execute(statement)
                values = {"format": str(FORMAT), "written_by": __version__, "key": os.urandom(32).hex()}
                values["checksum"] = checksum(values)
                connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
        sync_folder(path.resolve().parent)  # who made it may have died before its name was durable
    except BaseException:
        connection.close()
        raise
    return connection


def _statements() -> list[str]:
    """Of the schema, one by one: executescript would end the transaction."""
    statements, text = [], ""
    for line in SCHEMA.strip().splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements


@cache
def _expected_tables() -> list[tuple[str, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(SCHEMA)
        return connection.execute(_TABLES).fetchall()
    finally:
        connection.close()


def _read_key(path: Path, connection: sqlite3.Connection) -> bytes:
    """The file's own key, if the file is one of feedback.

    Raises:
        ArtifactError: it is not, or newer.
    """
    tables = connection.execute(_TABLES).fetchall()
    if not {"meta", "entries"} <= {name for _, name, _, _ in tables}:
        raise ArtifactError(f"{path} is no file of feedback; name another one")
    values = dict(connection.execute("SELECT key, value FROM meta"))
    version = str(values.get("format", ""))
    if version.isdecimal():
        check_format(path, {**values, "format": int(version)}, FORMAT)
    if values.pop("checksum", None) != checksum(values) or tables != _expected_tables():
        raise ArtifactError(f"{path} is damaged: its settings or tables are not those that were made; {REMEDY}")
    return bytes.fromhex(values["key"])
