"""``repr`` of objects, and errors of wrong use: polyrank's own messages, never a raw exception."""

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrank
from polyrank.config.recipe import recipe_from_dict
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index import open_index, write_index
from polyrank.records import Candidate, Example, Ranked
from polyrank.scorers.lexical import BM25

POOL = [Candidate("a", "my <wifi>", {"lang": "en"}), Candidate("b", "the bill")]
EXAMPLE = Example(("hi",), ("a", "b"), (0,))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    write_index(tmp_path / "i", POOL, np.eye(2, dtype=np.float32), fingerprint="f", model="m")
    return tmp_path / "i"


def test_an_index_warns_of_candidates_that_rank_reads_in_chunks(
    tiny_encoders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = polyrank.load(str(tiny_encoders["bi"]))
    path, long = tmp_path / "support", Candidate("long", "pay the bill " * 400)
    warned = f"{path} has candidates that are too long: it finds them by their starts"

    def warnings() -> int:
        return sum(record.getMessage().startswith(warned) for record in caplog.records)

    polyrank.build_index(path, encoder, POOL)
    assert warnings() == 0
    with polyrank.open(path) as replies:
        replies.add([long])
        assert warnings() == 1
        replies.add([Candidate("short", "restart")])
    polyrank.build_index(path, encoder, [*POOL, Candidate("other", f"{long.text} x")], overwrite=True)
    assert warnings() == 2
    polyrank.build_index(path, encoder, [*POOL, Candidate("short", "restart")], overwrite=True)
    assert warnings() == 2  # the index no longer has it


def test_an_index_moves_together_with_its_model(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "elsewhere" / "after"
    shutil.copytree(tiny_encoders["bi"], before / "runs" / "model")
    polyrank.build_index(before / "indexes" / "support", str(before / "runs" / "model"), POOL)
    after.parent.mkdir()
    before.rename(after)
    with polyrank.open(after / "indexes" / "support") as replies:
        assert replies.answer("hi").ranked
    was = re.escape(str(after / "runs" / "model"))
    with pytest.raises(UsageError, match=rf"^nowhere does not exist, and .* \(it was built with {was}\); move it"):
        polyrank.open(after / "indexes" / "support", model=Path("nowhere"))
    with pytest.raises(ArtifactError, match=f"{before} is not an index: it does not exist; build an index with"):
        polyrank.open(before)
    shutil.rmtree(after / "runs")
    with pytest.raises(UsageError, match="move it together with the index, or give the folder"):
        polyrank.open(after / "indexes" / "support")


@pytest.mark.parametrize("name", ["bi", "cross"])
def test_a_scorer_is_pickled_by_its_name(tiny_encoders: dict[str, Path], name: str) -> None:
    scorer = polyrank.load(str(tiny_encoders["bi"]) if name == "bi" else "bm25")
    (before,) = scorer.score(["hello hi"], [["pay the bill", "hello hi"]])
    pickled = pickle.dumps(scorer)
    (after,) = pickle.loads(pickled).score(["hello hi"], [["pay the bill", "hello hi"]])
    assert after.tolist() == before.tolist()


def test_repr_of_objects(index: Path) -> None:
    assert repr(polyrank.load("bm25")) == "BM25('bm25')"
    with open_index(index) as opened:
        assert repr(opened) == f"LocalIndex('{index}', 2 candidates, 2 dimensions, fp32)"
    for name in polyrank.__all__:
        if isinstance(kind := getattr(polyrank, name), type) and not issubclass(kind, Exception):
            assert kind.__repr__ is not object.__repr__, name


def test_answers_and_explanations_have_a_display() -> None:
    pytest.importorskip("pandas")
    ranked = BM25().rank("is the wifi on", POOL)
    answer = polyrank.Answer(tuple(ranked), None, abstained=False)
    frame = answer.to_pandas()
    assert frame["text"].tolist() == [reply.text for reply in answer.ranked]
    assert list(frame.columns) == ["id", "text", "score", "lang"]
    assert "my &lt;wifi&gt;" in answer._repr_html_()
    shown = polyrank.explain(BM25(), "wifi or bill", "my <wifi>")._repr_html_()
    assert shown.count("<span") >= 2
    assert "&lt;" in shown


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda: BM25().rank("a", ["b"], k=2.5), r"k = 2.5 is float; give a whole number"),  # type: ignore[arg-type]
        (lambda: polyrank.evaluate("bm25", [EXAMPLE]), "'bm25' is str; give an object with score"),  # type: ignore[arg-type]
        (lambda: polyrank.evaluate(BM25(), "x.jsonl"), "'x.jsonl' is not an Example; give polyrank.read_examples"),  # type: ignore[arg-type]
        (lambda: polyrank.evaluate(BM25(), 3), "3 is not an Example; give polyrank.read_examples"),  # type: ignore[arg-type]
        (lambda: polyrank.load("bm52"), "did you mean bm25?"),
        (lambda: polyrank.open(__file__), "is a file; make an index of its replies"),
        (lambda: recipe_from_dict({"lr": 1}), 'unknown key "lr"; did you mean "train.lr"?'),
    ],
)
def test_wrong_use_is_refused_by_name(use: Callable[[], Any], reason: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=reason.replace("?", r"\?")):
        use()


def test_a_closed_index_is_reported(tmp_path: Path) -> None:
    polyrank.build_index(tmp_path / "i", "shipped:convert", POOL)
    with polyrank.open(tmp_path / "i") as replies:
        assert replies.answer("wifi").ranked
    for use in (lambda: replies.answer("wifi"), lambda: replies.remove(["a"]), lambda: len(replies)):
        with pytest.raises(UsageError, match="is closed; open it again"):
            use()
    assert repr(replies).startswith("closed Replies(")


def test_replies_come_from_a_file_a_list_or_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "r.txt").write_text("restart it\npay the bill\n", "utf-8")
    want = polyrank.read_pool(tmp_path / "r.txt")
    texts = [candidate.text for candidate in want]
    assert polyrank.read_pool(texts) == polyrank.read_pool(pandas.DataFrame({"text": texts})) == want
    assert polyrank.build_index(tmp_path / "i", "shipped:convert", str(tmp_path / "r.txt")) == 2


def test_an_answer_shows_all_its_replies_and_their_stages() -> None:
    ranked = tuple(
        Ranked(f"r{number}", f"reply {number}", 1.0 - number, {"id": "other", "tag": number}, stages=stages)
        for number, stages in enumerate([{"retrieval": 0.5}, {"rerank": 0.25}, {"retrieval": 0.5, "rerank": 0.125}])
    )
    answer = polyrank.Answer(ranked, 0.5, abstained=False)
    assert (answer.text, polyrank.Answer(ranked, 0.5, abstained=True).text) == ("reply 0", None)
    page = answer._repr_html_()
    for shown in ("retrieval", "rerank", "0.125", *(reply.text for reply in ranked)):
        assert shown in page
    nothing = polyrank.Answer(ranked, 0.5, abstained=True)
    assert [one._repr_html_().count("no good answer") for one in (answer, nothing)] == [0, 1]
    pytest.importorskip("pandas")
    frame = answer.to_pandas()
    assert frame["id"].tolist() == ["r0", "r1", "r2"]  # fields of metadata do not replace those of replies
    assert frame["tag"].tolist() == [0, 1, 2]
    assert [*frame.columns][:5] == ["id", "text", "score", "retrieval", "rerank"]
    empty = polyrank.Answer((), None, abstained=True).to_pandas()
    assert ([*empty.columns], len(empty)) == (["id", "text", "score"], 0)
