"""The parts of a fit without training: minutes, facts, plans and tables, each with several entries."""

import gzip
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import polyrank
from polyrank import RunResult, Tuning
from polyrank.cli.training import TrainingDisplay
from polyrank.data import split
from polyrank.errors import UsageError
from polyrank.fitting.budget import Budget, make_clock
from polyrank.fitting.data import FitData, make_parts, part_files, read_parts, repeated_share
from polyrank.fitting.fit import FitRun
from polyrank.fitting.recipes import Pace, Planned, planned_trainings
from polyrank.fitting.report import Line, _plot, answers_of, commands_of, ranked_last
from polyrank.records import Candidate, Example
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from polyrank.storage.journal import Journal
from polyrank.training.loop import FitResult
from polyrank.tuning.selection import HeldOut
from polyrank.tuning.threshold import NO_ANSWER, choose_hidden
from word_models import WordEncoder, text_vector


def quiet(*_: object) -> None:
    """Where messages go."""


def test_minutes_are_counted_once_and_the_end_has_a_margin() -> None:
    now = [0.0]
    budget = Budget(30.0, spent=lambda: 4.0, clock=lambda: now[0])
    assert budget.left == 26.0
    now[0] = 120.0
    assert budget.left == 24.0
    budget.reserved = 10.0
    assert budget.left == 12.0
    budget.spent = lambda: 20.0
    assert budget.left == -4.0


def test_a_clock_counts_what_this_process_takes_and_several_cores_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"perf_counter": 100.0, "process_time": 7.0}
    for name in now:
        monkeypatch.setattr(time, name, lambda name=name: now[name])
    on_processor, elsewhere = make_clock(on_processor=True), make_clock(on_processor=False)
    now.update(perf_counter=110.0, process_time=11.0)  # other programs took six of ten seconds
    assert (on_processor(), elsewhere()) == (4.0, 10.0)
    now.update(perf_counter=120.0, process_time=43.0)  # on two cores
    assert (on_processor(), elsewhere()) == (20.0, 20.0)


def pairs(*names: str, reply: str = "hello") -> list[Example]:
    return [
        Example((f"where is it, {name}?",), (f"{reply} {i // 2}", "no"), (0,), name) for i, name in enumerate(names)
    ]


def test_facts_are_those_of_all_parts() -> None:
    data = FitData(
        {}, None, pairs("a#0", "a#1", "b#0", "c#0", "c#1"), pairs("d#0", "e#0", "e#1"), pairs("f#0", "g#0", "g#1"),
        [Candidate("r", "hello"), Candidate("s", "bye")], 0.25,
    )  # fmt: skip
    facts = data.facts()
    assert facts["pairs"] == {"train": 5, "valid": 3, "test": 3}
    assert facts["conversations"] == {"train": 3, "valid": 2, "test": 2}
    assert (facts["replies"], facts["repeated"]) == (2, 0.25)
    assert sum(facts["languages"].values()) == pytest.approx(1)
    said = {"en": "Where is my parcel, please?", "de": "Wo ist denn die Rechnung?"}
    many = [Example((text,), ("a", "b"), (0,)) for text in said.values() for _ in range(160)]
    assert replace(data, pairs=many).facts()["languages"] == pytest.approx({"en": 0.5, "de": 0.5}, abs=0.01)
    assert facts["warning"] is None
    numbers = [Example(("12 34",), ("a", "b"), (0,))] * 3
    assert replace(data, pairs=numbers).facts()["languages"] == {"unclear": 1.0}
    german = [Example(("Hello", "Wo ist denn die Rechnung?"), ("a", "b"), (0,))] * 9
    assert "another language than English (de)" in replace(data, pairs=[*data.pairs, *german]).facts()["warning"]
    assert repeated_share(data.pairs) == 4 / 5
    assert repeated_share([]) == 0


def test_parts_are_found_only_together(tmp_path: Path) -> None:
    for name in ("train.jsonl", "valid.jsonl.gz"):
        (tmp_path / name).touch()
        assert part_files(tmp_path) == {}
    (tmp_path / "test.jsonl").touch()
    (tmp_path / "test.jsonl.gz").touch()
    found = {name: path.name for name, path in part_files(tmp_path).items()}
    assert found == {"train": "train.jsonl", "valid": "valid.jsonl.gz", "test": "test.jsonl"}
    assert part_files(tmp_path / "train.jsonl") == {}


@pytest.mark.parametrize(("n_twice", "n_replies"), [(3, 13), (4, 12), (8, 8), (0, 16)])
def test_replies_that_were_given_once_are_in_the_catalogue_unless_most_were_given_twice(
    n_twice: int, n_replies: int, tmp_path: Path
) -> None:
    replies = [f"reply {i // 2}" for i in range(2 * n_twice)] + [f"single {i}" for i in range(16 - 2 * n_twice)]
    rows = [{"id": f"d{i}", "context": [f"where {i}"], "response": text} for i, text in enumerate(replies)]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    for file in files.values():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = read_parts(files, None, quiet)
    assert (data.repeated, len(data.replies)) == (2 * n_twice / 16, n_replies)
    (own := tmp_path / "own.txt").write_text("yes\nno\nyes\n", "utf-8")
    said, of_pool = list[str](), list[str]()
    assert [one.text for one in read_parts(files, own, said.append).replies] == ["yes", "no"]
    polyrank.read_pool(own, notify=of_pool.append)
    assert of_pool
    assert {*of_pool} <= {*said}


