"""Crash-safe files: write a temporary sibling, sync it, rename it over the old file, and sync the folder.

This module handles bytes and folders and does not know what they mean.
"""

import ctypes
import errno
import glob
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from polyrank.errors import ReadOnlyError, ResourceError, UsageError
from polyrank.storage.lock import LOCKS_FOLDERS, try_lock

AnyPath = str | os.PathLike[str]
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LEFTOVER = ".part"  # suffix of unfinished folders


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder (names, renames) durable."""
    if os.name != "nt":  # Windows cannot open folders
        sync_file(folder)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Create or replace a file: after a crash it holds all of the old bytes or all of the new bytes.

    A replaced file keeps its permissions. If ``path`` is a link, its target is replaced. Temporary files that killed
    processes left are removed.

    Raises:
        UsageError: ``path`` exists and is not a regular file, such as a folder, a pipe or a device.
        ResourceError: the disk is full or failing; ``path`` is still the complete old file, or the complete new one.
    """
    temporary: Path | None = None
    try:
        with ExitStack() as resources:
            mode = _file_mode(path)
            target = path.resolve()
            make_folders(target.parent)
            _remove_leftovers(target)
            temporary = _temporary(target, "", _new_file, resources)
            if mode is not None:
                temporary.chmod(mode)
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
    except OSError as error:
        raise _error_about(path, error) from error
    finally:
        if temporary is not None:  # it still exists after an error or an interrupt
            temporary.unlink(missing_ok=True)


