"""Files and folders after a write: the order of syncs and renames in this process, permissions, links and refusals."""

import ctypes
import errno
import os
import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from polyrank.errors import ReadOnlyError, ResourceError, UsageError
from polyrank.storage import lock
from polyrank.storage.durable import (
    check_output,
    check_replaceable,
    disk_error,
    make_folders,
    new_folder,
    sha256_file,
    sync_file,
    unwritable,
    write_file,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the paths of open files from /proc")

# calls of this process, intercepted without a compiler


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Syncs and renames through the os module in order, as pairs of operation and path."""
    seen: list[tuple[str, str]] = []
    sync, rename, replace = os.fsync, os.rename, os.replace

    def watched_sync(descriptor: int) -> None:
        seen.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        sync(descriptor)

    def watched_rename(old: Path, new: Path) -> None:
        seen.append(("put", str(new)))
        rename(old, new)

    def watched_replace(old: Path, new: Path) -> None:
        seen.append(("put", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)
    monkeypatch.setattr(os, "replace", watched_replace)
    return seen


def test_a_file_is_synced_then_renamed_then_its_folder_is_synced(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    write_file(tmp_path / "file", b"one")
    root = str(tmp_path)
    (above, synced), (first, temporary), *rest = calls
    assert (above, synced, first) == ("sync", str(tmp_path.parent), "sync")
    assert Path(temporary).parent == tmp_path
    assert Path(temporary).name.startswith(".file.")
    assert rest == [("put", f"{root}/file"), ("sync", root)]


def test_a_folder_is_synced_with_its_files_before_its_rename(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    with new_folder(tmp_path / "place") as folder:
        (folder / "inner" / "most").mkdir(parents=True)
        for name in ("a", "inner/b", "inner/most/c"):
            (folder / name).write_bytes(b"data")
        calls.clear()
    put = calls.index(("put", str(tmp_path / "place")))
    within = ["", "/a", "/inner", "/inner/b", "/inner/most", "/inner/most/c"]
    assert sorted(path for _, path in calls[:put]) == [f"{folder}{name}" for name in within]
    assert calls[put + 1 :] == [("sync", str(tmp_path))]


def test_a_folder_has_its_name_at_every_moment_of_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may open it at any time, so no change of names takes it away, even for an instant."""
    place, held = tmp_path / "place", list[str]()

    def watched(change: Callable[..., object]) -> Callable[..., None]:
        def changed(*names: Any, **options: Any) -> None:
            change(*names, **options)
            held.append((place / "known").read_text() if (place / "known").exists() else "nothing")

        return changed

    for turn in (1, 2, 3):
        if turn == 2:  # a new folder takes its name by a rename
            for name in ("fsync", "rename", "replace", "rmdir", "unlink"):
                monkeypatch.setattr(os, name, watched(getattr(os, name)))
        with new_folder(place, replace=turn > 1) as folder:
            (folder / "known").write_text(f"{turn}")
    texts = [text for text, _ in groupby(held)]  # at first the old one, then the new one
    assert texts == ["1", "2", "3"]


def test_the_names_of_new_folders_and_of_the_one_above_are_synced(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    make_folders(tmp_path / "a" / "b")
    assert calls == [("sync", str(tmp_path.parent)), ("sync", str(tmp_path)), ("sync", str(tmp_path / "a"))]


def test_a_file_is_synced_by_its_path(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    (tmp_path / "file").write_bytes(b"data")
    sync_file(tmp_path / "file")
    assert calls == [("sync", str(tmp_path / "file"))]


# files and folders after a write


def test_a_file_that_is_replaced_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "file", b"one")
    assert (tmp_path / "a" / "file").stat().st_mode & 0o777 == 0o666 & ~current_umask()
    (tmp_path / "a" / "file").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "file")
    write_file(tmp_path / "link", b"two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "file").read_bytes() == b"two"
    assert (tmp_path / "a" / "file").stat().st_mode & 0o777 == 0o640
    with pytest.raises(UsageError, match="is not a regular file"):
        write_file(tmp_path / "a", b"three")
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["file"]


def current_umask() -> int:
    """The umask, without changing it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_folder_that_is_replaced_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    for turn in (1, 2):
        path = tmp_path / ("link" if turn == 2 else "place")
        with new_folder(path, replace=turn == 2, own_files=["of ?"]) as folder:
            (folder / "known").write_text(f"{turn}")
            (folder / f"of {turn}").write_text("x")
        if turn == 1:
            (tmp_path / "place").chmod(0o750)
            (tmp_path / "link").symlink_to(tmp_path / "place")
    assert (tmp_path / "place").stat().st_mode & 0o777 == 0o750
    assert {entry.name for entry in (tmp_path / "place").iterdir()} == {"known", "of 2"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"place", "link"}


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("replaces", [True, False])
def test_a_folder_whose_name_cannot_be_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool, exchanges: bool
) -> None:
    place, sync = tmp_path / "above" / "place", os.fsync

    def made(text: str, *, replace: bool) -> None:
        with new_folder(place, replace=replace) as folder:
            (folder / "known").write_text(text)

    def fails(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == place.parent:
            raise OSError(errno.EIO, "failing")
        sync(descriptor)

    place.parent.mkdir()
    if replaces:
        made("old", replace=False)
    if not exchanges:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # a C library without renameat2
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ResourceError, match="place"):
        made("new", replace=replaces)
    left = {str(path.relative_to(place.parent)): path.read_text() for path in place.parent.rglob("*") if path.is_file()}
    assert left == ({"place/known": "old"} if replaces else {})
    assert list(place.parent.iterdir()) == ([place] if replaces else [])


@pytest.mark.parametrize("name", ["a[0]", "a?", "a*", "plain"])
def test_leftovers_are_those_of_the_same_name(tmp_path: Path, name: str) -> None:
    """Also if the name is a pattern, which others match."""
    ends = ("01234567", "01234567.part")
    for other in (name, "a0", "ab", "abc", "plain.json"):
        for end in ends:
            (tmp_path / f".{other}.{end}").mkdir()
    with new_folder(tmp_path / name) as folder:
        (folder / "known").write_text("x")
    left = {entry.name for entry in tmp_path.iterdir()}
    every = {f".{other}.{end}" for other in (name, "a0", "ab", "abc", "plain.json") for end in ends}
    assert left == (every | {name}) - {f".{name}.01234567.part"}
    used = tmp_path / f".{name}.txt.fedcba98"
    for leftover in (used, tmp_path / f".{name}.txt.01234567"):
        leftover.touch()
    with used.open() as stream:
        assert lock.try_lock(stream.fileno())  # as the process does that writes it
        write_file(tmp_path / f"{name}.txt", b"x")
    assert {entry.name for entry in tmp_path.iterdir()} == {*left, f"{name}.txt", used.name}


def test_a_file_is_not_written_over_what_a_command_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever name: of the file, of a link to it, or another name of the same file."""
    first, second, free = (tmp_path / name for name in ("first", "second", "free"))
    (tmp_path / "a").mkdir()
    first.write_text("x")
    second.write_text("x")
    (tmp_path / "hard").hardlink_to(second)
    (tmp_path / "soft").symlink_to(second)
    (tmp_path / "dangling").symlink_to(free)
    for path in (second, tmp_path / "hard", tmp_path / "soft", tmp_path / "a" / ".." / "second"):
        with pytest.raises(UsageError, match="already exists and is read by this command; give another file"):
            check_output(path, inputs=[None, first, second], overwrite=True)
    for path in (free, tmp_path / "dangling"):
        with pytest.raises(UsageError, match="is given for two outputs; give another file"):
            check_output(path, inputs=[None, first, free], overwrite=True)
    check_output(None, inputs=[first])
    check_output(free, inputs=[first, None, second])
    check_output(second, inputs=[first, None], overwrite=True)
    with pytest.raises(UsageError, match="second already exists; choose another path or pass `overwrite=True`"):
        check_output(second, inputs=[first])
    with pytest.raises(UsageError, match="is not a regular file"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(UsageError, match=r"cannot be written because .*first is not a writable folder"):
        check_output(first / "inside" / "file")
    check_output(tmp_path / "new" / "file")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UsageError, match=re.escape(f"because {tmp_path} is not a writable folder; give another path")):
        check_output(tmp_path / "new" / "file")


def test_a_file_whose_writing_fails_is_the_old_one_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sync = tmp_path / "file", os.fsync
    file.write_bytes(b"old")
    for error, kind, message in (
        (OSError(errno.ENOSPC, "x"), ResourceError, f"cannot write {file}: No space left on device; free some space"),
        (OSError(errno.EACCES, "x"), PermissionError, f"Permission denied: '{file}'"),
        (OSError("without a number"), OSError, "without a number"),
        (KeyboardInterrupt("x"), KeyboardInterrupt, "x"),
    ):

        def fails(descriptor: int, error: BaseException = error) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(".file."):
                raise error
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(kind, match=re.escape(message)):
            write_file(file, b"new")
        assert file.read_bytes() == b"old"
        assert [*tmp_path.iterdir()] == [file]


def test_files_and_folders_are_written_where_no_locks_are_and_leftovers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks a leftover could be a file that another process is writing."""

    def fail(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    (tmp_path / ".place.01234567.part").mkdir()
    (tmp_path / ".file.01234567").touch()
    for turn in "12":
        write_file(tmp_path / "file", turn.encode())
        with new_folder(tmp_path / "place", replace=turn == "2") as folder:
            (folder / "known").write_text(turn)
        assert (tmp_path / "file").read_text() == (tmp_path / "place" / "known").read_text() == turn
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {"place", "file", ".place.01234567.part", ".file.01234567"}


def test_a_folder_is_made_in_one_whose_own_folder_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a user's, in a folder of all users."""
    open_ = os.open

    def refuse(path: Path, *options: int) -> int:
        if path == tmp_path.parent:
            raise PermissionError(errno.EACCES, "no", str(path))
        return open_(path, *options)

    monkeypatch.setattr(os, "open", refuse)
    for _ in range(2):
        make_folders(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    def make(*, replace: bool, fails: bool) -> None:
        with new_folder(tmp_path / "place", replace=replace) as folder:
            (folder / "known").write_text("new")
            if fails:
                raise KeyError

    with pytest.raises(KeyError):
        make(replace=False, fails=True)
    assert list(tmp_path.iterdir()) == []
    make(replace=False, fails=False)
    (tmp_path / "place" / "known").write_text("old")
    with pytest.raises(KeyError):
        make(replace=True, fails=True)
    with pytest.raises(UsageError, match="already exists"):
        make(replace=False, fails=False)
    assert (tmp_path / "place" / "known").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["place"]


def test_only_a_folder_of_polyrank_or_an_empty_one_may_be_replaced(tmp_path: Path) -> None:
    """Other content must not be lost; an unused path is always allowed."""
    for name in ("empty", "known", "theirs", "mixed"):
        (tmp_path / name).mkdir()
    for name in ("known/b1", "theirs/c", "mixed/a", "mixed/b2", *(f"mixed/notes{i}.txt" for i in range(5))):
        (tmp_path / name).write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("empty", "known", "free"):
        check_replaceable(tmp_path / name, own_files=("a", "b*"), replace=True)
    check_replaceable(tmp_path / "free", own_files=("a", "b"), replace=False)
    lost = "holds other files, which would be lost: "
    for name, why in (
        ("theirs", f"{lost}c; move"),
        ("mixed", f"{lost}notes0.txt, notes1.txt, notes2.txt and 2 more; move"),
        ("file", "is not a folder; choose"),
    ):
        with pytest.raises(UsageError, match=re.escape(f"{tmp_path / name} {why}")):
            check_replaceable(tmp_path / name, own_files=("a", "b*"), replace=True)
    for name in ("empty", "known", "theirs", "mixed", "file"):
        with pytest.raises(UsageError, match="already exists"):
            check_replaceable(tmp_path / name, own_files=("a", "b"), replace=False)


def test_full_and_failing_disks_have_their_own_errors(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        found = disk_error(tmp_path, OSError(number, "x"))
        assert isinstance(found, ResourceError)
        assert str(tmp_path) in str(found)
    other = OSError(errno.EACCES, "x")
    assert disk_error(tmp_path, other) is other


@pytest.mark.parametrize(
    ("numbers", "kind", "remedy"),
    [
        ((errno.EROFS, errno.EACCES, errno.EPERM), ReadOnlyError, "make it writable"),
        ((errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS), ResourceError, "use a local disk, or mount this one with locks"),
        ((errno.ENOSPC, errno.EIO, errno.EDQUOT), ResourceError, "free some space or repair the disk"),
    ],
)
def test_each_kind_of_trouble_has_its_remedy(numbers: tuple[int, ...], kind: type[Exception], remedy: str) -> None:
    for number in numbers:
        found = unwritable(Path("index"), OSError(number, "trouble"))
        assert type(found) is kind
        assert re.fullmatch(f"cannot (lock|write to) index: trouble; {remedy}", str(found))


def test_a_files_digest_is_computed_from_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_file(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_folders_are_replaced_on_a_system_without_an_exchange_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old folder moves away and the new one takes its place; if that fails, the old one is restored."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # a C library without renameat2
    for turn in (1, 2):
        with new_folder(tmp_path / "place", replace=turn == 2) as folder:
            (folder / "known").write_text(f"{turn}")
    assert (tmp_path / "place" / "known").read_text() == "2"
    assert [entry.name for entry in tmp_path.iterdir()] == ["place"]
    rename = os.rename

    def fails(old: Path, new: Path) -> None:
        if str(old).endswith(".part"):
            raise OSError(errno.ENOSPC, "no space")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fails)

    def replaced() -> None:
        with new_folder(tmp_path / "place", replace=True) as folder:
            (folder / "known").write_text("3")

    with pytest.raises(ResourceError):
        replaced()
    assert (tmp_path / "place" / "known").read_text() == "2"
    assert [entry.name for entry in tmp_path.iterdir()] == ["place"]


def test_an_existing_file_is_not_replaced_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(UsageError, match="already exists"), new_folder(tmp_path / "place"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["place"]
