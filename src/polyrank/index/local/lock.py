"""The writer's lock of an index, and in the same file the number of the last change that was acknowledged.

SQLite takes a damaged log for one that ends there: what was committed after that would be gone without a word. So the
writer notes each change once it is durable, and who opens the index later compares. The note itself is not synced: it
outlives the process, and a power loss can only leave an earlier one. No torch.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyrank.errors import ArtifactError
from polyrank.index.local.store import FILE, REMEDY
from polyrank.storage import lock

LOCK = "writer.lock"
HOLDER_AT, SIZE = 64, 96  # bytes: the note comes first, then the process that holds the lock


class Lock:
    """The right to write, for as long as this process lives. Made by ``hold``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def acknowledge(self, change: int) -> None:
        """Note that a change is durable."""
        with suppress(OSError):  # it is durable all the same
            lock.write_at(self._descriptor, _note(change), 0)


@contextmanager
def hold(path: Path) -> Iterator[Lock]:
    """Take the lock of the index at ``path``.

    Raises:
        LockedError: names the process that has it.
    """
    refusal = f"{path} is being written to"
    with lock.hold(path / LOCK, refusal, holder_at=HOLDER_AT, holder_size=SIZE - HOLDER_AT) as descriptor:
        yield Lock(descriptor)


def write_lock(path: Path, change: int) -> None:
    """Make the lock's file in a new folder, as long as it will ever be."""
    (path / LOCK).write_bytes(_note(change).ljust(SIZE))


def acknowledged(path: Path) -> int:
    """The last change that is known to have been durable; 0 where nothing is known."""
    try:
        note = (path / LOCK).read_bytes()[:HOLDER_AT].rstrip()
    except OSError:
        return 0
    number = note.partition(b" ")[0]
    return int(number) if number.isdigit() and _note(int(number)).rstrip() == note else 0


def check_acknowledged(path: Path, change: int, expected: int) -> None:
    """Refuse an index that is older than the change that ``acknowledged`` gave before it was read.

    Raises:
        ArtifactError: changes are missing.
    """
    if change < expected:
        raise ArtifactError(
            f"{path / FILE} is damaged: its last change is number {change:,}, yet number {expected:,} was acknowledged:"
            f" a part of its log {FILE}-wal is lost; {REMEDY}"
        )


def _note(change: int) -> bytes:
    number = f"{change:020d}".encode()
    return (number + b" " + hashlib.sha256(number).hexdigest()[:32].encode()).ljust(HOLDER_AT)
