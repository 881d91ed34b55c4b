"""The writer's lock of an index. The same file records the number of the last acknowledged change.

SQLite treats a damaged log as one that ends at the damage, so later commits would disappear silently. Therefore the
writer records each change once it is durable, and every process that opens the index compares. The record is not
synced: it outlives the process, and after a power loss it can only be an earlier one. No torch.
"""

import hashlib
from contextlib import ExitStack, suppress
from pathlib import Path

from polyrank.errors import ArtifactError
from polyrank.index.local.store import REMEDY
from polyrank.loading.folders import INDEX_FILE
from polyrank.storage import lock
from polyrank.storage.durable import unwritable
from polyrank.storage.forks import release_descriptor

LOCK = "writer.lock"
HOLDER_AT, SIZE = 64, 96  # bytes: the record comes first, then the process that holds the lock


class Lock:
    """The right to write, as long as this process lives. ``hold`` returns one."""

    def __init__(self, descriptor: int, file: Path) -> None:
        self._descriptor, self._file = descriptor, file

    @property
    def is_current(self) -> bool:
        """Whether this is still the lock of the index, whose folder may have been moved, removed or replaced."""
        return lock.is_still(self._descriptor, self._file)

    def leave(self) -> None:
        """In a child process: leave the lock to the parent, and do not prolong it."""
        release_descriptor(self._descriptor)

    def acknowledge(self, change: int) -> None:
        """Record that a change is durable."""
        with suppress(OSError):  # the change is durable even if the record cannot be written
            lock.write_at(self._descriptor, _record(change), 0)


def hold(resources: ExitStack, path: Path) -> Lock:
    """Take the lock of the index at ``path`` until ``resources`` are closed.

    Raises:
        LockedError: names the process that has it.
        ResourceError: the folder cannot be written to.
    """
    refusal = f"{path} is being written to"
    try:
        descriptor = resources.enter_context(
            lock.hold(path / LOCK, refusal, holder_at=HOLDER_AT, holder_size=SIZE - HOLDER_AT)
        )
    except OSError as error:
        raise unwritable(path, error) from error
    return Lock(descriptor, path / LOCK)


def write_lock_file(path: Path, change: int) -> None:
    """Create the lock's file in a new folder, at its final size."""
    (path / LOCK).write_bytes(_record(change).ljust(SIZE))


def acknowledged_change(path: Path) -> int:
    """Number of the last change that is recorded as durable; 0 if the record is missing or damaged."""
    try:
        record = (path / LOCK).read_bytes()[:HOLDER_AT].rstrip()
    except OSError:
        return 0
    number = record.partition(b" ")[0]
    return int(number) if number.isdigit() and _record(int(number)).rstrip() == record else 0


def check_acknowledged(path: Path, change: int, expected: int) -> None:
    """Refuse an index that is older than ``expected``, which ``acknowledged_change`` returned before it was read.

    Raises:
        ArtifactError: changes are missing.
    """
    if change < expected:
        raise ArtifactError(
            f"{path / INDEX_FILE} is damaged: its last change is number {change:,}, but number {expected:,} was"
            f" acknowledged: a part of its log {INDEX_FILE}-wal is lost; {REMEDY}"
        )


def _record(change: int) -> bytes:
    number = f"{change:020d}".encode()
    return (number + b" " + hashlib.sha256(number).hexdigest()[:32].encode()).ljust(HOLDER_AT)
