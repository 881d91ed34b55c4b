"""The table of two stages, runs/stages.py: its figures are right. Tests assert no speed."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Context, Example

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from stages import LexicalRetriever, measure, plot, short_names

TEXTS = [f"please restart the router number {i} and call again" for i in range(120)]


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


def test_stages_with_a_perfect_reranker(tmp_path: Path) -> None:
    """It ranks the right answer first if the shortlist holds it: longer lists are better, never worse than alone."""
    pool = [Candidate(f"c{i}", text) for i, text in enumerate(TEXTS)]
    # the right answer of context i has the words of all others; only its number differs, which belongs to another one
    examples = [Example((f"restart the router number {i}",), relevant_ids=(f"c{(i + 7) % 120}",)) for i in range(12)]
    right = {e.context[0]: TEXTS[(i + 7) % 120] for i, e in enumerate(examples)}
    retriever = LexicalRetriever(pool)
    rows = measure(
        {"bm25": retriever}, {"oracle": Oracle(right)}, examples, lengths=(5, 20, 120), combine=("none", "z-score")
    )["rows"]
    table = {(row["form"], row["n"]): row for row in rows}
    assert table["alone", 0]["hits@1"] == 0
    assert table["oracle", 120]["hits@1"] == table["oracle", 120]["MRR"] == 1
    hits = [table["oracle", n]["hits@1"] for n in (5, 20, 120)]
    places = [{reply.id for reply in retriever.respond([e.query], 20)[0]} for e in examples]
    assert hits[1] == np.mean([e.relevant_ids[0] in found for e, found in zip(examples, places, strict=True)])
    assert hits == sorted(hits)
    assert ("oracle + z-score", 20) in table
    gain = table["oracle", 20]["gain"]
    assert gain["low"] <= gain["mean"] == hits[1] <= gain["high"]
    assert table["oracle + z-score", 120]["over_first"]["mean"] == table["oracle + z-score", 120]["hits@1"] - 1
    assert "gain" not in table["alone", 0]
    assert table["oracle", 5]["hits@50"] >= table["alone", 0]["hits@5"]
    plot(rows, tmp_path / "stages.svg")
    assert (tmp_path / "stages.svg").read_text().startswith("<?xml")
    with pytest.raises(DataError, match="has no right answer"):
        measure({"bm25": retriever}, {}, [Example(("hello",), id="e7")])
    with pytest.raises(UsageError, match="no retriever"):
        measure({}, {}, examples)


def test_models_of_one_name_are_distinguished() -> None:
    names = short_names(["a/run/model", "b/model", "bm25"], "bm25")
    assert names == {
        "a/run/model": "run",
        "b/model": "b",
        "bm25": "bm25",
    }
    assert list(short_names(["e1/run/model", "e2/run/model"]).values()) == ["e1/run/model", "e2/run/model"]
