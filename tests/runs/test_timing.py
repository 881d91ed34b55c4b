"""Rows of the timing scripts apart from their times: which forms, and how figures depend on each other."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from polyrank.errors import UsageError
from polyrank.records import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from peers.encoding import Peer, bench_encoding
from peers.training import LIKE_LENGTHS, bench_training
from timing.filters import time_filters
from timing.respond import bench_responding
from timing.scoring import CHUNK, Papers, bench_scoring, make_inputs
from timing.search import time_search

WORDS = ("restart", "the", "router", "bill", "light", "red")
TEXTS = [f"please {WORDS[i % 6]} the {WORDS[i // 6 % 6]} {i}" for i in range(110)]


def check_ratios(
    rows: Sequence[dict[str, Any]], usual: dict[str, Any], key: str = "ratio", digits: int = 2, half: float = 0.0006
) -> None:
    """The ratio is the usual form's time over each row's, within the rounding of milliseconds by ``half``."""
    for row in rows:
        # small milliseconds have large rounding errors
        low, high = ((usual["ms"] + step) / (row["ms"] - step) for step in (-half, half))
        slack = 0.51 * 10**-digits
        assert low - slack <= row[key] <= high + slack, (row, usual)


# --- scoring ----------------------------------------------------------------------------------------------------------


def test_inputs_match_their_description() -> None:
    context, candidates = make_inputs("isotropic", 5000, 64, 32)
    assert (context.shape, candidates.shape) == ((32, 64), (5000, 64))
    assert (candidates @ context.T).std() == pytest.approx(1, rel=0.1)
    wide, _ = make_inputs("wide", 5000, 64, 32)
    np.testing.assert_allclose(wide, context * 8, rtol=1e-6)
    other, _ = make_inputs("wide", 5000, 64, 32, seed=1)
    assert not np.allclose(wide, other)
    context, candidates = make_inputs("trained", CHUNK + 2000, 64, 400)
    norms = np.linalg.norm(candidates, axis=1)
    assert norms[:CHUNK].mean() == pytest.approx(5.5, rel=0.02)
    assert norms[CHUNK:].mean() == pytest.approx(5.5, rel=0.02)
    spectrum = np.linalg.svd(candidates, compute_uv=False) ** 2
    falling = 1 / (np.arange(64) + 8.0)
    np.testing.assert_allclose(spectrum / spectrum.sum(), falling / falling.sum(), rtol=0.15)
    mean = context.mean(0)
    assert np.linalg.norm(mean) == pytest.approx(3.3, rel=0.01)
    away = context - mean
    assert np.sqrt((away**2).sum(1).mean()) == pytest.approx(0.05 * 3.3, rel=0.05)
    values = np.linalg.svd(away, compute_uv=False)
    assert values[15] > 1e-4 > values[16]  # 16 directions with falling scales
    middle = candidates[len(candidates) // 2]
    assert middle @ mean / np.linalg.norm(middle) / np.linalg.norm(mean) > 0.6


@pytest.mark.parametrize(("n", "k"), [(CHUNK + 700, 10), (4, 4)])
def test_the_papers_form_equals_the_formula(n: int, k: int) -> None:
    generator = np.random.default_rng(5)
    context, candidates = generator.standard_normal((3, 8), np.float32), generator.standard_normal((n, 8), np.float32)
    rows, scores = Papers(context, candidates)()
    products = candidates.astype(np.float64) @ context.T.astype(np.float64)
    weights = np.exp(products) / np.exp(products).sum(1, keepdims=True)
    expected = (weights * products).sum(1)
    assert rows.tolist() == np.argsort(-expected)[:k].tolist()
    np.testing.assert_allclose(scores, expected[rows], atol=1e-4)


def test_rows_of_scoring() -> None:
    reported: list[str] = []
    found = bench_scoring(
        n=300, d=16, vectors=(2, 16), growth=(40, 80), growth_d=24, repeats=3, progress=reported.append
    )
    (flushed,) = (row for row in found["rows"] if row["form"] == "papers, flushed")
    assert (flushed["what"], flushed["recall_at_10"]) == ("wide", 1)
    found["rows"].remove(flushed)
    shapes = [(row["what"], row["n"], row["d"], row["m"]) for row in found["rows"][::3]]
    assert shapes == [
        *((regime, 300, 16, m) for regime in ("isotropic", "trained") for m in (2, 16)),
        ("wide", 300, 16, 16),
        ("growth", 40, 24, 64),
        ("growth", 80, 24, 64),
    ]
    assert reported == [
        *(f"{regime}, 300 candidates, {m} vectors" for regime in ("isotropic", "trained") for m in (2, 16)),
        "wide, 300 candidates, 16 vectors",
        "growth, 40 candidates",
        "growth, 80 candidates",
    ]
    for start in range(0, len(found["rows"]), 3):
        rows = found["rows"][start : start + 3]
        assert [row["form"] for row in rows] == ["papers", "plain", "exact"]
        assert rows[0]["ratio"] == 1
        check_ratios(rows, rows[0])
        assert [row["n_scored"] for row in rows[:2]] == [rows[0]["n"]] * 2
        assert rows[0]["ways"] == ""
        assert rows[1]["ways"] in ("plain", "plain tiles")
        assert all(row["ways"] for row in rows[1:])
        assert all(row["recall_at_10"] == 1 for row in rows)
        limit = 1e-2 if rows[0]["what"] == "wide" else 1e-4
        assert all(0 <= row["max_abs_error"] < limit for row in rows)
        growing = rows[0]["what"] == "growth"
        assert all(("peak_mb" in row) == growing for row in rows)
        if growing and Path("/proc/self/clear_refs").exists():
            assert all(0 <= row["peak_mb"] < 1000 for row in rows if row["peak_mb"] is not None)


@pytest.fixture(scope="module")
def backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny backbone with enough positions for the timed contexts, and layers to join two."""
    folder = tmp_path_factory.mktemp("bench") / "backbone"
    shutil.copytree(tiny_backbone, folder)
    config = BertConfig.from_pretrained(tiny_backbone)
    config.max_position_embeddings, config.num_hidden_layers = 256, 3
    torch.manual_seed(3)
    BertModel(config).save_pretrained(folder)
    return str(folder)


