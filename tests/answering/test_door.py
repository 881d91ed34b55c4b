"""``polyrank.open``: one object opens, searches and changes an index."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import polyrank
from polyrank.data.pool import pool_of, text_id
from polyrank.data.values import rows_of
from polyrank.errors import DataError, LockedError, UsageError
from polyrank.index import open_writer, verify_index
from polyrank.loading.folders import INDEX_FILE
from polyrank.records import Candidate, Context, Example, contexts_of
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from processes import files_open_in, start

REPLIES = ["restart the router", "the bill is too high", "thanks", "did that", "the light is red", "wifi is down"]
TURNS = ["hi", "my wifi is down"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the shipped ConveRT, and a ranker of it and words, which has another index."""
    home = tmp_path_factory.mktemp("door")
    pool = [Candidate(f"r{i}", text) for i, text in enumerate(REPLIES)]
    polyrank.build_index(home / "index", "shipped:convert", pool)
    encoder, words = polyrank.load("shipped:convert"), polyrank.BM25().fit(REPLIES)
    polyrank.Ranker([(EncoderTerm(encoder), (1.0,)), (LexicalTerm(words), (0.5,))]).save(home / "ranker")
    polyrank.build_index(home / "ranked", home / "ranker", pool)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "home"))


def test_one_context_in_every_form(made: Path) -> None:
    with polyrank.open(made / "index") as replies:
        forms: list[Any] = [TURNS, tuple(TURNS), Context(tuple(TURNS))]
        first, *others = [replies.answer(form, 3) for form in forms]
        assert all(other == first for other in others)
        assert replies.answer("thanks") == replies.answer(["thanks"]) == replies.answer(Context("thanks"))
        assert replies.answer("thanks").ranked != first.ranked  # several turns give another answer than one
        assert first.exact
        assert first.text == first.ranked[0].text
        one, two = replies.answer_all(["thanks", TURNS], 1)
        assert (one.text, two.text) == (replies.answer("thanks", 1).text, first.text)
        assert two.ranked[0].score == pytest.approx(first.ranked[0].score, rel=1e-5)
        assert len(replies) == len(REPLIES)


@pytest.mark.parametrize("folder", ["index", "ranked"])
def test_a_list_has_at_least_one_reply(made: Path, folder: str) -> None:
    with polyrank.open(made / folder) as replies:
        for k in (0, -1):
            with pytest.raises(UsageError, match=f"k is {k}; request at least one reply"):
                replies.answer("thanks", k)
        with pytest.raises(UsageError, match=r"k = 2\.5 is float; give a whole number"):
            replies.answer("thanks", 2.5)  # type: ignore[arg-type]


def texts(replies: polyrank.Replies) -> list[str]:
    return [reply.text for reply in replies.answer("zebra", 10).ranked]


@pytest.mark.parametrize("folder", ["index", "ranked"])
def test_changes_are_searched_immediately(home: Path, folder: str) -> None:
    with polyrank.open(home / folder) as replies:
        assert replies.add(["the zebra is green"]) == [text_id("the zebra is green")]
        assert "the zebra is green" in texts(replies)
        assert replies.replace([{"id": "r0", "text": "zebra zebra", "lang": "en"}]) == ["r0"]
        best = {reply.id: reply for reply in replies.answer("zebra", 10).ranked}
        assert best["r0"].text == "zebra zebra"
        assert best["r0"].metadata == {"lang": "en"}
        assert REPLIES[0] not in texts(replies)
        assert replies.remove(["r0", "nobody"]) == 1
        assert len(replies) == len(REPLIES)
        replies.snapshot(home / "copy")
        replies.remove([text_id("the zebra is green")])
    assert len(polyrank.open(home / "copy")) == len(REPLIES)
    assert len(polyrank.open(home / folder)) == len(REPLIES) - 1


