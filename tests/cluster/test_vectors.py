"""Candidates and their vectors in Parquet files: whole or absent, checked, and an index from them."""

import dataclasses
import doctest
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import polyrank
from polyrank.data.pool import stream_pool
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index import KnownVectors, open_index
from polyrank.records import Candidate
from polyrank_ray import blocks
from polyrank_ray.blocks import (
    Plan,
    _StoredCandidates,
    begin,
    block_file,
    digest,
    index_blocks,
    is_finished,
    read_blocks,
    read_plan,
    write_block,
)

POOL = [Candidate(f"r{i}", f"reply {i} \N{SNOWMAN}", {"n": i, "kind": "odd"} if i % 2 else {}) for i in range(10)]
VECTORS = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
PLAN = Plan("model", "fingerprint", 3, digest(POOL), n=10, block_size=4)


def write(folder: Path, *numbers: int) -> Path:
    begin(folder, PLAN)
    for number in numbers:
        part = PLAN.block(number)
        write_block(folder, PLAN, number, POOL[part], VECTORS[part])
    return folder


def finished(folder: Path) -> list[int]:
    return [n for n in range(PLAN.n_blocks) if is_finished(folder, PLAN, n, POOL[PLAN.block(n)])]


def test_blocks_are_read_back_unchanged(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", 2, 0, 1)
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"block-0000{n}.parquet" for n in range(3)),
        "vectors.json",
    ]
    parts = list(read_blocks(folder))
    assert [candidate for part, _ in parts for candidate in part] == POOL
    assert np.array_equal(np.concatenate([vectors for _, vectors in parts]), VECTORS)
    assert read_plan(folder) == PLAN
    assert [dataclasses.replace(PLAN, n=n).n_blocks for n in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


def test_the_examples_of_docstrings_are_right() -> None:
    failed, tried = doctest.testmod(blocks)
    assert tried > failed == 0


def test_other_programs_can_read_the_files(tmp_path: Path) -> None:
    table = pyarrow.parquet.read_table(block_file(write(tmp_path / "v", 0), 0))
    assert table.column_names == ["id", "text", "metadata", "vector"]
    assert table["metadata"].to_pylist() == [None, '{"n": 1, "kind": "odd"}', None, '{"n": 3, "kind": "odd"}']
    assert table["vector"].to_pylist() == VECTORS[:4].tolist()


def test_a_block_is_finished_only_with_its_own_candidates_encoder_and_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", 0, 1)
    assert finished(folder) == [0, 1]
    assert not is_finished(folder, PLAN, 0, POOL[4:8])
    changed = [dataclasses.replace(POOL[0], metadata={"n": 7}), *POOL[1:4]]
    assert not is_finished(folder, PLAN, 0, changed)
    assert not is_finished(folder, dataclasses.replace(PLAN, fingerprint="another"), 0, POOL[:4])
    block_file(folder, 1).write_bytes(block_file(folder, 1).read_bytes()[:-20])
    assert finished(folder) == [0]


def test_a_folder_of_another_plan_is_refused_with_the_differences(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", 0)
    begin(folder, PLAN)
    assert finished(folder) == [0]
    for changes, words in (
        ({"fingerprint": "another"}, "another encoder;"),
        ({"candidates": "another"}, "another candidates;"),
        ({"block_size": 5}, "another block size;"),
        ({"fingerprint": "another", "block_size": 5}, "another encoder, block size;"),
    ):
        with pytest.raises(ConfigError, match=words):
            begin(folder, dataclasses.replace(PLAN, **changes))
    assert finished(folder) == [0]
    other = dataclasses.replace(PLAN, block_size=5)
    begin(folder, other, overwrite=True)
    assert read_plan(folder) == other
    assert [path.name for path in folder.iterdir()] == ["vectors.json"]


def test_foreign_files_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"already exists|notes\.txt"):
            begin(tmp_path, PLAN, overwrite=overwrite)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_damage_is_named_with_its_remedy(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", 0, 1)
    with pytest.raises(ArtifactError, match=r"block-00002\.parquet is missing; encode again"):
        list(read_blocks(folder))
    write(folder, 2)
    data = bytearray(block_file(folder, 1).read_bytes())
    at = data.index(VECTORS[4:8].tobytes()[:8])  # a bit of a stored number, which only a checksum detects
    data[at] ^= 1
    block_file(folder, 1).write_bytes(data)
    assert finished(folder) == [0, 1, 2]
    with pytest.raises(ArtifactError, match=r"block-00001\.parquet is damaged; delete it and encode again"):
        list(read_blocks(folder))
    with pytest.raises(ArtifactError, match="is not a folder of vectors"):
        read_plan(tmp_path)


def test_an_index_from_blocks_equals_one_built_at_once(tmp_path: Path) -> None:
    encoder = polyrank.load("shipped:convert")
    pool = [Candidate(c.id, c.text, c.metadata) for c in POOL]
    plan = Plan("shipped:convert", encoder.fingerprint, encoder.dimension, digest(pool), len(pool), 4)
    begin(tmp_path / "v", plan)
    for number in range(plan.n_blocks):
        part = pool[plan.block(number)]
        vectors = encoder.encode_candidates([candidate.text for candidate in part])
        write_block(tmp_path / "v", plan, number, part, vectors)
    assert index_blocks(tmp_path / "v", tmp_path / "of-blocks") == 10
    polyrank.build_index(tmp_path / "at-once", encoder, pool)
    with open_index(tmp_path / "of-blocks") as own, open_index(tmp_path / "at-once") as other:
        assert [c for _, c in own.iter_candidates()] == [c for _, c in other.iter_candidates()]
        assert (own.fingerprint, own.model) == (other.fingerprint, other.model)
        for candidate in pool:
            np.testing.assert_allclose(
                KnownVectors(own)[candidate.text], KnownVectors(other)[candidate.text], atol=1e-5
            )
    with pytest.raises(UsageError, match="already exists"):
        index_blocks(tmp_path / "v", tmp_path / "at-once")
    index_blocks(tmp_path / "v", tmp_path / "at-once", precision="int8", ann="flat", overwrite=True)
    assert list((tmp_path / "at-once").glob("matrix-*/products.ann"))
    with open_index(tmp_path / "at-once") as index:
        assert (len(index), index.precision) == (10, "int8")


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest memory that Python allocates during the work."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_the_memory_of_writing_and_indexing_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def encoded(n: int) -> None:
        """Encode as the driver does; all numbers are ones."""
        source = tmp_path / f"{n}.jsonl"
        plan = Plan("m", "f", 8, digest(stream_pool(source)), n, 500)
        begin(tmp_path / f"v{n}", plan)
        rows = stream_pool(source)
        for number in range(plan.n_blocks):
            part = list(islice(rows, 500))
            write_block(tmp_path / f"v{n}", plan, number, part, np.ones((len(part), 8), np.float32))

    sizes = (3000, 12_000)
    for n in sizes:
        rows = (f'{{"id": "r{i}", "text": "reply number {i} of {n}", "topic": "t{i % 7}"}}\n' for i in range(n))
        (tmp_path / f"{n}.jsonl").write_text("".join(rows), "utf-8")
    encoded(sizes[0])  # which imports, and Python would count that
    works: list[Callable[[int], object]] = [encoded, lambda n: index_blocks(tmp_path / f"v{n}", tmp_path / f"i{n}")]
    for work in works:
        few, many = (peak_bytes(partial(work, n)) for n in sizes)
        assert (many - few) / (sizes[1] - sizes[0]) < 120  # bytes: a matrix's rows have less, a candidate has 400
    with open_index(tmp_path / f"i{sizes[1]}") as index:
        assert [c for _, c in index.iter_candidates()] == polyrank.read_pool(tmp_path / f"{sizes[1]}.jsonl")


def test_an_index_is_made_with_one_block_in_memory(tmp_path: Path) -> None:
    candidates = _StoredCandidates(write(tmp_path / "v", 0, 1, 2), PLAN)
    first = weakref.ref(candidates.vectors(0))
    assert first() is candidates.vectors(0)
    assert candidates[3:6] == POOL[3:6]
    assert first() is None


def test_candidates_of_blocks_are_a_sequence(tmp_path: Path) -> None:
    candidates = _StoredCandidates(write(tmp_path / "v", 0, 1, 2), PLAN)
    assert [*candidates] == POOL
    for at in (-1, -10, 3, 4, 9):
        assert candidates[at] == POOL[at]
    for part in (slice(2, 9), slice(None, None, -3), slice(-3, None), slice(0, 0)):
        assert candidates[part] == POOL[part]
    for at in (10, -11):
        with pytest.raises(IndexError):
            candidates[at]
    np.testing.assert_array_equal(np.concatenate([candidates.vectors(n) for n in range(3)]), VECTORS)
    assert digest(POOL) == digest([dataclasses.replace(c, metadata=dict(reversed(c.metadata.items()))) for c in POOL])
    others = [POOL[::-1], POOL[:-1], [*POOL[:-1], dataclasses.replace(POOL[-1], text="x")]]
    assert len({digest(POOL), *map(digest, others)}) == 4


def test_blocks_of_other_candidates_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", 0, 1, 2)
    block_file(folder, 1).replace(block_file(folder, 0))
    write(folder, 1)
    with pytest.raises(ArtifactError, match="holds other candidates than when it was made"):
        index_blocks(folder, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_vectors_are_read_without_ray() -> None:
    code = "import sys, polyrank_ray.blocks; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