def _file_mode(path: Path) -> int | None:
    """The permissions of a replaceable file; None if ``path`` does not exist."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is not a regular file, so it cannot be replaced; give another path")
    return stat.S_IMODE(mode)


def _new_file(path: Path) -> None:
    path.touch(exist_ok=False)  # unlike mkstemp, this respects the umask


def _error_about(path: Path, error: OSError) -> Exception:
    """As ``disk_error``; other errors name ``path`` instead of the temporary file."""
    if error.errno is None:
        return error
    return disk_error(path, OSError(error.errno, os.strerror(error.errno), str(path)))


def check_output(path: Path | None, *, inputs: Iterable[AnyPath | None] = (), overwrite: bool = False) -> None:
    """Check the path of a new file before the work that produces it, which may take hours.

    Args:
        path: path of the new file; None: no file.
        inputs: files that the command reads, and its other outputs; None entries are ignored.
        overwrite: whether an existing file may be replaced. An input never is.

    Raises:
        UsageError: the file exists and ``overwrite`` is false, it is one of ``inputs`` or not a regular file, or the
            folder is not writable.
    """
    if path is None:
        return
    for other in (Path(name) for name in inputs if name is not None):
        if path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other)):
            what = "already exists and is read by this command" if path.exists() else "is given for two outputs"
            raise UsageError(f"{path} {what}; give another file")
    if path.exists():
        _file_mode(path)
        if not overwrite:
            raise UsageError(f"{path} already exists; choose another path or pass `overwrite=True`")
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written because {folder} is not a writable folder; give another path")


def check_replaceable(path: Path, *, own_files: Collection[str], replace: bool) -> None:
    """Check the path of a new folder before the work that produces it, which may take hours.

    Args:
        path: path of the new folder.
        own_files: names, or patterns with "*", of the files that polyrank writes into such a folder.
        replace: whether an existing folder may be replaced.

    Raises:
        UsageError: ``path`` exists and ``replace`` is false, or it is a folder with other files, which would be lost.
    """
    if not path.exists():
        return
    if not replace:
        raise UsageError(f"{path} already exists; choose another path or pass `overwrite=True`")
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; choose another path")
    entries = sorted(entry.name for entry in path.iterdir())
    if foreign := [name for name in entries if not any(fnmatchcase(name, pattern) for pattern in own_files)]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"{path} holds other files, which would be lost: {', '.join(foreign[:3])}{more}; move them away or choose"
            " another path"
        )


@contextmanager
def new_folder(path: Path, *, replace: bool = False, own_files: Collection[str] = ()) -> Iterator[Path]:
    """Yield a temporary sibling folder to fill. If the block succeeds, it durably becomes ``path``.

    If the block fails, nothing changes. Temporary folders that crashed processes left are removed.

    Args:
        path: the folder to create.
        replace: whether an existing folder may be replaced. The old one exists until the new one takes its name.
        own_files: names that the old folder may hold in addition to those of the new one, see ``check_replaceable``.

    Raises:
        UsageError: ``path`` exists and ``replace`` is false, or it holds other files.
        ResourceError: the disk is full or failing.
    """
    if not replace:
        check_replaceable(path, own_files=(), replace=False)
    path = path.resolve()  # as for files, the target of a link is replaced
    temporary: Path | None = None
    try:
        with ExitStack() as resources:
            make_folders(path.parent)
            _remove_leftovers(path, LEFTOVER)
            temporary = _temporary(path, LEFTOVER, Path.mkdir, resources)
            yield temporary
            for entry in sorted(temporary.rglob("*")):
                sync_folder(entry) if entry.is_dir() else sync_file(entry)
            sync_folder(temporary)
            names = [*own_files, *(entry.name for entry in temporary.iterdir())]
            check_replaceable(path, own_files=names, replace=replace)
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
                with suppress(OSError):  # a file system without locks
                    _lock(path, resources)  # so that no process removes it as a leftover after the exchange
                _put_in_place_of(path, temporary)
            else:
                _put(path, temporary)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def make_folders(path: Path) -> None:
    """Make a folder and its parents, durably."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    with suppress(PermissionError):  # the process that made this folder may have crashed before syncing its name
        sync_folder(path.parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        try:
            sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            raise


def _temporary(path: Path, suffix: str, make: Callable[[Path], None], resources: ExitStack) -> Path:
    """An empty sibling; the lock that this process holds on it distinguishes it from a leftover."""
    while True:
        temporary = path.parent / f".{path.name}.{os.urandom(4).hex()}{suffix}"
        try:
            make(temporary)
        except OSError as error:
            raise _error_about(path, error) from error
        try:
            if _lock(temporary, resources):
                return temporary
        except FileNotFoundError:  # another process removed it as a leftover before it was locked
            continue
        except OSError:  # a file system without locks, on which no leftovers are removed
            return temporary


def _lock(path: Path, resources: ExitStack) -> bool:
    """Lock a file or folder until ``resources`` closes; false if another process holds the lock or has replaced it.

    Raises:
        OSError: the file system has no locks, or ``path`` does not exist.
    """
    if not LOCKS_FOLDERS:
        return True
    descriptor = os.open(path, os.O_RDONLY)
    resources.callback(os.close, descriptor)
    return try_lock(descriptor) and os.path.samestat(path.stat(), os.fstat(descriptor))


def _remove_leftovers(path: Path, suffix: str = "") -> None:
    if not LOCKS_FOLDERS:  # a running process may still use them
        return
    for entry in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}{suffix}"):
        with ExitStack() as resources, suppress(OSError):
            if _lock(entry, resources):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _put(path: Path, temporary: Path) -> None:
    temporary.rename(path)
    try:
        sync_folder(path.parent)
    except OSError:
        path.rename(temporary)  # the caller sees an error, so the new folder must not exist
        raise


def _put_in_place_of(path: Path, temporary: Path) -> None:
    if _exchange(temporary, path):
        try:
            sync_folder(path.parent)
        except OSError:
            _exchange(temporary, path)
            raise
        return
    # without an atomic exchange neither folder has the name for an instant; both exist under other names
    retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(retired / "was")
        try:
            _put(path, temporary)
        except OSError:
            (retired / "was").rename(path)
            raise
    except OSError:
        with suppress(OSError):
            retired.rmdir()
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap the names of two folders atomically; false if the system cannot (only Linux can)."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def disk_error(path: Path, error: OSError) -> Exception:
    """A ResourceError if the disk is full or failing, otherwise the error itself."""
    if error.errno in DISK_TROUBLE:
        return ResourceError(f"cannot write {path}: {os.strerror(error.errno)}; free some space and run it again")
    return error


def unwritable(path: Path, error: OSError) -> ResourceError:
    """The error for a path that cannot be written to.

    >>> unwritable(Path("index"), OSError(errno.EROFS, "Read-only file system"))
    ReadOnlyError('cannot write to index: Read-only file system; make it writable')
    """
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(f"cannot write to {path}: {error.strerror}; make it writable")
    if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
        return ResourceError(f"cannot lock {path}: {error.strerror}; use a local disk, or mount this one with locks")
    return ResourceError(f"cannot write to {path}: {error.strerror}; free some space or repair the disk")


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