def test_a_fit_tunes_on_a_thousand_lists_and_reads_all_of_the_test(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    lists = [{"context": [f"c{i}"], "candidates": [f"a{i}", "b"], "relevant": [0][:i]} for i in range(1_003)]
    pairs_of_two = [{"context": "c", "response": f"a{i % 2}"} for i in range(4)]
    for name, rows in (("train", pairs_of_two), ("valid", lists), ("test", lists)):
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = read_parts(files, None, quiet)
    assert [one.context for one in data.lists] == [(f"c{i}",) for i in range(1, 1_001)]  # the first has no answer
    assert len(data.tests) == 1_002


@pytest.mark.parametrize(("asks", "answers", "speaker"), [("customer", "bot", "bot"), ("Ann", "Bob", "*")])
def test_replies_of_every_part_are_of_the_speakers_that_training_has_chosen(
    asks: str, answers: str, speaker: str, tmp_path: Path
) -> None:
    said = [(asks, "where is {}"), (answers, "at {}"), (asks, "is {} far"), (answers, "no {} is near")]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    for name, file in files.items():
        turns = [[{"speaker": who, "text": text.format(f"{name}{i}")} for who, text in said] for i in range(4)]
        if name != "train":  # a speaker of this name would be chosen if the part were alone
            turns.append([{"speaker": who, "text": f"{name} {who}"} for who in (answers, "agent")])
        file.write_text("".join(json.dumps({"turns": one}) + "\n" for one in turns), "utf-8")
    data = read_parts(files, None, quiet)
    assert data.speaker == speaker
    for name, part in (("train", data.pairs), ("valid", data.lists), ("test", data.tests)):
        chosen = [text for who, text in said[1:] if speaker in (who, "*")]
        others = {f"{name} agent"} if speaker == "*" and name != "train" else set()
        expected = {text.format(f"{name}{i}") for text in chosen for i in range(4)} | others
        assert {one.response for one in part} == expected


def test_dialogues_of_unknown_speakers_may_have_lists_for_validation(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    said = ("Ann", "my wifi is down"), ("Bob", "restart the router"), ("Ann", "it works again")
    turns = [{"speaker": name, "text": text} for name, text in said]
    files["train"].write_text(json.dumps({"turns": turns}) + "\n", "utf-8")
    for name in ("valid", "test"):
        row = {"context": [name], "candidates": ["yes", "no"], "relevant": [0]}
        files[name].write_text(json.dumps(row) + "\n", "utf-8")
    data = read_parts(files, None, quiet)
    assert (data.speaker, len(data.pairs)) == ("*", 2)
    assert [one.context for one in (*data.lists, *data.tests)] == [("valid",), ("test",)]


def test_examples_of_every_format_are_not_taken_for_chats(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "context": f"where is {i}", "response": f"it is at {i}"} for i in range(30)]
    tables = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(tables, tmp_path / "a.parquet")
    pyarrow.csv.write_csv(tables, tmp_path / "b.csv")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    again = tmp_path.with_name(f"{tmp_path.name}-again.jsonl")  # one of the conversations in the same words
    again.write_text(lines + json.dumps(rows[3] | {"id": "again"}) + "\n", "utf-8")
    assert make_parts(again, again.with_suffix(""), quiet) == {"by": "id", "repeated": 1}
    (tmp_path / "c.jsonl").write_text(lines, "utf-8")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    said_in_turn = [[row["context"], row["response"]] for row in rows]  # without speakers: not chats
    (tmp_path / "e.json").write_text(json.dumps(said_in_turn), "utf-8")
    (tmp_path / "f.jsonl").write_text("\n".join(json.dumps({"dialog": turns}) for turns in said_in_turn), "utf-8")
    (tmp_path / "g.json").write_text(json.dumps({"data": rows}, indent=1), "utf-8")
    spoken = [zip(("customer", "agent"), turns, strict=True) for turns in said_in_turn]
    dialogues = [{"turns": [{"speaker": who, "text": text} for who, text in turns]} for turns in spoken]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, dialogues)), "utf-8")
    for source in sorted(tmp_path.iterdir()):
        folder = tmp_path.with_name(f"{tmp_path.name}-{source.name}")
        said, of_split = list[str](), list[str]()
        made = make_parts(source, folder, said.append)
        assert made["repeated"] == 0
        assert f"{source}: {split(source, notify=of_split.append).report}" in said
        assert {*of_split} <= {*said}
        assert bool(of_split) == (source.name == "h.jsonl")
        assert not (folder / "chats.jsonl").exists()
        assert sum(len(file.read_text("utf-8").splitlines()) for file in part_files(folder / "data").values()) == 30


def test_steps_are_repeated_for_other_data_replies_or_times(tmp_path: Path) -> None:
    parts = ("train", "valid", "test")

    def settings(folder: str, ms: float = 5.0, longer: str = "", replies: Path | None = None) -> dict[str, Any]:
        run, _ = run_of(tmp_path / folder)
        run.ms, data = ms, tmp_path / f"data{longer}"
        data.mkdir(exist_ok=True)
        for part in parts:
            n = 31 if part == longer else 30
            rows = [{"id": f"{part}{i}", "context": [f"hi {i}"], "response": f"reply {i}"} for i in range(n)]
            (data / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        run.read(data, replies)
        assert [candidate.text for candidate in polyrank.read_pool(run.folder / "replies.jsonl")] == [
            candidate.text for candidate in run.data.replies
        ]
        return run.settings

    (tmp_path / "own.txt").write_text("yes\nno\n", "utf-8")
    first = settings("a")
    assert settings("b") == first
    assert settings("c", ms=6.0) != first
    assert settings("d", replies=tmp_path / "own.txt") != first
    for part in parts:
        assert settings(part, longer=part) != first


@pytest.mark.parametrize("source", ["pairs.jsonl", "export.csv", "exports/of march/export.csv"])
def test_parts_are_made_again_from_changed_data_only(tmp_path: Path, source: str) -> None:
    """A resumed fit counts the time that they took."""
    made, path = list[tuple[int, float, float]](), tmp_path / source
    path.parent.mkdir(parents=True, exist_ok=True)
    for n in (30, 30, 31):
        rows = [{"id": f"p{i}", "context": [f"hi {i}"], "response": f"reply {i}"} for i in range(n)]
        if path.suffix == ".csv":  # of chats
            turns = [f"p{i},{who} {i}" for i in range(n) for who in ("customer,hi", "agent,reply")]
            lines = ["ticket,sender,message", *turns]
        else:
            lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join([*lines, ""]), "utf-8")
        run, now = run_of(tmp_path / "fit")
        run.notify = lambda _, now=now: now.__setitem__(0, now[0] + 60.0)  # type: ignore[misc]  # each message, a minute
        run.read(tmp_path / source.partition("/")[0], None)
        files = part_files(tmp_path / "fit" / "data").values()
        n_rows = sum(len(file.read_text("utf-8").splitlines()) for file in files)
        made.append((n_rows, run.budget.used, now[0]))
    (first, same, other) = made
    assert (first[0], same[0], other[0]) == (30, 30, 31)
    assert first[1] == same[1] == pytest.approx(first[2] / 60)
    assert same[2] < first[2] == other[2]


