"""Training and test data in the forms of other libraries equal the same data in our own form."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.cli.data import formats
from polyrank.data import choose_speaker, import_examples, read_examples, read_replies
from polyrank.data.splits import split, write_split
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
        {"question": "q", "answer": "right", "negative_1": "bad", "negative_2": "worse"},
        {"query": "q", "positive": "right", "hard_negative_1": "bad", "hard_negative_2": "worse"},
        {"query": "q", "pos_doc": "right", "neg1": "bad", "neg2": "worse"},
        {"query": "q", "document": "right", "negatives": ["bad", "worse"], "dataset": "nomic"},
        {"query": "q", "relevant_passages": ["right"], "hard_negatives": ["bad", "worse"]},
        {"query": "q", "positive_passages": {"docid": ["1"], "text": ["right"]},
         "negative_passages": {"docid": ["2", "3"], "text": ["bad", "worse"]}},
        {"messages": [{"role": "user", "content": "q"}],
         "positive_messages": [[{"role": "assistant", "content": "right"}]],
         "negative_messages": [[{"role": "user", "content": "bad"}], [{"role": "user", "content": "worse"}]]},
        {"messages": [{"role": "user", "content": "q"}],
         "positive_messages": [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "right"}]],
         "negative_messages": [[{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
                               for text in ("bad", "worse")]},
        {"query": "q", "docs": ["right", "bad", "worse"], "labels": [1, 0, 0]},
        {"query": "q", "documents": ["right", "bad", "worse"], "labels": [True, False, False]},
    ],
)  # fmt: skip
def test_a_row_of_a_published_form_is_a_list(tmp_path: Path, row: dict[str, Any]) -> None:
    assert examples(tmp_path / "x.jsonl", row) == ONE
    assert examples(tmp_path / "capitals.jsonl", {name.upper(): value for name, value in row.items()}) == ONE
    (tmp_path / "x.json").write_text(json.dumps([row], indent=1), "utf-8")
    assert [(e.context, e.candidates, e.relevant) for e in read_examples(tmp_path / "x.json").examples] == ONE
    assert [(e.context, e.candidates, e.relevant) for e in read_examples([row]).examples] == ONE


@pytest.mark.parametrize("names", [("query", "passage", "label"), ("sentence1", "sentence2", "label"),
                                   ("question", "answer", "label"), ("context", "response", "label"),
                                   ("query", "document", "relevant"), ("Question", "Answer", "IS_CORRECT"),
                                   ("context", "response", "relevance"), ("query", "document", "score")])  # fmt: skip
@pytest.mark.parametrize("sign", ["jsonl", "csv", "tsv"])
def test_labelled_rows_are_a_list_for_each_query_in_any_order(
    tmp_path: Path, names: tuple[str, str, str], sign: str
) -> None:
    labelled = [("q", "right", "1"), ("other", "x", "0"), ("q", "bad", "0"), ("other", "y", "1"), ("q", "worse", "0.0")]
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in labelled]
    if sign != "jsonl":
        rows = [{"csv": ",", "tsv": "\t"}[sign].join(row) for row in (names, *labelled)]
    assert examples(tmp_path / f"x.{sign}", *rows) == [*ONE, (("other",), ("x", "y"), (1,))]


def test_lists_of_queries_are_no_turns(tmp_path: Path) -> None:
    for row in ({"query": ["a", "b"], "positive": ["p"]}, {"query": ["Represent", "q"], "pos": ["x", "y"], "neg": []},
                {"question": ["a"], "answer": ["b"]}, {"query": ["a"], "passage": "p", "label": 1}):  # fmt: skip
        with pytest.raises(DataError, match="is a list of texts; name turns context, or give each query its own row"):
            examples(tmp_path / "x.jsonl", row)
    for cell in ("\"['a', 'b']\"", '"[""a""]"', "\"['a' 'b']\""):
        with pytest.raises(DataError, match=r"x\.csv:2: the cell \[.* holds a list; write JSON lines or Parquet"):
            examples(tmp_path / "x.csv", "query,pos", f"q,{cell}")
        assert examples(tmp_path / "x.csv", "query,pos,tags", f"q,p,{cell}") == [(("q",), ("p",), (0,))]


def test_of_an_answer_of_several_messages_the_last_is_the_text(tmp_path: Path) -> None:
    def said(*texts: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text} for text in texts]

    pair = {"question": "q", "answer": said("one moment", "right")}
    assert examples(tmp_path / "x.jsonl", pair) == [(("q",), ("right",), (0,))]
    for row in (
        {"query": "q", "positive": [said("one moment", "right")], "negative": [said("hm", "bad"), said("oh", "worse")]},
        {"query": "q", "positive": said("one moment", "right"), "negatives": [said("hm", "bad"), said("oh", "worse")]},
        {"messages": [{"role": "user", "content": "q"}], "positive_messages": [said("one moment", "right")],
         "negative_messages": [said("hm", "no", "bad"), said("oh", "worse")]},
        {"question": "q", "answer": said("one moment", "right"), "negative_1": said("hm", "bad"),
         "negative_2": said("oh", "worse")},
    ):  # fmt: skip
        assert examples(tmp_path / "x.jsonl", row) == ONE


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
    for marks in ((False, True), ("False", "True"), ("FALSE", "TRUE")):
        marked = [row | {"label": mark} for row, mark in zip(rows[:2], marks, strict=True)]
        assert examples(tmp_path / "x.jsonl", *marked) == [(("q",), ("a", "b"), (1,))]
    backed = [row | {"background": [name]} for row, name in zip(rows[:2], ("i ski", "i swim"), strict=True)]
    assert [e.background for e in read_examples(backed).examples] == [("i ski",), ("i swim",)]
    said = [
        {"query": "q", "passage": text, "label": n, "history": [[turn, "ok"]]}
        for turn, text, n in (("i ski", "a", 1), ("i swim", "b", 1), ("i ski", "c", 0))
    ]
    assert examples(tmp_path / "x.jsonl", *said) == [
        (("i ski", "ok", "q"), ("a", "c"), (0,)), (("i swim", "ok", "q"), ("b",), (0,))
    ]  # fmt: skip


def test_dialogues_may_have_fields_of_other_forms(tmp_path: Path) -> None:
    row = {"turns": ["hi", "hello"], "question": "hi", "answer": "other", "label": 1}
    assert examples(tmp_path / "x.jsonl", row) == [(("hi",), ("hello",), (0,))]


def beir(folder: Path, *names: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "title": "T" * n, "text": f"topic {n}"} for n in range(4)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)), "utf-8")
    queries = [{"_id": f"q{n}", "text": f"topic {n}?"} for n in range(3)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), "utf-8")
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq0\td0\t1\nq1\td2\t0\nq1\td3\t1\n"
    judged += "q1\td1\t2\n"  # again: the last grade counts
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
    lost = folder / "qrels" / "lost.tsv"  # of a document that the corpus lacks
    lost.write_text("query-id\tcorpus-id\tscore\nq0\td9\t3\nq0\td0\t1\n", "utf-8")
    assert read_examples(lost).examples == [
        Example(("topic 0?",), ("topic 0",), (0,), "q0", (), ("d9", "d0"), (3, 1)),
    ]
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


def test_published_conversations_are_split(tmp_path: Path) -> None:
    turns = [("system", "Be kind."), ("human", "hi {}"), ("gpt", "hello {}"), ("human", "bye {}"), ("gpt", "bye {}!")]
    rows = [{"id": f"s{n}", "conversations": said(*((who, text.format(n)) for who, text in turns))} for n in range(20)]
    (tmp_path / "x.json").write_text(json.dumps(rows), "utf-8")
    parts = split(tmp_path / "x.json")
    write_split(tmp_path / "parts", parts)
    assert parts.speaker == "assistant"
    written = read_examples(tmp_path / "parts" / "train.jsonl", speaker="assistant").examples
    assert written == parts.train.examples
    assert {len(example.context) for example in written} == {1, 3}


def test_a_list_of_turns_is_a_dialogue(tmp_path: Path) -> None:
    said = [["hi", "hello", "bye"], ["open?", "yes"]]
    named = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]] * 2
    for form, expected in ((said, 3), (named, 2)):
        path = tmp_path / "x.json"
        for text in (json.dumps(form), json.dumps(form, indent=1), "\n".join(map(json.dumps, form)) + "\n"):
            path.write_text(text, "utf-8")
            found = [(one.context, one.response) for one in read_examples(path).examples]
            assert len(found) == expected
            assert found[0] == (("hi",), "hello")
            assert found[-1] == ((("open?",), "yes") if form is said else (("hi",), "hello"))
    assert [one.response for one in read_examples(said).examples] == ["hello", "bye", "yes"]
    path.write_text(json.dumps(said[0]), "utf-8")  # one dialogue
    assert [one.context for one in read_examples(path).examples] == [("hi",), ("hi", "hello")]
    path.write_text(json.dumps([["hi", 3]]), "utf-8")
    with pytest.raises(DataError, match=r"x\.json:1: the text of turn 1 is a number"):
        read_examples(path)


@pytest.mark.parametrize("other", ["data", "paragraphs", "qas"])
def test_other_fields_of_own_rows_are_ignored(tmp_path: Path, other: str) -> None:
    turns = [{"speaker": "a", "text": "q"}, {"speaker": "b", "text": "right"}]
    for row in ({"context": "q", "response": "right"}, {"context": "q", "candidates": ["right"], "relevant": [0]},
                {"turns": turns}):  # fmt: skip
        assert examples(tmp_path / "x.jsonl", row | {other: [{"n": 1}, {"n": 2}]}) == [(("q",), ("right",), (0,))]


def test_a_table_named_for_tabs_has_tabs(tmp_path: Path) -> None:
    for name, sign in (("x.tsv", "\t"), ("x.csv", ","), ("y.csv", "\t")):
        first = sign.join(("context", "response", "a, b" if name == "x.tsv" else "c"))
        (tmp_path / name).write_text(f"{first}\n{sign.join(('q', 'right', 'n'))}\n", "utf-8")
        assert [(e.context, e.response) for e in read_examples(tmp_path / name).examples] == [(("q",), "right")]


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
    lines = "text:a\\nb\tlabels:c\\nd\tlabel_candidates:e\\nf|c\\nd\ntext:g\tlabels:h\tepisode_done:True\n"
    assert imported("parlai", path, lines) == [
        (("a\nb",), ("e\nf", "c\nd"), (1,)), (("a\nb", "c\nd", "g"), ("h",), (0,)),
    ]  # fmt: skip
    episode = "text:hi\\nthere\tlabels:hello|hey\ntext:and?\tlabels:yes\tlabel_candidates:no|yes\tepisode_done:True \n"
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
    path.write_text(json.dumps({"train": [persona] * 2, "valid": [persona]}), "utf-8")
    for part, n in (([], 2), (["--part", "train"], 2), (["--part", "valid"], 1)):
        command = ["import", "corpus", "personachat", str(path), "-o", str(out := tmp_path / "out.jsonl"), *part]
        done = CliRunner().invoke(app, [*command, "--overwrite"])
        assert (done.exit_code, len(out.read_text("utf-8").splitlines())) == (0, n), done.exception
    lines = "1\ta\tb\tyes\n0\ta\tc\tno\n1\ta\tb\tright\n"  # equal first turns, and one list again
    assert imported("labelled-turns", path, lines) == [
        (("a", "b"), ("yes",), (0,)), (("a", "c"), ("no",), ()), (("a", "b"), ("right",), (0,)),
    ]  # fmt: skip
    two = [persona | {"utterances": persona["utterances"] * 2}, persona]
    path.write_text(json.dumps({"train": two, "valid": []}), "utf-8")
    assert [e.id for e in import_examples("personachat", path).examples] == ["0#0", "0#1", "1#0"]
    labels = "text:hi\tlabels:a|b\tlabel_candidates:x|b|y|a\ntext:so?\tlabels:c\ntext:and?\tlabels:d\n"
    assert imported("parlai", path, labels) == [
        (("hi",), ("x", "b", "y", "a"), (1, 3)), (("hi", "a", "so?"), ("c",), (0,)),
        (("hi", "a", "so?", "c", "and?"), ("d",), (0,)),
    ]  # fmt: skip
    for name, text in (("labelled-turns", "2\ta\tb\n"), ("parlai", "1 hi\thello\n"), ("personachat", "[3]")):
        with pytest.raises(DataError, match=r"x\.txt:1: "):
            imported(name, path, text)


# conversations, and forms that forms.toml declares


def read(path: Path, value: Any, **options: Any) -> list[tuple[Any, ...]]:
    """Id, background, context, candidates and right answers of each example, with the assistant's turns as replies."""
    path.write_text(json.dumps(value, **options), "utf-8")
    examples = read_examples(path, speaker=choose_speaker(path)).examples
    return [(e.id, e.background, e.context, e.candidates, e.relevant) for e in examples]


