"""The candidate store: it holds exactly the acknowledged changes, and never answers from damaged data."""

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from polyrank.errors import ArtifactError, DataError, LockedError, PolyrankError, UsageError
from polyrank.index import (
    Index,
    LocalWriter,
    as_count,
    open_catalogue,
    open_index,
    read_filter,
    verify_index,
    write_index,
)
from polyrank.index.checks import as_vectors, candidate_faults, refuse, vector_faults
from polyrank.index.local import ann as ann_module, matrix as matrix_module, store, writer as writer_module
from polyrank.index.local.checked import CHECKED
from polyrank.index.local.counts import RowCounts
from polyrank.index.local.lock import LOCK
from polyrank.index.local.matrix import open_matrix, write_matrix
from polyrank.index.local.verify import _problems_of
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate
from polyrank.search import search
from polyrank.storage.quantized import PackedVectors, Precision, pack
from processes import files_open_in

D = 4


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=D).astype(np.float32)


def candidate(name: str, version: int = 0) -> Candidate:
    return Candidate(name, f"text of {name}, version {version}", {"version": version})


def test_a_page_of_long_candidates_ends_early(tmp_path: Path) -> None:
    """The texts of 1,000 candidates may have 160 MB, which every page would hold in memory."""
    long = "\0" + 99_999 * "x"
    pool = [Candidate(f"c{i:03}", long if i % 4 else "short", {"note": long[1:60_000]}) for i in range(120)]
    write_index(tmp_path / "i", pool, np.ones((120, D), np.float32), fingerprint="f" * 64, model="m")
    with open_catalogue(tmp_path / "i") as index:
        after, pages = 0, []
        while True:
            pages.append(index.page(after=after, n=1000))
            if (next_ := pages[-1].next) is None:
                break
            after = next_
        assert [one.id for page in pages for one in page.candidates] == [one.id for one in pool]
        assert [len(page.candidates) for page in pages] == [63, 57]
        assert len(index.page(n=5).candidates) == 5


def test_a_page_ends_after_the_candidate_that_fills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of texts and metadata; even a candidate that is larger than a page is on one."""
    pool = [Candidate(f"c{i}", "é" * (i + 1), {"n": i}) for i in range(5)]  # of 2, 4, 6, 8 and 10 bytes, and 8 each
    write_index(tmp_path / "i", pool, np.ones((5, D), np.float32), fingerprint="f", model="m")
    with open_catalogue(tmp_path / "i") as index:
        for limit, sizes in ((1, [1] * 5), (10, [1] * 5), (11, [2, 1, 1, 1]), (22, [2, 2, 1]), (23, [3, 2]), (88, [5])):
            monkeypatch.setattr(store, "PAGE_BYTES", limit)
            after, pages = 0, []
            while not pages or (after := pages[-1].next or 0):
                pages.append(index.page(after=after))
            assert [len(page.candidates) for page in pages] == sizes, limit
            assert [one for page in pages for one in page.candidates] == pool


def stored(at: np.ndarray, precision: Precision) -> tuple[float, ...]:
    """A vector as the index stores it."""
    return tuple(pack(at[None].astype(np.float32), precision)[:][0].tolist())


def small(path: Path, n: int = 3, precision: Precision = "fp32") -> Path:
    pool = [candidate(f"c{i}") for i in range(n)]
    vectors = np.stack([vector(i) for i in range(n)]) if n else np.zeros((0, D), np.float32)
    write_index(path, pool, vectors, fingerprint="f" * 64, model="somewhere", precision=precision)
    return path


def content(index: Index) -> dict[str, tuple[Candidate, tuple[float, ...]]]:
    """The content of an index: candidates by id, with the vectors that a search uses."""
    vectors = {
        int(row): tuple(at.tolist())
        for block in index.blocks()
        for i, (row, at) in enumerate(zip(block.rows, block.vectors[:], strict=True))
        if block.alive is None or block.alive[i]
    }
    rows = sorted(vectors)
    found = {c.id: (c, vectors[row]) for row, c in zip(rows, index.candidates(rows), strict=True)}
    assert len(found) == len(rows) == len(index)
    assert {c.id: c for _, c in index.iter_candidates()} == {name: c for name, (c, _) in found.items()}
    return found


class StoreMachine(RuleBasedStateMachine):
    """Compares the store with a dictionary, with a reader that stays open throughout."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = Path(tempfile.mkdtemp())

    @initialize(target=names, precision=st.sampled_from(get_args(Precision)))
    def known(self, precision: Precision) -> Any:
        self.precision, self.version = precision, 0
        self.path = small(self.folder / "i", 2, precision)
        self.want: dict[str, tuple[Candidate, tuple[float, ...]]] = {
            f"c{i}": (candidate(f"c{i}"), stored(vector(i), precision)) for i in range(2)
        }
        self.writer = LocalWriter(self.path)
        self.reader = open_index(self.path)
        return multiple("c0", "c1")

    @rule(target=names, chosen=st.lists(st.sampled_from([f"n{i}" for i in range(8)]), max_size=4, unique=True))
    def add(self, chosen: list[str]) -> Any:
        self.version += 1
        new = [candidate(name, self.version) for name in chosen]
        vectors = np.stack([vector(1000 * self.version + i) for i in range(len(new))]) if new else np.zeros((0, D))
        if any(name in self.want for name in chosen):
            before = self.writer.change
            with pytest.raises(DataError, match="is already in the index"):
                self.writer.add(new, vectors.astype(np.float32))
            assert self.writer.change == before
        else:
            self.writer.add(new, vectors.astype(np.float32))
            self.want |= {c.id: (c, stored(v, self.precision)) for c, v in zip(new, vectors, strict=True)}
        return multiple(*chosen)

    @rule(name=names)
    def put(self, name: str) -> None:
        self.version += 1
        new, at = candidate(name, self.version), vector(1000 * self.version)
        self.writer.add([new], at[None], replace=True)
        self.want[name] = (new, stored(at, self.precision))

    @rule(chosen=st.lists(names, max_size=3))
    def remove(self, chosen: list[str]) -> None:
        there = {name for name in chosen if name in self.want}
        assert self.writer.remove([*chosen, "never there"]) == len(there)
        for name in there:
            del self.want[name]

    @rule()
    def compact(self) -> None:
        self.writer.compact()

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        assert not (self.path / f"{INDEX_FILE}-wal").exists() or not (self.path / f"{INDEX_FILE}-wal").stat().st_size
        self.writer = LocalWriter(self.path)

    @rule()
    def new_reader(self) -> None:
        self.reader.close()
        self.reader = open_index(self.path)

    @rule()
    def snapshot(self) -> None:
        copy = self.folder / "copy"
        self.writer.snapshot(copy)
        with open_index(copy) as index:
            assert content(index) == self.want
        assert verify_index(copy) == []
        shutil.rmtree(copy)

    @rule(number=st.integers(0, 99), k=st.integers(1, 5))
    def searched(self, number: int, k: int) -> None:
        self.reader.refresh()
        query = vector(number)
        found = search(query[None, None], np.ones((1, 1), np.bool_), self.reader.blocks(), k)[0]
        got = {c.id for c in self.reader.candidates(found.rows.tolist())}
        scores = {name: float(np.dot(np.float64(query), np.float64(at))) for name, (_, at) in self.want.items()}
        best = sorted(scores, key=lambda name: -scores[name])[:k]
        assert sorted(scores[name] for name in got) == pytest.approx(
            sorted(scores[name] for name in best), rel=1e-5, abs=1e-6
        )

    @invariant()
    def the_same(self) -> None:
        self.reader.refresh()
        assert content(self.reader) == self.want
        assert not self.reader.refresh()

    def teardown(self) -> None:
        self.reader.close()
        self.writer.close()
        assert verify_index(self.path) == []
        shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def or_error(answer: Callable[[], Any]) -> Any:
    """The result, or the exit code of the error."""
    try:
        return answer()
    except PolyrankError as error:
        return error.exit_code


