"""Durable files survive a power loss: the order of writes, syncs and renames.

One process writes all kinds of files. Its system calls are intercepted and logged; the tests replay the log on a
simulated disk that keeps only synced data.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crashes import faults
from crashes.disk import EXCHANGE, NOTE, RENAME, SYNC, Change, Disk, is_durable, read_journal
from crashes.works import REPLIES, WORKS
from polyrank.feedback import FeedbackStore
from polyrank.index import open_index, verify_index

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