HH = "\n\nHuman: a\n\nAssistant: b\n\nHuman: Hi\n\nAssistant:"
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def said(*turns: tuple[str, str], speaker: str = "from", text: str = "value") -> list[dict[str, str]]:
    return [{speaker: who, text: what} for who, what in turns]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, user("hi"), assistant("hello"), user("rain?"), CALL,
                      {"role": "tool", "tool_call_id": "1", "content": "{}"}, assistant("no rain")], "tools": []},
        {"messages": [user([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {}}]),
                      assistant("hello"), user("rain?"), assistant("no rain", weight=1)]},
        {"conversations": said(("system", "Be kind."), ("human", "hi"), ("gpt", "hello"), ("human", "rain?"),
                               ("function_call", '{"name": "f"}'), ("observation", "{}"), ("chatgpt", "no rain"))},
        {"conversations": said(("human", "hi"), ("gpt", "hello"), ("human", "rain?"),
                               ("gpt", '<tool_call>\n{"name": "f"}\n</tool_call>'), ("tool", "0"), ("gpt", "no rain"))},
        {"conversation": said(("user", "hi"), ("assistant", "hello"), ("user", "rain?"),
                              ("assistant", '{"name": "f", "arguments": {"city": "Rome"}}'), ("assistant", "no rain"),
                              speaker="role", text="content"), "model": "m", "turn": 2},
        {"goal": {}, "log": [{"text": text, "metadata": {}} for text in ("hi", "hello", "rain?", "no rain")]},
        {"services": [], "turns": [{"frames": [], "speaker": who, "turn_id": "0", "utterance": text} for who, text in
                                   (("USER", "hi"), ("SYSTEM", "hello"), ("USER", "rain?"), ("SYSTEM", "no rain"))]},
        {"utterances": [{"index": 0, "speaker": who, "text": text, "segments": []} for who, text in
                        (("USER", "hi"), ("ASSISTANT", "hello"), ("USER", "rain?"), ("ASSISTANT", "no rain"))]},
        {"chosen_topic": "rain", "persona": "i ski", "wizard_eval": 5,
         "dialog": said(("0_Apprentice", "hi"), ("1_Wizard", "hello"), ("0_Apprentice", "rain?"),
                        ("1_Wizard", "no rain"), speaker="speaker", text="text")},
        {"data": ["hi", "hello", "rain?", "no rain"]},
        {"conversations": ["hi", "hello", "rain?", "no rain"], "source": "lima"},
        {"dialogue": ["customer: hi", "agent: hello", "customer: rain?", "agent: no rain"]},
        {"services": ["weather"], "turns": {"turn_id": ["0", "1", "2", "3"], "speaker": [0, 1, 0, 1],
                                            "utterance": ["hi", "hello", "rain?", "no rain"]}},
        {"messages": {"role": ["user", "assistant"] * 2, "content": ["hi", "hello", "rain?", "no rain"]}},
        {"conversation": [{"input": "hi", "output": "hello"}, {"input": "rain?", "output": "no rain"}]},
        {"contents": [{"role": who, "parts": [{"text": text}]} for who, text in
                      (("user", "hi"), ("model", "hello"), ("user", "rain?"), ("model", "no rain"))]},
        {"instruction": "hi", "response": "hello",
         "conversations": said(("human", "hi"), ("gpt", "hello"), ("human", "rain?"), ("gpt", "no rain"))},
        {"conversations": said(("user", "hi"), ("assistant", "hello"), ("user", "rain?"),
                               ("assistant", '[weather(city="Rome")]'), ("tool", "0"), ("assistant", "no rain"))},
        {"turns": [{"author": who, "text": text} for who, text in
                   (("user", "hi"), ("wizard", "hello"), ("user", "rain?"), ("wizard", "no rain"))]},
        {"messages": [{"content": text, "role": role, "dialog_act": []} for role, text in  # CrossWOZ's
                      (("usr", "hi"), ("sys", "hello"), ("usr", "rain?"), ("sys", "no rain"))]},
        {"messages": [user("hi"), assistant("a greeting", channel="analysis"), assistant("hello", channel="final"),
                      user("rain?"), assistant("<think>\nA forecast.\n</think>\n\nno rain")]},
    ],
)  # fmt: skip
def test_a_conversation_is_a_dialogue_of_the_assistants_replies(tmp_path: Path, row: dict[str, Any]) -> None:
    expected = [
        ("7#1", (), ("hi",), ("hello",), (0,)),
        ("7#3", (), ("hi", "hello", "rain?"), ("no rain",), (0,)),
    ]
    assert read(tmp_path / "x.jsonl", {"id": 7} | row) == expected
    for indent in (None, 2):
        assert read(tmp_path / "x.json", [{"conversation_id": "7"} | row], indent=indent) == expected