def test_an_error_adds_nothing(home: Path) -> None:
    with polyrank.open(home / "index") as replies:
        bad: list[tuple[Any, str]] = [
            ([{"txt": "new"}], "candidate 0: missing field"),
            (["new", {"text": 5}], "candidate 1: "),
            (["new", 5], "candidate 1: "),
            (["new", Candidate("r0", "other")], "r0"),
            ([""], "empty"),
            ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], "'a'"),
        ]
        for candidates, message in bad:
            with pytest.raises(DataError, match=message):
                replies.add(candidates)
        with pytest.raises(TypeError, match="list"):
            replies.add("one text")
        with pytest.raises(TypeError, match="list of ids"):
            replies.remove("r0")
        assert len(replies) == len(REPLIES)


def test_the_lock_is_held_during_changes_only(home: Path) -> None:
    with polyrank.open(home / "index") as first, polyrank.open(home / "index", wait_s=0.0) as second:
        first.add(["the zebra is green"])
        assert "the zebra is green" in texts(second)
        second.add(["another"])
        first.remove(["r0"])
        with open_writer(home / "index"), pytest.raises(LockedError):
            second.add(["a third"])


def add_five(index: Path, name: str) -> None:
    with polyrank.open(index, wait_s=60.0) as replies:
        for number in range(5):
            replies.add([f"reply {name} {number}"])


@pytest.mark.deep
def test_several_writers_take_turns(home: Path) -> None:
    children = [start(add_five, home / "index", name) for name in "abc"]
    with polyrank.open(home / "index", wait_s=60.0) as replies, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: replies.add([f"thread {number}"]), range(9)))
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert len(replies) == len(REPLIES) + 24
    assert verify_index(home / "index") == []


def test_closing_closes_all_files(home: Path) -> None:
    replies = polyrank.open(home / "index")
    assert files_open_in(home / "index", f"{INDEX_FILE}*")
    replies.close()
    assert files_open_in(home / "index", f"{INDEX_FILE}*") == []


def test_an_answer_without_a_reply_has_no_text() -> None:
    assert polyrank.Answer((), None, abstained=True).text is None


