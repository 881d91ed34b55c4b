"""A record that all rows of an index were checked, so that opening a writer does not check them again.

A closing writer gives the index's file a random time of last change, to the nanosecond, and records it. Every later
change of the file changes this time, and then the next writer checks all rows. The record is not synced: after a crash
or a power loss it does not match, and all rows are checked. No torch.
"""

import hashlib
import os
import random
from contextlib import suppress
from pathlib import Path

from polyrank.index.local.store import Meta
from polyrank.loading.folders import INDEX_FILE

CHECKED = "checked"
SECOND = 10**9


def record_check(path: Path, meta: Meta) -> None:
    """Record that the rows are those that ``meta`` describes; SQLite's log must be empty."""
    with suppress(OSError):  # the next writer checks all rows
        file = path / INDEX_FILE
        now = file.stat()
        # in an earlier second, so that a change differs even where times are whole seconds
        changed = (now.st_mtime_ns // SECOND - 1) * SECOND + random.SystemRandom().randrange(SECOND)
        os.utime(file, ns=(now.st_atime_ns, changed))
        (path / CHECKED).write_bytes(_record(path, meta))


def is_checked(path: Path, meta: Meta) -> bool:
    """Whether the rows were checked or written by a writer that closed, and the file is the same since."""
    try:
        return (path / CHECKED).read_bytes() == _record(path, meta)
    except OSError:
        return False


def _record(path: Path, meta: Meta) -> bytes:
    now, log = (path / INDEX_FILE).stat(), path / f"{INDEX_FILE}-wal"
    n_pending = log.stat().st_size if log.exists() else 0
    facts = (now.st_size, now.st_mtime_ns, n_pending, meta.change, meta.n, meta.digest)
    return hashlib.sha256(repr(facts).encode()).hexdigest().encode()