def test_a_pace_is_that_of_the_updates_after_the_first_and_of_all_texts_of_a_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.fitting.recipes.MAX_VALID", 9)
    now, asked = [5.0], list[dict[str, Any]]()

    class Slow(Scorer):
        def score(self, contexts: Any, candidates: Any) -> Any:
            now[0] += 3.0
            return [np.zeros(len(texts), np.float32) for texts in candidates]

    def train(recipe: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> Scorer:
        asked.append(recipe)
        Path(recipe["output"]).mkdir(parents=True)
        now[0] += 10.0
        for _ in range(6):
            report({})
            now[0] += 2.0
        return Slow()

    run, _ = run_of(tmp_path, n=40)
    run.data = replace(run.data, lists=[Example((f"c{i}",), ("same", f"a{i}", f"b{i}"), (0,)) for i in range(20)])
    pace = Pace.measured(planned(), run.data, tmp_path / "pace", train, lambda: now[0])
    # nine lists have 9 contexts, 18 candidates and the common one; the six that are ranked have 6, 12 and 1
    assert asdict(pace) == {"start": 10.0, "step": 2.0, "check": pytest.approx(3.0 * 28 / 19)}
    assert not (tmp_path / "pace").exists()
    assert ("valid" in asked[0]["data"], asked[0]["train"]["max_steps"]) == (False, 6)

    def train_once(recipe: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> Scorer:
        train(recipe, lambda record: None)
        report({})
        return Slow()

    alone = Pace.measured(planned(), run.data, tmp_path / "pace", train_once, lambda: now[0])
    assert (alone.start, alone.step) == (22.0, 0.0)  # small data may have a single update


def test_a_pace_is_measured_once_for_those_that_are_alike(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    asked: list[str] = []

    def train(recipe: dict[str, Any], *, device: str, report: Any, overwrite: bool) -> list[RunResult]:
        asked.append(recipe["output"])
        assert (device, overwrite) == ("cpu", True)  # a killed call may have left a half one
        Path(recipe["output"]).mkdir(parents=True)
        for _ in range(6):
            now[0] += 3.0
            report(1, {})
        return [RunResult(1, tiny_encoders["bi"], FitResult(n_steps=6, best={}, best_step=1, seconds=1.0), "", {})]

    run, now = run_of(tmp_path, train=train)
    first, *others = (
        run._pace(replace(planned(folder), like=like)) for folder, like in (("b", ""), ("b", ""), ("c", "b"))
    )
    assert (first.start, first.step, others) == (3.0, 3.0, [first, first])
    assert asked == [str(tmp_path / "runs" / "b-pace")]


def test_answers_name_the_weighted_terms_and_the_strongest_words_and_a_tie_is_not_right() -> None:
    texts = ["or it now restart the slow router there", "pay the bill", "red light", "green light"]
    ranker = polyrank.Ranker([(LexicalTerm(BM25().fit(texts)), (2.0,))])
    tests = [
        Example(("or it restart the slow router there",), tuple(texts), (0,), "right"),
        Example(("nothing",), ("red light", "green light"), (0,), "tie"),
        Example(("the bill",), tuple(texts), (0,), "wrong"),
    ]
    right, *wrong = answers_of(ranker, tests, polyrank.evaluate(ranker, tests), lambda name: f"<{name}>")
    assert [(one["said"], one["answer"], one["right"]) for one in (right, *wrong)] == [
        (texts[0], texts[0], True), ("red light", "red light", False), (texts[0], texts[1], False),
    ]  # fmt: skip
    alone = [Example(("hi",), ("hi",), (0,), "a"), Example(("no",), ("red light", "none"), (), "b")]  # not ranked
    same = [replace(one, id="chat") for one in (alone[0], tests[2], alone[1], *tests[:2])]  # of one conversation
    again = answers_of(ranker, same, polyrank.evaluate(ranker, same), lambda name: f"<{name}>")
    assert again == [right, wrong[1], wrong[0]]
    why = polyrank.explain(ranker, tests[0].query, texts[0])
    terms, _, words = right["reasons"].partition("; words: ")
    assert terms == f"<bm25> {why.score:+.1f}"
    shares = {token.text.strip(): token.share for turn in why.turns for token in turn.tokens if token.share}
    long = [word for word in sorted(shares, key=lambda word: -shares[word]) if word not in ("or", "it")]
    assert words.split(", ") == long[:4]
    why, of_the_right = (polyrank.explain(ranker, tests[2].query, text) for text in (texts[1], texts[0]))
    assert wrong[1]["reasons"].startswith(f"<bm25> {why.score:+.1f}; words: ")  # of the answer, which is wrong
    assert f"{why.score:+.1f}" != f"{of_the_right.score:+.1f}"
    assert len(long) == 5


def test_words_that_count_against_an_answer_are_not_among_its_strongest() -> None:
    texts = ["restart the slow router", "pay the bill", "slow red light of the bill"]
    parts = [(LexicalTerm(TfIdf().fit(texts)), (1.0,)), (LexicalTerm(BM25().fit(texts)), (-1.0,))]
    ranker = polyrank.Ranker(parts)  # the frequent words of an answer count for it, and the rare ones against it
    tests = [Example(("the slow router and the bill",), tuple(texts), (0,))]
    (answer,) = answers_of(ranker, tests, polyrank.evaluate(ranker, tests), str)
    (turn,) = polyrank.explain(ranker, tests[0].query, answer["answer"]).turns
    shares = {token.text.strip(): token.share for token in turn.tokens}
    assert min(shares.values()) < 0
    assert answer["reasons"].partition("; words: ")[2] == "the"


def test_a_fit_counts_the_minutes_of_a_tuning_and_its_answers_name_models_by_their_labels(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    run, now = run_of(tmp_path)
    run.data = replace(run.data, tests=pairs("a", "b", "c"))
    run.models = {"mine": polyrank.load(tiny_encoders["bi"])}

    def half_a_minute(name: str, batches: list[range]) -> list[range]:
        now[0] += 30.0
        return batches

    run.progress = half_a_minute
    run._tuned(run.models, ["words", "hubs", "counts"])
    assert run.tuned_in == now[0] / 60 > 0
    words = LexicalTerm(BM25().fit(["hello 0", "no"]))
    ranker = polyrank.Ranker([(EncoderTerm(run.models["mine"]), (1.0,)), (words, (1.0,))])
    for answer in run._tested(ranker)["answers"]:
        assert answer["reasons"].startswith("mine ")
        assert str(tiny_encoders["bi"]) not in answer["reasons"]


def test_the_plot_names_the_steps_that_no_faster_one_equals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    saved = list[Any]()
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda self, stream, **_: (saved.append(self), stream.write(b"<svg"))[0]
    )
    lines = [
        ("slow", 9.0, 0.5),
        ("good", 3.0, 0.6),
        ("poor", 4.0, 0.2),
        ("fast", 1.0, 0.4),
        ("equal", 5.0, 0.6),
        ("best", 8.0, 0.7),
    ]
    rows = [{"step": name, "milliseconds": ms, "metrics": {"R@1": {"mean": r1}}} for name, ms, r1 in lines]
    _plot(
        {"chosen": rows[1], "lines": [*rows, {"step": "none", "milliseconds": None, "metrics": {}}]}, tmp_path / "x.svg"
    )
    assert [text.get_text() for text in saved[0].axes[0].texts] == ["fast", "good", "best"]
    star, *points = (line.get_xydata().tolist() for line in saved[0].axes[0].lines)
    assert star == [[3.0, 60.0]]
    assert points == [[[ms, 100 * r1]] for _, ms, r1 in sorted(lines, key=lambda line: line[1])]
    axes = saved[0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("milliseconds per answer", "R@1 of validation, %")
    assert (axes.get_xlim()[0], [text.get_text() for text in axes.get_legend().get_texts()]) == (0.0, ["chosen"])


def test_a_plan_counts_its_updates_and_changes_only_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "valid", "test")}
    data = FitData(files, "agent", pairs(*(f"p{i}" for i in range(10))), [], [], [], 0.0)
    tables: dict[str, Any] = {"model": {"kind": "bi"}, "train": {"epochs": 3, "batch_size": 4, "lr": 1e-5}}
    for part, n_steps in (({}, 9), ({"max_train": 8}, 6), ({"max_train": 5}, 6), ({"max_train": 99}, 9)):
        planned = Planned("x", "x", tables | ({"data": part} if part else {}))
        assert (planned.n_steps(data), planned.n_checks) == (n_steps, 4)
        recipe = planned.recipe(data, tmp_path / "run", max_steps=7, lr=2e-5)
        assert recipe["data"] | part == recipe["data"]
        assert recipe["data"]["train"] == str(files["train"])
        assert (recipe["data"]["speaker"], "test" in recipe["data"]) == ("agent", False)
        assert recipe["train"]["max_steps"] == 7
        assert (recipe["train"]["lr"], tables["train"]["lr"]) == (2e-5, 1e-5)
        assert (recipe["model"], recipe["output"]) == ({"kind": "bi"}, str(tmp_path / "run"))
        assert [recipe["train"][name] for name in ("evaluate_per_epoch", "early_stopping")] == [1, 3]
        assert recipe["data"]["max_valid"] == 300
    monkeypatch.chdir(tmp_path)  # a recipe is written elsewhere, and its paths must stay those of the call
    data = replace(data, files={name: Path(f"{name}.jsonl") for name in files})
    assert planned.recipe(data, Path("run"), max_steps=7, lr=2e-5) == recipe


def test_a_line_shows_what_was_measured() -> None:
    figure = {"mean": 0.5, "low": 0.25, "high": 0.75}
    whole = Line("step", {"MRR": figure}, figure, True, 1.25, 3.04, "why")
    assert whole.cells() == ["step", "50.0 (25.0 to 75.0)", "+50.0 (+25.0 to +75.0)", "kept: why", "1.2", "3.0"]
    assert Line("a", kept=False, note="why").cells() == ["a", "", "", "not kept: why", "", ""]
    assert Line("a", kept=False).cells()[3] == "not kept"
    assert Line("a", note="alone").cells() == ["a", "", "", "alone", "", ""]
    assert Line("a", milliseconds=0.0).cells()[5] == "0.0"


def test_ranked_last_depends_on_the_length_of_each_list() -> None:
    """Third of three is last, and third of five is not; a list that was once fourth and once fifth is not either."""
    given = [(5, 1 / 3), (3, 1 / 3), (2, 1 / 1), (2, 1 / 2), (5, (1 / 4 + 1 / 5) / 2), (5, 1 / 5)]
    lists = [Example((f"c{i}",), tuple("abcde"[:n]), (0,)) for i, (n, _) in enumerate(given)]
    found = ranked_last(lists, [reciprocal_rank for _, reciprocal_rank in given])
    assert found == [lists[1], lists[3], lists[5]]


def test_the_commands_make_the_ranker_of_all_its_models(tmp_path: Path) -> None:
    (found, *_) = commands_of(
        tmp_path / "my fit",
        {"train": Path("my train.jsonl"), "valid": Path("v"), "test": Path("t")},
        ["bm25"],
        {"ms": None, "precision": 0.8},
    )
    assert found == "polyrank tune bm25 --valid v --dialogues 'my train.jsonl' -o best --precision 0.8"
    for name in ("bi", "late"):
        (tmp_path / "runs" / name / "model").mkdir(parents=True)
    models = ["shipped:minilm", *(str(tmp_path / "runs" / name / "model") for name in ("bi", "late"))]
    files = {name: Path(f"{name}.jsonl") for name in ("train", "valid", "test")}
    for ms, option in ((None, ""), (50.0, " --ms 50"), (2.5, " --ms 2.5")):
        found = commands_of(tmp_path, files, models, {"ms": ms, "precision": 0.75})
        assert found == [
            *(f"polyrank train {tmp_path}/runs/{name}/recipe.json" for name in ("bi", "late")),
            f"polyrank tune {' '.join(models)} --valid valid.jsonl --dialogues train.jsonl -o best{option}"
            " --precision 0.75",
            "polyrank evaluate best test.jsonl",
            f"polyrank index build best {tmp_path}/replies.jsonl -o my-index",
        ]


def test_trainings_at_the_same_time_show_their_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    def record(step: int, loss: float, n: int, seconds: float) -> dict[str, Any]:
        return {"step": step, "n_steps": 100, "loss": loss, "n_examples": n, "seconds": seconds}

    with TrainingDisplay() as display:
        display.report("Bi-encoder", record(50, 2.0, 500, 1.0))
        display.report("Bi-encoder", {"step": 50, "valid": {"loss": 1.5, "R@1": 0.25}})
        display.report(1, record(50, 3.0, 100, 10.0))
        display.report("Bi-encoder", record(100, 1.0, 1000, 2.0))
        display.report("Bi-encoder", record(100, 1.0, 100, 1.0))  # began again
    assert capsys.readouterr().err.splitlines() == [
        "Bi-encoder step 50/100: loss 2.000; 500 examples/s",
        "Bi-encoder step 50: valid loss 1.500 R@1 0.250",
        "seed 1 step 50/100: loss 3.000; 10 examples/s",
        "Bi-encoder step 100/100: loss 1.000; valid loss 1.500 R@1 0.250; 500 examples/s",
        "Bi-encoder step 100/100: loss 1.000; valid loss 1.500 R@1 0.250; 100 examples/s",
    ]


def run_of(
    folder: Path, minutes: float = 30.0, at_once: int = 1, train: Callable[..., Any] = polyrank.train, n: int = 40
) -> tuple[FitRun, list[float]]:
    """A fit of n pairs and six lists whose paces are known, and its seconds."""
    now = [0.0]
    budget = Budget(minutes, clock=lambda: now[0])
    run = FitRun(folder, budget, None, "cpu", train, at_once, quiet, lambda _, batches: batches, quiet, quiet)
    run.journal, run.settings = Journal(folder / "steps", budget.clock), {"data": "x"}
    names = [f"d{i // 2}#{i}" for i in range(n)]
    files = {name: folder / f"{name}.jsonl" for name in ("train", "valid", "test")}
    run.data = FitData(files, None, pairs(*names), pairs(*names[:6]), [], [Candidate("r", "hello")], 0.0)
    run.tuned_in = 2.0
    run.journal.recall("a-pace", run.settings, lambda: asdict(PACE))
    return run, now


PACE = Pace(start=30.0, step=2.0, check=6.0)


def planned(folder: str = "a", epochs: int = 3, **changes: Any) -> Planned:
    tables = {"model": {"kind": "bi"}, "train": {"epochs": epochs, "batch_size": 1, "lr": 1e-5}}
    return Planned(f"training {folder}", folder, tables, like="a", **changes)


@pytest.mark.parametrize("n_together", [1, 2, 3])
@pytest.mark.parametrize("minutes", [4.0, 5.0, 6.5, 8.0, 9.0, 60.0])
def test_a_plan_fills_the_minutes_and_leaves_those_of_its_tunings(
    n_together: int, minutes: float, tmp_path: Path
) -> None:
    run, _ = run_of(tmp_path, minutes)
    run.budget.reserved = 0.5
    one, whole = planned(), 120
    free = minutes - 0.6 - n_together * run.tuned_in
    fits = [n for n in range(1, whole + 1) if PACE.minutes(n, one.n_checks) <= free + 1e-9]
    plan = run.plan(one, n_together)
    assert plan.get("n_steps", 0) == (max(fits) if len(fits) >= 60 else 0)
    few = planned("few", epochs=1)  # 40 updates are less than the fewest, and all that it has
    fits = [n for n in range(1, 41) if PACE.minutes(n, few.n_checks) <= free + 1e-9]
    assert run.plan(few, n_together).get("n_steps", 0) == (40 if len(fits) == 40 else 0)
    assert run.forecast(one) == PACE.minutes(whole, one.n_checks) + run.tuned_in
    assert run.forecast(replace(one, like="unknown")) is None


def test_a_plan_stays_as_it_was_unless_there_are_other_minutes(tmp_path: Path) -> None:
    run, now = run_of(tmp_path, 6.0)
    first = run.plan(planned(), 1)
    assert 60 <= first["n_steps"] < 120
    now[0] = 60.0
    assert run.plan(planned(), 1) == first
    longer, _ = run_of(tmp_path, 60.0)
    assert longer.plan(planned(), 1)["n_steps"] == 120


def test_every_training_is_done_in_its_group(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    groups, asked = [2, 2, 1], list[str]()
    sizes = iter([size for size in groups for _ in range(size)])
    barriers = {size: threading.Barrier(size, timeout=60) for size in set(groups)}

    def train(recipe: dict[str, Any], *, device: str, report: Any, resume: bool) -> list[RunResult]:
        output, size = Path(recipe["output"]), next(sizes)
        barriers[size].wait()  # fails unless so many begin before this one ends
        asked.append(output.name)
        assert (device, resume) == ("cpu", True)
        report(1, {"step": output.name})
        return [RunResult(1, tiny_encoders["bi"], FitResult(n_steps=1, best={}, best_step=1, seconds=1.0), "", {})]

    run, now = run_of(tmp_path, 60.0, 2, train)
    reported: list[tuple[str, dict[str, Any]]] = []
    run.report = lambda *given: reported.append(given)
    run.ms = 1e-9  # limits a ranker, not the figures of a model alone
    plans = [planned(letter, is_kept=False) for letter in "abcde"]
    run.untried = {one.name: one for one in plans}
    run.train_all(plans)
    expected = [(f"training {letter}", {"step": f"{letter}-120"}) for letter in "abcde"]
    assert sorted(reported, key=lambda given: given[0]) == expected
    ends, position = [sum(groups[: n + 1]) for n in range(len(groups))], 0
    for end in ends:
        assert sorted(asked[position:end]) == [f"{letter}-120" for letter in "abcde"[position:end]]
        position = end
    assert [(line.step, line.note) for line in run.lines] == [(one.name, "alone, without other terms") for one in plans]
    assert all(line.metrics["R@1"] == run.lines[0].metrics["R@1"] and line.kept is None for line in run.lines)
    assert run.untried == {}
    assert sorted(file.stem for file in (tmp_path / "steps").glob("*-alone.json")) == [f"{c}-alone" for c in "abcde"]
    now[0] = 3600.0
    run.untried = {plans[0].name: plans[0]}
    run.train_all(plans[:1])
    assert (len(asked), [*run.untried]) == (5, [plans[0].name])  # no minutes are left
    with pytest.raises(UsageError, match="no model answers in 1e-09 ms"):
        run._tuned({"a": polyrank.load(tiny_encoders["bi"])})


def test_a_training_that_fails_does_not_wait_for_those_at_the_same_time(tmp_path: Path) -> None:
    both, may_end, ended = threading.Barrier(2, timeout=60), threading.Event(), list[str]()

    def train(recipe: dict[str, Any], **_: Any) -> list[RunResult]:
        both.wait()
        name = Path(recipe["output"]).name
        if name == "b-120":
            may_end.wait(5)
            ended.append(name)
        raise RuntimeError(f"{name} fails")

    run, _ = run_of(tmp_path, 60.0, 2, train)
    plans = [planned(letter, is_kept=False) for letter in "ab"]
    run.untried = {one.name: one for one in plans}
    with pytest.raises(RuntimeError, match="a-120 fails"):
        run.train_all(plans)
    assert (ended, [*run.untried]) == ([], ["training a", "training b"])
    may_end.set()


def test_a_step_of_an_earlier_call_has_its_lines_models_and_time(
    tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", count(0, 90).__next__)  # seconds
    lines = [Line("one", note="a"), Line("two", {"MRR": {"mean": 0.5}}, {"mean": 0.1}, True, 3.0, 2.0)]
    for turn in (1, 2):
        (run, _), shown = run_of(tmp_path), list[Line]()
        run.show = shown.append

        def compute(run: FitRun = run, turn: int = turn) -> list[Line]:
            assert turn == 1
            run.tuned_in, run.models = 5.0, {"mine": polyrank.load(tiny_encoders["bi"])}
            return lines

        run._step("step", {"n": 1}, compute)
        assert shown == run.lines == [replace(lines[0], minutes=1.5), lines[1]]
        assert (shown[0].minutes > 0, run.tuned_in) == (True, 5.0)
        assert [(label, model.name) for label, model in run.models.items()] == [("mine", str(tiny_encoders["bi"]))]


def test_a_step_is_done_again_after_other_settings_or_models(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    """And its models are found where the folder of the fit has moved to."""
    folder, done = tmp_path / "fit", list[tuple[dict[str, Any], int, tuple[str, ...]]]()
    shutil.copytree(tiny_encoders["bi"], folder / "runs" / "a" / "model")
    changes = [({"data": "x"}, 1, ()), ({"data": "y"}, 1, ()), ({"data": "y"}, 2, ()), ({"data": "y"}, 2, ("poly",))]
    for settings, n, before in (*changes, changes[-1]):
        run, _ = run_of(folder)
        run.settings, run.models = settings, {name: polyrank.load(tiny_encoders[name]) for name in before}

        def compute(run: FitRun = run, state: Any = (settings, n, before)) -> list[Line]:
            done.append(state)
            run.models["mine"] = polyrank.load(run.folder / "runs" / "a" / "model")
            return [Line("a")]

        run._step("step", {"n": n}, compute)
        assert run.models["mine"].name == str(folder / "runs" / "a" / "model")
    assert done == changes
    folder.rename(tmp_path / "moved")
    run, _ = run_of(tmp_path / "moved")
    run.settings, run.models = settings, {name: polyrank.load(tiny_encoders[name]) for name in before}
    run._step("step", {"n": n}, lambda: [])
    assert [*run.models] == ["poly", "mine"]
    assert run.models["mine"].name == str(tmp_path / "moved" / "runs" / "a" / "model")


@pytest.mark.parametrize(("most", "seconds", "is_left"), [(4, 900.0, False), (4, 540.0, True), (3, 660.0, True)])
def test_a_fit_keeps_minutes_for_its_end_before_it_trains(
    most: int, seconds: float, is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four test lists of which some are ranked, and six lists that the earlier steps ranked."""
    asked = list[str]()

    def train(recipe: dict[str, Any], **_: Any) -> list[RunResult]:
        asked.append(Path(recipe["output"]).name)
        raise RuntimeError("it trains")

    monkeypatch.setattr(sys.modules["polyrank.fitting.fit"], "MAX_TESTS", most)
    run, now = run_of(tmp_path, 30.0, train=train)
    run.data = replace(run.data, tests=pairs(*"abcd"))
    for number, name in enumerate(("baselines", "shipped", "terms")):
        result = {"lines": [asdict(Line(f"{name} {i}")) for i in range(2)], "models": {}, "tuned_in": 2.0 + 2 * number}
        run.journal.recall(name, {**run.settings, "models": {}}, lambda result=result: result)
    now[0] = seconds  # 15, 9 or 11 minutes, of which test lists take 4/6 or 3/6, and half of the last tuning's six
    if is_left:
        with pytest.raises(RuntimeError, match="it trains"):
            run.run()
    else:
        run.run()
    reserved = {(4, 900.0): 13.0, (4, 540.0): 9.0, (3, 660.0): 8.5}[most, seconds]
    assert (run.budget.reserved, run.budget.left > 0) == (pytest.approx(reserved), is_left)
    steps = [f"{name} {i}" for name in ("baselines", "shipped", "terms") for i in (0, 1)]
    assert [line.step for line in run.lines] == steps
    plans = planned_trainings(run.data)
    assert [*run.untried.values()] == plans
    assert asked == [f"{plans[0].folder}-pace"] * is_left


class Knowing(WordEncoder):
    """A reply has the vector of the context that it answers, which shares no word with it."""

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        vectors = [text_vector(text.replace("answer", "question"), self.seed, self.dimension) for text in candidates]
        return np.array(vectors, np.float32)


@pytest.mark.deep
def test_each_model_is_compared_with_the_ranker_of_those_before(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)
    texts = [f"answer{i}" for i in range(60)]
    run.data = replace(
        run.data,
        lists=[
            Example((f"question{i}",), tuple(texts[(i + j) % 60] for j in range(6)), (int(i % 5 == 0),), f"d{i}#0")
            for i in range(60)
        ],
        pairs=[],
    )
    run.models = {"base": WordEncoder("base")}
    first, again = (run._judged(planned(name), lambda name=name: Knowing(name, 3))[0] for name in ("first", "again"))
    assert (first.kept, again.kept) == (True, False)
    assert first.gain["low"] > 0.2
    assert abs(again.gain["mean"]) < 0.1
    assert [*run.models] == ["base", "training first"]


def test_terms_without_training_are_lines_with_their_own_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are tried if at least 2% of the replies repeat; times are of a search of the whole catalogue."""
    monkeypatch.setattr("polyrank.tuning.durations.MAX_ROWS", 100)  # of more, the time is a multiple
    monkeypatch.setattr(time, "perf_counter", count().__next__)  # by which every call takes a second
    run, _ = run_of(tmp_path)
    run.data = replace(
        run.data,
        lists=[
            Example((f"a{i} b{i}",), tuple(f"a{(i + j) % 30} c{j}" for j in range(6)), (i % 7 > 4,), f"d{i}")
            for i in range(30)
        ],
        replies=[Candidate("r", "hello")] * 1_000_000,
    )
    run.models = {"base": WordEncoder("base")}
    for repeated, is_tried in ((0.0199, False), (0.02, True)):
        run.data = replace(run.data, repeated=repeated)
        lines = {line.step: line for line in run._terms()}
        assert lines.keys() == {"words", *(["counts"] if is_tried else [])}
        if is_tried:  # of the training pairs, which give none of the lists' replies
            assert not lines["counts"].kept
        tuning = run.tuning
        assert tuning is not None
        assert [*(tmp_path / "scores").iterdir()]  # for the next call
        assert tuning.curve[0]["milliseconds"] == 1000 + 1000 * 10_000  # encoding, and a search of all replies
        rows = {row["name"]: row for row in tuning.rows}
        assert lines["words"].kept
        assert lines["words"].gain == rows["words"]["with"]["MRR"] != rows["words"]["with"]["R@1"]
        (point,) = (point for point in tuning.curve if point["terms"][-1] == "words")
        assert lines["words"].milliseconds == point["milliseconds"]
        assert lines["words"].metrics == {"R@1": point["R@1"], "MRR": point["MRR"]}
        others = [line for step, line in lines.items() if not rows[step]["weights"]]
        assert all((line.kept, line.metrics, line.gain, line.milliseconds) == (False, {}, {}, None) for line in others)


@pytest.mark.parametrize(("likelihood", "rank", "kept"), [(0.5, 0.0, True), (0.0, 0.2, True), (0.5, -0.2, True),
                                                          (0.0, 0.0, False), (-0.5, -0.2, False),
                                                          (1e-4, 0.0, False), (0.0, 1e-4, False)])  # fmt: skip
def test_a_model_is_kept_if_the_ranker_gains_in_one_figure(
    likelihood: float, rank: float, kept: bool, tmp_path: Path
) -> None:
    run, _ = run_of(tmp_path)
    noise = np.linspace(-1e-3, 1e-3, 6)

    def tuning(likelihood: float, rank: float, ms: float, noise: Any = noise) -> Tuning:
        held_out = HeldOut(noise + likelihood, noise + 0.5 + rank, np.round(noise + 0.5 + rank))
        rows = [{"milliseconds": ms, "weights": {"a": 1.0}}, {"milliseconds": 9.0, "weights": {}},
                {"milliseconds": 0.5, "weights": {"b": 1.0}}]  # fmt: skip
        return Tuning(run, True, "a", rows, [], {}, 6, held_out)  # type: ignore[arg-type]

    line = run.compared("step", tuning(0.0, 0.0, 1.0), tuning(likelihood, rank, 2.0, noise[::-1]))
    assert (line.step, line.kept, line.milliseconds) == ("step", kept, 2.5)
    assert line.gain["mean"] == pytest.approx(rank)
    assert line.metrics["MRR"]["mean"] == pytest.approx(0.5 + rank)
    assert line.note == ("" if kept else "no measurable gain on 6 lists")
    better = noise + np.array([0.4, 0, 0, 0, 0, 0])  # in one conversation only, so the interval of the gain starts at 0
    assert not run.compared("step", tuning(0.0, 0.0, 1.0), tuning(0.0, 0.0, 1.0, better)).kept


@pytest.mark.parametrize("n_sure", [1, 2])
def test_a_threshold_leaves_a_twentieth_of_the_contexts_an_answer(
    n_sure: int, tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two words lead to the right reply of few of 40 contexts; one word leads the others to a wrong reply."""
    run, now = run_of(tmp_path)
    sure = np.flatnonzero(~choose_hidden(40, NO_ANSWER, 0))[:n_sure]
    lists = [
        Example((f"one{i} two{i}",), (f"see one{i} two{i}" if i in sure else f"at{i}", f"see one{i}"), (0,), f"d{i}")
        for i in range(40)
    ]
    run.data = replace(run.data, lists=lists, tests=lists[:3])
    run.ms, now[0] = 50.0, 90.0
    monkeypatch.setattr(sys.modules["polyrank.fitting.fit"], "MAX_TESTS", 2)
    bm25 = BM25().fit([text for one in lists for text in one.candidates])
    encoder = polyrank.load(tiny_encoders["bi"])
    assert isinstance(encoder, Encoder)
    ranker = polyrank.Ranker([(EncoderTerm(encoder), (1e-6,)), (LexicalTerm(bm25), (1.0,))])
    names = set[str]()
    run.progress = lambda name, batches: names.add(name) or batches
    run.models = {"first": encoder}
    named = {"bm25": "lexical", f"hubs of {encoder.name}": "hubs", encoder.name: "encoder", "shipped:late": "cross"}
    rows = [{"name": name, "kind": kind, "weights": {"a": 1.0}, "milliseconds": 1.0} for name, kind in named.items()]
    rows.append({"name": "shipped:convert", "kind": "encoder", "weights": {}, "milliseconds": 9.0})  # not chosen
    run.tuning = Tuning(ranker, True, "a", rows, [], {}, 40, HeldOut(np.zeros(40), np.full(40, 0.5), np.ones(40)))
    report = run.finish("data", 0.9).report
    stated = {"data": "data", "minutes": 30.0, "used": 1.5, "ms": 50.0, "precision": 0.9}
    assert report["settings"] == stated
    assert [report["test"][name]["n_examples"] for name in ("ranker", "BM25")] == [2, 2]
    assert len(report["test"]["answers"]) == 2
    last = [[one.context[0], one.response] for one in lists[:20]]  # all 40 are ranked last
    assert report["data"]["suspects"] == last
    assert report["chosen"]["milliseconds"] == 4.0
    assert report["chosen"]["metrics"]["MRR"]["mean"] == 0.5
    threshold = report["threshold"]
    assert names == {"threshold", "test"}
    saved = polyrank.load(tmp_path / "ranker")
    assert isinstance(saved, polyrank.Ranker)
    assert saved.figures["threshold"] == threshold
    labels = ["bm25", "hubs of first", "first", "shipped:late", "shipped:convert"]
    assert [row["name"] for row in report["terms"]] == labels
    assert f"polyrank tune {encoder.name} shipped:late --valid" in "\n".join(report["commands"])
    rule = saved.abstention
    if n_sure == 1:
        problem = "only 2.5% of contexts would get an answer if 90% had to be right"
        assert (rule, threshold) == (None, {"precision": 0.9, "problem": problem})
    else:
        assert rule is not None
        assert (threshold["chosen"]["coverage"], threshold["chosen"]["precision"]) == (0.05, 1.0)
        ranker = polyrank.Ranker([(EncoderTerm(encoder), (1e-6,)), (LexicalTerm(bm25), (2.0,))])
        run.tuning = replace(run.tuning, ranker=ranker)
        other = run.finish("data", 0.02).report  # for another ranker, the test lists are ranked again
        assert other["threshold"]["chosen"]["coverage"] > 0.5
        reasons = [[one["reasons"] for one in found["test"]["answers"]] for found in (report, other)]
        assert reasons[0] != reasons[1]
        with polyrank.open(tmp_path) as replies:
            assert (len(replies), replies.scorer.fingerprint) == (1, ranker.fingerprint)
        if not torch.cuda.is_available():
            run.device = "cuda"
            with pytest.raises(UsageError, match="device 'cuda' is not available on this machine"):
                run.finish("data", 0.02)  # as everything else, the index is made there
