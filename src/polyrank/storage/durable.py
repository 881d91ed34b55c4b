"""Files that survive a crash: written beside the old one, synced, renamed over it, and the folder synced.

Knows bytes and folders; refuses to know what they mean.
"""

import ctypes
import errno
import glob
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from polyrank.errors import ReadOnlyError, ResourceError, UsageError
from polyrank.storage.lock import LOCKS_FOLDERS, try_lock

AnyPath = str | os.PathLike[str]
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LEFTOVER = ".part"  # how the name of an unfinished folder ends


def sync_folder(folder: Path) -> None:
    """Make the folder's entries (names, renames) durable."""
    if os.name == "nt":  # which opens no folders
        return
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

    A file that is replaced keeps its permissions. Where ``path`` is a link, the file that it names is written.

    Raises:
        UsageError: something is there that is no file, such as a folder, a pipe or a device.
        ResourceError: the disk is full or failing; the old file is there still, or the new one, whole.
    """
    unfinished: Path | None = None
    try:
        mode = _file_mode(path)
        target = path.resolve()
        make_folders(target.parent)
        temporary = target.parent / _temporary_name(target)
        with temporary.open("xb") as stream:  # unlike mkstemp's, for whoever the umask lets read it
            unfinished = temporary
            if mode is not None:
                temporary.chmod(mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise _named(path, error) from error
    finally:
        if unfinished is not None:  # gone unless something went wrong, an interrupt among others
            unfinished.unlink(missing_ok=True)


def _file_mode(path: Path) -> int | None:
    """The permissions of a file that may be replaced; None where nothing is."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is no file that can be replaced; name a file, or a path where nothing is")
    return stat.S_IMODE(mode)


def _temporary_name(path: Path, suffix: str = "") -> str:
    return f".{path.name}.{os.urandom(4).hex()}{suffix}"


def _named(path: Path, error: OSError) -> Exception:
    """As ``disk_error``, and others name the path that was asked for, not a temporary name beside it."""
    if error.errno is None:
        return error
    return disk_error(path, OSError(error.errno, os.strerror(error.errno), str(path)))


def check_output(path: Path | None, *, inputs: Iterable[AnyPath | None] = (), overwrite: bool = False) -> None:
    """Refuse a path that a new file must not take. Worth asking before hours of work go into it.

    Args:
        path: where the file will be; None: nowhere.
        inputs: files that are read for it, and others that are written beside it; what is no path is passed over.
        overwrite: whether an earlier file may be replaced. An input never is.

    Raises:
        UsageError: something is there and ``overwrite`` is false, it is an input or no file, or it cannot be written.
    """
    if path is None:
        return
    for other in (Path(name) for name in inputs if name is not None):
        if path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other)):
            what = "already exists and is read by this command" if path.exists() else "is named for two outputs"
            raise UsageError(f"{path} {what}; name another file")
    if path.exists():
        _file_mode(path)
        if not overwrite:
            raise UsageError(f"{path} already exists; choose another path or pass --overwrite")
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written, for {folder} takes no files; name another path")


def check_replaceable(path: Path, *, ours: Collection[str], replace: bool) -> None:
    """Refuse a path that a new folder must not take. Worth asking before hours of work go into it.

    Args:
        path: where the folder will be.
        ours: names of all that an earlier folder may hold, "*" for any letters.
        replace: whether an earlier folder may be replaced.

    Raises:
        UsageError: something is there and ``replace`` is false, or it holds what is not ours and would be lost.
    """
    if not path.exists():
        return
    if not replace:
        raise UsageError(f"{path} already exists; choose another path or pass --overwrite")
    if not path.is_dir():
        raise UsageError(f"{path} is no folder; choose another path")
    entries = sorted(entry.name for entry in path.iterdir())
    if foreign := [name for name in entries if not any(fnmatchcase(name, known) for known in ours)]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"{path} holds something else, which would be lost: {', '.join(foreign[:3])}{more}; move it away or choose"
            " another path"
        )


