"""Commands print several replies, models, files, seeds and networks; without processes."""

import io
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import polyrank
from polyrank.answering.answers import Answer
from polyrank.cli import benches, interrupts, training, tuning
from polyrank.cli.answering import _print_answer, _turn, respond
from polyrank.cli.arguments import as_options, take_options
from polyrank.cli.commands import app
from polyrank.cli.console import (
    ProgressDisplay,
    as_line,
    check_plot_path,
    console,
    encoding_progress,
    make_console,
    print_table,
    report_cut_texts,
    track,
)
from polyrank.cli.evaluation import _report_missing, _show
from polyrank.cli.explaining import _bar, _draw, _draw_vectors, _painted, _strongest
from polyrank.cli.ranking import _context, _table
from polyrank.cli.serving import read_options
from polyrank.config.recipe import DataConfig
from polyrank.config.serving import ServingSettings
from polyrank.data import read_pool
from polyrank.data.forms import FORMS
from polyrank.errors import DataError, LockedError, UsageError
from polyrank.evaluation import evaluate, read_task, summarise
from polyrank.evaluation.suspects import find_suspects
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.index import open_writer
from polyrank.records import Context, Ranked
from polyrank.scorers.chunks import Chunked
from polyrank.scorers.explanation import Attention, TokenShare, VectorShare
from polyrank.scorers.protocols import Scorer
from polyrank.training import RunResult
from polyrank.training.loop import FitResult


def run(*arguments: object, stdin: str | None = None) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments)], input=stdin)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three replies with near-copies, one of them twice."""
    folder = tmp_path_factory.mktemp("several")
    texts = {
        "a": "It is open until 5 pm",
        "b": "It is open until 6 pm",
        "c": "It is open until 5 pm",
        "d": "Pay the bill",
    }
    rows = [{"id": name, "text": text, "n": number} for number, (name, text) in enumerate(texts.items())]
    polyrank.build_index(folder / "index", "shipped:convert", written(folder / "r.jsonl", rows))
    return folder / "index"


@pytest.mark.deep
def test_a_pipe_gets_replies_that_are_alike_unless_it_wants_others(index: Path) -> None:
    def ids(*options: str) -> set[str]:
        return {
            reply["id"] for reply in json.loads(run("respond", index, "when is it open", *options).stdout)["results"]
        }

    assert ids() == ids("--no-diverse") == {"a", "b", "d"}
    assert ids("--duplicates") == {"a", "b", "c", "d"}
    assert len(ids("--diverse")) == 2
    lines = run("respond", index, "-k", "1", stdin='hello\n\n["when", "is it open"]\n').stdout.splitlines()
    assert [json.loads(line)["context"] for line in lines] == [["hello"], ["when", "is it open"]]


@pytest.mark.deep
def test_options_of_an_index_and_of_a_search_are_used(tmp_path: Path) -> None:
    """Its structure and precision, the search mode, echoes, the reply to explain, and the filter."""
    rows = [{"id": f"{n}", "text": text, "n": n} for n, text in enumerate(("until 5 pm", "pay here", "is it open"))]
    index, replies = tmp_path / "i", written(tmp_path / "r.jsonl", rows)
    lists = written(tmp_path / "lists.jsonl", [{"context": "a", "candidates": ["b", "c"], "relevant": 0}])
    run("index", "build", "shipped:convert", replies, "-o", index, "--ann", "flat", "--precision", "int8")
    info = json.loads(run("index", "info", index).stdout)
    assert (info["ann"], info["precision"]) == ("flat", "int8")
    for options, ids, ways in ((("--allow-echo",), {"0", "1", "2"}, ["plain"]),
                               (("--mode", "approximate"), {"0", "1"}, ["shortlist"])):  # fmt: skip
        answer = json.loads(run("respond", index, "is it open", *options).stdout)
        assert ({reply["id"] for reply in answer["results"]}, answer["ways"]) == (ids, ways)
    lines = run(
        "explain", index, "--json", "--filter", "n = 1", "--words", "0", stdin='hello\n["hi", "is it on"]\n'
    ).stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert [one["candidate"]["text"] for one in found] == ["pay here"] * 2
    assert [[turn["text"] for turn in one["turns"]] for one in found] == [["hello"], ["hi", "is it on"]]
    drawn = run("explain", index, "is it open", "--id", "0", "--words", "0").stdout
    assert drawn.splitlines()[0].endswith(" until 5 pm")
    words = ["index", "build", "shipped:convert", replies, "-o", tmp_path / "j", "--partition-by", "n"]
    assert "`partition_by` is 'n'" in str(CliRunner().invoke(app, [*map(str, words)]).exception)
    for line in (f"index build shipped:convert {replies} -o {tmp_path / 'j'}", f"index add {index} {replies}",
                 f"explain {index} hi", "explain shipped:convert hi --reply a",
                 f"evaluate shipped:convert {lists}"):  # fmt: skip
        refused = CliRunner().invoke(app, [*line.split(), "--backend", "onnx"]).exception
        assert "convert has no onnx export; make it with" in str(refused), line


def test_options_of_an_answer_and_of_an_explanation_are_used(index: Path) -> None:
    """The context is a reply of the index; of two copies of another one, an answer has one."""
    for options, ids in (
        ((), {"a", "b"}),
        (("--allow-echo", "--duplicates"), {"a", "b", "c", "d"}),
        (("--filter", "n >= 2", "-k", "1"), {"c"}),
    ):
        answer = json.loads(run("respond", index, "Pay the bill", *options).stdout)
        assert {reply["id"] for reply in answer["results"]} == ids, options
    for options, text in ((("--id", "b"), "It is open until 6 pm"), (("--filter", "n = 3"), "Pay the bill")):
        why = json.loads(run("explain", index, "my bill", "--json", "--words", "0", *options).stdout)
        assert (why["candidate"]["text"], [len(turn["tokens"]) for turn in why["turns"]]) == (text, [0])


def test_lengths_of_contexts_and_of_candidates_are_set_apart(tiny_backbone: Path, tmp_path: Path) -> None:
    model, context = f"untuned:{tiny_backbone}", "the bill is too high my wifi is down"
    texts = ["thanks did that restart the router", "my wifi is down thanks restart"]
    data = written(tmp_path / "lists.jsonl", [{"context": context, "candidates": texts, "relevant": 0}])
    line, found = json.dumps({"query": context, "documents": texts}), list[list[float]]()
    for n_context, n_candidate in ((4, 8), (8, 4)):
        loaded = polyrank.load(model, max_context_tokens=n_context, max_candidate_tokens=n_candidate)
        wanted = pytest.approx(Chunked(loaded).score([Context(context)], [texts])[0].tolist(), abs=1e-5)
        options = ("--max-context-tokens", n_context, "--max-candidate-tokens", n_candidate)
        ranked = run("rank", model, "--scores-only", *options, stdin=line)
        assert "`max_candidate_tokens` and `max_context_tokens` set how much is read" in " ".join(ranked.stderr.split())
        run("evaluate", model, data, "--scores", tmp_path / "scores.jsonl", "--overwrite", *options)
        _, row = (tmp_path / "scores.jsonl").read_text("utf-8").splitlines()
        found += [json.loads(ranked.stdout)["scores"], json.loads(row)["scores"]]
        assert found[-2:] == [wanted] * 2
    assert found[0] != pytest.approx(found[-1], abs=1e-3)


def talks(n: int, first: str, second: str, clock: str) -> list[dict[str, Any]]:
    """Dialogues of two turns, one on each day of May."""
    return [
        {"id": f"d{i}", "time": f"2026-05-{i + 1:02}T{clock}", "turns": [
            {"speaker": first, "text": f"where is {i}"}, {"speaker": second, "text": f"it is at {i}"}]}
        for i in range(n)
    ]  # fmt: skip


def test_a_split_is_by_the_given_speaker_and_ids_and_its_recipe_stays(tmp_path: Path) -> None:
    rows = talks(20, "agent", "Zoë", "12:00:00Z")
    command = ["split", written(tmp_path / "chats.jsonl", rows), "-o", tmp_path / "parts"]
    counts = json.loads(run(*command, "--speaker", "Zoë", "--by", "id", "--json").stdout)
    assert (counts["by"], counts["speaker"]) == ("id", "Zoë")
    recipe = tmp_path / "parts" / "recipe.toml"
    assert 'speaker = "Zoë"\n' in recipe.read_text("utf-8")
    for file in (tmp_path / "parts").glob("*.jsonl"):
        file.unlink()
    refused = CliRunner().invoke(app, [*map(str, command)])
    assert f"{recipe} already exists" in str(refused.exception)
    assert [*(tmp_path / "parts").iterdir()] == [recipe]


def test_commands_use_the_requested_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the option, or of the variable; before a missing input ends the command."""
    text = tmp_path / "a.txt"
    text.write_text("my bill", "utf-8")
    none, before = tmp_path / "none", torch.get_num_threads()
    lines = (
        f"rank bm25 hi {text}", "explain bm25 hi --reply a", f"respond {none} hi", f"evaluate bm25 {none}",
        f"mine {none} --from bm25 -o {none}", f"tune bm25 --valid {none} -o {none}", f"train {none}",
        f"pretrain {none}", f"index build shipped:convert {none} -o {none}", f"index add {none} {none}",
        f"intents train {none} -o {none}", f"intents predict {none} hi", f"bench respond bm25 --texts {none}",
        f"fit {none} -o {none}",
    )  # fmt: skip
    try:
        for number, line in enumerate(lines):
            torch.set_num_threads(1)
            monkeypatch.setenv("POLYRANK_THREADS", "3")
            CliRunner().invoke(app, [*line.split(), *(["--threads", "2"] if number % 2 else [])])
            assert torch.get_num_threads() == 3 - number % 2, line
            monkeypatch.delenv("POLYRANK_THREADS")
            CliRunner().invoke(app, [*line.split(), "--threads", "4"])
            assert torch.get_num_threads() == 4, line
    finally:
        torch.set_num_threads(before)
    assert not none.exists()


