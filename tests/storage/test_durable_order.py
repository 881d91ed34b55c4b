"""Durable files survive a power loss: the order of writes, syncs and renames.

One process writes all kinds of files. Its system calls are intercepted and logged; the tests replay the log on a
simulated disk that keeps only synced data.
"""

import ctypes
import errno
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crashes import faults
from crashes.disk import EXCHANGE, NOTE, RENAME, SYNC, Change, Disk, is_durable, read_journal
from crashes.works import REPLIES, WORKS
from polyrank.errors import ResourceError, UsageError
from polyrank.feedback import FeedbackStore
from polyrank.index import open_index, verify_index
from polyrank.storage.durable import (
    check_replaceable,
    disk_error,
    make_folders,
    new_folder,
    sha256_file,
    sync_file,
    write_file,
)

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to intercept system calls"),
]
MOVED_UNSEEN = "export/exported/model.safetensors"  # the library moves it with calls that the test cannot intercept
preloads = pytest.mark.skipif(faults.compiler() is None, reason="needs a C compiler to intercept calls")


@dataclass(frozen=True, slots=True)
class Log:
    """The folder of the workloads, and their logged changes."""

    root: Path
    changes: list[Change]


@pytest.fixture(scope="module")
def log(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Log:
    """The changes of all workloads, with notes between their steps."""
    folder = tmp_path_factory.mktemp("works").resolve()
    root, journal = folder / "disk", folder / "journal"
    root.mkdir()
    environment = os.environ | {"LD_PRELOAD": str(faults.build(folder)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "crashes.works", root, journal, tiny_backbone]
    here = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return Log(root, list(read_journal(journal)))


def promised(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    """Files that must survive: all except temporary and transient ones."""
    passing = WORKS[name].passing
    return {
        place: data
        for place, data in files.items()
        if not any(part.startswith(".") or part in passing for part in place.split("/"))
    }


def steps(log: Log, name: str) -> Iterator[tuple[Disk, list[Change]]]:
    """Each step of a workload: the disk before it, and its changes, which the caller applies to the disk."""
    disk, part = Disk(log.root), None
    for change in log.changes:
        if change.kind == NOTE and change.path.startswith(f"begin {name} "):
            part = []
        elif change.kind == NOTE and change.path.startswith(f"end {name} "):
            assert part is not None
            yield disk, part
            part = None
        elif part is None:
            disk.apply(change)
        else:
            part.append(change)


@preloads
def test_the_log_has_every_change(log: Log) -> None:
    """Replaying the whole log results in exactly the existing files."""
    disk = Disk(log.root)
    for change in log.changes:
        disk.apply(change)
    there = {str(p.relative_to(log.root)): p.read_bytes() for p in log.root.rglob("*") if p.is_file()}
    seen = disk.seen(log.root)
    for place in {*there, *seen} - {MOVED_UNSEEN}:
        shared_memory = place.endswith("-shm")
        hidden = place.rpartition("/")[2].startswith(".")
        assert shared_memory or hidden or seen.get(place) == there.get(place), place
    assert len(seen) > 30


@preloads
@pytest.mark.parametrize("name", WORKS)
def test_a_file_is_synced_before_its_rename_and_its_folder_after(log: Log, name: str) -> None:
    n_put = 0
    for disk, changes in steps(log, name):
        waiting: set[str] = set()
        for change in changes:
            disk.apply(change)
            if change.kind in (RENAME, EXCHANGE) and promised({change.other[len(str(log.root)) + 1 :]: b""}, name):
                n_put += 1
                put = disk.find(Path(change.other))
                assert put is not None
                assert is_durable(put), f"{change.other} was not synced before the rename"
                waiting.add(str(Path(change.other).parent))
            if change.kind == SYNC:
                waiting.discard(change.path)
        assert not waiting, f"the folders {waiting} were not synced after a rename"
    assert n_put >= (0 if name in ("folders", "feedback") else len(WORKS[name].steps) if WORKS[name].whole else 1)


@preloads
@pytest.mark.parametrize("name", WORKS)
def test_a_step_is_durable_when_it_returns(log: Log, name: str) -> None:
    place, n_files = log.root / name, 0
    for disk, changes in steps(log, name):
        for change in changes:
            disk.apply(change)
        seen, left = promised(disk.seen(place), name), disk.left(place)
        assert {path for path, data in seen.items() if left.get(path) != data} == set()
        n_files = len(seen)
    assert n_files > 0 or name == "folders"


@preloads
@pytest.mark.parametrize("name", [name for name, work in WORKS.items() if work.whole])
def test_a_power_loss_at_any_moment_leaves_the_old_or_the_new_file(log: Log, name: str) -> None:
    place, chance = log.root / name, random.Random(7)
    for disk, changes in steps(log, name):
        lost = [promised(disk.left(place), name)]
        for change in changes:
            disk.apply(change)
            lost += [promised(disk.left(place, draw), name) for draw in (None, *[random.Random(chance.random())] * 2)]
        old, new = lost[0], promised(disk.seen(place), name)
        assert all(left in (old, new) for left in lost)
        assert old != new or name in ("folders", "export")


@preloads
def test_every_file_of_an_export_is_synced(log: Log) -> None:
    """Checks files by their final names, no matter which library wrote and moved them."""
    names = {path.name for path in (log.root / "export").rglob("*")}
    assert len(names) > 5
    for _, changes in steps(log, "export"):
        assert {Path(change.path).name for change in changes if change.kind == SYNC} >= names - {"exported"}


@preloads
def test_new_folders_have_durable_names(log: Log) -> None:
    ((disk, changes),) = steps(log, "folders")
    for change in changes:
        disk.apply(change)
    folder = disk.find(log.root / "folders")
    assert folder is not None
    assert is_durable(folder)
    assert disk.find(log.root / "folders" / "x" / "y" / "z") is not None


def after_each_step(log: Log, name: str, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The number of each step of a workload, and a folder as a power loss after the step leaves it."""
    for number, (disk, changes) in enumerate(steps(log, name)):
        for change in changes:
            disk.apply(change)
        folder = tmp_path / str(number)
        folder.mkdir()
        disk.leave(folder, None)
        yield number, folder / name


@preloads
def test_a_power_loss_keeps_acknowledged_changes_of_an_index(log: Log, tmp_path: Path) -> None:
    ids = "".join(str(i) for i in range(len(REPLIES)))
    wanted = [ids, ids + "new", ids.replace("1", "") + "new", ids.replace("1", "") + "new"]
    for number, folder in after_each_step(log, "store", tmp_path):
        for place in ["index", "copies/snapshot"][: 1 + (number == 3)]:
            with open_index(folder / place) as index:
                assert "".join(c.id for _, c in index.iter_candidates()) == wanted[number]
            assert verify_index(folder / place) == []


@preloads
def test_a_power_loss_keeps_acknowledged_feedback(log: Log, tmp_path: Path) -> None:
    """This includes a server that has not closed the file. The records of earlier steps survive at any moment."""
    for number, (disk, changes) in enumerate(steps(log, "feedback"), 1):
        left: list[list[str]] = []
        for at in range(len(changes) + 1):
            folder = tmp_path / f"{number}.{at}"
            folder.mkdir()
            disk.leave(folder, None)
            file = folder / "feedback" / "new" / "feedback.db"
            if file.exists():
                with FeedbackStore(file) as store:
                    left.append([r.shown.request_id for r in store.requests() if r.outcome is not None])
            if at < len(changes):
                disk.apply(changes[at])
        old, new = ([f"{turn}" for turn in range(1, last + 1)] for last in (number - 1, number))
        assert left[-1] == new
        assert all(ids in (old, new) for ids in left)


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