def test_rows_of_one_line_are_several_dialogues(tmp_path: Path) -> None:
    for untrained in ({"weight": 0}, {"train": False}):
        turns = [user("hi"), assistant("no", **untrained), user("x"), assistant("yes", weight=1, train=True)]
        assert [row[3] for row in read(tmp_path / "x.json", [{"messages": turns}])] == [("yes",)]
    expected = [(f"x:{line}#3", (), ("hi", "no", "x"), ("yes",), (0,)) for line in (1, 2)]
    for mark in ({"weight": 0}, {"train": False}, {"loss": False}):
        row = {"messages": [user("hi"), assistant("no", **mark), user("x"), assistant("yes")]}
        assert read(tmp_path / "x.json", [row, row]) == expected


def test_files_of_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {name: {"goal": {}, "log": [{"text": "taxi", "metadata": {}}, {"text": "where to?", "metadata": {}}]}
            for name in ("MUL1.json", "SNG2.json")}  # fmt: skip
    squad = {"version": "v2.0", "data": [{"title": "N", "paragraphs": [{"context": "France.", "qas": [
        {"id": "q1", "question": "Where?", "answers": [{"text": "France", "answer_start": 0}], "is_impossible": False},
        {"id": "q2", "question": "Who?", "answers": [], "plausible_answers": [{"text": "x"}], "is_impossible": True},
    ]}]}]}  # fmt: skip
    coqa = {"version": "1.0", "data": [{"source": "s", "id": "c1", "story": "A cat.", "name": "n",
            "questions": [{"input_text": "What?", "turn_id": 1}, {"input_text": "Sure?", "turn_id": 2}],
            "answers": [{"span_text": "A cat", "input_text": "a cat"}, {"input_text": "yes"}]}]}  # fmt: skip
    quac = {"data": [{"title": "t", "background": "b", "paragraphs": [{"id": "C_1", "context": "Ann.", "qas": [
        {"followup": "y", "yesno": "x", "question": question, "id": f"C_1_q#{n}", "answers": [{"text": answer}],
         "orig_answer": {"text": answer, "answer_start": 0}}
        for n, (question, answer) in enumerate([("Who?", "Ann"), ("Why?", "CANNOTANSWER")])]}]}]}  # fmt: skip
    asked = {"Where is it?": "Here.", "\u4f55\u6642\uff1f": "Soon.", "\u0645\u062a\u0649\u061f": "Now."}
    page = {"@context": "https://schema.org", "@type": "FAQPage", "mainEntity": [
        {"@type": "Question", "name": question, "acceptedAnswer": {"@type": "Answer", "text": answer}}
        for question, answer in asked.items()
    ]}  # fmt: skip
    for indent in (None, 1):
        assert read(tmp_path / "x.json", logs, indent=indent) == [
            (f"{name}#1", (), ("taxi",), ("where to?",), (0,)) for name in logs
        ]
        assert read(tmp_path / "x.json", squad, indent=indent) == [
            ("q1", (), ("Where?",), ("France.",), (0,)), ("q2", (), ("Who?",), ("France.",), ()),
        ]  # fmt: skip
        assert read(tmp_path / "x.json", coqa, indent=indent) == [
            ("c1#1", ("A cat.",), ("What?",), ("a cat",), (0,)),
            ("c1#3", ("A cat.",), ("What?", "a cat", "Sure?"), ("yes",), (0,)),
        ]
        assert read(tmp_path / "x.json", quac, indent=indent) == [("C_1#1", ("Ann.",), ("Who?",), ("Ann",), (0,))]
        for faq in (page, asked):
            assert [one[1:] for one in read(tmp_path / "x.json", faq, indent=indent)] == [
                ((), (question,), (answer,), (0,)) for question, answer in asked.items()
            ]
    assert [reply.text for reply in read_replies(tmp_path / "x.json")] == [*asked.values()]
    (tmp_path / "x.json").write_text("{\n" + json.dumps(logs)[1:-1], "utf-8")
    with pytest.raises(DataError, match=r"x\.json:2: not JSON"):
        read_examples(tmp_path / "x.json")
    monkeypatch.setattr("polyrank.data.lines.MAX_LINE_BYTES", 2**20)  # all in one line, which may be longer
    whole = read(tmp_path / "x.json", squad | {"about": "x" * 2**20})
    assert [(one, right) for one, *_, right in whole] == [("q1", (0,)), ("q2", ())]