def without_c5(path: Path) -> set[str]:
    """The content after one removal."""
    with LocalWriter(path) as writer:
        assert writer.remove(["c5"]) == 1
        writer.compact()
    with open_index(path) as index:
        return set(content(index))


def query_all(path: Path) -> Any:
    """All queries of an index; a damaged one must not answer any of them wrongly."""
    with open_index(path) as index:
        found = search(vector(7)[None, None], np.ones((1, 1), np.bool_), index.blocks(), 2)[0]
        return content(index), found.rows.tolist(), found.scores.tolist()


@pytest.mark.deep
def test_every_flipped_bit_and_truncation_is_detected_or_harmless(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    want = query_all(path)
    n_found = 0
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.stat().st_size):
        data = file.read_bytes()
        # runs/crash.py flips every bit; this test flips one in some of the used bytes, and in fewer of the unused ones
        places = [i for i in range(len(data)) if i % (11 if data[i] or i < 200 else 301) == 0]
        for i in places:
            damaged = bytearray(data)
            damaged[i] ^= 1 << (i % 8)
            file.write_bytes(damaged)
            answer = or_error(lambda: query_all(path))
            n_found += answer == 4
            assert answer in (4, want), (file.name, i)
        for length in (0, 1, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:length])
            answer = or_error(lambda: query_all(path))
            harmless = file.name in (LOCK, CHECKED) or length == len(data) - 1
            assert answer == 4 or (answer == want and harmless), (file.name, length)
            assert verify_index(path) or harmless
        file.write_bytes(data)
    assert n_found > 100
    assert verify_index(path) == []
    assert query_all(path) == want


@pytest.mark.deep
def test_a_damaged_list_of_ids_is_detected_before_a_change(tmp_path: Path) -> None:
    path = small(tmp_path / "i", 40)
    file = path / INDEX_FILE
    data = file.read_bytes()
    for i in [place for place in range(100, len(data)) if data[place]][::149]:
        file.write_bytes(data[:i] + bytes([data[i] ^ (1 << (i % 8))]) + data[i + 1 :])
        assert or_error(lambda: without_c5(path)) in (4, {f"c{j}" for j in range(40)} - {"c5"})
        shutil.rmtree(path)
        small(path, 40)
        data = file.read_bytes()


