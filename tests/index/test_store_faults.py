"""The candidate store with several processes, full disks, damage and replacement.

test_crash.py tests kills, failing calls and power losses.
"""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.errors import ArtifactError, DataError, LockedError, ResourceError, UsageError
from polyrank.index import KnownVectors, LocalWriter, open_index, verify_index, write_index
from polyrank.index.filters import read_filter
from polyrank.index.local.lock import LOCK, acknowledged_change
from polyrank.index.local.matrix import write_matrix
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate
from polyrank.serving.catalogue import Catalogue
from polyrank.serving.errors import HttpError
from polyrank.storage.durable import new_folder, write_file
from processes import run

D = 4


def made(path: Path, names: str, value: float = 1.0, *, fingerprint: str = "f" * 64) -> Path:
    """An index of candidates with one-letter ids."""
    pool = [Candidate(name, f"text of {name}") for name in names]
    vectors = np.full((len(names), D), value, np.float32)
    write_index(path, pool, vectors, fingerprint=fingerprint, model="m", overwrite=True)
    return path


def add(writer: LocalWriter, names: str, *, replace: bool = False) -> None:
    pool = [Candidate(name, f"new text of {name}") for name in names]
    writer.add(pool, np.ones((len(names), D), np.float32), replace=replace)


def ids(path: Path) -> str:
    with open_index(path) as index:
        return "".join(sorted(c.id for _, c in index.iter_candidates()))