@pytest.mark.parametrize(
    ("row", "context", "candidates", "relevant"),
    [
        ({"instruction": "Translate.", "input": "oui", "output": "yes"}, ("Translate.\noui",), ("yes",), (0,)),
        ({"instruction": "Hi", "output": "yes", "history": [["a", "b"]]}, ("a", "b", "Hi"), ("yes",), (0,)),
        ({"instruction": "Hi", "input": "", "chosen": "yes", "rejected": "no"}, ("Hi",), ("yes", "no"), (0,)),
        ({"instruction": "When?", "context": "In 1999.", "response": "1999"}, ("When?\nIn 1999.",), ("1999",), (0,)),
        ({"prompt": "Hi", "completion": "yes"}, ("Hi",), ("yes",), (0,)),
        ({"prompt": [SYSTEM, user("Hi")], "completion": [assistant("yes")]}, ("Hi",), ("yes",), (0,)),
        ({"prompt": "Hi", "chosen": [user("Hi"), assistant("yes")], "rejected": [user("Hi"), assistant("no")]},
         ("Hi",), ("yes", "no"), (0,)),
        ({"chosen": [user("Hi"), assistant("yes")], "rejected": [user("Hi"), assistant("no")], "score_chosen": 9.0},
         ("Hi",), ("yes", "no"), (0,)),
        ({"conversations": said(("human", "Hi")), "chosen": {"from": "gpt", "value": "yes"},
          "rejected": {"from": "gpt", "value": "no"}}, ("Hi",), ("yes", "no"), (0,)),
        ({"input": {"messages": [SYSTEM, user("Hi")], "tools": []}, "preferred_output": [assistant("yes")],
          "non_preferred_output": [assistant("no")]}, ("Hi",), ("yes", "no"), (0,)),
        ({"query": "Hi", "positive": ["yes", "oui"], "negative": ["no"]}, ("Hi",), ("yes", "oui", "no"), (0, 1)),
        ({"chosen": f"{HH} yes", "rejected": f"{HH} no"}, ("a", "b", "Hi"), ("yes", "no"), (0,)),
        ({"prompt": HH, "chosen": "yes", "rejected": "no"}, ("a", "b", "Hi"), ("yes", "no"), (0,)),
        ({"prompt": "a", "chosen": [user("a"), assistant("b"), user("Hi"), assistant("yes")],
          "rejected": [user("a"), assistant("b"), user("Hi"), assistant("no")]},
         ("a", "b", "Hi"), ("yes", "no"), (0,)),
        ({"messages": [user("Hi"), assistant("yes")], "rejected_response": "no"}, ("Hi",), ("yes", "no"), (0,)),
        ({"messages": [user("Hi")], "chosen": "yes", "rejected": "no"}, ("Hi",), ("yes", "no"), (0,)),
        ({"messages": [user("a"), assistant("b"), user("Hi")], "answers": ["yes"]}, ("a", "b", "Hi"), ("yes",), (0,)),
        ({"query": "Hi", "response": "yes", "history": [["a", "b"]]}, ("a", "b", "Hi"), ("yes",), (0,)),
        ({"instruction": "Hi", "input": "oui", "response": "yes"}, ("Hi\noui",), ("yes",), (0,)),
        ({"instruction": "Hi", "input": "oui", "context": "c", "response": "yes"}, ("Hi\noui\nc",), ("yes",), (0,)),
        ({"q_id": "1", "title": "Hi", "selftext": "", "answers": {"text": ["yes", "oui"], "score": [9, 3]}},
         ("Hi",), ("yes", "oui"), (0, 1)),
        ({"question": "Hi", "paragraphs": [{"paragraph_text": "no", "is_supporting": False},
          {"paragraph_text": "yes", "is_supporting": True}], "answer": "x"}, ("Hi",), ("no", "yes"), (1,)),
        ({"query": "Hi", "query_id": 3, "answers": ["yes"], "passages": {"is_selected": [0, 1], "url": ["", ""],
          "passage_text": ["no", "yes"]}}, ("Hi",), ("no", "yes"), (1,)),
        ({"context": "yes", "question": "Hi", "answers": {"text": ["y"]}}, ("Hi",), ("yes",), (0,)),
        ({"context": "yes", "question": "Hi", "answers": {"text": "y", "answer_start": 0}}, ("Hi",), ("yes",), (0,)),
        ({"context": "yes", "question": "Hi", "answers": {"text": [], "answer_start": []}}, ("Hi",), ("yes",), ()),
    ],
)  # fmt: skip
def test_a_row_of_a_declared_form(
    tmp_path: Path, row: dict[str, Any], context: tuple[str], candidates: tuple[str], relevant: tuple[int]
) -> None:
    assert examples(tmp_path / "x.jsonl", row) == [(context, candidates, relevant)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"context": "c", "qas": [{"orig_answer": {"text": "a"}}]}, "0 questions and 1 answers"),
        ({"context": "c", "qas": [{"question": "q", "orig_answer": {"text": "a"}}, {"question": "r"}]},
         "2 questions and 1 answers"),
        ({"context": "c", "orig_answers": {"texts": ["a", "b"]}, "questions": ["q"]}, "1 questions and 2 answers"),
        ({"story": "s", "answers": [{"input_text": "a"}]}, "0 questions and 1 answers"),
        ({"story": "s", "questions": [], "answers": [{"input_text": "a"}]}, "0 questions and 1 answers"),
    ],
)  # fmt: skip
def test_questions_that_do_not_match_the_answers_are_refused(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"x\.jsonl:1: {said}; give each question one answer"):
        examples(tmp_path / "x.jsonl", row)