def damage_a_row(path: Path, *, keep_time: bool) -> None:
    """Remove a row without polyrank."""
    times = (path / INDEX_FILE).stat()
    with closing(sqlite3.connect(path / INDEX_FILE)) as connection:
        connection.execute("DELETE FROM candidates WHERE id = 'c1'")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if keep_time:
        os.utime(path / INDEX_FILE, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("opened_before", [False, True])
def test_rows_are_checked_again_only_after_the_file_changed(tmp_path: Path, opened_before: bool) -> None:
    path = small(tmp_path / "i", 8)
    if opened_before:
        without_c5(path)
    shutil.copytree(path, tmp_path / "trusted")
    damage_a_row(tmp_path / "trusted", keep_time=True)  # copytree keeps the time, too
    LocalWriter(tmp_path / "trusted").close()  # not noticed, since no row was read
    damage_a_row(path, keep_time=False)
    with pytest.raises(ArtifactError, match="that were written"):
        LocalWriter(path)


def test_rows_are_checked_after_a_crash_and_in_indexes_without_a_record(tmp_path: Path) -> None:
    path, crashed = small(tmp_path / "i"), tmp_path / "crashed"
    with LocalWriter(path) as writer:
        writer.remove(["c0"])
        shutil.copytree(path, crashed)  # with a log that is not yet part of the file
    damage_a_row(crashed, keep_time=True)
    with pytest.raises(ArtifactError, match="that were written"):
        LocalWriter(crashed)
    (path / CHECKED).unlink()
    LocalWriter(path).close()
    before = (path / INDEX_FILE).stat().st_mtime_ns
    assert (path / CHECKED).exists()
    LocalWriter(path).close()
    assert (path / INDEX_FILE).stat().st_mtime_ns == before  # nothing changed, so nothing is recorded again
    (path / CHECKED).unlink()
    damage_a_row(path, keep_time=True)
    with pytest.raises(ArtifactError, match="that were written"):
        LocalWriter(path)


def test_damage_of_any_row_is_found(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    with closing(sqlite3.connect(path / INDEX_FILE, isolation_level=None)) as connection:
        for (row,) in connection.execute("SELECT row FROM candidates").fetchall():
            connection.execute("UPDATE candidates SET text = text || '!' WHERE row = ?", (row,))
            assert verify_index(path)
            connection.execute("UPDATE candidates SET text = substr(text, 1, length(text) - 1) WHERE row = ?", (row,))
    assert verify_index(path) == []


def test_a_lost_matrix_is_rebuilt_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    want = query_all(path)
    (matrix,) = path.glob("matrix-*")
    data = (matrix / "vectors.npy").read_bytes()
    (matrix / "vectors.npy").write_bytes(data[:-1] + b"x")
    with pytest.raises(ArtifactError, match=r"vectors.npy is damaged.*polyrank index compact"):
        open_index(path)
    assert any("vectors.npy" in problem for problem in verify_index(path))
    with LocalWriter(path) as writer:
        writer.compact()
    assert query_all(path) == want
    assert verify_index(path) == []
    (matrix,) = path.glob("matrix-*")
    shutil.rmtree(matrix)
    assert query_all(path) == want
    assert verify_index(path) == []


def test_one_writer_at_a_time_and_a_dead_writers_lock_is_free(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    with LocalWriter(path), pytest.raises(LockedError, match=f"being written to by process {os.getpid()}; wait"):
        LocalWriter(path)
    code = (
        "import os, sys; from polyrank.index import open_writer; w = open_writer(sys.argv[1])\n"
        "print('locked', flush=True);"
        "sys.stdin.read(); os._exit(9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(LockedError, match=f"process {child.pid}"):
            LocalWriter(path)
        with pytest.raises(LockedError, match=f"process {child.pid}"):
            write_index(path, [], np.zeros((0, D), np.float32), fingerprint="f", model="m", overwrite=True)
        with open_index(path) as index:  # readers do not need the lock
            assert len(content(index)) == 3
        child.communicate("")
    LocalWriter(path).close()


@pytest.mark.deep
def test_a_reader_in_another_process_sees_each_acknowledged_batch(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    code = """
import sys, numpy as np
from polyrank.index import LocalWriter
from polyrank.storage.quantized import PackedVectors, Precision, pack
from polyrank.records import Candidate
with LocalWriter(sys.argv[1]) as writer:
    for line in sys.stdin:
        name = line.strip()
        writer.add([Candidate(name + part, name) for part in "ab"], np.ones((2, 4), np.float32))
        writer.remove([name + "b"]); writer.compact() if name == "n3" else None
        print(name, flush=True)
"""
    with (
        open_index(path) as index,
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        for i in range(6):
            before = index.blocks()
            kept = [block.vectors.copy() for block in before]
            child.stdin.write(f"n{i}\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"n{i}\n"
            assert index.refresh()
            assert set(content(index)) == {"c0", "c1", "c2", *(f"n{j}a" for j in range(i + 1))}
            for block, vectors in zip(before, kept, strict=True):  # an earlier view does not change
                np.testing.assert_array_equal(block.vectors, vectors)
        child.communicate("")


@pytest.mark.deep
def test_compaction_is_automatic_and_does_not_block_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MIN_STALE", 20)
    path = small(tmp_path / "i")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            with open_index(path) as index:
                while not stop.is_set():
                    index.refresh()
                    alive = [block.rows if block.alive is None else block.rows[block.alive] for block in index.blocks()]
                    rows = np.concatenate(alive)
                    assert len(set(rows.tolist())) == len(rows) == len(index)
                    assert [c.id for c in index.candidates(rows[:3].tolist())] == ["c0", "c1", "c2"]
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with LocalWriter(path) as writer:
        for i in range(60):
            writer.add([candidate(f"n{i}")], vector(i)[None])
            if i % 3 == 0:
                writer.remove([f"n{i}"])
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    matrices = list(path.glob("matrix-*"))
    assert len(matrices) == 1
    assert int(matrices[0].name.split("-")[1]) > 20
    assert verify_index(path) == []
    with open_index(path) as index:
        assert len(index) == 3 + 40


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    for name in ("matrix-9-dead", ".matrix-9-dead.tmp"):
        (path / name).mkdir()
        (path / name / "vectors.npy").write_bytes(b"half")
    assert len(query_all(path)[0]) == 3
    LocalWriter(path).close()
    assert sorted(p.name.split("-")[0] for p in path.iterdir()) == [
        "candidates.db", "checked", "matrix", "writer.lock"]  # fmt: skip


def test_an_empty_index_gets_the_dimension_of_its_first_vectors(tmp_path: Path) -> None:
    write_index(tmp_path / "i", [], np.zeros((0, 0), np.float32), fingerprint="f", model="m")
    with LocalWriter(tmp_path / "i") as writer:
        assert writer.add([], np.zeros((0, 0), np.float32)) == 1
        writer.add([candidate("a")], np.ones((1, 7), np.float32))
        with pytest.raises(DataError, match="candidate 0: its vector has 8 numbers, this index needs 7"):
            writer.add([candidate("b")], np.ones((1, 8), np.float32))
    with open_index(tmp_path / "i") as index:
        assert (len(index), index.dimension) == (1, 7)


def test_a_batch_is_atomic_and_errors_name_the_candidate(tmp_path: Path) -> None:
    with LocalWriter(small(tmp_path / "i")) as writer:
        rows = [vector(1), np.full(D, np.nan), np.zeros(D), vector(2), np.ones(D + 1), vector(3), vector(4)]
        pool = [candidate("new"), candidate("x"), candidate("y"), candidate("c1"), candidate("z"), Candidate("e", " "),
                Candidate("s", "\ud800")]  # fmt: skip
        with pytest.raises(DataError) as caught:
            writer.add(pool, rows)
        for part in (
            "candidate 1: its vector holds NaN",
            "candidate 2: its vector is zero",
            "candidate 3: id 'c1' is already in the index",
            "candidate 4: its vector has shape (5,), this index needs (4,)",
            "candidate 5: its text is empty",
            "and 1 more",
        ):
            assert part in str(caught.value)
        assert len(writer) == 3
        assert writer.remove(["\ud800", "nothing"]) == 0
        with pytest.raises(DataError, match="1 candidates have vectors"):
            writer.add([candidate("q")], np.ones((2, D), np.float32))


def test_newer_and_foreign_files_are_refused_unchanged(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    with pytest.raises(ArtifactError, match=r"f{16}.*e{16}"):
        open_index(path, fingerprint="e" * 64)
    with pytest.raises(ArtifactError, match=r"f{16}.*e{16}"):
        LocalWriter(path, fingerprint="e" * 64)
    with pytest.raises(ArtifactError, match="is not an index: it lacks"):
        open_index(tmp_path)
    with pytest.raises(ArtifactError, match="is not an index: it does not exist"):
        open_index(tmp_path / "nosuch")
    with pytest.raises(UsageError, match="already exists"), LocalWriter(path) as writer:
        writer.snapshot(path)
    connection = sqlite3.connect(path / INDEX_FILE)
    with connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = (path / INDEX_FILE).read_bytes()
    for attempt in (open_index, LocalWriter):
        with pytest.raises(ArtifactError, match=r"in format 99, this version reads format 4; upgrade"):
            attempt(path)
    assert (path / INDEX_FILE).read_bytes() == before


def test_building_streams_vectors(tmp_path: Path) -> None:
    """Vectors come in parts from a generator."""
    parts = (np.full((50, D), i + 1, np.float32) for i in range(4))
    write_index(tmp_path / "i", [candidate(f"c{i}") for i in range(200)], parts, fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        (block,) = index.blocks()
        assert isinstance(block.vectors, np.memmap)
        assert not block.vectors.flags.writeable
        assert block.vectors[:, 0].tolist() == [1.0] * 50 + [2.0] * 50 + [3.0] * 50 + [4.0] * 50
    bad = (np.full((2, D), value, np.float32) for value in (1, 2, np.inf))
    with pytest.raises(DataError, match="candidate 4: its vector holds NaN or infinity"):
        write_index(tmp_path / "j", [candidate(f"c{i}") for i in range(6)], bad, fingerprint="f", model="m")
    short = (np.ones((2, D), np.float32) for _ in range(2))
    with pytest.raises(DataError, match="pass one vector per candidate"):
        write_index(tmp_path / "j", [candidate(f"c{i}") for i in range(6)], short, fingerprint="f", model="m")
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize(("precision", "share"), [("fp32", 1.0), ("bf16", 0.5), ("int8", 68 / 256)])
def test_a_precision_is_kept_and_has_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, share: float
) -> None:
    """Stored, compacted, copied and rewritten from an index's vectors, in several parts, the bits do not change."""
    monkeypatch.setattr(matrix_module, "ROWS_AT_A_TIME", 120)
    n, d = 500, 64
    vectors = np.random.default_rng(1).normal(size=(n, d)).astype(np.float32)
    pool, path = [candidate(f"c{i}") for i in range(n)], tmp_path / "i"
    write_index(path, pool, vectors, fingerprint="f", model="m", precision=precision)
    want = pack(vectors, precision)[:]
    with LocalWriter(path) as writer:
        writer.add([candidate("more")], vectors[:1])
        with open_index(path) as index:
            assert (index.precision, index.info()["precision"]) == (precision, precision)
            assert index.info()["bytes"]["vectors"] == (n + 1) * d * 4 * share
            first, second = index.blocks()
            np.testing.assert_array_equal(first.vectors[:], want)
            np.testing.assert_array_equal(second.vectors, want[:1])
        writer.compact()
        writer.snapshot(tmp_path / "copy")
    with open_index(tmp_path / "copy") as index:
        (block,) = index.blocks()
        np.testing.assert_array_equal(block.vectors[:], np.concatenate([want, want[:1]]))
        write_index(tmp_path / "again", pool, block.vectors[:n], fingerprint="f", model="m", precision=precision)
    with open_index(tmp_path / "again") as index:
        np.testing.assert_array_equal(index.blocks()[0].vectors[:], want)
    (matrix,) = path.glob("matrix-*")
    assert sum(p.stat().st_size for p in matrix.glob("*s.npy")) < (n + 1) * (d * 4 * share + 8) + 400
    assert verify_index(path) == []
    for part in matrix.glob("*.npy"):
        data = part.read_bytes()
        part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ArtifactError, match=f"{part.name} is damaged"):
            open_index(path)
        part.write_bytes(data)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["flat", "sq8", "hnsw", "auto"])
def test_an_inner_product_index_is_stored_with_the_matrix(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("faiss")
    n = 1500
    pool = [candidate(f"c{i}") for i in range(n)]
    vectors = np.random.default_rng(3).normal(size=(n, 16)).astype(np.float32)
    write_index(tmp_path / "i", pool, vectors, fingerprint="f", model="m", ann=kind)
    queries, mask = np.random.default_rng(4).normal(size=(1, 3, 16)).astype(np.float32), np.ones((1, 3), np.bool_)
    with LocalWriter(tmp_path / "i") as writer, open_index(tmp_path / "i") as index:
        for _ in range(2):
            blocks, indexes = index.view()
            assert len(indexes) == len(blocks)
            assert indexes[0] is not None
            assert indexes[0].exact == (kind in ("flat", "auto"))
            truth = search(queries, mask, blocks, 5)[0]
            near = search(queries, mask, blocks, 5, mode="approximate", indexes=indexes)[0]
            assert truth.exact
            assert len(set(near.rows.tolist()) & set(truth.rows.tolist())) >= 4
            # the best is removed and a better one added: the search scans the tail and skips removed rows
            writer.remove([index.candidates(truth.rows[:1].tolist())[0].id])
            writer.add([candidate(f"best {index.change}")], 9 * queries[0, :1])
            index.refresh()
            blocks, indexes = index.view()
            near = search(queries, mask, blocks, 5, mode="approximate", indexes=indexes)[0]
            assert near.rows[0] == blocks[-1].rows[-1]
            assert truth.rows[0] not in near.rows
            writer.compact()
            index.close()
            index = open_index(tmp_path / "i")  # the next round uses the new matrix
    assert verify_index(tmp_path / "i") == []
    (place,) = (tmp_path / "i").glob("matrix-*/products.ann")
    data = place.read_bytes()
    place.write_bytes(data[:-3] + b"xxx")
    with pytest.raises(ArtifactError, match=r"products\.ann is damaged"):
        open_index(tmp_path / "i")


@pytest.mark.parametrize("kind", ["sq8", "ivfpq", "hnsw", "flat"])
def test_few_vectors_are_compared_exactly_instead_of_by_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("faiss")
    for module in (ann_module, matrix_module):
        monkeypatch.setattr(module, "CODES_FROM", 40)
    for n, has_codes in ((39, False), (40, True), (41, True)):
        pool, path = [candidate(f"c{i}") for i in range(n)], tmp_path / f"{n}"
        write_index(path, pool, np.random.default_rng(n).normal(size=(n, 8)), fingerprint="f", model="m", ann=kind)
        with open_index(path) as index:
            _, (ann,) = index.view()
            assert ann.kind == (kind if has_codes or kind == "hnsw" else "flat")
            assert index.info()["ann"] == kind


@pytest.mark.parametrize(("n", "n_stale", "due"), [(100, 20, False), (100, 22, True), (6, 10, False), (6, 12, True)])
def test_a_matrix_is_rebuilt_after_enough_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, n_stale: int, due: bool
) -> None:
    """More than a fifth of the live rows, and more than ten here; a candidate that is replaced or removed is two."""
    monkeypatch.setattr(writer_module, "MIN_STALE", 10)
    path = small(tmp_path / "i", n)
    matrices = {place.name for place in path.glob("matrix-*")}
    with LocalWriter(path) as writer:
        for i in range(n_stale // 4):
            writer.add([candidate(f"n{i}")], vector(i)[None])
            writer.remove([f"n{i}"])
        for i in range(n_stale // 2 - n_stale // 4):
            writer.add([candidate("c0", 1 + i)], vector(i)[None], replace=True)
    assert ({place.name for place in path.glob("matrix-*")} != matrices) == due
    assert verify_index(path) == []


@pytest.mark.parametrize("kinds", ["aaaaaa", "rrrrrr", "arrara"])
def test_changes_of_earlier_writers_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str) -> None:
    """Added and removed candidates."""
    monkeypatch.setattr(writer_module, "MIN_STALE", 5)
    path = small(tmp_path / "i", 8)
    matrices = {place.name for place in path.glob("matrix-*")}
    for turn, kind in enumerate(kinds):
        assert {place.name for place in path.glob("matrix-*")} == matrices
        with LocalWriter(path) as writer:
            if kind == "a":
                writer.add([candidate(f"n{turn}")], vector(turn)[None])
            else:
                writer.remove([f"c{turn}"])
    assert {place.name for place in path.glob("matrix-*")} != matrices


def test_many_small_additions_are_joined_into_one_block(tmp_path: Path) -> None:
    """Without removed rows; row numbers, vectors and their order stay."""
    path = small(tmp_path / "i", 2)
    with LocalWriter(path) as writer, open_index(path) as index:
        want = {f"c{i}": (candidate(f"c{i}"), stored(vector(i), "fp32")) for i in range(2)}
        sizes = []
        for i in range(20):
            writer.add([candidate(f"n{i}")], vector(50 + i)[None])
            want[f"n{i}"] = (candidate(f"n{i}"), stored(vector(50 + i), "fp32"))
            if i % 4 == 3:
                writer.remove([f"n{i - 2}"])
                del want[f"n{i - 2}"]
            assert index.refresh()
            assert content(index) == want
            rows = np.concatenate([block.rows for block in index.blocks()])
            assert (np.diff(rows) > 0).all()
            sizes.append(len(index.blocks()))
        assert max(sizes) == 8
        assert sizes[7] == 2  # the first of two, and eight joined ones
        assert len(index.view()[1]) == len(index.blocks())


def test_later_changes_do_not_affect_an_earlier_view(tmp_path: Path) -> None:
    """A search may still use it: of the matrix and of added rows, removed in several changes, filtered or not."""
    path, condition = small(tmp_path / "i", 6), read_filter("version = 0")
    with LocalWriter(path) as writer, open_index(path) as index:
        writer.add([candidate(f"n{i}") for i in range(6)], np.stack([vector(9 + i) for i in range(6)]))
        seen, wanted, left = [], [], [*range(1, 13)]
        for name, row in (("c1", 2), ("n2", 9), ("c4", 5), ("n0", 7), ("c0", 1)):
            writer.remove([name])
            left.remove(row)
            index.refresh()
            seen += [index.blocks(), index.view(condition)[0]]
            wanted += [left.copy()] * 2
    live = [np.concatenate([block.rows if block.alive is None else block.rows[block.alive] for block in blocks])
            for blocks in seen]  # fmt: skip
    assert [rows.tolist() for rows in live] == wanted


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    with LocalWriter(path) as writer, open_index(path) as index:
        writer.close()
        index.close()


def test_small_additions_do_not_copy_a_large_one(tmp_path: Path) -> None:
    """Copying it would also discard what searches have derived from its vectors."""
    with LocalWriter(small(tmp_path / "i")) as writer, open_index(tmp_path / "i") as index:
        writer.add([candidate(f"many{i}") for i in range(50)], np.stack([vector(i) for i in range(50)]))
        index.refresh()
        large = index.blocks()[1].vectors
        for i in range(20):
            writer.add([candidate(f"n{i}")], vector(i)[None])
            index.refresh()
            assert index.blocks()[1].vectors is large
            assert len(index.blocks()) <= 8
        assert len(content(index)) == 73


def refresh_matrix(index: Index) -> None:
    """Refresh the index before and after the verification of a compaction's matrix; its candidates are the same."""
    assert not index.refresh()
    for thread in threading.enumerate():
        if thread.name == "polyrank-verification":
            thread.join()
    assert not index.refresh()


def test_searches_do_not_wait_for_the_verification_of_a_new_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, released = small(tmp_path / "i"), threading.Event()
    with LocalWriter(path) as writer, open_index(path) as index:
        writer.add([candidate("a")], vector(40)[None])
        index.refresh()
        verified = matrix_module.verified
        monkeypatch.setattr(matrix_module, "verified", lambda *part: released.wait(10) and verified(*part))
        writer.compact()
        assert not index.refresh()
        assert index.info()["blocks"] == [3, 1]
        writer.add([candidate("b")], vector(41)[None])
        writer.remove(["c0"])
        assert index.refresh()
        assert len(content(index)) == 4
        released.set()
        refresh_matrix(index)
        assert index.info()["blocks"] == [4, 1]
        assert len(content(index)) == 4


def test_an_open_index_uses_the_matrix_of_a_compaction(tmp_path: Path) -> None:
    """Rows in memory and removed rows go, also those that filters have kept."""
    path, condition = small(tmp_path / "i", 30, "int8"), read_filter("version >= 0")
    with LocalWriter(path) as writer, open_index(path) as index, open_catalogue(path) as catalogue:
        index.view(condition)
        writer.add([candidate("a", 1)], vector(40)[None])
        writer.remove(["c3"])
        index.refresh()
        catalogue.refresh()
        old = weakref.ref(index.blocks()[0].vectors)
        view, want = index.view(condition), content(index)
        writer.compact()
        refresh_matrix(index)
        assert not catalogue.refresh()
        assert [type(block.vectors) for block in index.blocks()] == [PackedVectors]
        assert (index.info()["blocks"], index.blocks()[0].alive) == ([30], None)
        del view
        gc.collect()
        assert old() is None
        assert content(index) == want
        assert len(index.rows_where(condition)) == 30
        writer.add([candidate("b", 1)], vector(41)[None])
        assert index.refresh()
        assert index.info()["blocks"] == [30, 1]


def test_an_open_index_continues_if_a_new_matrix_is_damaged(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    with LocalWriter(path) as writer, open_index(path) as index:
        writer.add([candidate("a")], vector(40)[None])
        index.refresh()
        want = content(index)
        writer.compact()
        (vectors,) = path.glob("matrix-*/vectors.npy")
        vectors.write_bytes(vectors.read_bytes()[:-1] + b"x")
        refresh_matrix(index)
        assert content(index) == want
        writer.remove(["a"])
        assert index.refresh()
        assert len(content(index)) == 3


def test_the_description_of_an_index(tmp_path: Path) -> None:
    path = small(tmp_path / "i", 3)
    with LocalWriter(path) as writer, open_index(path) as index:
        assert (writer.change, writer.fingerprint, len(writer)) == (1, "f" * 64, 3)
        assert writer.add([candidate("a"), candidate("b")], np.ones((2, D), np.float32)) == 2
        assert writer.remove(["a", "c0", "c0", "never"]) == 2
        assert writer.remove(["never"]) == 0
        assert (writer.change, len(writer)) == (3, 3)
        assert (index.change, len(index)) == (1, 3)
        assert index.refresh()
        assert not index.refresh()
        known = index.info()
    assert (index.fingerprint, index.model, index.dimension, index.change) == ("f" * 64, "somewhere", D, 3)
    assert {key: known[key] for key in ("format", "n", "dimension", "change", "ann", "precision", "blocks")} == {
        "format": 4, "n": 3, "dimension": D, "change": 3, "ann": "", "precision": "fp32", "blocks": [3, 1]
    }  # fmt: skip
    assert known["bytes"]["vectors"] == 3 * D * 4
    assert known["bytes"][INDEX_FILE] == (path / INDEX_FILE).stat().st_size


def test_counts_are_those_of_the_rows_in_any_order(tmp_path: Path) -> None:
    """Each row is read once, and those that were removed, before or after, count nothing."""
    values: list[Any] = [3, True, None, "7", 2.5, False, [4], 0, -1, {"count": 2}, "x", "true", 9, 2**40]
    pool = [Candidate(f"c{i}", f"text {i}", {"count": value}) for i, value in enumerate(values)]
    pool += [Candidate("none", "no count"), Candidate("other", "text", {"n": {"count": 5}})]
    wanted = dict(enumerate([as_count(one.metadata.get("count")) for one in pool], 1))
    path = tmp_path / "i"
    write_index(path, pool, np.ones((len(pool), D), np.float32), fingerprint="f", model="m")
    counts, order = RowCounts(path), np.random.default_rng(1)
    with LocalWriter(path) as writer:
        for step in range(4):
            with closing(store.connect(path, write=False)) as connection:
                meta = store.read_meta(connection, path)
            rows = order.permutation(np.array([*range(len(wanted) + 6), *wanted], np.int64))
            assert counts.of_rows(rows, meta).tolist() == [wanted.get(row, 0.0) for row in rows.tolist()]
            assert RowCounts(path).of_rows(rows[:0], meta).tolist() == []
            gone = [f"c{step * 3}", f"n{step - 1}"]
            writer.remove(gone)
            writer.add(
                [Candidate(f"n{step}", "new", {"count": step + 1}), Candidate(f"m{step}", "new")], np.ones((2, D))
            )
            last = max(wanted) if step else len(pool)
            wanted |= {last + 1: step + 1.0, last + 2: 0.0}
            fresh = RowCounts(path)  # which has not seen the removed ones
            with pytest.raises(ArtifactError, match="has changed since it was last read; search again"):
                fresh.of_rows(rows, meta)
    with closing(store.connect(path, write=False)) as connection:
        meta = store.read_meta(connection, path)
        live = [row for (row,) in connection.execute("SELECT row FROM candidates ORDER BY row")]
    rows = np.arange(max(live) + 3)
    assert RowCounts(path).of_rows(rows, meta).tolist() == [
        wanted.get(r, 0.0) if r in live else 0.0 for r in rows.tolist()
    ]


def test_the_digest_is_the_sum_of_rows_modulo_2_to_the_256(tmp_path: Path) -> None:
    path = small(tmp_path / "i", 11)
    connection = sqlite3.connect(path / INDEX_FILE)
    total = sum(int.from_bytes(row, "little") for (row,) in connection.execute("SELECT digest FROM candidates"))
    ((stored_digest,),) = connection.execute("SELECT value FROM meta WHERE key = 'digest'")
    connection.close()
    assert total >> 256 & 1  # so that a modulus of 2^257 or none would differ
    assert int(stored_digest) == total % 2**256


def test_a_damaged_index_is_not_left_open(tmp_path: Path) -> None:
    path = small(tmp_path / "i")
    connection = sqlite3.connect(path / INDEX_FILE)
    with connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'n'")
    connection.close()
    with pytest.raises(ArtifactError) as refused:  # its traceback holds references
        open_index(path)
    assert files_open_in(path) == []
    assert refused.tb is not None


def test_row_numbers_are_never_reused(tmp_path: Path) -> None:
    path = small(tmp_path / "i", 3)
    with LocalWriter(path) as writer:
        writer.remove(["c2"])
        writer.add([candidate("d")], vector(4)[None])
        writer.compact()
    with LocalWriter(path) as writer:
        writer.remove(["d"])
        writer.add([candidate("e"), candidate("f")], np.ones((2, D), np.float32))
    with open_index(path) as index:
        assert {c.id: row for row, c in index.iter_candidates()} == {"c0": 1, "c1": 2, "e": 5, "f": 6}
        assert [c.id for c in index.candidates([6, 1, 5, 1])] == ["f", "c0", "e", "c0"]
        with pytest.raises(ArtifactError, match="was replaced by another index"):
            index.candidates([1], opening=index.opening + 1)
        assert index.candidates([1], opening=index.opening)[0].id == "c0"


def nested(depth: int) -> Any:
    """Lists and dictionaries in each other."""
    inner: Any = "x"
    for level in range(depth):
        inner = {"a": inner} if level % 2 else [inner]
    return inner


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (Candidate("a", "x" * 100_000), ""),
        (Candidate("a", "x" * 100_001), "its text has 100,001 characters, the limit is 100,000"),
        (Candidate("a", " \n\t"), "its text is empty"),
        (Candidate("\ud800", "x"), "it cannot be written as JSON"),
        (Candidate("a", "x", {"m": float("nan")}), "it cannot be written as JSON"),
        (Candidate("a", "x", {"m": {1, 2}}), "it cannot be written as JSON"),
        (Candidate("a", "x", {"m": "[" * 500}), ""),
        (Candidate("a", "x", {"m": nested(15), "n": nested(9)}), ""),
        (Candidate("a", "x", {"m": nested(9), "n": nested(16)}), "its metadata are nested deeper than 16 levels"),
        (Candidate("a", "x", {"m": "é" + "x" * 65_525}), ""),  # with {"m": ""}, the largest
        (Candidate("a", "x", {"m": "é" + "x" * 65_526}), "its metadata have 65,537 bytes as JSON, the limit is 65,536"),
        (Candidate("a", "x", {f"{i}": {} for i in range(300)}), ""),
    ],
)
def test_candidates_are_accepted_or_named(given: Candidate, fault: str) -> None:
    found = candidate_faults([candidate("first"), given])
    assert set(found) == ({1} if fault else set())
    assert fault in found.get(1, "")


def test_the_first_five_faults_are_named_and_the_others_counted() -> None:
    for n in (1, 5, 6, 9):
        with pytest.raises(DataError) as caught:
            refuse(dict.fromkeys(reversed(range(10, 10 + n)), "bad"))
        said = str(caught.value)
        assert [f"candidate {10 + i}: bad" in said for i in range(n)] == [i < 5 for i in range(n)]
        assert (f"and {n - 5} more" in said) == (n > 5)
        assert ("more" in said) == (n > 5)
    refuse({})


def test_vectors_that_cannot_be_searched_are_named_by_row() -> None:
    rows = np.zeros((8, 3), np.float32)
    rows[1, 2], rows[2, 0], rows[3, 1], rows[4, 1] = 1e-30, -1e-30, np.nan, np.inf
    rows[5], rows[6, :2] = -np.inf, (-1, 1)
    found = vector_faults(rows)
    assert {place: text.split()[-1] for place, text in found.items()} == {
        0: "zero", 7: "zero", 3: "infinity", 4: "infinity", 5: "infinity"
    }  # fmt: skip
    huge, faults = as_vectors(np.array([[1e300, 1.0]]), 1, None)  # type: ignore[arg-type]
    assert (faults, set(vector_faults(huge))) == ({}, {0})


def test_rows_of_other_lengths_are_named_and_the_others_kept() -> None:
    rows: list[Any] = [np.ones(3), np.ones(2), np.ones((1, 3)), [1.0, 2.0, 3.0]]
    array, faults = as_vectors(rows, 4, None)
    assert (array.shape, array.dtype, set(faults)) == ((4, 3), np.dtype("<f4"), {1, 2})
    assert "its vector has shape (2,), this index needs (3,)" in faults[1]
    assert array[3].tolist() == [1, 2, 3]
    array, faults = as_vectors(np.ones((2, 3), np.float32), 2, 4)
    assert (array.shape, set(faults)) == ((2, 4), {0, 1})
    assert faults[1] == "its vector has 3 numbers, this index needs 4"
    assert as_vectors([], 0, 5)[0].shape == (0, 5)
    with pytest.raises(DataError, match=r"2 candidates have vectors of shape \(3,\)"):
        as_vectors(rows[:3], 2, None)


def test_unsorted_rows_in_a_matrix_are_detected(tmp_path: Path) -> None:
    """Although every checksum is right, since readers use binary search on rows."""
    meta = store.Meta("f", "m", dimension=D, n=3)
    for rows, sound in (([1, 2, 5], True), ([1, 5, 2], False), ([1, 2, 2], False)):
        write_matrix(tmp_path / "m", ((row, vector(row).tobytes()) for row in rows), meta)
        assert (_problems_of(tmp_path / "m") == []) == sound
        assert open_matrix(tmp_path / "m").block.rows.tolist() == rows
        shutil.rmtree(tmp_path / "m")


def test_a_matrix_of_another_index_is_refused(tmp_path: Path) -> None:
    """A matrix of another change, or with another dimension."""
    path, other, wide = small(tmp_path / "i"), small(tmp_path / "other"), tmp_path / "wide"
    with LocalWriter(other) as writer:
        writer.remove(["c0"])
        writer.compact()
    pool = [candidate(f"c{i}") for i in range(3)]
    write_index(wide, pool, np.ones((3, D + 1), np.float32), fingerprint="f", model="m")
    (place,) = path.glob("matrix-*")
    shutil.copytree(place, tmp_path / "kept")
    for foreign in (other, wide, tmp_path / "kept"):
        (source,) = foreign.glob("matrix-*") if foreign != tmp_path / "kept" else (foreign,)
        shutil.rmtree(place)
        shutil.copytree(source, place)
        if foreign == tmp_path / "kept":
            assert len(query_all(path)[0]) == 3
        else:
            with pytest.raises(ArtifactError, match="belongs to another index"):
                open_index(path)
            assert verify_index(path)


def test_a_missing_part_of_a_matrix_is_named(tmp_path: Path) -> None:
    path = small(tmp_path / "i", precision="int8")
    (matrix,) = path.glob("matrix-*")
    for part in sorted(matrix.iterdir()):
        data = part.read_bytes()
        part.unlink()
        with pytest.raises(ArtifactError, match=f"{part.name} cannot be read"):
            open_index(path)
        assert any(part.name in problem for problem in verify_index(path))
        part.write_bytes(data)
    assert verify_index(path) == []
    with pytest.raises(FileNotFoundError):
        open_matrix(tmp_path / "none")