# --- encoding and answers ---------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_rows_of_encoding_with_a_peer(backbone: str) -> None:
    asked: list[tuple[str, ...]] = []

    def encode(texts: Sequence[str]) -> Any:
        asked.append(tuple(texts))
        return np.eye(1, 32, dtype=np.float32).repeat(len(texts), 0)

    def rank(query: str, texts: Sequence[str]) -> Any:
        asked.append((query, *texts))
        return np.zeros(len(texts), np.float32)

    reported: list[str] = []
    peers = {"usual": Peer(encode, rank), "other": Peer(encode, rank)}
    texts = ["hello there", "my bill", "hello there", "thanks"]
    found = bench_encoding(
        texts, n_pairs=3, n_words=4, repeats=2, backbone=backbone, peers=peers, progress=reported.append
    )
    assert reported == ["loading", "encoding 3 texts", "encoding one context", "re-ranking 3 candidates"]
    late = [row for row in found["rows"] if "late Cross-encoder" in row["form"]]
    assert [row["form"] for row in late] == ["late Cross-encoder", "Bi-encoder and late Cross-encoder"]
    assert {(row["what"], row["n"], row["max_abs_error"]) for row in late} == {("rerank", 3, None)}
    rows = [row for row in found["rows"] if row not in late]
    assert [(row["what"], row["n"], row["d"], row["m"], row["form"]) for row in rows] == [
        (what, n, 32, 1, form)
        for what, n in (("bulk", 3), ("context", 1), ("rerank", 3))
        for form in ("polyrank", "usual", "other")
    ]
    for start in (0, 3, 6):
        check_ratios(rows[start : start + 3], rows[start + 1])
    for row in rows[::3]:  # the other rows have no times
        assert row["per_second"] == pytest.approx(1e3 * row["n"] / row["ms"], rel=0.01, abs=0.1)
    errors = [row["max_abs_error"] for row in rows]
    assert all(error is not None and error < 0.02 for error in errors[::3])
    assert errors[2::3] == [None] * 3  # only the default form has the same network, and none the same head
    assert errors[7] is None
    assert errors[1] > 0.5
    assert errors[4] > 0.5
    turn = "hello there my bill"
    # each peer runs once to warm up and in each of two rounds, on one context in eight
    assert asked == [
        *[tuple(dict.fromkeys(texts))] * 6, *[(turn,)] * 18, *[(turn, "hello there", "my bill", "hello there")] * 6,
    ]  # fmt: skip
    assert found["left_out"] == []


@pytest.mark.deep
def test_rows_of_answers(backbone: str) -> None:
    reported: list[str] = []
    found = bench_responding(
        TEXTS, sizes=(100, 250), kinds=("Bi", "Poly-16", "Cross"), backbone=backbone, n_words=12, repeats=2,
        progress=reported.append,
    )  # fmt: skip
    assert reported == ["making a Bi", "making a Poly-16", "making a Cross", "round 1 of 2", "round 2 of 2"]
    rows = {(row["form"], row["n"]): row for row in found["rows"]}
    shapes = {"Bi": 1, "Bi, papers": 1, "Poly-16": 16, "Poly-16, papers": 16, "Cross": 0}
    assert set(rows) == {(form, n) for form in shapes for n in (100, 250)}
    for (form, n), row in rows.items():
        assert (row["what"], row["m"], row["d"]) == ("respond", shapes[form], 32)
        assert row["extrapolated"] == (form == "Cross" and n == 250)
        cross = rows["Cross", n]
        check_ratios([row], {"ms": cross["ms"]}, digits=1, half=0.0051) if row["ms"] > 1 else None
        if form == "Cross":
            assert (row["encode_ms"], row["papers_ratio"], row["max_abs_error"]) == (0, None, None)
            continue
        assert 0 < row["encode_ms"] < row["ms"]
        usual = rows[form.removesuffix(", papers") + ", papers", n]
        assert row["papers_ratio"] == pytest.approx(usual["ms"] / row["ms"], rel=0.1, abs=0.006)
        assert row["papers_ratio"] == round(row["papers_ratio"], 2)
        assert row["max_abs_error"] == 0 if form == usual["form"] else row["max_abs_error"] < 0.5
    assert rows["Cross", 100]["ratio"] == rows["Cross", 250]["ratio"] == 1


