"""Files that survive a crash: written beside their place, synced, renamed into it, and the folder synced.

Knows bytes and folders; refuses to know what they mean.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrank.errors import ResourceError, UsageError

Place = str | os.PathLike[str]


def sync_folder(folder: Path) -> None:
    """Make the folder's entries (names, renames) durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a written file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash it holds all of the old bytes or all of the new ones.

    Raises:
        ResourceError: the disk is full or failing; the old file is intact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def check_replaceable(path: Path, *, ours: Collection[str], replace: bool) -> None:
    """Refuse a place that a new folder must not take. Worth asking before hours of work go into it.

    Args:
        path: where the folder will be.
        ours: names that tell our folders from others.
        replace: whether an earlier folder may be replaced.

    Raises:
        UsageError: something is there and ``replace`` is false, or what is there is not ours.
    """
    if not path.exists():
        return
    if not replace:
        raise UsageError(f"{path} already exists; choose another place or pass --overwrite")
    if not path.is_dir() or (any(path.iterdir()) and not any((path / name).exists() for name in ours)):
        raise UsageError(f"{path} holds something else ({' or '.join(ours)} is not in it); choose another place")


@contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling to fill; on success it becomes ``path``, whole and durable, or nothing changes.

    Args:
        path: the folder to be made.
        replace: whether an existing folder may be replaced. The old one is kept until the new one is in place.

    Raises:
        UsageError: ``path`` exists and ``replace`` is false.
        ResourceError: the disk is full or failing.
    """
    if not replace:
        check_replaceable(path, ours=(), replace=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        for entry in sorted(temporary.rglob("*")):
            sync_folder(entry) if entry.is_dir() else sync_file(entry)
        sync_folder(temporary)
        temporary.chmod(0o755)
        check_replaceable(path, ours=sorted(entry.name for entry in temporary.iterdir()), replace=replace)
        if not path.exists():
            temporary.rename(path)
        elif not _exchange(temporary, path):
            # without an atomic exchange there is an instant at which neither is in place, and both lie beside it
            retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.rename(retired / "was")
            temporary.rename(path)
            shutil.rmtree(retired)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders' names in one step, where the system can (Linux); the second name is never without a folder."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def disk_error(path: Path, error: OSError) -> Exception:
    """Full and failing disks become a ResourceError; other errors of the system stay as they are."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return ResourceError(f"cannot write {path}: {os.strerror(error.errno)}; free some space and run it again")
    return error


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
