"""One process at a time: a lock on an open file, which ends with the process that has it, however that ends.

The file names its holder. Where the system knows no locks nobody is refused. No torch.
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
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

LOCKS_FOLDERS = fcntl is not None
HOLDER_SIZE = 96  # bytes
FAR = 2**30  # the byte that Windows locks: behind all that is written, for what is locked there cannot be read


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder for as long as it is open; false where another process has it.

    Raises:
        OSError: the file system knows no locks, for example.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, FAR, os.SEEK_SET)
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
    """Have a file locked in the block, and its process and machine noted in it.

    Args:
        file: is made where it is missing, and stays.
        refusal: what is said to who comes second, before the words "by process ...".
        holder_at, holder_size: the bytes for the note.
        required: whether it is an error that the file system knows no locks.

    Yields:
        The open file's descriptor.

    Raises:
        LockedError: names the process that has it.
        OSError: the file cannot be made or locked.
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
        if not _is_still(descriptor, file):
            raise LockedError(f"{file.parent} was replaced just now by another process; do it again")
        note = f"{os.getpid()} {socket.gethostname()}".encode()[:holder_size].ljust(holder_size)
        with suppress(OSError):  # the name is a courtesy
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


def _is_still(descriptor: int, file: Path) -> bool:
    """Whether the file that was opened has its name still."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _holder(note: bytes) -> str:
    process, _, host = note.decode(errors="replace").strip(" \0").partition(" ")
    if not process.isdigit():
        return "another process"
    elsewhere = host and not socket.gethostname().startswith(host)  # a long name may have been cut
    return f"process {int(process)}" + (f" on {host}" if elsewhere else "")
