"""The feedback file: an append-only log in SQLite of shown replies and their outcomes; acknowledged entries are synced.

By default polyrank stores no texts: replies are stored as ids, and a context as the SHA-256 of its texts, which shows
whether two contexts are equal and can be tested against texts that you know.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path

from polyrank.errors import ArtifactError, DataError
from polyrank.feedback.records import Outcome, Reply, RequestFeedback, Shown, in_utc
from polyrank.records import Context
from polyrank.slots import sent_template
from polyrank.storage import sqlite
from polyrank.storage.durable import AnyPath, make_folders, sync_folder

FORMAT = 1
APPLICATION = int.from_bytes(b"plyr")  # SQLite's mark for the program to which a file belongs
REMEDY = "move it away and start a new one, or restore it from a copy"

COLUMNS = "(request_id TEXT UNIQUE NOT NULL, time TEXT NOT NULL, content TEXT NOT NULL, sent TEXT NOT NULL)"
SCHEMA = (
    f"CREATE TABLE shown {COLUMNS}",
    f"CREATE TABLE outcome {COLUMNS}",
    f"PRAGMA application_id={APPLICATION}",
    f"PRAGMA user_version={FORMAT}",
)


class FeedbackStore(sqlite.Connected):
    """A feedback file, open for appending and reading.

    Any number of processes may have the file open, and any number of threads may use one store.

    Args:
        path: the file; created if it does not exist.
        keep_text: whether to store texts: of contexts and replies, and final texts, with slots in place of their data.
        write: False: open for reading only; the file must exist.

    Raises:
        ArtifactError: the file is not a feedback file, damaged, or in a newer format; or missing, if only read.
        ResourceError: the disk is full or failing.
        LockedError: another process has held the file for half a minute.
    """

    def __init__(self, path: AnyPath, *, keep_text: bool = False, write: bool = True) -> None:
        self.path, self.keep_text = Path(path), keep_text
        super().__init__()
        if self.path.is_dir():
            raise ArtifactError(f"{self.path} is a folder; use the path of a file for the feedback")
        if write:
            make_folders(self.path.resolve().parent)
        elif not self.path.exists():
            raise ArtifactError(f"{self.path} does not exist; use a feedback file that polyrank serve has written")
        self._write = write
        self._open()

    def _open(self) -> None:
        with ExitStack() as resources:
            with self._errors():
                connection = _create(self.path) if self._write else sqlite.open_database(self.path, write=False)
                resources.callback(connection.close)
                _check_format(self.path, connection)
            resources.pop_all()
        self._use(connection)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Lock out other threads, with a connection of this process."""
        with self._lock, self._errors():
            if self._inherited:
                self._open()
            yield

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
        with self._using(), sqlite.transaction(self._connection, write=True):
            return sum(self._add(entry) for entry in entries)

    def requests(self, *, since: datetime | None = None) -> Iterator[RequestFeedback]:
        """All requests in the order in which they were recorded, each with its outcome if there is one.

        Reads one consistent view, even if entries are added meanwhile.

        Args:
            since: skip requests shown before this time.

        Raises:
            ArtifactError: an entry is damaged.
        """
        since = None if since is None else in_utc(since)
        query = (
            "SELECT shown.request_id, shown.time, shown.content, outcome.time, outcome.content"
            " FROM shown LEFT JOIN outcome USING (request_id) ORDER BY shown.rowid"
        )
        with self._errors():
            connection = sqlite.open_database(self.path, write=False)
        with closing(connection), self._errors(), sqlite.transaction(connection, write=False):
            for row in connection.execute(query):
                request = self._request(*row)
                if since is None or request.shown.time >= since:
                    yield request

    def __len__(self) -> int:
        """Number of requests."""
        with self._using():
            return int(self._connection.execute("SELECT count(*) FROM shown").fetchone()[0])

    def _errors(self) -> AbstractContextManager[None]:
        return sqlite.sqlite_errors(self.path, REMEDY)

    def _add(self, entry: Shown | Outcome) -> bool:
        """Add an entry inside the caller's transaction; whether it is new."""
        kind, request_id, sent = entry.kind, entry.request_id, _digest(entry.content())
        query = f"SELECT sent FROM {kind} WHERE request_id = ?"
        if (earlier := self._connection.execute(query, (request_id,)).fetchone()) is not None:
            if earlier == (sent,):
                return False
            what = "another list of replies" if kind == "shown" else "another outcome"
            raise DataError(f"request {request_id!r} already has {what}; send this one under another id")
        content = entry.content(with_texts=self.keep_text)
        if entry.kind == "outcome":
            shown = self._check(entry)
            if self.keep_text and entry.final_text is not None:
                texts = [reply.text for reply in shown.replies if reply.text]
                content["final_text"] = sent_template(entry.final_text, texts, shown.context)
        else:
            content["context_code"] = None if entry.context is None else context_code(entry.context)
        row = (request_id, entry.time.isoformat(), _json(content), sent)
        self._connection.execute(f"INSERT INTO {kind} VALUES (?, ?, ?, ?)", row)
        return True

    def _check(self, outcome: Outcome) -> Shown:
        """The shown replies of an outcome."""
        query = "SELECT time, content FROM shown WHERE request_id = ?"
        row = self._connection.execute(query, (outcome.request_id,)).fetchone()
        if row is None:
            raise DataError(f"request {outcome.request_id!r} is unknown; send the shown replies with the outcome")
        shown = self._request(outcome.request_id, *row).shown
        if outcome.reply_id is not None and shown.rank(outcome.reply_id) is None:
            raise DataError(
                f"reply {outcome.reply_id!r} was not shown for request {outcome.request_id!r}; use a reply that was, or"
                " send refused with the final text"
            )
        if self.keep_text and outcome.action == "edited" and outcome.final_text is None:
            raise DataError(f"request {outcome.request_id!r} was edited without a final text; send the text")
        return shown

    def _request(
        self, request_id: str, time: str, content: str, outcome_time: str = "", outcome: str | None = None
    ) -> RequestFeedback:
        """A request from its columns."""
        try:
            values = json.loads(content)
            context, code = values.pop("context"), values.pop("context_code")
            replies = tuple(Reply(*reply) for reply in values.pop("replies"))
            context = None if context is None else Context(*map(tuple, context))
            shown = Shown(request_id, replies, context, time=datetime.fromisoformat(time), **values)
            if outcome is None:
                return RequestFeedback(shown, None, code)
            made = Outcome(request_id, time=datetime.fromisoformat(outcome_time), **json.loads(outcome))
            return RequestFeedback(shown, made, code)
        except (AttributeError, DataError, KeyError, TypeError, ValueError) as error:
            message = f"{self.path} is damaged: request {request_id!r} is not what was written; {REMEDY}"
            raise ArtifactError(message) from error


def context_code(context: Context) -> str:
    """The code that the file stores instead of a context's texts: equal contexts have equal codes."""
    return _digest([context.turns, context.background])


def _digest(value: object) -> str:
    return hashlib.sha256(_json(value).encode()).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _create(path: Path) -> sqlite3.Connection:
    """Open a file for writing, with its tables, which a new file gets; the file's name is durable."""
    with ExitStack() as resources:
        connection = sqlite.connect(path, "rwc")
        resources.callback(connection.close)
        if _is_empty(connection):
            sqlite.use_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        with sqlite.transaction(connection, write=True):  # if two processes create the file, the second finds it done
            for statement in SCHEMA if _is_empty(connection) else ():
                connection.execute(statement)
        sync_folder(path.resolve().parent)  # the process that created it may have died before it did this
        resources.pop_all()
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def _check_format(path: Path, connection: sqlite3.Connection) -> None:
    """Check that it is a feedback file in a known format.

    Raises:
        ArtifactError: it is not.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION,):
        raise ArtifactError(f"{path} is not a feedback file; use another path")
    if version > FORMAT:
        raise ArtifactError(f"{path} has format {version}, this version reads up to {FORMAT}; upgrade polyrank")
