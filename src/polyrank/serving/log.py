"""What a server says of itself, on stderr. A thread writes it, so that a reader who stops does not stop the server."""

import json
import logging
import os
import sys
import threading
import time
from collections import deque

MOST = 10_000  # lines that may wait to be read; more are lost
LEAVING_S = 2.0  # at the end, for those that still wait


def log_to_stderr() -> None:
    """One line of JSON for each request, and for what goes wrong. Texts of users are in none of them."""
    handler = _Writing()
    handler.setFormatter(_Lines())
    for name in ("polyrank", "polyrank.access", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING if name == "uvicorn.error" else logging.INFO)
        logger.handlers[:] = [handler]
        logger.propagate = False


class _Writing(logging.Handler):
    """Lines, written by a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=MOST)  # the oldest are lost
        self._changed = threading.Condition()
        self._n_left = 0  # not written yet, the one that is being written among them
        threading.Thread(target=self._write, name="polyrank-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Say something."""
        line = self.format(record)
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, for a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._n_left, LEAVING_S)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._n_left = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, self._n_left = list(self._lines), len(self._lines)
                self._lines.clear()
            rest = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
            try:
                while rest:  # not by sys.stderr, whose lock a write that waits would keep from the end of the process
                    rest = rest[os.write(sys.stderr.fileno(), rest) :]
            except (OSError, ValueError):  # nobody listens any more
                continue


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON; those of requests are that already."""
        message = record.getMessage()
        if record.name == "polyrank.access" and record.levelno == logging.INFO:
            return message
        row = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": message,
        }
        if record.exc_info and record.exc_info[0] is not None:
            row["error"] = record.exc_info[0].__name__  # what it says may be what a user wrote
        return json.dumps(row)