# --- stored indexes ---------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_rows_of_a_stored_index(tmp_path: Path) -> None:
    reported: list[str] = []
    found = time_search(sizes=(40, 700), d=8, m=3, ann="none", n_queries=3, folder=tmp_path, progress=reported.append)
    assert reported == [
        message
        for n in (40, 700)
        for message in (
            f"building {n} candidates", *(f"{mode} search of {n}" for mode in ("plain", "exact", "approximate")),
            "adding and removing",
        )
    ]  # fmt: skip
    names = ["build", "open", "plain", "exact", "approximate"]
    names += ["add 1", "add 100 while searching", "search while adding", "remove 20"]
    assert [(row["n"], row["what"]) for row in found["rows"]] == [(n, name) for n in (40, 700) for name in names]
    for row in found["rows"]:
        assert (row["d"], row["m"], row["form"]) == (8, 3, "scan fp32")
        assert 0 < row["ms"] < 100_000
    for start in (0, 9):
        build, _, plain, exact, approximate = found["rows"][start : start + 5]
        assert build["bytes"] > build["n"] * 8 * 4
        check_ratios([plain, exact, approximate], plain)
        assert plain["ratio"] == 1
        assert plain["n_scored"] == plain["n"]
        for row in (plain, exact, approximate):
            assert (row["recall_at_10"], row["exact"]) == (1, 1)  # an approximate search without an ANN scans
            assert row["ways"]
            assert 10 < row["peak_mb"] < 100_000
        assert plain["ways"] in ("plain", "plain tiles")
    assert list(tmp_path.iterdir()) == []


def test_an_approximate_search_is_not_reported_as_exact(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    rows = time_search(sizes=(300,), d=8, m=2, ann="flat", n_queries=2, folder=tmp_path)["rows"]
    assert [row["form"] for row in rows] == ["flat fp32"] * 9
    assert [row["exact"] for row in rows[2:5]] == [1, 1, 0]


def test_rows_of_filters(tmp_path: Path) -> None:
    reported: list[str] = []
    found = time_filters(n=2000, d=8, m=2, shares=(0.005, 1.0), n_queries=4, folder=tmp_path, progress=reported.append)
    assert reported == ["building 2,000 candidates", "0.5% of them pass", "100.0% of them pass"]
    whats = ["first", "next", "after a change", "without"]
    assert [(row["share"], row["what"], row["n_passing"]) for row in found["rows"]] == [
        (share, what, n) for share, n in ((0.005, 10), (1.0, 2000)) for what in whats
    ]
    for start in (0, 4):
        check_ratios(found["rows"][start : start + 4], found["rows"][start + 3])
    assert {(row["n"], row["d"], row["m"], row["form"]) for row in found["rows"]} == {(2000, 8, 2, "int8")}
    assert all(row["ways"] for row in found["rows"])


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.0015, 1.001, -0.5])
def test_shares_are_multiples_of_a_thousandth(share: float) -> None:
    with pytest.raises(UsageError, match=r"is not a multiple of 0\.001 in 0\.001 to 1; use 0\.001, 0\.002"):
        time_filters(n=1000, d=2, m=1, shares=(0.001, share))


# --- training ---------------------------------------------------------------------------------------------------------


def multiply(examples: Sequence[Example], _folder: Path) -> tuple[list[int], Any]:
    """Another library, as ``bench_training`` starts it in a new process."""
    numbers = torch.ones(100, 100)
    return [len(example.context[0]) for example in examples], lambda batch: numbers @ numbers


@pytest.mark.deep
def test_rows_of_training_with_a_peer(backbone: str) -> None:
    pairs = [Example((f"{'hi ' * i}",), (f"reply {i}",), (0,)) for i in range(1, 6)]
    reported: list[str] = []
    peers = {"usual": multiply}
    found = bench_training(pairs, batch_size=2, repeats=1, backbone=backbone, peers=peers, progress=reported.append)
    forms = ["polyrank", LIKE_LENGTHS, "usual"]
    assert reported == [*(f"starting {form}" for form in forms), *(f"round 1 of 1: {form}" for form in forms)]
    shapes = [(row["what"], row["n"], row["d"], row["m"], row["form"]) for row in found["rows"]]
    assert shapes == [("train", 5, 32, 1, form) for form in forms]
    check_ratios(found["rows"], found["rows"][2])
    for row in found["rows"]:
        assert 0 < row["ms"] < 600_000
        assert row["per_second"] == pytest.approx(5e3 / row["ms"], rel=0.1)
    assert found["load"] == [round(value, 2) for value in found["load"]]
