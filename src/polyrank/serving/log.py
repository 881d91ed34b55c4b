"""A server's log on stderr. A thread writes it, so that the server does not stop when the log's reader stalls."""

import json
import logging
import os
import queue
import sys
import threading
import time
from contextlib import suppress

log = logging.getLogger("polyrank.serving")
MAX_LINES = 10_000  # waiting to be written; further lines are dropped
FLUSH_S = 2.0  # at exit, for the lines that still wait


def log_to_stderr() -> None:
    """Log one line of JSON per request and per problem; no line contains users' texts."""
    handler = _ThreadHandler()
    handler.setFormatter(_JsonFormatter())
    for name in ("polyrank", "polyrank.access", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING if name == "uvicorn.error" else logging.INFO)
        logger.handlers[:] = [handler]
        logger.propagate = False


def name_of(error: Exception) -> str:
    """The name of an unexpected error. Only messages of the system are added: others may contain a user's text.

    >>> name_of(PermissionError(13, "Permission denied", "index/candidates.db")), name_of(ValueError("my wifi is down"))
    ("PermissionError: [Errno 13] Permission denied: 'index/candidates.db'", 'ValueError')
    """
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


class _ThreadHandler(logging.Handler):
    """Writes lines in a separate thread."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue(MAX_LINES)
        threading.Thread(target=self._write, name="polyrank-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record."""
        with suppress(queue.Full):
            self._lines.put_nowait(self.format(record))

    def flush(self) -> None:
        """Wait until everything is written, or FLUSH_S have passed."""
        end = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.001)

    def _write(self) -> None:
        while True:
            rest = f"{self._lines.get()}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError, ValueError):  # stderr is closed
                while rest:  # not through sys.stderr: a blocked write would hold its lock when the process exits
                    rest = rest[os.write(sys.stderr.fileno(), rest) :]
            self._lines.task_done()


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON; records of requests are JSON already."""
        message = record.getMessage()
        if record.name == "polyrank.access" and record.levelno == logging.INFO:
            return message
        row = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": message,
        }
        if record.exc_info and record.exc_info[0] is not None:
            row["error"] = record.exc_info[0].__name__  # not the message, which may contain a user's text
        return json.dumps(row)
