"""Training and test data in the forms of other libraries equal the same data in our own form."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyrank.data import import_examples, read_examples
from polyrank.data.splits import split
from polyrank.errors import DataError
from polyrank.evaluation import evaluate, read_task, summarise
from polyrank.records import Example
from polyrank.scorers.lexical import BM25

REPORTS = Path(__file__).parents[3] / "shared" / "reports"
needs_reports = pytest.mark.skipif(not REPORTS.exists(), reason="needs ../shared")


def examples(path: Path, *rows: dict[str, Any] | str) -> list[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]]:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", "utf-8")
    return [(e.context, e.candidates, e.relevant) for e in read_examples(path).examples]


ONE = [(("q",), ("right", "bad", "worse"), (0,))]


@pytest.mark.parametrize(
    "row",
    [
        {"query": "q", "pos": ["right"], "neg": ["bad", "worse"], "pos_scores": [1.0], "prompt": "p", "type": "normal"},
        {"anchor": "q", "positive": "right", "negative": "bad", "negative_1": "worse"},
        {"anchor": "q", "positive": "right", "negative_10": "worse", "negative_2": "bad"},
        {"query": "q", "positive": "right", "negatives": ["bad", "worse"]},
        {"query_id": "7", "query": "q", "positive_passages": [{"docid": "1", "title": "", "text": "right"}],
         "negative_passages": [{"docid": "2", "text": "bad"}, {"docid": "3", "title": None, "text": "worse"}]},
        {"question": "q", "answers": ["short"], "positive_ctxs": [{"title": "", "text": "right", "score": 9}],
         "hard_negative_ctxs": [{"text": "bad"}], "negative_ctxs": [{"text": "worse"}]},
        {"query": "q", "positive": ["right"], "hard_negatives": ["bad", "worse"]},
        {"prompt": "q", "chosen": "right", "rejected": ["bad", "worse"]},
        {"query": "q", "docs": ["right", "bad", "worse"], "labels": [1, 0, 0]},
        {"query": "q", "documents": ["right", "bad", "worse"], "labels": [True, False, False]},
    ],
)  # fmt: skip
def test_a_row_of_a_published_form_is_a_list(tmp_path: Path, row: dict[str, Any]) -> None:
    assert examples(tmp_path / "x.jsonl", row) == ONE
    (tmp_path / "x.json").write_text(json.dumps([row], indent=1), "utf-8")
    assert [(e.context, e.candidates, e.relevant) for e in read_examples(tmp_path / "x.json").examples] == ONE
    assert [(e.context, e.candidates, e.relevant) for e in read_examples([row]).examples] == ONE


@pytest.mark.parametrize("names", [("query", "passage", "label"), ("sentence1", "sentence2", "label"),
                                   ("question", "answer", "label"), ("context", "response", "label"),
                                   ("query", "document", "score")])  # fmt: skip
@pytest.mark.parametrize("sign", ["jsonl", "csv", "tsv"])
def test_labelled_rows_are_a_list_for_each_query_in_any_order(
    tmp_path: Path, names: tuple[str, str, str], sign: str
) -> None:
    labelled = [("q", "right", "1"), ("other", "x", "0"), ("q", "bad", "0"), ("other", "y", "1"), ("q", "worse", "0.0")]
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in labelled]
    if sign != "jsonl":
        rows = [{"csv": ",", "tsv": "\t"}[sign].join(row) for row in (names, *labelled)]
    assert examples(tmp_path / f"x.{sign}", *rows) == [*ONE, (("other",), ("x", "y"), (1,))]


def test_rejected_responses_are_negatives(tmp_path: Path) -> None:
    for rejected, found in (("bad", ("right", "bad")), (["bad"], ("right", "bad")), ("", ("right",))):
        row = {"query": "q", "response": "right", "rejected_response": rejected}
        assert examples(tmp_path / "x.jsonl", row) == [(("q",), found, (0,))]


def test_titles_pairs_and_python_literals(tmp_path: Path) -> None:
    rows = [{"query": "q", "pos": [{"title": "Title", "text": "text"}], "neg": []}, {"question": "a", "answer": "b"}]
    assert examples(tmp_path / "x.jsonl", rows[0]) == [(("q",), ("Title text",), (0,))]
    assert examples(tmp_path / "x.jsonl", rows[1], "{'question': \"isn't it?\", 'answer': 'b', 'n': None}") == [
        (("a",), ("b",), (0,)),
        (("isn't it?",), ("b",), (0,)),
    ]


def test_labels_of_another_kind_are_refused_and_topics_are_not_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl:1: label '3' is neither 0 nor 1; write 1 for a right text"):
        examples(tmp_path / "x.jsonl", {"query": "q", "passage": "p", "label": 3})
    with pytest.raises(DataError, match='"labels" has 1 labels for 2 texts'):
        examples(tmp_path / "x.jsonl", {"query": "q", "docs": ["a", "b"], "labels": [1]})
    with pytest.raises(DataError, match='"pos" holds a number'):
        examples(tmp_path / "x.jsonl", {"query": "q", "pos": [3], "neg": []})
    with pytest.raises(DataError, match="not a Python literal"):
        examples(tmp_path / "x.jsonl", "{'question': open('x')}")
    pair = {"context": "q", "response": "r", "label": "billing", "score": 17}
    assert examples(tmp_path / "x.jsonl", pair) == [(("q",), ("r",), (0,))]


def test_labels_are_kinds_of_answers_only_if_all_are_0_or_1(tmp_path: Path) -> None:
    rows = [{"context": "q", "response": text, "label": n} for text, n in (("a", 0), ("b", 1), ("c", 2), ("d", 1))]
    assert examples(tmp_path / "x.jsonl", *rows) == [(("q",), (text,), (0,)) for text in "abcd"]
    assert examples(tmp_path / "x.jsonl", *rows[:2]) == [(("q",), ("a", "b"), (1,))]
    backed = [row | {"background": [name]} for row, name in zip(rows[:2], ("i ski", "i swim"), strict=True)]
    assert [e.background for e in read_examples(backed).examples] == [("i ski",), ("i swim",)]


def test_dialogues_may_have_fields_of_other_forms(tmp_path: Path) -> None:
    row = {"turns": ["hi", "hello"], "question": "hi", "answer": "other", "label": 1}
    assert examples(tmp_path / "x.jsonl", row) == [(("hi",), ("hello",), (0,))]


def beir(folder: Path, *names: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "title": "T" * n, "text": f"topic {n}"} for n in range(4)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)), "utf-8")
    queries = [{"_id": f"q{n}", "text": f"topic {n}?"} for n in range(3)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), "utf-8")
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq0\td0\t1\nq1\td2\t0\nq1\td3\t1\n"
    for name in names:
        (folder / "qrels" / f"{name}.tsv").write_text(judged, "utf-8")
    return folder


def test_a_beir_folder_is_ranked_against_its_corpus(tmp_path: Path) -> None:
    folder = beir(tmp_path / "set", "test")
    expected = [
        Example(("topic 1?",), ("T topic 1", "TTT topic 3"), (0, 1), "q1", (), ("d1", "d3"), (2, 1)),
        Example(("topic 0?",), ("topic 0",), (0,), "q0", (), ("d0",), (1,)),
    ]
    for path in (folder, folder / "qrels" / "test.tsv"):
        assert read_examples(path).examples == expected
        task = read_task(path)
        assert [candidate.id for candidate in task.pool or ()] == ["d0", "d1", "d2", "d3"]
        figures = summarise(evaluate(BM25(), task.examples, pool=task.pool))["metrics"]
        assert (figures["R@1"], 0.9 < figures["nDCG@10"] <= 1) == (1, True)
    beir(tmp_path / "two", "test", "dev")
    with pytest.raises(DataError, match=r"has dev\.tsv, test\.tsv; give one file, such as .*test\.tsv"):
        read_examples(tmp_path / "two")


@needs_reports
def test_reports_of_users() -> None:
    first = read_examples(REPORTS / "t01_flagembedding.jsonl").examples[0]
    assert (first.context, first.candidates, first.relevant) == (
        ("question 0?",), ("right answer 0", "wrong 0", "other 0"), (0,),
    )  # fmt: skip
    first = read_examples(REPORTS / "t05_ce_labels.csv").examples[0]
    assert (first.context, first.candidates, first.relevant) == (("question 0?",), ("right 0", "wrong 0"), (0,))
    task = read_task(REPORTS / "t04_beir")
    assert (task.examples[0].relevant_ids, len(task.pool or ())) == (("d0",), 8)


def test_published_pairs_are_split(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "pos": [f"right {n}"], "neg": [f"wrong {n}"]} for n in range(40)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    parts = split(tmp_path / "x.jsonl")
    assert {len(example.candidates) for example in parts.train.examples} == {2}


# corpora


def imported(name: str, path: Path, text: str, **options: Any) -> list[tuple[tuple[str, ...], ...]]:
    path.write_text(text, "utf-8")
    return [(e.context, e.candidates, e.relevant) for e in import_examples(name, path, **options).examples]  # type: ignore[misc]


def test_corpora_of_dialogues(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    assert imported("labelled-turns", path, "1\ta\tb\tyes\n0\ta\tb\tno\n0\tc\tno\n1\tc\tyes\n1\tc\tright\n") == [
        (("a", "b"), ("yes", "no"), (0,)), (("c",), ("no", "yes", "right"), (1, 2)),
    ]  # fmt: skip
    episode = "text:hi\\nthere\tlabels:hello|hey\ntext:and?\tlabels:yes\tlabel_candidates:no|yes\tepisode_done:True\n"
    assert imported("parlai", path, episode + "text:new\teval_labels:old\tepisode_done:True\n") == [
        (("hi\nthere",), ("hello", "hey"), (0, 1)),
        (("hi\nthere", "hello", "and?"), ("no", "yes"), (1,)),
        (("new",), ("old",), (0,)),
    ]
    assert imported("dailydialog", path, "Hi . __eou__ Hello . __eou__ Bye . __eou__\n") == [
        (("Hi .",), ("Hello .",), (0,)), (("Hi .", "Hello ."), ("Bye .",), (0,)),
    ]  # fmt: skip
    persona = {"personality": ["i ski"], "utterances": [{"candidates": ["no", "yes"], "history": ["hi"]}]}
    whole = json.dumps({"train": [], "valid": [persona]})
    assert imported("personachat", path, whole, part="valid") == [(("hi",), ("no", "yes"), (1,))]
    for name, text in (("labelled-turns", "2\ta\tb\n"), ("parlai", "1 hi\thello\n"), ("personachat", "[]")):
        with pytest.raises(DataError, match=r"x\.txt:1: "):
            imported(name, path, text)