@pytest.mark.parametrize(("diverse", "in_chat", "in_pipe"), [(None, 2, 3), (True, 2, 2), (False, 3, 3)])
def test_a_chat_shows_replies_that_differ_unless_all_are_asked_for(
    index: Path,
    diverse: bool | None,
    in_chat: int,
    in_pipe: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for is_terminal, n in ((True, in_chat), (False, in_pipe)):
        stdin = io.TextIOWrapper(io.BytesIO(b"when is it open\n"))
        monkeypatch.setattr(stdin, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdin", stdin)
        respond(index, diverse=diverse, device="cpu")
        shown = capsys.readouterr().out
        assert sum(text in shown for text in ("It is open until 5 pm", "until 6 pm", "Pay the bill")) == n


def test_a_document_may_begin_with_a_brace() -> None:
    lines = ["{order} is here", "{ order } is here", '{"text": "a"}', '{ "id": 7, "text": "b"}', "{}", '["c"]', '"d"']
    done = run("rank", "bm25", "is it here", "--json", stdin="\n".join(lines) + "\n")
    found = {(one["id"], one["text"]) for one in json.loads(done.stdout)["results"]}
    plain = {(str(n), line) for n, line in enumerate(lines, 1) if n not in (3, 4)}
    assert found == {("3", "a"), ("7", "b"), *plain}
    refused = CliRunner().invoke(app, ["rank", "bm25", "is it here"], input='a\n{"text": "b"\n')
    assert str(refused.exception).startswith("stdin:2: ")


def test_candidates_that_match_are_listed_up_to_the_limit(index: Path) -> None:
    assert run("index", "list", index, "--filter", "n >= 1", "--limit", "2").stdout.splitlines() == [
        "b\tIt is open until 6 pm",
        "c\tIt is open until 5 pm",
    ]
    for command in (["explain", index, "hello"], ["explain", index, "hello", "--reply", "Pay the bill"]):
        refused = CliRunner().invoke(app, [*map(str, command), "--filter", ""])
        assert "filter, character 1: expected a name" in str(refused.exception)


@pytest.mark.parametrize(("confidence", "shown"), [(2.5, 2.5), (0.0, 0.0), (-1.5, -1.5), (-math.inf, None)])
def test_a_confidence_may_be_below_zero(
    confidence: float, shown: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    slots = {"order": "7", "date": None}
    filled = Ranked("c", "7 by {date}", -3.0, template="{order} by {date}", slots=slots)
    ranked = (Ranked("a", "yes", -1.0), Ranked("b", "no", -2.0, {"x": 1}, {"retriever": 1.0}), filled)
    answer = Answer(ranked, confidence, True, exact=False, n_scored=2, ways=("all", "many"), notes=("one", "two"))
    _print_answer(Context(("hi", "you")), answer, "m")
    printed = capsys.readouterr()
    row = json.loads(printed.out)
    assert (row["confidence"], row["abstained"], row["n_scored"]) == (shown, True, 2)
    assert (row["context"], row["exact"], row["ways"]) == (["hi", "you"], False, ["all", "many"])
    assert printed.err.splitlines() == ["one", "two"]
    last = row["results"].pop()
    assert last == {"id": "c", "text": filled.text, "score": -3.0, "metadata": {}, "template": filled.template,
                    "slots": slots}  # fmt: skip
    assert [(one["id"], one["metadata"], one.get("stages")) for one in row["results"]] == [
        ("a", {}, None), ("b", {"x": 1}, {"retriever": 1.0}),
    ]  # fmt: skip


def test_only_a_good_reply_joins_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    ranked = (Ranked("a", "yes", 12.345), Ranked("b", "no", -0.5))
    near = "(no good answer; the nearest replies are)"
    for given, abstained, turns, said in (
        (ranked, False, ["hi", "yes"], []), (ranked, True, ["hi"], [near]), ((), True, ["hi"], ["(no good answer)"]),
    ):  # fmt: skip
        answer = Answer(given, None, abstained, notes=("one", "two"))
        assert _turn(lambda _, answer=answer: answer, ["hi"]) == turns
        shown = capsys.readouterr()
        assert shown.err.splitlines() == ["one", "two", *said]
        first = "  " if abstained else "→ "
        assert shown.out.splitlines() == [f"    12.35  {first}yes", "    -0.50    no"][: len(given)]


def test_the_longest_name_of_an_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.main import get_command

    from polyrank.cli import arguments

    monkeypatch.setattr(arguments, "_options", {})
    monkeypatch.setattr("sys.argv", ["polyrank", "index", "build", "m", "replies.txt"])
    take_options(get_command(app))
    assert as_options("`output=x`, `partition_by`, `overwrite=True`, `overwrite=False`") == (
        "--output x, --partition-by, --overwrite, --overwrite False"
    )


def test_the_kind_of_every_model_is_shown(tiny_backbone: Path) -> None:
    names = {"bm25": "bm25", "tfidf": "tfidf", "shipped:convert": "convert", f"untuned:{tiny_backbone}": "bi"}
    for name, kind in names.items():
        found = json.loads(run("info", name, "--json").stdout)
        assert (found["kind"], found["n_parameters"] > 0, found["n_bytes"] > 0) == (kind, *[":" in name] * 2)
        assert run("info", name).stdout.startswith(f"{name}: {kind}, fingerprint {found['fingerprint']}\n")


def test_characters_that_a_terminal_obeys_are_escaped() -> None:
    assert as_line("a\u202eb \u200bc\x07\n\td") == r"a\u202eb \u200bc\x07 d"
    assert as_line("می\u200cخواهم 👩\u200d💻") == "می\u200cخواهم 👩\u200d💻"


def test_every_kind_of_cut_text_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report_cut_texts(SimpleNamespace(cut=["", "one", None, "two"]), settable=True)  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == ["one", "two"]
    assert all("set how much is read" in line for line in lines)


@pytest.mark.parametrize("name", ["a.svg", "a.PNG", "a.Pdf"])
def test_endings_of_plots_may_be_capitals(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert check_plot_path(tmp_path / name) == tmp_path / name
    with pytest.raises(UsageError, match="has no known ending of a plot"):
        check_plot_path(tmp_path / f"{name}x")


def test_the_first_columns_are_on_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    for n_left in (1, 2):
        print_table(("aaaa", "bbbb", "cccc"), [("1", "2", "[3]"), ("x", "y", "z")], n_left=n_left)
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "[3]" in line)
        assert [cell.startswith(" 1") or cell.startswith(" 2") for cell in line.split("│")[1:4]] == [
            True, n_left == 2, False,
        ]  # fmt: skip


def test_a_line_of_progress_is_due_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    display = ProgressDisplay()
    due = []
    for seconds, also in ((59.0, False), (1.0, False), (30.0, False), (5.0, True), (59.9, False), (0.2, False)):
        now[0] += seconds
        due.append(display.line_is_due(also))
    assert due == [False, True, False, True, False, True]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Makes stderr a terminal for polyrank, or not."""

    def use(is_terminal: bool) -> None:
        console.cache_clear()
        monkeypatch.setenv("FORCE_COLOR", "1" if is_terminal else "")
        monkeypatch.setenv("COLUMNS", "100")

    yield use
    console.cache_clear()


def test_bars_show_the_share_in_a_terminal_and_leave_no_trace(
    terminal: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def tracked() -> None:
        assert list(track("reading", iter("abcd"), total=5)) == [*"abcd"]

    def encoded() -> None:
        with encoding_progress() as report:
            report(1, 5)
            report(4, 5)

    for run_bar, label in ((tracked, "reading"), (encoded, "encoding")):
        terminal(True)
        run_bar()
        shown = capsys.readouterr().err
        assert "80%" in shown
        erased = shown.rindex("\x1b[2K")  # erases a line
        assert shown.rindex(label) < erased
        assert label not in shown[erased:]
        terminal(False)
        run_bar()
        assert capsys.readouterr().err == ""
    terminal(True)
    with ProgressDisplay() as display:
        display.progress.add_task("fitting", total=None)
    shown = capsys.readouterr().err
    assert shown.rindex("fitting") > shown.rfind("\x1b[2K")  # other bars stay


def test_a_pipe_gets_a_line_of_progress_every_minute_and_a_terminal_none(
    terminal: Callable[[bool], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(0.0, 61.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for is_terminal in (False, True):
        terminal(is_terminal)
        with encoding_progress() as report:
            report(3000, 4000)
        assert ("encoded 3,000 of 4,000 texts" in capsys.readouterr().err) is not is_terminal


def test_encoded_texts_are_counted_in_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with encoding_progress() as report:
        for done in (1000, 2000, 3000):
            report(done, 4000)
            now[0] += 59.9
    assert capsys.readouterr().err.splitlines() == ["encoded 3,000 of 4,000 texts"]


ROW = {"n_examples": 9, "n_candidates": 9}
ROWS = [{"name": "a", **ROW, "metrics": {"R@1": 0.5, "MRR": 0.25}}, {"name": "b", **ROW, "metrics": {"R@1": 0.75}}]


def test_grades_that_one_model_has_are_shown_and_those_that_none_has_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for grades in (("a",), ("b",), ("a", "b"), ()):
        rows = [
            {**row, "metrics": row["metrics"] | ({"nDCG@10": 0.125} if row["name"] in grades else {})} for row in ROWS
        ]
        _show(rows, None, False, "markdown")
        assert ("nDCG@10" in capsys.readouterr().out) is bool(grades)
    _report_missing(ROWS, ["R@1", "nDCG@10"])
    said = " ".join(capsys.readouterr().err.split())
    assert said == "nDCG@10 left out: it needs grades of relevance, as BEIR's folders have them"
    _report_missing(ROWS, ["nDCG@10", "R@9"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["R@9 left out: k must be below 9, the smallest number of candidates"]


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_a_metric_of_one_model_is_shown(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show(ROWS, ["R@1", "R@5", "MRR"], False, form)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("R@1", "MRR", "25.0", "75.0"))
    assert "R@5" not in shown


def test_the_smallest_list_of_all_models_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "n_candidates": n} for row, n in zip(ROWS * 2, (20, [4, 30], 5, [7, 8]), strict=True)]
    _report_missing(rows, ["R@1", "R@4", "recall@9"])
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("R@4, recall@9 left out: k must be below 4, the smallest")
    assert said.endswith("recall@k needs examples with several right answers")


def test_suspects_are_those_of_all_models(tmp_path: Path) -> None:
    words = ("router", "bill", "parcel", "password")
    rows = [
        {"id": f"{w}{n}", "context": [f"about my {w} {w[n]}"], "candidates": [f"the {v} {v[n]} is fine" for v in words],
         "relevant": (i + (n == 2 and i == 1)) % 4}
        for n in range(4) for i, w in enumerate(words)
    ]  # fmt: skip
    data = written(tmp_path / "lists.jsonl", rows)
    done = run("evaluate", "bm25", "tfidf", data, "--suspects", tmp_path / "odd.jsonl")
    task = read_task(data)
    both = [evaluate(scorer, task.examples) for scorer in (polyrank.BM25(), polyrank.TfIdf())]
    found = [json.loads(line) for line in (tmp_path / "odd.jsonl").read_text("utf-8").splitlines()]
    assert found == find_suspects(both, task.examples) != find_suspects(both[:1], task.examples)
    said = " ".join(done.stderr.split())
    assert f"odd.jsonl: {len(found)} of 16 examples, the most suspicious first" in said
    assert 0 < len(found) < 16


def test_comparisons_as_json_have_the_figures_by_turns(tmp_path: Path) -> None:
    rows = [{"id": f"{n}", "context": ["my bill"] * n, "candidates": ["a bill", "b"], "relevant": 0} for n in (1, 2, 4)]
    data, scores = written(tmp_path / "x.jsonl", rows), tmp_path / "scores"
    run("evaluate", "bm25", "tfidf", data, "--scores", scores)
    found = json.loads(run("compare", scores, "--json").stdout)
    assert [[one["from"] for one in row["by_turns"]] for row in found] == [[1, 2, 4]] * 2
    for form, begins in (("markdown", "| scorer "), ("latex", "% needs"), ("table", "┏")):
        assert run("compare", scores / "bm25.jsonl", "--format", form).stdout.startswith(begins)
    (alone,) = json.loads(run("compare", f"x={scores / 'tfidf.jsonl'}", "--json", "--metric", "hits@1, MRR,R@1").stdout)
    assert (alone["name"], [*alone["metrics"]][:1], "against" in alone) == ("x", ["R@1"], False)
    for options, n, name in (((), 3, "R@1"), (("--limit", "2", "--metric", "MRR,hits@1"), 2, "MRR")):
        found = json.loads(run("evaluate", "tfidf", "bm25", data, "--json", *options).stdout)
        assert [(row["name"], row["n_examples"]) for row in found] == [("tfidf", n), ("bm25", n)]
        assert found[1]["against"]["metric"] == name
    assert "against" not in json.loads(run("evaluate", "tfidf", data, "--json").stdout)
    found = json.loads(run("evaluate", "tfidf", data, "--json", "--against", scores / "bm25.jsonl").stdout)
    assert str(found["against"]["scores"]).endswith("bm25.jsonl")
    same = CliRunner().invoke(app, ["evaluate", "bm25", "tfidf", str(data), "--scores", str(scores), "--suspects",
                                    str(scores / "bm25.jsonl"), "--overwrite"])  # fmt: skip
    assert isinstance(same.exception, UsageError)


def shares(*values: float) -> list[TokenShare]:
    return [TokenShare(f"w{n}", 3 * n, 3 * n + 2, value, value != 7) for n, value in enumerate(values)]


def test_strong_words_may_be_against_a_reply() -> None:
    tokens = shares(0.1, -2.0, 0.0, 1.5, 0.2, -0.3, 0.25)
    assert _strongest(tokens).plain == "w1 -2.000, w3 +1.500, w5 -0.300, w6 +0.250, w4 +0.200"
    text = " ".join(token.text for token in tokens)
    styles = {text[span.start : span.end]: str(span.style) for span in _painted(text, tokens).spans}
    assert styles == {"w1": "bold red", "w3": "bold green", "w5": "red"}
    read = [(-2.0, True), (1.0, True), (0.25, True), (-0.5, True), (2.0, False)]  # half and an eighth are not above
    tokens = [TokenShare(f"w{n}", 3 * n, 3 * n + 2, share, is_read) for n, (share, is_read) in enumerate(read)]
    spans = {span.start: str(span.style) for span in _painted("w0 w1 w2 w3 w4", tokens).spans}
    assert spans == {0: "bold red", 3: "green", 9: "red", 12: "dim strike"}
    assert [len(_bar(share, 2.0)) for share in (2.0, -1.0, 0.0, 4.0)] == [12, 6, 0, 12]
    unread = [*shares(0.5), TokenShare("w1", 3, 5, 0.0, read=False), TokenShare("w2", 6, 8, 0.0, read=False)]
    assert _strongest(unread).plain == "w0 +0.500, 2 not read"


def test_an_explanation_numbers_its_turns_from_one_and_draws_the_strongest_longest() -> None:
    shown = run("explain", "tfidf", "pay", "the red bill", "a bill", "--reply", "bill bill").stdout.splitlines()
    turns = [line.split() for line in shown if line.startswith("turn ")]
    assert [words[:2] for words in turns] == [["turn", "1"], ["turn", "2"], ["turn", "3"]]
    bars = [sum(word.count("█") for word in words) for words in turns]
    assert max(bars) == 12
    assert bars[0] == 0


@pytest.mark.deep
def test_words_are_left_out_up_to_the_limit(index: Path) -> None:
    """Of an index and of a model, whose shares are by omission."""
    for path in (index, "shipped:convert"):
        for n, options in ((0, ("--words", 0)), (2, ("--words", 2)), (4, ())):
            done = run("explain", path, "when is it open", "--reply", "It is open until 5 pm", "--json", *options)
            why = json.loads(done.stdout)
            assert why["method"] == "left out"
            assert [len(turn["tokens"]) for turn in why["turns"]] == [n]


def test_the_strongest_context_vectors_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = tuple(Attention(f"t{n}" if n else "", None, 0, 0, 0.5 - n / 10) for n in range(7))
    vectors = [VectorShare(10 + n, 0.75 - n / 10, 1.25 + n, tokens) for n in range(7)]
    _draw_vectors(make_console(highlight=False), vectors)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith("vector ")]
    listed = "· 0.50, t1 0.40, t2 0.30, t3 0.20, t4 0.10"
    assert lines == [f"vector {10 + n} {0.75 - n / 10:.2f} x {n + 1}.250 {listed}" for n in range(5)]


def test_background_and_the_rest_are_drawn_like_turns() -> None:
    line = json.dumps({"context": ["my bill", "is red"], "background": ["a red bill", "i like tea"]})
    for command in (("tfidf", "--reply", "the red bill"), ("bm25", "--reply", "the red bill")):
        why = json.loads(run("explain", *command, "--json", stdin=line).stdout)
        shown = [row.split() for row in run("explain", *command, stdin=line).stdout.splitlines()]
        shares = [text["share"] for text in (*why["background"], *why["turns"])] + [why["rest"]]
        rows = [words for words in shown if words and words[0] in ("background", "turn", "rest")]
        named = ["background", "background", "turn 1", "turn 2", "rest"]
        for words, name, share in zip(rows, named, shares, strict=True):
            assert " ".join(words).startswith(f"{name} {share:+.3f}")
        assert shown[0][0] == f"{why['score']:.4f}"
        assert sum(shares) == pytest.approx(why["score"], abs=1e-4)


class Moods(Scorer):
    """Good words are good, and bad words are twice as bad."""

    def score(self, contexts: Any, candidates: Any) -> Any:
        texts = [" ".join(context.turns) for context in contexts]
        numbers = [text.count("good") - 2.0 * text.count("bad") for text in texts]
        return [np.full(len(row), number, np.float32) for number, row in zip(numbers, candidates, strict=True)]


def test_the_longest_bar_may_be_against_a_reply(capsys: pytest.CaptureFixture[str]) -> None:
    _draw(make_console(highlight=False), polyrank.explain(Moods(), ["good good", "bad bad", "well"], "yes"), "yes")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("turn ")]
    assert [(line.split()[2], line.count("█")) for line in lines] == [("+2.000", 6), ("-4.000", 12), ("+0.000", 0)]


def test_parts_of_an_explanation_are_titled_by_their_place_and_weight(capsys: pytest.CaptureFixture[str]) -> None:
    whole = polyrank.explain(Moods(), ["good"], "yes")
    inner = replace(whole, parts={"second": replace(whole, weight=2.0)}, weight=0.12345)
    _draw(make_console(highlight=False), replace(whole, parts={"first": inner, "third": whole}), "yes")
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    titles = [words[1] for words in lines if words[:1] == ["1.0000"]]
    assert titles == ["yes", "first (weight 0.1235)", "first: second (weight 2)", "third"]


def test_a_context_takes_the_place_of_a_query() -> None:
    assert _context({"query": "a"}) == Context("a")
    assert _context({"query": "a", "context": ["b", "c"]}) == Context(["b", "c"])


def test_a_line_may_be_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.data.lines.MAX_LINE_BYTES", 40)
    line = '{"query": "a", "documents": ["b"]}'
    for length, ends in ((39, "\n"), (39, "")):
        assert len(run("rank", "bm25", stdin=f"{line:{length}}\n{line:{length}}{ends}").stdout.splitlines()) == 2
    done = CliRunner().invoke(app, ["rank", "bm25"], input=f"{line}\n\n{line:40}\n")
    assert str(done.exception) == "stdin:3: the line is longer than 40 bytes; split or shorten it"
    assert len(done.stdout.splitlines()) == 1


def test_a_table_has_the_last_turn_and_numbers_replies_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    _table(Context(("hi", "my [red]wifi")), [Ranked("a", "one\n\ttwo  three", 1.23456), Ranked("[b]", "no", -10.0)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["my [red]wifi", "score id text", "1 1.2346 a one two three", "2 -10.0000 [b] no"]


def test_a_context_on_the_command_line_is_checked_before_the_index_opens(index: Path) -> None:
    for turn, problem in (
        ("a\udce9", "the context on the command line: lone surrogate"),
        (" ", "the context is empty"),
    ):
        for command in (("respond", index), ("explain", index), ("explain", "none"), ("respond", "none")):
            refused = CliRunner().invoke(app, [*map(str, command), turn])
            assert isinstance(refused.exception, DataError if "line" in problem else UsageError)
            assert str(refused.exception).startswith(problem)


def test_documents_keep_their_names_ids_and_number(tmp_path: Path) -> None:
    files = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "same.txt")
        files[-1].write_text(f"the {folder} bill\n", "utf-8")
    found = json.loads(run("rank", "bm25", "bill", *files, "--json").stdout)["results"]
    assert {row["id"] for row in found} == {f"{file}:1" for file in files}
    named = written(tmp_path / "named.jsonl", [{"id": "a", "text": "one bill", "n": 1}, {"text": "no"}])
    for others, start in (([], ""), (files, f"{named}:")):
        found = json.loads(run("rank", "bm25", "bill", *others, named, "--json").stdout)["results"]
        kept = {row["id"]: row.get("metadata") for row in found}
        assert (kept[f"{start}a"], kept[f"{start}2"]) == ({"n": 1}, None)
    queries = [
        {"id": name, "query": "my bill", "documents": ["no", "the bill", "bill, my bill"]} for name in (0, "", "x")
    ]
    done = run("rank", "bm25", "--top", "1", "--json", stdin="".join(json.dumps(row) + "\n" for row in queries))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("id") for row in rows] == [0, "", "x"]
    assert [[one["id"] for one in row["results"]] for row in rows] == [["2"]] * 3


def test_every_form_of_data_is_listed_with_what_polyrank_does() -> None:
    shown = run("import", "--list").stdout
    *_, last = shown.splitlines()
    wanted = [f"{form['name']} (not read)" if "do" in form else form["name"] for form in FORMS]
    assert last == f"forms.toml: {', '.join(wanted)}"
    assert "\n  dstc7-candidates  the pool of candidates of dstc7-pool\n" in shown
    assert not [line for line in shown.splitlines() if "``" in line or "Import " in line]
    for command in ("chats", "replies", "corpus"):
        assert f"polyrank import {command}:" in shown


def test_settings_of_zero_are_settings() -> None:
    _, settings = read_options(None, ["bm25"], port=0, feedback_file=Path("f.db"), feedback_keep_text=False, host=None)
    assert (settings.port, settings.feedback.file, settings.feedback.keep_text) == (0, "f.db", False)
    assert settings.host == "127.0.0.1"


def test_every_option_of_the_server_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that the config file has."""
    given = {
        "host": "localhost", "port": 8601, "api_key_file": "keys.txt", "device": "cpu", "threads": 3,
        "feedback": "f.db", "keep_text": True, "hook": "chatwoot",
    }  # fmt: skip
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert [option.name for option in serve.params if option.name not in ("paths", "config")] == [*given]
    options = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in given.items()]
    (desk := tmp_path / "desk.toml").write_text(
        '[hook]\nurl = "https://desk.example"\nsecret_file = "s"\ntoken_file = "t"\n', "utf-8"
    )
    (whole := tmp_path / "whole.toml").write_text(
        'host = "127.0.0.2"\nport = 1\napi_key_file = "x"\ndevice = "auto"\nthreads = 7\nprefix = "/a"\n'
        '[models]\none = "bm25"\n[feedback]\nfile = "x"\nkeep_text = false\n'
        '[hook]\nkind = "zendesk"\nurl = "https://desk.example"\nsecret_file = "s"\ntoken_file = "t"\n',
        "utf-8",
    )
    started: list[tuple[dict[str, str], ServingSettings]] = []
    monkeypatch.setattr("polyrank.serving.log.log_to_stderr", lambda: None)  # it changes this process's loggers
    monkeypatch.setattr("polyrank.serving.run.serve", lambda models, settings, **_: started.append((models, settings)))
    run("serve", "two=bm25", "--config", desk, *options)
    run("serve", "--config", whole, *options)
    for models, settings in started:
        feedback, hook = settings.feedback, settings.hook
        shown = asdict(settings) | {"feedback": feedback.file, "keep_text": feedback.keep_text, "hook": hook.kind}
        assert {name: shown[name] for name in given} == given, models
    assert [(*models, settings.prefix) for models, settings in started] == [("two", ""), ("one", "/a")]


@pytest.mark.deep
def test_a_part_may_be_empty_and_times_are_in_utc(tmp_path: Path) -> None:
    data = written(tmp_path / "chats.jsonl", talks(28, "customer", "agent", "23:30:00-02:00"))
    done = run("split", data, "-o", tmp_path / "parts", "--test", "0", "--json")
    counts = json.loads(done.stdout)
    assert (counts["test"]["n_conversations"], counts["n_repeated"], counts["test"]["times"]) == (0, 0, None)
    times = [datetime.fromisoformat(time) for name in ("train", "valid") for time in counts[name]["times"]]
    days = [datetime(2026, 5, day, 1, 30, tzinfo=UTC) for day in (2, 26, 27, 29)]
    assert times == days
    assert 'speaker = "agent"' in (tmp_path / "parts/recipe.toml").read_text("utf-8")
    run("split", data, "-o", tmp_path / "all", "--speaker", "*")
    assert 'speaker = "*"' in (tmp_path / "all/recipe.toml").read_text("utf-8")
    assert "test.jsonl" not in (tmp_path / "parts/recipe.toml").read_text("utf-8")
    shown = run("split", data, "-o", tmp_path / "more").stdout
    assert "2026-05-02 01:30" in shown
    assert "2026-05-01 23:30" not in shown


def test_lists_are_drawn_by_the_seed_and_bad_rows_are_skipped_on_request(tmp_path: Path) -> None:
    pairs = [{"id": f"p{n}", "context": [f"hi {n}"], "response": f"reply {n}"} for n in range(40)]
    data = written(tmp_path / "pairs.jsonl", [*pairs, {"id": "bad", "context": ["hi"]}, pairs[0] | {"id": "again"}])
    for output, made in (("lists.jsonl", "lists.jsonl"), ("parts", "parts/valid.jsonl")):
        command = ["split", data, "-o", tmp_path / output, "--overwrite"]
        refused = CliRunner().invoke(app, [*map(str, command)])
        assert isinstance(refused.exception, DataError)
        drawn = []
        for seed in (0, 0, 5):
            done = run(*command, "--candidates", "3", "--seed", seed, "--skip-bad")
            drawn.append((tmp_path / made).read_text("utf-8"))
            assert " not 20" not in done.stderr
        assert drawn[0] == drawn[1] != drawn[2]
    assert "1 conversations repeat another one word for word" in done.stdout
    said = " ".join(run("split", data, "-o", tmp_path / "parts", "--overwrite", "--skip-bad").stderr.split())
    assert "lists of 4 candidates, not 20: the smaller part has no more distinct responses" in said


@pytest.mark.parametrize("n_with", [0, 1, 30])
def test_wrong_candidates_of_any_example_are_negatives(n_with: int, tmp_path: Path) -> None:
    pairs: list[dict[str, Any]] = [{"id": f"p{n}", "context": [f"hi {n}"], "response": f"reply {n}"} for n in range(60)]
    for pair in pairs[:: 60 // n_with] if n_with else []:
        pair["negatives"] = ["no", "never"]
    run("split", written(tmp_path / "pairs.jsonl", pairs), "-o", tmp_path / "parts", "--valid", "0.2")
    recipe = (tmp_path / "parts/recipe.toml").read_text("utf-8")
    train = (tmp_path / "parts/train.jsonl").read_text("utf-8")
    assert ('sources = ["given"]' in recipe) == ("never" in train)


@pytest.mark.parametrize(("margin", "n_dropped"), [(None, 1), ("0", 1), ("-100", 0), ("100", 3)])
def test_negatives_are_below_the_right_answer_by_the_margin(margin: str | None, n_dropped: int, tmp_path: Path) -> None:
    pairs = [{"context": ["my red bill"], "response": "a bill for you"}]
    data, pool = written(tmp_path / "pairs.jsonl", pairs), tmp_path / "pool.txt"
    pool.write_text("red bill\na green parcel\nthe other bill of all of them\n", "utf-8")
    options = [] if margin is None else ["--margin", margin]
    arguments = ["mine", data, "--from", "bm25", "--pool", pool, "--rerank", "tfidf", *options, "--json"]
    done = CliRunner().invoke(app, [*map(str, arguments), "-o", str(tmp_path / "mined.jsonl")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)["n_doubtful"] == n_dropped
    said = " ".join(done.stderr.split())
    assert f"1 examples with {3 - n_dropped:.1f} negatives each; 0 without a right answer left out" in said
    assert f"1 with fewer than 8, {n_dropped} texts dropped as probably right" in said


def test_a_catalogue_holds_replies_that_were_given_twice(tmp_path: Path) -> None:
    pairs = [{"context": "hi", "response": text} for text in ("yes", "no", "no", "once", "yes", "yes")]
    data, out = written(tmp_path / "pairs.jsonl", pairs), tmp_path / "replies.jsonl"
    for options, texts in (((), {"yes", "no"}), (("--min-count", "1"), {"yes", "no", "once"}),
                           (("--min-count", "3"), {"yes"})):  # fmt: skip
        run("import", "replies", data, "--from-dialogues", "-o", out, "--overwrite", *options)
        assert {candidate.text for candidate in read_pool(out)} == texts
    written(data, [*pairs, {"context": "hi"}])
    command = ["import", "replies", data, "--from-dialogues", "-o", out, "--overwrite"]
    assert isinstance(CliRunner().invoke(app, [*map(str, command)]).exception, DataError)
    assert "1 bad row" in run(*command, "--skip-bad").stderr
    assert {candidate.text for candidate in read_pool(out)} == {"yes", "no"}


def test_a_table_of_replies_is_read_in_its_encoding_and_from_its_sheet(tmp_path: Path) -> None:
    openpyxl, out = pytest.importorskip("openpyxl"), tmp_path / "replies.jsonl"
    (tmp_path / "r.csv").write_bytes("answer,other\nжду,no\n".encode("cp1251"))
    run("import", "replies", tmp_path / "r.csv", "--text", "answer", "--encoding", "cp1251", "-o", out)
    assert [candidate.text for candidate in read_pool(out)] == ["жду"]
    book = openpyxl.Workbook()
    for name in ("first", "second"):
        sheet = book.create_sheet(name)
        sheet.append(["text"])
        sheet.append([f"of the {name}"])
    book.save(tmp_path / "r.xlsx")
    for name in ("first", "second"):
        run("import", "replies", tmp_path / "r.xlsx", "--sheet", name, "-o", out, "--overwrite")
        assert [candidate.text for candidate in read_pool(out)] == [f"of the {name}"]


def test_ids_of_several_lines_are_removed(tmp_path: Path) -> None:
    polyrank.build_index(tmp_path / "i", "shipped:convert", [{"id": name, "text": f"reply {name}"} for name in "abcd"])
    (tmp_path / "ids.txt").write_text("a\n\n c \n", "utf-8")
    run("index", "remove", tmp_path / "i", "d", "--file", tmp_path / "ids.txt")
    assert run("index", "list", tmp_path / "i").stdout == "b\treply b\n"
    (tmp_path / "more.txt").write_text("x\ny\nz\n", "utf-8")
    assert "added 3, now 4 candidates" in run("index", "add", tmp_path / "i", tmp_path / "more.txt").stderr
    (tmp_path / "more.txt").write_text("x\ny\nz\nzz\n", "utf-8")
    again = run("index", "add", tmp_path / "i", tmp_path / "more.txt").stderr
    assert "added 1 (3 were already in the index), now 5 candidates" in again
    other = ["index", "add", tmp_path / "i", written(tmp_path / "b.jsonl", [{"id": "b", "text": "another b"}])]
    assert isinstance(CliRunner().invoke(app, [*map(str, other)]).exception, UsageError | DataError)
    assert "added or replaced 1, now 5 candidates" in run(*other, "--replace").stderr
    assert "b\tanother b\n" in run("index", "list", tmp_path / "i").stdout


def test_commands_that_change_an_index_wait_for_another_writer_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = written(tmp_path / "r.jsonl", [{"text": "reply a", "count": 5}])
    index = tmp_path / "i"
    polyrank.build_index(index, "shipped:convert", rows)
    sleeps: list[float] = []
    for command, *arguments in (
        ("snapshot", index, "-o", tmp_path / "copy"), ("update-counts", index, rows), ("remove", index, "a"),
        ("compact", index), ("add", index, rows),
    ):  # fmt: skip
        writer = open_writer(index)
        sleeps.clear()
        monkeypatch.setattr(time, "sleep", lambda seconds, writer=writer: (sleeps.append(seconds), writer.close()))
        refused = CliRunner().invoke(app, ["index", command, *map(str, arguments)])
        assert (type(refused.exception), sleeps) == (LockedError, []), command
        run("index", command, *arguments, "--wait", "60")
        assert len(sleeps) == 1, command


def test_an_index_that_has_moved_with_its_model_is_added_to(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_encoders["bi"], tmp_path / "old" / "run" / "model")
    polyrank.build_index(tmp_path / "old" / "index", tmp_path / "old" / "run" / "model", ["yes", "no"])
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "more.txt").write_text("maybe\n", "utf-8")
    assert "added 1, now 3 candidates" in run("index", "add", tmp_path / "new" / "index", tmp_path / "more.txt").stderr
    shutil.move(tmp_path / "new" / "run", tmp_path / "elsewhere")
    (tmp_path / "more.txt").write_text("never\n", "utf-8")
    command = ["index", "add", str(tmp_path / "new" / "index"), str(tmp_path / "more.txt")]
    assert "does not exist" in str(CliRunner().invoke(app, command).exception)
    moved = tmp_path / "elsewhere" / "model"
    assert "added 1, now 4 candidates" in run(*command, "--model", moved).stderr
    for name in ("respond", "explain"):
        asked = [name, str(tmp_path / "new" / "index"), "yes or no"]
        assert "does not exist" in str(CliRunner().invoke(app, asked).exception)
        assert run(*asked, "--model", moved).stdout


def test_replies_that_users_took_count_too(tmp_path: Path) -> None:
    rows = [{"id": name, "text": f"reply {name}", "count": n} for n, name in enumerate("abc", 5)]
    polyrank.build_index(tmp_path / "i", "shipped:convert", rows)
    shown = tuple(Reply(name) for name in "abc")
    with FeedbackStore(tmp_path / "feedback.db") as store:
        for n, (name, action) in enumerate((("a", "taken"), ("b", "taken"), ("b", "taken"), ("c", "edited"))):
            store.record(Shown(f"{n}", shown, None), Outcome(f"{n}", action, name))  # type: ignore[arg-type]
    given = written(tmp_path / "counts.jsonl", [{"text": "reply a", "count": 50}, {"text": "reply b"}])
    done = run("index", "update-counts", tmp_path / "i", given, "--feedback", tmp_path / "feedback.db")
    assert f"{tmp_path / 'i'}: updated the counts of 2 candidates" in "".join(done.stderr.splitlines())
    lines = map(json.loads, run("index", "list", tmp_path / "i", "--json").stdout.splitlines())
    assert {row["id"]: row.get("count", row.get("metadata", {}).get("count")) for row in lines} == {
        "a": 51, "b": 2, "c": 7,
    }  # fmt: skip


def test_only_stated_counts_are_updated(tmp_path: Path) -> None:
    rows = [{"id": name, "text": f"reply {name}", "count": n} for n, name in enumerate("abc", 1)]
    polyrank.build_index(tmp_path / "i", "shipped:convert", rows)
    given = [{"text": "reply a", "count": 50}, {"text": "reply b"}]
    arguments = ["index", "update-counts", str(tmp_path / "i"), str(written(tmp_path / "counts.jsonl", given))]
    assert "has no field `count`; add a count to each" in str(CliRunner().invoke(app, arguments).exception)
    run("index", "update-counts", tmp_path / "i", written(tmp_path / "counts.jsonl", given[:1]))
    lines = map(json.loads, run("index", "list", tmp_path / "i", "--json").stdout.splitlines())
    assert {row["id"]: row.get("count", row.get("metadata", {}).get("count")) for row in lines} == {
        "a": 50, "b": 2, "c": 3,
    }  # fmt: skip


def test_the_table_of_a_ranker_has_every_weight_difference_and_step(capsys: pytest.CaptureFixture[str]) -> None:
    def gain(mean: float) -> dict[str, dict[str, float]]:
        return {name: {"mean": n, "low": n - 0.01, "high": n + 0.01} for name, n in (("R@1", mean), ("MRR", mean / 2))}

    rows = [
        {"name": "bi", "weights": {"score": 1.0}, "with": gain(0.25), "milliseconds": 3.14},
        {"name": "words", "weights": {"match": 0.12345, "echo": -2.0}, "with": gain(0.04), "without": gain(-0.02),
         "milliseconds": 0.25},
        {"name": "hubs", "weights": {}, "with": gain(0.0), "milliseconds": 9.0},
    ]  # fmt: skip
    curve = [{"terms": terms, "milliseconds": 1.5, **gain(0.5)} for terms in (["bi"], ["bi", "words"])]
    tuning._show(SimpleNamespace(rows=rows, curve=curve))  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
    assert "bi 1 +25.0 (+24.0 to +26.0) 3.1" in lines
    assert "+12.5 (+11.5 to +13.5)" in lines
    assert "words match 0.123 +4.0 (+3.0 to +5.0) -2.0 (-3.0 to -1.0) 0.2" in lines
    assert "echo -2 +2.0 (+1.0 to +3.0) -1.0 (-2.0 to +0.0)" in lines
    assert "hubs not chosen +0.0 (-1.0 to +1.0) 9.0" in lines
    steps = [line for line in lines if "50.0 (49.0 to 51.0)" in line]
    assert steps == [f"{terms} 1.5 50.0 (49.0 to 51.0) 25.0 (24.0 to 26.0)" for terms in ("bi", "bi + words")]


def test_a_trainings_figures_are_those_of_its_best_step_and_of_every_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = [{"context": [f"my {word}"], "candidates": ["the wifi", "the bill"], "relevant": i} for i, word in
             enumerate(("wifi", "bill"))]  # fmt: skip
    data = DataConfig(test=str(written(tmp_path / "test.jsonl", lists)))
    figures = summarise(evaluate(polyrank.TfIdf(), read_task(data.test or "").examples))
    fits = [FitResult(n_steps=n, best={"R@1": 0.5, "loss": 1.25}, best_step=2000, seconds=7.4, n_tokens=t)
            for n, t in ((3000, 0), (4000, 1_234_567))]  # fmt: skip
    results = [RunResult(seed, Path(f"run/seed-{seed}"), fit, "", test=figures) for seed, fit in enumerate(fits, 1)]
    training.show_results(data, results, False)
    shown = capsys.readouterr()
    best = "s; best: step 2,000 R@1 0.5000, loss 1.2500"
    assert shown.err.splitlines()[:2] == [
        f"run/seed-1: 3,000 steps, 7 {best}", f"run/seed-2: 4,000 steps, 1,234,567 tokens, 7 {best}",
    ]  # fmt: skip
    names = [name for line in shown.out.splitlines() for name in ("bm25", "run/seed-1", "run/seed-2") if name in line]
    assert names == ["bm25", "run/seed-1", "run/seed-2"]
    training.show_results(data, results[::-1], True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["seed"], row["model"], row["n_steps"], row["best_step"]) for row in rows] == [
        (2, "run/seed-2", 4000, 2000), (1, "run/seed-1", 3000, 2000),
    ]  # fmt: skip
    assert rows[0]["test"] == json.loads(json.dumps(figures))


def test_a_pretraining_shows_both_objectives(capsys: pytest.CaptureFixture[str]) -> None:
    words = {"masked_lm_loss": 7.12345, "masked_lm_accuracy": 0.125}
    pairs = {"next_utterance_loss": None, "next_utterance_accuracy": None}
    common = {"n_steps": 100, "n_tokens": 500, "seconds": 0.5}
    with training.TrainingDisplay() as display:
        display.report("", {"step": 49, **common, **words})
        display.report("", {"step": 50, **common, "n_tokens": 900, "seconds": 1.5, **pairs})
        display.report("", {"step": 50, "valid": words | pairs})
        display.report(2, {"step": 60, "network": "reranker", "valid": {"loss": 0.5, "R@1": 0.0625}})
    both = "words 7.123 (12.5% right); pairs not finite (0.0% right)"
    assert capsys.readouterr().err.splitlines() == [
        f"step 50/100: {both.partition('; ')[0]}; {both.partition('; ')[2]}; 400 tokens/s",
        f"step 50: valid {both}",
        "seed 2 step 60: reranker valid loss 0.500 R@1 0.062",
    ]


def test_each_run_has_its_bar_with_its_own_figures(
    terminal: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """They stay at the end."""
    terminal(True)
    display = training.TrainingDisplay()
    record = {"n_steps": 80, "n_examples": 100, "seconds": 2.0}
    display.report(1, {"step": 10, "loss": 2.5, **record})
    display.report(2, {"step": 20, "loss": 1.5, **record, "n_steps": 90})
    display.report(1, {"step": 10, "valid": {"loss": 0.5, "R@1": 0.25}})
    display.report(1, {"step": 30, "loss": 2.25, **record, "n_examples": 300, "seconds": 4.0})
    display.report("words", {"step": 5, "loss": None, "n_steps": 7, "n_tokens": 3000, "seconds": 2.0})
    bars = [(bar.description, bar.completed, bar.total, bar.fields["text"]) for bar in display.progress.tasks]
    assert bars == [
        ("seed 1", 30, 80, "loss 2.250; valid loss 0.500 R@1 0.250; 100 examples/s"),
        ("seed 2", 20, 90, "loss 1.500; 50 examples/s"),
        ("words", 5, 7, "loss not finite; 1,500 tokens/s"),
    ]
    with display:
        pass
    shown = re.sub(r"\x1b\[[\d;?]*[A-JL-Za-z]", "", capsys.readouterr().err)  # without colours and movements
    left = shown.rpartition("\x1b[2K")[2].splitlines()  # after a line was erased
    assert [line.split()[0] for line in left if line.split()] == ["seed", "seed", "words"]
    assert [bars[n][3] in " ".join(line.split()) for n, line in enumerate(left[:3])] == [True] * 3


def result(seed: int, network: str, r1: float) -> RunResult:
    fit = FitResult(n_steps=seed, best={"R@1": r1, "loss": r1 / 2}, best_step=1, seconds=1.0)
    return RunResult(seed, Path(f"run/seed-{seed}"), fit, network)


def test_a_measurement_names_the_machine_and_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"cpu": "a cpu", "cores": 4, "threads": 2, "versions": {"torch": "1.0", "numpy": "2.0"}}
    rows = [{"model": "a", "n": n, "ms": ms} for n, ms in ((1000, 0.25), (1_234_567, 1234.5))]
    benches._show({"machine": machine, "rows": rows}, False)
    shown = capsys.readouterr()
    assert shown.err == "a cpu, 4 cores, 2 threads, torch 1.0, numpy 2.0\n"
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.out.splitlines()]
    assert [line for line in lines if line.startswith("a ")] == ["a 1,000 0.25", "a 1,234,567 1,234.5"]
    benches._show({"machine": machine, "rows": rows}, True)
    assert json.loads(capsys.readouterr().out) == {"machine": machine, "rows": rows}


def test_figures_over_seeds_are_of_one_network(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        result(1, "retriever", 0.5),
        result(1, "reranker", 0.8),
        result(2, "retriever", 0.7),
        result(2, "reranker", 0.9),
    ]
    training.show_results(DataConfig(), results, False)
    spread = [line for line in capsys.readouterr().err.splitlines() if " over 2 seeds: " in line]
    assert spread == [
        "retriever R@1 over 2 seeds: 0.6000 ± 0.1414", "retriever loss over 2 seeds: 0.3000 ± 0.0707",
        "reranker R@1 over 2 seeds: 0.8500 ± 0.0707", "reranker loss over 2 seeds: 0.4250 ± 0.0354",
    ]  # fmt: skip
    training.show_results(DataConfig(), results[:2], False)
    assert " over " not in capsys.readouterr().err


def test_a_line_of_a_mutual_training_has_the_losses_of_both_networks(capsys: pytest.CaptureFixture[str]) -> None:
    with training.TrainingDisplay() as display:
        for step in (49, 50):
            for network, loss in (("retriever", 2.0), ("reranker", 3.0)):
                record = {"step": step, "n_steps": 100, "loss": loss + step, "n_examples": step, "seconds": step / 10}
                display.report(1, {**record, "network": network})
    assert capsys.readouterr().err.splitlines() == [
        "seed 1 step 50/100: reranker loss 53.000; retriever loss 52.000; 10 examples/s"
    ]


@pytest.mark.parametrize("command", ["fit", "train", "pretrain"])
def test_a_run_is_continued_or_replaced(command: str, tmp_path: Path) -> None:
    arguments = [command, str(tmp_path / "none"), *(["-o", str(tmp_path / "x")] if command == "fit" else [])]
    done = CliRunner().invoke(app, [*arguments, "--resume", "--overwrite"])
    assert isinstance(done.exception, UsageError)
    assert "exclude each other" in str(done.exception)
    for options, hint in ((["--overwrite"], ""), (["--resume"], "; continue with --resume")):
        interrupts.install_handlers()
        try:
            assert CliRunner().invoke(app, [*arguments, *options]).exit_code
            assert interrupts.resume_hint() == hint
        finally:
            interrupts.restore_handlers()