def python(code: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    """A process that runs lines of Python with the index's public names."""
    names = (
        "import os, sys, resource, numpy as np; from polyrank.errors import *; from polyrank.index import *;"
        "from polyrank.records import Candidate\n"
    )
    command = [sys.executable, "-c", names + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def killed_writer(path: Path) -> None:
    """A writer that adds "x", then "y", and is killed with both in SQLite's log."""
    code = """
writer = LocalWriter(sys.argv[1])
for name in "xy":
    writer.add([Candidate(name, name)], np.ones((1, 4), np.float32))
os.kill(os.getpid(), 9)
"""
    with python(code, path) as child:
        child.communicate()
    assert child.returncode == -signal.SIGKILL


def test_an_open_index_follows_one_that_replaces_it(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc", 1.0)
    with open_index(path) as index:
        before = index.blocks()
        made(path, "dbc", 2.0)  # equal numbers of changes and rows
        assert index.refresh()
        assert [c.id for c in index.candidates(index.blocks()[0].rows.tolist())] == ["d", "b", "c"]
        assert index.blocks()[0].vectors.tolist() == [[2.0] * D] * 3
        assert before[0].vectors.tolist() == [[1.0] * D] * 3
        assert not index.refresh()
        with LocalWriter(path) as writer:
            add(writer, "e")
        assert index.refresh()
        assert len(index) == 4


def test_an_open_index_refuses_a_replacement_by_another_encoder(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    with open_index(path) as index:
        made(path, "abc", 2.0, fingerprint="e" * 64)
        for _ in range(2):
            with pytest.raises(ArtifactError, match=r"e{16}, this one is f{16}"):
                index.refresh()
        assert index.blocks()[0].vectors.tolist() == [[1.0] * D] * 3
        assert [c.id for c in index.candidates([1])] == ["a"]
        shutil.rmtree(path)
        with pytest.raises(ArtifactError, match="is not an index"):
            index.refresh()
        made(path, "z", 3.0)
        assert index.refresh()
        assert len(index) == 1


@pytest.mark.deep
def test_changes_lost_from_the_log_are_detected(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    killed_writer(path)
    log = path / f"{INDEX_FILE}-wal"
    data = log.read_bytes()
    saved = shutil.copytree(path, tmp_path / "saved")
    assert acknowledged_change(path) == 3
    for damaged in (data[:-5000], data[:40], b"", data[:-1] + bytes([data[-1] ^ 1]), None):
        shutil.rmtree(path)
        shutil.copytree(saved, path)
        log.unlink() if damaged is None else log.write_bytes(damaged)
        for attempt in (open_index, LocalWriter):
            with pytest.raises(ArtifactError, match=r"number 3 was acknowledged.*-wal is lost; restore"):
                attempt(path)
        assert any("was acknowledged" in problem for problem in verify_index(path))
    shutil.rmtree(path)
    shutil.copytree(saved, path)
    assert ids(path) == "abcxy"
    assert verify_index(path) == []


def test_an_earlier_file_in_a_changed_index_or_its_copy_is_detected(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    files = [(path / INDEX_FILE).read_bytes()]
    for names in ("d", "ef"):
        with LocalWriter(path) as writer:
            add(writer, names)
            writer.snapshot(tmp_path / f"copy of {names}")
        files.append((path / INDEX_FILE).read_bytes())
    for place, change in ((path, 3), (tmp_path / "copy of ef", 3), (tmp_path / "copy of d", 2)):
        assert ids(place) == "abcdef"[: 2 * change]
        for number, data in enumerate(files[: change - 1], 1):
            (place / INDEX_FILE).write_bytes(data)
            for attempt in (open_index, LocalWriter):
                with pytest.raises(ArtifactError, match=f"is number {number}, but number {change} was acknowledged"):
                    attempt(place)
            assert any("was acknowledged" in problem for problem in verify_index(place))


def test_damaged_names_of_columns_are_detected_before_use(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    with LocalWriter(path) as writer:
        writer.remove("b")
    data = (path / INDEX_FILE).read_bytes()
    table = data.index(b"CREATE TABLE removed")
    for name in (b"row", b"change", b"digest", b"INTEGER", b"BLOB"):
        at = data.index(name, table)
        (path / INDEX_FILE).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        for attempt in (open_index, LocalWriter):
            with pytest.raises(ArtifactError, match="is damaged"):
                attempt(path)
        assert verify_index(path)
    (path / INDEX_FILE).write_bytes(data)
    assert ids(path) == "ac"


def test_a_removal_whose_number_is_damaged_hides_no_other(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abcd")
    with LocalWriter(path) as writer:
        writer.remove("c")
    connection = sqlite3.connect(path / INDEX_FILE, isolation_level=None)
    for number in (1, 2, 4, 7):
        connection.execute("UPDATE removed SET row = ?", (number,))
        with pytest.raises(ArtifactError, match="is damaged"):
            open_index(path)
        assert verify_index(path)
    connection.execute("UPDATE removed SET row = 3")
    connection.close()
    assert ids(path) == "abd"


def test_a_listing_without_a_candidate_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abcd")
    connection = sqlite3.connect(path / INDEX_FILE, isolation_level=None)
    connection.execute("DELETE FROM candidates WHERE id = 'c'")
    connection.close()
    with open_index(path) as index:
        with pytest.raises(ArtifactError, match="its 3 rows are not the 4 that were written"):
            list(index.iter_candidates())
        with pytest.raises(ArtifactError, match="row 3: it is missing"):
            index.candidates([1, 3])


def test_a_damaged_note_of_acknowledged_changes_is_ignored(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    note = (path / LOCK).read_bytes()
    for damaged in (b"", note[:10], b"9" + note[1:], bytes(96)):
        (path / LOCK).write_bytes(damaged)
        assert acknowledged_change(path) == 0
        assert ids(path) == "abc"
    (path / LOCK).unlink()
    assert acknowledged_change(path) == 0
    with LocalWriter(path) as writer:
        add(writer, "d")
    assert acknowledged_change(path) == 2
    assert (path / LOCK).stat().st_size == 96  # that of a new index: nothing follows the name of the process


def test_a_failed_refresh_is_retried(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    connection = sqlite3.connect(path / INDEX_FILE, isolation_level=None)
    with open_index(path) as index:
        (n,) = connection.execute("SELECT value FROM meta WHERE key = 'n'").fetchone()
        connection.execute("UPDATE meta SET value = '4' WHERE key = 'n'")
        for _ in range(3):
            with pytest.raises(ArtifactError, match="checksum of its settings"):
                index.refresh()
            assert len(index) == 3
        connection.execute("UPDATE meta SET value = ? WHERE key = 'n'", (n,))
        index.refresh()
        with LocalWriter(path) as writer:
            add(writer, "d")
        assert index.refresh()
        assert len(index) == 4
    connection.close()


def test_vectors_of_later_rows_are_unknown(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "ab", 3.0)
    with open_index(path) as index:
        with LocalWriter(path) as writer:
            add(writer, "c")
            add(writer, "a", replace=True)
        known = KnownVectors(index)
        assert "text of b" in known
        assert known["text of b"].tolist() == [3.0] * D
        for text in ("new text of c", "new text of a"):
            assert text not in known
        index.refresh()
        assert KnownVectors(index)["new text of c"].tolist() == [1.0] * D


def test_a_writer_whose_log_has_no_durable_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync = made(tmp_path / "i", "abc"), os.fsync

    def fails(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            raise OSError(errno.EIO, "failing")
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(ResourceError, match=f"cannot write {path}: Input/output error; free some space"):
            LocalWriter(path)
    with LocalWriter(path) as writer:  # the lock is free again
        add(writer, "d")
    assert ids(path) == "abcd"


@pytest.mark.deep
def test_a_full_disk_changes_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    """A limit on the size of files makes writes fail as on a full disk."""
    code = """
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
place = sys.argv[1]
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def refused(work):
    limit(200_000)
    try: work()
    except ResourceError as error: assert error.exit_code == 5 and place in str(error), error
    else: raise SystemExit("it was not refused")
pool, vectors = [Candidate(f"n{i}", "t" * 50) for i in range(900)], np.ones((900, 64), np.float32)
write_index(place + "/i", [Candidate(name, name) for name in "abc"], vectors[:3], fingerprint="f", model="m")
refused(lambda: write_index(place + "/j", pool, vectors, fingerprint="f", model="m"))
assert os.listdir(place) == ["i"], os.listdir(place)
refused(lambda: write_index(place + "/i", pool, vectors, fingerprint="f", model="m", overwrite=True))
assert os.listdir(place) == ["i"], os.listdir(place)
with LocalWriter(place + "/i") as writer, open_index(place + "/i") as index:
    refused(lambda: writer.add(pool, vectors))
    assert len(writer) == 3 and not index.refresh() and len(index) == 3
    limit(resource.RLIM_INFINITY)
    writer.add(pool, vectors)
    refused(writer.compact)
    refused(lambda: writer.snapshot(place + "/copy"))
    index.refresh()
    assert len(index) == 903
    limit(resource.RLIM_INFINITY)
    writer.compact()
    writer.remove(["a"])
    writer.snapshot(place + "/copy")
    index.refresh()
    assert len(index) == 902
assert verify_index(place + "/i") == [] == verify_index(place + "/copy")
print("done")
"""
    with python(code, tmp_path) as child:
        said, _ = child.communicate()
    assert (said, child.returncode) == ("done\n", 0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["copy", "i"]


@pytest.mark.deep
def test_a_compaction_that_fails_leaves_no_matrix(tmp_path: Path) -> None:
    """The matrix fits on the disk, but the change that names it does not; a snapshot names its own path."""
    code = """
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
place = sys.argv[1]
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
pool, vectors = [Candidate(f"n{i}", "t" * 50) for i in range(900)], np.ones((900, 8), np.float32)
write_index(place + "/i", pool[:3], vectors[:3], fingerprint="f", model="m")
with LocalWriter(place + "/i") as writer:
    writer.add(pool[3:], vectors[3:])
    for work, size, text in (
        (writer.compact, os.path.getsize(place + "/i/candidates.db-wal"), place + "/i/candidates.db"),
        (lambda: writer.snapshot(place + "/copy"), 20_000, f"{place}/i to {place}/copy"),
    ):
        before = sorted(os.listdir(place + "/i"))
        limit(size)
        try: work()
        except ResourceError as error: assert text in str(error), error
        else: raise SystemExit("it was not refused")
        assert sorted(os.listdir(place + "/i")) == before
        limit(resource.RLIM_INFINITY)
    writer.compact()
assert verify_index(place + "/i") == []
print("done")
"""
    with python(code, tmp_path) as child:
        printed, _ = child.communicate()
    assert (printed, child.returncode) == ("done\n", 0)


@pytest.mark.parametrize("repaired", [True, False])
@pytest.mark.parametrize("background", [True, False])
def test_each_failed_compaction_is_reported_once(
    background: bool, repaired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller of ``compact`` receives the error; that of one in the background is logged at the end, if it lasts."""
    monkeypatch.setattr("polyrank.index.local.writer.MIN_STALE", 0 if background else 100)
    path = made(tmp_path / "i", "abc")

    def rename(text: str) -> None:
        with closing(sqlite3.connect(path / INDEX_FILE)) as connection, connection:
            connection.execute("UPDATE candidates SET text = ? WHERE id = 'b'", (text,))

    def change(names: str) -> None:
        """Add candidates; with a compaction, in the background or not."""
        add(writer, names)
        if background:
            writer.wait_compacted()
        else:
            writer.compact()

    with LocalWriter(path) as writer:
        for number, name in enumerate("de"):
            rename(f"damaged {number}")
            if background:
                change(name)
            else:
                with pytest.raises(ArtifactError, match="is damaged"):
                    change(name)
        rename("text of b")
        if repaired:
            change("f")
        assert caplog.messages == []
    assert [text.partition(";")[0] for text in caplog.messages] == (
        [f"{path}: rebuilding its matrix failed"] if background and not repaired else []
    )
    writer.close()
    caplog.clear()
    with LocalWriter(path) as writer:
        writer.compact()
    assert caplog.messages == []
    assert verify_index(path) == []
    assert ids(path) == ("abcdef" if repaired else "abcde")


def test_readers_open_and_verify_while_the_matrix_is_replaced(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abcdefgh")
    stop, failures, n_opened = threading.Event(), list[str](), 0

    def read() -> None:
        nonlocal n_opened
        while not stop.is_set():
            try:
                with open_index(path) as index:
                    assert len(index) == 8
                failures.extend(verify_index(path))
                n_opened += 1
            except Exception as error:
                failures.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    with LocalWriter(path) as writer:
        while n_opened < 20 and not failures:
            add(writer, "abc", replace=True)
            writer.compact()
    stop.set()
    reader.join()
    assert failures == []


def test_a_snapshot_is_consistent(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "")
    with LocalWriter(path) as writer:
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                pool = [Candidate(f"{number} {i}", "one batch") for i in range(4)]
                writer.add(pool, np.ones((4, D), np.float32))
                writer.remove([f"{number} 3", f"{number - 1} 2"])

        thread = threading.Thread(target=write)
        thread.start()
        for i in range(5):
            writer.snapshot(tmp_path / f"copy{i}")
        stop.set()
        thread.join()
    n_batches = []
    for i in range(5):
        assert verify_index(tmp_path / f"copy{i}") == []
        with open_index(tmp_path / f"copy{i}") as index:
            size, numbers = len(index), {int(c.id.split()[0]) for _, c in index.iter_candidates()}
        assert numbers == set(range(1, len(numbers) + 1))
        # two rows of each batch and three of the last; or all four of the last, and three of the one before
        assert not numbers or size - 2 * len(numbers) in ((1, 2) if len(numbers) == 1 else (1, 3))
        n_batches.append(len(numbers))
    assert n_batches == sorted(n_batches)
    LocalWriter(tmp_path / "copy4").close()


def test_a_snapshot_inside_the_index_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "")
    (tmp_path / "link").symlink_to(path)
    before = sorted(path.iterdir())
    with LocalWriter(path) as writer:
        for inside in (path / "copy", path / "a" / "copy", tmp_path / "link" / "copy", path / ".." / "i" / "copy"):
            with pytest.raises(UsageError, match=f"^{inside} is inside the index {path}; choose a path outside"):
                writer.snapshot(inside)
        with pytest.raises(UsageError, match=f"^{path} already exists"):
            writer.snapshot(path)
        writer.snapshot(tmp_path / "i2")  # whose name starts alike
    assert sorted(path.iterdir()) == before


@pytest.mark.deep
def test_the_command_line_names_the_holder_and_the_damage(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    with python("w = LocalWriter(sys.argv[1]); print('locked', flush=True); sys.stdin.read()", path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        done = run("index", "remove", path, "a")
        assert done.returncode == 6
        assert f"is being written to by process {child.pid}; wait" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = run("index", "info", path)  # readers do not need the lock
        assert (done.returncode, '"n": 3' in done.stdout) == (0, True)
        child.kill()
        child.communicate()
    assert run("index", "remove", path, "a").returncode == 0
    assert ids(path) == "bc"
    data = (path / INDEX_FILE).read_bytes()
    at = data.index(b"text of c")
    (path / INDEX_FILE).write_bytes(data[:at] + b"T" + data[at + 1 :])
    done = run("index", "verify", path)
    assert done.returncode == 4
    assert "candidate row 3: its SHA-256 does not match; restore the index from a snapshot or" in done.stderr
    assert str(path / INDEX_FILE) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_only_leftovers_of_dead_builders_are_removed(tmp_path: Path) -> None:
    code = """
from pathlib import Path; from polyrank.storage.durable import new_folder, write_file
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder, flush=True); sys.stdin.readline()
    os.kill(os.getpid(), 9)
"""
    other = tmp_path / ".i.notours1"
    other.mkdir()
    with python(code, tmp_path / "i") as child:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        with new_folder(tmp_path / "i", replace=True):
            assert (left / "half").exists()  # its process is alive
        child.communicate("\n")
    assert left.exists()
    made(tmp_path / "j", "a")
    assert left.exists()  # it belongs to another index
    shutil.rmtree(tmp_path / "i")
    made(tmp_path / "i", "a")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "i", tmp_path / "j"]


def test_only_leftovers_of_dead_writers_of_a_file_are_removed(tmp_path: Path) -> None:
    code = """
import stat; from pathlib import Path; from polyrank.storage.durable import write_file
def stop(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode): return
    print(flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)
os.fsync = stop
write_file(Path(sys.argv[1]), b"half")
"""
    mine = tmp_path / ".file.my-notes"
    mine.touch()
    with python(code, tmp_path / "file") as child:
        assert child.stdout is not None
        child.stdout.readline()
        write_file(tmp_path / "file", b"whole")
        left = next(entry for entry in tmp_path.iterdir() if entry not in (mine, tmp_path / "file"))
        assert left.read_bytes() == b"half"  # its process is alive
        child.communicate("\n")
    write_file(tmp_path / "other", b"x")
    assert left.exists()  # it belongs to another file
    write_file(tmp_path / "file", b"new")
    assert sorted(tmp_path.iterdir()) == [mine, tmp_path / "file", tmp_path / "other"]


def test_without_locks_nothing_is_taken_for_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("polyrank.storage.durable.try_lock", no_locks)
    others = [tmp_path / ".file.0123abcd", tmp_path / ".folder.0123abcd.part"]
    others[0].touch()
    others[1].mkdir()
    for _ in range(2):
        write_file(tmp_path / "file", b"whole")
        with new_folder(tmp_path / "folder", replace=True) as folder:
            (folder / "a").touch()
    assert sorted(tmp_path.iterdir()) == [*others, tmp_path / "file", tmp_path / "folder"]


@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_a_read_only_index_can_be_read() -> None:
    code = """
open_index(sys.argv[2]).close()  # everything is imported while it may be
os.setuid(65534)
index = None
for line in sys.stdin:
    try:
        index = index or open_index(sys.argv[1])
        index.refresh()
        print("".join(c.id for _, c in index.iter_candidates()), len(index), flush=True)
    except PolyrankError as error:
        print(error.exit_code, flush=True)
try: LocalWriter(sys.argv[1])
except ReadOnlyError as error: print(error.exit_code, flush=True)
"""

    def ask(child: "subprocess.Popen[str]") -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        path, other = made(folder / "i", "abc"), made(folder / "other", "a")
        with python(code, path, other) as child:
            assert ask(child) == "abc 3"
            with LocalWriter(path) as writer:
                add(writer, "d")
                assert ask(child) in ("abcd 4", "5")  # it reads the log, or refuses the index
            assert ask(child) == "abcd 4"
            killed_writer(path)
            assert ask(child) in ("abcdxy 6", "5")
            LocalWriter(path).close()
            assert ask(child) == "abcdxy 6"
            assert child.communicate("")[0] == "5\n"
        with LocalWriter(path) as writer:
            writer.remove("xy")
        killed_writer(path)
        (path / f"{INDEX_FILE}-shm").unlink()
        with python(code, path, other) as child:
            assert ask(child) == "5"
            LocalWriter(path).close()
            assert ask(child) == "abcdxy 6"
            child.communicate("")


def test_the_lock_of_a_replaced_index_is_invalid(tmp_path: Path) -> None:
    """A writer that opened the lock file of an index replaced meanwhile must not write to the old one."""
    path = made(tmp_path / "i", "abc")
    with LocalWriter(path), pytest.raises(LockedError):
        made(path, "xyz")
    made(path, "xyz")
    with LocalWriter(path) as writer:
        add(writer, "w")
    assert ids(path) == "wxyz"


@pytest.mark.parametrize("how", ["moved", "removed", "exchanged", "restored"])
def test_a_writer_refuses_changes_once_its_folder_is_elsewhere(tmp_path: Path, how: str) -> None:
    """They would be acknowledged although no reader of the path sees them."""
    path, other = made(tmp_path / "i", "abc"), made(tmp_path / "other", "xyz")
    with LocalWriter(path) as writer:
        add(writer, "d")
        path.rename(tmp_path / "old")
        if how == "removed":
            shutil.rmtree(tmp_path / "old")
        elif how == "exchanged":
            other.rename(path)
        elif how == "restored":
            shutil.copytree(tmp_path / "old", path)
        for change in (lambda: add(writer, "e"), lambda: writer.remove(["a"]), writer.compact):
            with pytest.raises(LockedError, match="moved, removed or replaced"):
                change()
    if how == "moved":
        (tmp_path / "old").rename(path)
    if how != "removed":
        assert ids(path) == ("xyz" if how == "exchanged" else "abcd")
        with LocalWriter(path) as writer:
            add(writer, "w")
        assert verify_index(path) == []


def test_a_compaction_ends_in_the_index_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another index takes its place while the matrix is written."""
    path, other = made(tmp_path / "i", "abc"), made(tmp_path / "other", "xyz")
    before = sorted(file.name for file in other.iterdir())

    def write_and_exchange(folder: Path, rows: Any, meta: Any) -> None:
        write_matrix(folder, rows, meta)
        path.rename(tmp_path / "old")
        other.rename(path)

    monkeypatch.setattr("polyrank.index.local.writer.write_matrix", write_and_exchange)
    with LocalWriter(path) as writer:
        change = writer.change
        with pytest.raises(LockedError, match=f"{path} was moved, removed or replaced since it was opened"):
            writer.compact()
        assert (writer.change, writer.is_compacting) == (change, False)
    assert ids(path) == "xyz"
    assert verify_index(path) == []
    assert sorted(file.name for file in path.iterdir()) == before
    monkeypatch.undo()
    (tmp_path / "old").rename(tmp_path / "again")
    assert len([*(tmp_path / "again").glob("matrix-*")]) == 2
    with LocalWriter(tmp_path / "again") as writer:  # removes the one that was not used
        assert len([*(tmp_path / "again").glob("matrix-*")]) == 1
        add(writer, "d")
        writer.compact()
    assert ids(tmp_path / "again") == "abcd"
    assert verify_index(tmp_path / "again") == []


def test_a_catalogue_changes_the_index_that_replaced_the_one_it_opened(tmp_path: Path) -> None:
    path = made(tmp_path / "i", "abc")
    catalogue = Catalogue(path)
    vector = np.ones((1, D), np.float32)
    assert catalogue.add([Candidate("d", "d")], vector, replace=False) == 4
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    assert catalogue.add([Candidate("e", "e")], vector, replace=False) == 5
    assert catalogue.remove(["a"]) == (1, 4)
    assert ids(path) == "bcde"
    catalogue.close()


def test_an_addition_is_refused_if_any_candidate_was_changed_or_removed_after_it_was_read(tmp_path: Path) -> None:
    """``previous`` may name candidates that are not among the new ones, such as a reply that is split in two."""
    catalogue = Catalogue(made(tmp_path / "i", "abcd"))
    as_read = [Candidate(name, f"text of {name}") for name in "abcd"]
    new = [Candidate(name, "new") for name in "ab"]
    vectors = np.ones((2, D), np.float32)
    changed = [Candidate("d", "old"), Candidate("d", "text of d", {"x": 1}), Candidate("gone", "text")]
    for one in changed:
        for previous in ([one, *as_read], [*as_read, one]):
            with pytest.raises(HttpError, match=f"candidate '{one.id}' was changed or removed") as refused:
                catalogue.add(new, vectors, replace=True, previous=previous)
            assert refused.value.status == 412
    assert catalogue.read(lambda index: {c.text for _, c in index.iter_candidates()}) == {c.text for c in as_read}
    assert catalogue.add(new, vectors, replace=True, previous=as_read) == 4
    assert catalogue.add(new, vectors, replace=True, previous=as_read) == 4  # sent again: nothing is left to do
    catalogue.close()


@pytest.mark.parametrize("page", [2, 5])
def test_a_filter_removes_what_passes_it_on_every_page(
    page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.serving.catalogue.PAGE", page)
    catalogue = Catalogue(made(tmp_path / "i", "a"))
    mine = [Candidate(name, name, {"of": "me" if name in "bdefh" else "you"}) for name in "bcdefgh"]
    catalogue.add(mine, np.ones((7, D), np.float32), replace=False)
    within = read_filter("of = 'me'")
    assert catalogue.remove(["a", "b", "c", "none"], within) == (1, 7)
    assert catalogue.remove(None, within) == (4, 3)
    assert ids(tmp_path / "i") == "acg"
    assert catalogue.remove(None) == (0, 3)
    catalogue.close()


def test_a_catalogue_accepts_changes_during_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing an idle writer waits for its compaction, which takes minutes for a large index."""
    monkeypatch.setattr("polyrank.serving.catalogue.IDLE_S", 0.0)
    catalogue = Catalogue(made(tmp_path / "i", "abc"))
    catalogue.remove(["a"])
    writer = catalogue._writer
    assert isinstance(writer, LocalWriter)
    closing = threading.Thread(target=catalogue.close_if_idle)
    with writer._mutex:  # at its end a compaction waits for it
        writer._start_compaction()
        closing.start()
        closing.join(5)
        waits = closing.is_alive()
    closing.join()
    assert not waits
    assert catalogue._writer is writer
    writer.compact()
    catalogue.close_if_idle()
    assert catalogue._writer is None


@pytest.mark.deep
def test_a_writer_interrupted_at_any_moment_continues(tmp_path: Path) -> None:
    """A commit may be durable when the signal arrives, so the writer must not trust its cached state."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    n_interrupted = 0
    try:
        for turn in range(30):
            path = made(tmp_path / "i", "a")
            with LocalWriter(path) as writer:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.00008 * turn)
                    add(writer, "b")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    n_interrupted += 1
                add(writer, "cd", replace=True)
                writer.remove(["c"])
            assert ids(path) in ("ad", "abd")
            assert verify_index(path) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_interrupted


def test_deep_metadata_is_refused(tmp_path: Path) -> None:
    deep: object = "x"
    for _ in range(17):
        deep = [deep]
    path = made(tmp_path / "i", "a")
    with LocalWriter(path) as writer:
        with pytest.raises(DataError, match="candidate 0: its metadata are nested deeper than 16"):
            writer.add([Candidate("b", "b", {"m": deep[0]})], np.ones((1, D), np.float32))  # type: ignore[index]
        writer.add([Candidate("b", "b", {"m": deep[0][0]})], np.ones((1, D), np.float32))  # type: ignore[index]
    assert ids(path) == "ab"


def test_a_compaction_works_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    pool = [Candidate(name, name) for name in "abc"]
    write_index(tmp_path / "i", pool, np.eye(3, dtype=np.float32), fingerprint="f", model="m", ann="flat")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with LocalWriter(tmp_path / "i") as writer:
        writer.add([Candidate("d", "d")], np.ones((1, 3), np.float32))
        writer.compact()
    assert not list((tmp_path / "i").glob("matrix-*/products.ann"))
    monkeypatch.undo()
    with LocalWriter(tmp_path / "i") as writer:
        writer.compact()
    assert list((tmp_path / "i").glob("matrix-*/products.ann"))
