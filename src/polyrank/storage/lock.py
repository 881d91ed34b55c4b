"""Locks between processes: a lock on an open file, which the system releases when the process ends.

The file names the process that holds the lock. On systems without locks every process succeeds. No torch.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyrank.errors import LockedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKS_FOLDERS = fcntl is not None
HOLDER_SIZE = 96  # bytes
LOCKED_BYTE = 2**30  # the offset that Windows locks: past the end of the file, because locked bytes cannot be read


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; false if another process holds the lock.

    Raises:
        OSError: the file system has no locks, or another system error.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


@contextmanager
def hold(
    file: Path, refusal: str, *, holder_at: int = 0, holder_size: int = HOLDER_SIZE, required: bool = True
) -> Iterator[int]:
    """Hold the lock of a file during the block; the file names this process and machine.

    Args:
        file: the lock file; created if missing, never removed.
        refusal: start of the error message if another process holds the lock; " by process ..." follows.
        holder_at, holder_size: where in the file the process is named, in bytes.
        required: raise an error if the file system has no locks.

    Yields:
        The descriptor of the open file.

    Raises:
        LockedError: another process holds the lock; the message names it.
        OSError: the file cannot be created or locked.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            free = try_lock(descriptor)
        except OSError:
            if required:
                raise
            free = True
        if not free:
            holder = _holder(read_at(descriptor, holder_size, holder_at))
            raise LockedError(f"{refusal} by {holder}; wait until it has finished")
        if not is_still(descriptor, file):
            raise LockedError(f"another process has just replaced {file.parent}; try again")
        note = f"{os.getpid()} {socket.gethostname()}".encode()[:holder_size].ljust(holder_size)
        with suppress(OSError):  # the name only improves the message
            write_at(descriptor, note, holder_at)
        yield descriptor
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: bytes, start: int) -> None:
    """Write bytes into an open file at an offset."""
    if hasattr(os, "pwrite"):
        os.pwrite(descriptor, data, start)
    else:
        os.lseek(descriptor, start, os.SEEK_SET)
        os.write(descriptor, data)


def read_at(descriptor: int, size: int, start: int) -> bytes:
    """Read bytes of an open file at an offset."""
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, size)


def is_still(descriptor: int, file: Path) -> bool:
    """Whether ``file`` is still the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _holder(note: bytes) -> str:
    process, _, host = note.decode(errors="replace").strip(" \0").partition(" ")
    if not process.isdigit():
        return "another process"
    elsewhere = host and not socket.gethostname().startswith(host)  # a long name may be truncated
    return f"process {int(process)}" + (f" on {host}" if elsewhere else "")