def test_preferences_after_different_contexts_are_refused(tmp_path: Path) -> None:
    row = {"chosen": f"{HH} yes", "rejected": "\n\nHuman: other\n\nAssistant: no"}
    with pytest.raises(DataError, match='"rejected" answers another context than "chosen"; leave the row out'):
        examples(tmp_path / "x.jsonl", row)


def test_judgements_by_ids_are_ranked_against_a_corpus(tmp_path: Path) -> None:
    row = {"query_id": "1", "query_text": "q", "query_image": None, "positive_document_ids": ["d1"], "source": "s"}
    assert read(tmp_path / "x.jsonl", row) == [("1", (), ("q",), (), ())]
    (tmp_path / "corpus.jsonl").write_text('{"docid": "d1", "title": "T", "text": "a"}\n{"docid": "d2", "text": "b"}\n')
    task = read_task(tmp_path / "x.jsonl", pool=str(tmp_path / "corpus.jsonl"))
    assert [(one.id, one.text) for one in task.pool or ()] == [("d1", "T a"), ("d2", "b")]
    assert task.examples[0].relevant_ids == ("d1",)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"messages": [user("hi"), assistant("no")], "label": False}, "KTO's conversations"),
        ({"prompt": "hi", "completion": "no", "label": False}, "KTO's rows"),
        ({"premise": "p", "hypothesis": "h", "label": 0}, "premises and hypotheses"),
        ({"sentence1": "p", "sentence2": "h", "gold_label": "neutral"}, "SNLI"),
        ({"query_id": 1, "positive_id": 2, "negative_id": 3}, "triplets of ids"),
        ({"query_id": 1, "doc_ids": [2], "labels": [0.5]}, "lists of ids"),
        ({"train": [{"personality": ["a"], "utterances": []}], "valid": []}, "Persona-Chat"),
        ({"messages-so-far": [], "example-id": 1}, "DSTC7"),
        ({"article": "x", "question": "q", "options": ["a", "b"], "answer": "A"}, "multiple choice"),
        ({"context": "x", "question": "q", "response": "a"}, "question, context and response"),
        ({"context": ["x"], "query": "q", "positive": "a", "negative": "b"}, "a context and a query"),
        ({"context": "x", "query": "q", "pos": ["a"]}, "a context and a query"),
        ({"conv_id": "1", "utterance_idx": 1, "context": "sad", "prompt": "p"}, "EmpatheticDialogues"),
    ],
)
def test_other_forms_are_refused_by_name_with_what_to_do(tmp_path: Path, row: dict[str, Any], name: str) -> None:
    with pytest.raises(
        DataError, match=rf"x\.json:1: a row of {name}, which polyrank does not read; (use|write|keep|join|name) "
    ):
        examples(tmp_path / "x.json", row)


def test_the_list_of_forms_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    formats(listed=True)
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("Alpaca", "SQuAD", "MultiWOZ", "ShareGPT", "Taskmaster", "not read", "SNLI"))
