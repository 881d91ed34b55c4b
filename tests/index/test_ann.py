"""Inner-product indexes: exact ones equal brute force, others approximate it; damaged files are refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyrank.errors import ArtifactError, MissingExtraError, UsageError
from polyrank.index.local.ann import CODES_FROM, Kind, build_ann, choose_kind, read_ann

KINDS: list[Kind] = ["flat", "sq8", "ivfpq", "hnsw"]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Clustered vectors, like those of texts."""
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((30, 16)) * 2
    return (centres[rng.integers(30, size=3000)] + rng.standard_normal((3000, 16))).astype(np.float32)


@pytest.fixture(scope="module")
def queries(vectors: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(6)
    return (vectors[rng.integers(3000, size=20)] + 0.5 * rng.standard_normal((20, 16))).astype(np.float32)


def true_best(vectors: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(queries.astype(np.float64) @ vectors.T), axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("kind", KINDS)
def test_search_returns_the_best(kind: Kind, vectors: np.ndarray, queries: np.ndarray) -> None:
    ann = build_ann(vectors, kind)
    products, places = ann.search(queries, 10)
    truth = true_best(vectors, queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(places.tolist(), truth.tolist(), strict=True)])
    assert len(ann) == 3000
    assert recall == 1.0 if ann.exact else recall >= 0.9
    assert (np.diff(products, axis=1) <= 0).all()
    close = 1e-4 if ann.exact else 0.05
    np.testing.assert_allclose(products, np.take_along_axis(queries @ vectors.T, places, 1), rtol=close, atol=close)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reloaded_index_returns_the_same(
    kind: Kind, vectors: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    ann = build_ann(vectors, kind)
    for again in (read_ann(ann.to_bytes()), build_ann(vectors, kind)):
        assert (again.kind, again.exact) == (kind, kind == "flat")
        for own, theirs in zip(ann.search(queries, 7), again.search(queries, 7), strict=True):
            np.testing.assert_array_equal(own, theirs)


def test_the_same_vectors_write_the_same_bytes(vectors: np.ndarray) -> None:
    assert build_ann(vectors, "hnsw").to_bytes() == build_ann(vectors, "hnsw").to_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_added_in_parts(kind: Kind, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_ann(vectors[:1700], kind)
    monkeypatch.setattr("polyrank.index.local.ann.ROWS_AT_A_TIME", 500)
    parts = build_ann(vectors[:1700], kind)
    assert len(parts) == 1700
    for found, wanted in zip(parts.search(vectors[1690:1700], 9), whole.search(vectors[1690:1700], 9), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_graph_is_searched_more_widely_than_a_long_list(vectors: np.ndarray, queries: np.ndarray) -> None:
    _, places = build_ann(vectors, "hnsw").search(queries, 400)
    recall = [len({*a} & {*b}) / 400 for a, b in zip(places.tolist(), true_best(vectors, queries, 400), strict=True)]
    assert np.mean(recall) >= 0.9


def test_few_and_no_vectors(vectors: np.ndarray) -> None:
    products, places = build_ann(vectors[:3]).search(vectors[:2], 10)
    assert products.shape == places.shape == (2, 3)
    products, places = build_ann(vectors[:0]).search(vectors[:2], 10)
    assert products.shape == places.shape == (2, 0)


def test_the_number_of_threads_is_restored(vectors: np.ndarray) -> None:
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        build_ann(vectors[:300], "hnsw")
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


def test_the_default_kind_depends_on_the_size() -> None:
    assert [choose_kind(n) for n in (0, 20_000, 20_001, 300_000)] == ["flat", "flat", "hnsw", "hnsw"]
    assert choose_kind(300_001) == "ivfpq"


def test_every_damaged_byte_is_detected(vectors: np.ndarray) -> None:
    data = build_ann(vectors[:4], "flat").to_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ArtifactError):
            read_ann(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(ArtifactError):
            read_ann(data[:length])


def test_codes_are_trained_from_their_least_number_on(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.index.local.ann.CODES_FROM", 50)
    assert build_ann(vectors[:50], "sq8").search(vectors[:1], 2)[1].shape == (1, 2)
    with pytest.raises(UsageError, match="use flat below 50"):
        build_ann(vectors[:49], "sq8")


def test_bad_input(vectors: np.ndarray) -> None:
    with pytest.raises(UsageError, match="kind 'tree' is unknown"):
        build_ann(vectors, "tree")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"use flat below {CODES_FROM}"):
        build_ann(vectors[:5], "ivfpq")
    ann = build_ann(vectors[:5])
    with pytest.raises(UsageError, match=r"needs \[M, 16\]"):
        ann.search(vectors[:, :3], 1)
    with pytest.raises(UsageError, match="k is 0"):
        ann.search(vectors, 0)


@pytest.mark.deep
def test_without_the_library_the_error_names_the_remedy() -> None:
    code = (
        "import sys; sys.modules['faiss'] = None\n"
        "import numpy as np; from polyrank.index.local.ann import build_ann\n"
        "from polyrank.errors import MissingExtraError\n"
        "try: build_ann(np.ones((2, 2), np.float32))\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "polyrank[faiss]"' in done.stdout
    assert issubclass(MissingExtraError, UsageError)