@contextmanager
def new_folder(path: Path, *, replace: bool = False, ours: Collection[str] = ()) -> Iterator[Path]:
    """Yield a temporary sibling to fill; on success it becomes ``path``, whole and durable, or nothing changes.

    What processes that died at this have left beside ``path`` is removed.

    Args:
        path: the folder to be made.
        replace: whether an existing folder may be replaced. The old one is kept until the new one has its name.
        ours: names that the old one may have besides those of the new one, see ``check_replaceable``.

    Raises:
        UsageError: ``path`` exists and ``replace`` is false, or it holds what is not ours.
        ResourceError: the disk is full or failing.
    """
    if not replace:
        check_replaceable(path, ours=(), replace=False)
    path = path.resolve()  # behind a link, what it points to is replaced, as with files
    temporary: Path | None = None
    try:
        with ExitStack() as resources:
            make_folders(path.parent)
            _remove_leftovers(path)
            temporary = _temporary_folder(path, resources)
            yield temporary
            for entry in sorted(temporary.rglob("*")):
                sync_folder(entry) if entry.is_dir() else sync_file(entry)
            sync_folder(temporary)
            check_replaceable(path, ours=[*ours, *(entry.name for entry in temporary.iterdir())], replace=replace)
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
                _hold(path, resources)  # once it has the temporary name, nobody may take it for a leftover
                _put_in_place_of(path, temporary)
            else:
                _put(path, temporary)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def make_folders(path: Path) -> None:
    """Make a folder and those above it; their names are durable, so that a file in it can be."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    with suppress(PermissionError):  # who made this one may have died before its name was durable
        sync_folder(path.parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        try:
            sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            raise


def _temporary_folder(path: Path, resources: ExitStack) -> Path:
    """An empty sibling that is told from a leftover by the lock that this process has on it."""
    while True:
        temporary = path.parent / _temporary_name(path, LEFTOVER)
        try:
            temporary.mkdir()
        except OSError as error:
            raise _named(path, error) from error
        with suppress(FileNotFoundError):  # taken for a leftover before it was held
            if _hold(temporary, resources):
                return temporary


def _hold(folder: Path, resources: ExitStack) -> bool:
    """Lock a folder for as long as this process lives; false where another has it or has replaced it."""
    if not LOCKS_FOLDERS:
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    resources.callback(os.close, descriptor)
    try:
        held = try_lock(descriptor)
    except OSError:  # a file system that knows no locks
        return True
    return held and os.path.samestat(folder.stat(), os.fstat(descriptor))


def _remove_leftovers(path: Path) -> None:
    if not LOCKS_FOLDERS:  # the living cannot be told from the dead
        return
    for entry in path.parent.glob(f".{glob.escape(path.name)}.????????{LEFTOVER}"):
        with ExitStack() as resources, suppress(OSError):
            if _hold(entry, resources):
                shutil.rmtree(entry, ignore_errors=True)


def _put(path: Path, temporary: Path) -> None:
    temporary.rename(path)
    try:
        sync_folder(path.parent)
    except OSError:
        path.rename(temporary)  # it is reported as not done, so it must not be there
        raise


def _put_in_place_of(path: Path, temporary: Path) -> None:
    if _exchange(temporary, path):
        try:
            sync_folder(path.parent)
        except OSError:
            _exchange(temporary, path)
            raise
        return
    # without an atomic exchange there is an instant at which neither has the name, and both lie beside it
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
    """Swap two folders' names in one step, where the system can (Linux); the second name is never without a folder."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def disk_error(path: Path, error: OSError) -> Exception:
    """Full and failing disks become a ResourceError; other errors of the system stay as they are."""
    if error.errno in DISK_TROUBLE:
        return ResourceError(f"cannot write {path}: {os.strerror(error.errno)}; free some space and run it again")
    return error


def unwritable(path: Path, error: OSError) -> ResourceError:
    """What is wrong with a place that cannot be written to.

    >>> unwritable(Path("index"), OSError(errno.EROFS, "Read-only file system"))
    ReadOnlyError('cannot write to index: Read-only file system; make it writable')
    """
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(f"cannot write to {path}: {error.strerror}; make it writable")
    return ResourceError(f"cannot write to {path}: {error.strerror}; free some space or mend the disk")


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