@pytest.mark.deep
def test_threads_search_while_one_changes(home: Path) -> None:
    failures: list[BaseException] = []

    def ask(replies: polyrank.Replies) -> None:
        try:
            for _ in range(20):
                assert len(replies.answer(TURNS, 4).ranked) == 4
        except BaseException as error:
            failures.append(error)

    with polyrank.open(home / "index") as replies:
        threads = [threading.Thread(target=ask, args=(replies,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(10):
            replies.add([f"zebra {number}"])
            replies.remove([text_id(f"zebra {number}")])
        for thread in threads:
            thread.join()
    assert not failures


def test_invalid_contexts() -> None:
    assert contexts_of(["a", ["b", "c"], Context("d")]) == [Context(("a",)), Context(("b", "c")), Context(("d",))]
    bad: list[tuple[Callable[[Any], Any], Any, str]] = [
        (contexts_of, "hello", "one context"),
        (contexts_of, Context("hello"), "one context"),
        (contexts_of, [["a", {"text": "b"}]], "turns.0. = 'a' is not a message"),
        (Context, 5, "int"),
        (Context, None, "NoneType"),
        (Context, {"text": "a"}, "dict"),
        (Context, [b"a"], "bytes"),
        (lambda value: Example("hi", value), "one reply", "list of candidates"),
        (lambda value: Example("hi", ("a",), background=value), [1], "background.0. = 1"),
    ]
    for make, value, message in bad:
        with pytest.raises(TypeError, match=message):
            make(value)
    assert Example("hi", ["a", "b"], (1,)) == Example(("hi",), ("a", "b"), (1,))  # type: ignore[arg-type]


ROWS: list[dict[str, Any]] = [
    {"id": "a", "context": ["hi", "my wifi"], "response": "restart it", "negatives": ["no", "yes"]},
    {"id": "b", "context": ["the bill"], "response": "too high?", "negatives": ["red", "green"]},
]


def table_forms() -> Iterator[tuple[str, Any]]:
    yield "list", ROWS
    yield "generator", iter(ROWS)
    yield "numpy", [{**row, "negatives": np.array(row["negatives"], object)} for row in ROWS]
    yield "pyarrow", pyarrow.Table.from_pylist(ROWS)
    yield "examples", polyrank.read_examples(ROWS).examples
    for name in ("pandas", "polars", "datasets"):
        try:
            library = __import__(name)
        except ImportError:
            continue
        yield name, library.Dataset.from_list(ROWS) if name == "datasets" else library.DataFrame(ROWS)


def test_examples_from_memory(tmp_path: Path) -> None:
    polyrank.data.write_examples(tmp_path / "file.jsonl", polyrank.read_examples(ROWS).examples)
    want = [
        Example(("hi", "my wifi"), ("restart it", "no", "yes"), (0,), "a"),
        Example(("the bill",), ("too high?", "red", "green"), (0,), "b"),
    ]
    for name, form in table_forms():
        assert polyrank.read_examples(form).examples == want, name
    assert [e.context for e in polyrank.read_examples(tmp_path / "file.jsonl").examples] == [e.context for e in want]


def test_rows_in_memory_are_checked_like_files() -> None:
    bad: list[tuple[Any, str]] = [
        ([{"context": "hi"}], "row:0: unknown kind"),
        ([*ROWS, {"context": "hi", "response": 5}], 'row:2: field "response"'),
        ([*ROWS, "text"], "row:2: holds"),
        ([{"context": "hi", "response": "\ud800"}], "row:0: lone surrogate"),
        ([], "no rows"),
    ]
    for rows, message in bad:
        with pytest.raises(DataError, match=message):
            polyrank.read_examples(rows)
    assert polyrank.read_examples([*ROWS, {"context": "hi", "response": 5}], skip_bad=True).report.n_bad == 1
    for nothing in (5, {"context": "hi"}, None):
        with pytest.raises(TypeError, match="not a table of rows"):
            polyrank.read_examples(nothing)  # type: ignore[arg-type]


def test_values_of_tables_become_plain_python() -> None:
    row = next(rows_of([{"a": np.float32(0.5), "b": float("nan"), "c": np.array([[1, 2]]), 3: ("x", np.str_("y"))}]))
    assert row == {"a": 0.5, "b": None, "c": [[1, 2]], "3": ["x", "y"]}


def test_candidates_from_memory() -> None:
    pool = pool_of(["a", {"text": "b", "id": 7, "lang": "en"}, Candidate("c", "d"), "a"])
    assert pool == [Candidate(text_id("a"), "a"), Candidate("7", "b", {"lang": "en"}), Candidate("c", "d")]
    assert text_id("a") != text_id("b")


@pytest.mark.parametrize("folder", ["index", "ranked"])
def test_a_diverse_answer_may_be_empty(made: Path, folder: str) -> None:
    with polyrank.open(made / folder) as replies:
        (answer,) = replies.answer_all([TURNS], 3, filter='lang = "xx"', diverse=True)
        assert (answer.ranked, answer.abstained) == ((), True)


def test_a_replacement_may_differ_only_for_filters(home: Path) -> None:
    with polyrank.open(home / "index") as replies:
        for vip in (1, True, 0, False):
            replies.replace([{"id": "r0", "text": REPLIES[0], "vip": vip}])
            found = replies.answer(TURNS, 9, filter=f"vip = {str(vip).lower()}").ranked
            assert [reply.id for reply in found] == ["r0"]


def test_rows_of_one_text_with_other_metadata_need_ids(tmp_path: Path) -> None:
    rows = [{"text": "OK", "lang": "en"}, {"text": "OK", "lang": "en"}, {"text": "thanks"}]
    assert len(pool_of(rows)) == 2
    with pytest.raises(DataError, match="candidate 3: its text is repeated with other metadata; give each of them an"):
        polyrank.build_index(tmp_path / "ix", "shipped:convert", [*rows, {"text": "OK", "lang": "de"}])


def test_a_reranked_answer_does_not_depend_on_other_contexts(made: Path) -> None:
    contexts = [TURNS, ["thanks for that"], ["the red light of the router"]]
    with polyrank.open(made / "ranked") as replies:
        together = replies.answer_all(contexts, 3)
        for context, answer in zip(contexts, together, strict=True):
            alone = replies.answer(context, 3).ranked
            assert {one.id: one.score for one in answer.ranked} == pytest.approx({one.id: one.score for one in alone})
