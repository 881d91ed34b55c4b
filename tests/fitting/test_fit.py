"""``polyrank.fit`` on the sample: its folder, resumption, interruption and refusals."""

import csv
import html
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

import polyrank
from polyrank import Fitted, RunResult
from polyrank.config.names import SAMPLE
from polyrank.errors import DataError, LockedError, UsageError
from polyrank.fitting.data import FitData, make_parts, part_files, read_parts
from polyrank.fitting.recipes import planned_trainings
from polyrank.fitting.report import Line, answers_of, report_text, result_of, write_report
from polyrank.index import is_index
from polyrank.records import Example
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.terms.counts import Counts
from polyrank.storage.lock import hold
from polyrank.training.signals import InterruptedTraining
from processes import run
from servers import serving
from small_start import make_package, start_small

Fit = Callable[..., Fitted]


def quiet(text: str) -> None:
    """Where messages go."""


def read(source: Path, folder: Path) -> FitData:
    """The data of a fit."""
    make_parts(source, folder, quiet)
    return read_parts(part_files(source) or part_files(folder / "data"), None, quiet)


def few(folder: Path, n: int = 6, n_dialogues: int = 8) -> Path:
    """A folder of ``split`` with few dialogues, and few and short lists, of the sample."""
    folder.mkdir()
    rows = [json.loads(row) for row in (SAMPLE / "valid.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        (right,) = row["relevant"]
        row["candidates"] = [row["candidates"][right], *row["candidates"][:right][:7]]
        row["relevant"] = [0]
    for name, chosen in (("valid", rows[:n]), ("test", rows[-n:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen), "utf-8")
    said = (SAMPLE / "train.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(said[:n_dialogues]), "utf-8")
    return folder


def stop_at(step: str, number: int = signal.SIGINT) -> Callable[[Line], None]:
    """As the command does when a signal comes while this line appears."""

    def show(line: Line) -> None:
        if line.step == step:
            raise KeyboardInterrupt(number)

    return show


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fitted]:
    """A fit that the user stops before the trainings."""
    folder, said = tmp_path_factory.mktemp("fit"), list[str]()
    data = few(folder / "data")
    fitted = polyrank.fit(data, folder / "support", precision=0.7, show=stop_at("words"), notify=said.append)
    assert said[-1] == "stopped; finishing with the best ranker so far; continue with `resume=True`"
    return folder, fitted


def test_a_stopped_fit_is_ready_to_serve(stopped: tuple[Path, Fitted]) -> None:
    folder, fitted = stopped
    support = folder / "support"
    assert is_index(support)
    with polyrank.open(support) as replies:
        assert len(replies.answer("my wifi is slow", 2).ranked) == 2
        assert replies.scorer.fingerprint == fitted.report["ranker"]
    assert polyrank.load(support / "ranker").fingerprint == fitted.report["ranker"]
    assert fitted.report["test"]["ranker"]["n_examples"] == 6
    assert "Bi-encoder" in fitted.report["untried"]
    assert 0 < fitted.report["settings"]["used"] < 30
    assert fitted.report["settings"]["precision"] == fitted.report["threshold"]["precision"] == 0.7
    first = [line["step"] for line in fitted.report["lines"]]
    assert first[:2] == ["BM25", "reply frequency"]
    assert {"shipped:convert", "counts", "words"} <= set(first)
    assert not any((support / "runs").glob("*"))
    text = (support / "report.md").read_text("utf-8")
    assert re.search(r"6 test contexts, each with \d to 8 candidates", text)
    parts = text.partition("a weighted sum of:")[2].partition("| measure")[0]
    (kept,) = (line["step"] for line in fitted.report["lines"] if line["kept"])
    assert parts.strip() == f"- **{kept}**: how similar an encoder finds context and reply"
    assert "R@1:" in text
    assert "R@5:" not in text  # of three candidates


def test_terms_of_a_kind_share_their_meaning(stopped: tuple[Path, Fitted]) -> None:
    kinds = {"a_1": "encoder", "words": "words", "b": "encoder", "c": "encoder"}
    rows = [
        {"kind": kind, "name": name, "weights": {"score": 1.0} if name != "c" else {}} for name, kind in kinds.items()
    ]
    text = report_text({**stopped[1].report, "terms": rows})
    parts = [
        "- **a\\_1, b**: how similar an encoder finds context and reply",
        "- **words**: words that a reply shares with the context",
    ]
    assert "\n\n" + "\n".join(parts) + "\n\n| measure, % | ranker | BM25 |\n| --- | --- | --- |\n| R@1: the" in text
    assert result_of(text).splitlines()[-2:] == [
        "- a_1, b: how similar an encoder finds context and reply",
        "- words: words that a reply shares with the context",
    ]


def test_a_report_says_what_was_not_tried_and_which_threshold_answers(stopped: tuple[Path, Fitted]) -> None:
    figures = stopped[1].report
    settings = {**figures["settings"], "used": 1.25, "minutes": 30.0}
    for untried, words in (
        ({}, ""),
        ({"a": None}, " Not tried: a (not estimated)."),
        (
            {"a": None, "b": 2.04, "c": 3},
            " Not tried: a (not estimated), b (about 2.0 minutes), c (about 3.0 minutes).",
        ),
    ):
        text = report_text({**figures, "settings": settings, "untried": untried})
        assert f"\n\nUsed: 1.2 of 30 minutes.{words}\n\n| step |" in text
    found = report_text({**figures, "threshold": {"chosen": {"coverage": 0.254, "precision": 0.8}}})
    assert "it answers 25% of validation contexts" in found
    assert "and 80% of these answers are right." in found
    none = report_text({**figures, "threshold": {"problem": "too few"}})
    assert "\n\nNo threshold was set: too few.\n\nAn answer takes " in none


def test_a_report_shows_its_warning_suspects_and_missing_answers(stopped: tuple[Path, Fitted]) -> None:
    figures = stopped[1].report
    data = {**figures["data"], "warning": None, "suspects": [], "languages": {"en": 0.9, "de": 0.1}}
    quiet = report_text({**figures, "data": data, "test": {**figures["test"], "answers": []}})
    assert "Languages of contexts: en 90%, de 10%.\n\n| part | conversations | pairs |" in quiet
    assert "Labels" not in quiet
    assert quiet.count("answers of the test\n\nNone.\n\n## ") == 2
    suspects = [[f"where is {n}|?", "no"] for n in range(7)]
    loud = report_text({**figures, "data": {**data, "warning": "mostly German", "suspects": suspects}})
    assert "de 10%.\n\nmostly German\n\n| part |" in loud
    counts = {
        "pairs": {"train": 12_345, "valid": 1, "test": 7_000},
        "conversations": dict.fromkeys(figures["data"]["pairs"], 4_321),
    }
    answer = {"said": "yes", "reasons": "a +1.0", "right": True}
    answers = [{**answer, "context": [*"abc"], "answer": "no"}, {**answer, "context": ["d"], "answer": "so"}]
    tested = {**figures["test"]["ranker"], "n_examples": 2_999, "n_candidates": 10}
    for name in ("R@5", "R@10"):
        tested["metrics"], tested["intervals"] = (
            tested["metrics"] | {name: 0.5},
            tested["intervals"] | {name: (0.25, 0.75)},
        )
    many = report_text({
        **figures, "data": {**data, **counts, "replies": 54_321, "repeated": 0.256},
        "test": {"ranker": tested, "BM25": tested | {"metrics": tested["metrics"] | {"R@5": 0.3}}, "answers": answers},
    })  # fmt: skip
    assert " of 2,999 test contexts, each with 10 candidates; BM25" in many
    assert "\n54,321 replies in the catalogue. 26% of the training pairs " in many
    assert "| train | 4,321 | 12,345 |\n| valid | 4,321 | 1 |\n| test | 4,321 | 7,000 |\n" in many
    assert "| b / c | no | yes | a +1.0 |\n| d | so | yes | a +1.0 |\n" in many
    shown = "50.0 (25.0 to 75.0) |"
    assert f"| R@5: among the first 5 | {shown} 30.0 (25.0 to 75.0) |\n| R@10: among" in many
    assert f"among the first 10 | {shown} {shown}\n| MRR: the mean" in many
    assert "Install polyrank[plots] for a plot of R@1 against milliseconds.\n" in many
    assert "Install" not in report_text(figures, plot=True)
    rows = "\n".join(f"| where is {n}\\|? | no |" for n in range(5))
    assert f"ranks last.\n\n| context | reply |\n| --- | --- |\n{rows}\n\n## Right" in loud
    for table, name in (("threshold", "problem"), ("data", "warning"), ("test", "answers"), ("machine", "cpu")):
        fewer = {**figures, "threshold": {"problem": "too few"}}
        fewer[table] = {key: value for key, value in fewer[table].items() if key != name}
        with pytest.raises(UndefinedError, match=name):  # a figure that is missing is not left out
            report_text(fewer)


@pytest.mark.deep
def test_the_server_has_the_report(stopped: tuple[Path, Fitted]) -> None:
    folder, fitted = stopped
    with serving(folder / "support") as running, running.client() as client:
        assert client.get("/v1/models/support/report").json() == fitted.report
        assert client.post("/v1/respond", json={"context": ["my wifi is down"], "k": 1}).json()["results"]


def test_texts_of_users_stay_texts_in_a_report(stopped: tuple[Path, Fitted], tmp_path: Path) -> None:
    texts = ["<img src=https://x.org/1.png>", "[a](https://x.org) *b* __c__ `d` | \\e ~~f~~", "&lt; <b>g</b>\n# h"]
    answers = [{"context": [text], "answer": text, "said": text, "right": False, "reasons": text} for text in texts]
    figures = stopped[1].report
    write_report(tmp_path, {**figures, "test": {**figures["test"], "answers": answers}})
    page = (
        (tmp_path / "report.html").read_text("utf-8").partition("Wrong answers of the test</h2>")[2].partition("<h2")[0]
    )
    row = ["tr", *["td"] * 4]
    assert re.findall(r"<(\w+)", page) == ["table", "thead", "tr", *["th"] * 4, "tbody", *row * 3]
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*)</td>", page)]
    assert cells == [" ".join(text.split()) for text in texts for _ in range(4)]


@pytest.mark.deep
def test_a_fit_goes_on_if_models_take_longer_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model alone exceeds the limit; another one does from the fourth time on."""
    n_timed: Counter[str] = Counter()

    def measured(term: Any, *_: Any, **__: Any) -> float:
        n_timed[term.name] += 1
        return 1.0 if "convert" in term.name else 9.0 if 1 < n_timed[term.name] < 4 else 11.0

    monkeypatch.setattr(sys.modules["polyrank.tuning.tune"], "milliseconds", measured)
    fitted = polyrank.fit(few(tmp_path / "data"), tmp_path / "support", ms=10, show=stop_at("words"))
    assert fitted.report["chosen"]["milliseconds"] < 10


def test_an_empty_file_is_one_reason_without_a_table(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    refused = run("fit", tmp_path / "empty.jsonl", "-o", tmp_path / "support")
    assert refused.returncode == DataError.exit_code
    assert "is empty; give a file with messages" in refused.stderr
    assert "MRR" not in refused.stderr
    assert not (tmp_path / "support").exists()


@pytest.mark.deep
def test_trainings_run_where_the_caller_says(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_small(make_package(tiny_backbone, tmp_path / "package"), monkeypatch)
    asked: list[Path] = []

    def train_elsewhere(recipe: dict[str, Any], **options: Any) -> list[RunResult]:
        asked.append(Path(recipe["output"]))
        return polyrank.train(recipe, **options)

    show = stop_at("Bi-encoder")
    polyrank.fit(few(tmp_path / "data", 6, 3), tmp_path / "support", minutes=30, train=train_elsewhere, show=show)
    assert [path.name for path in asked] == ["bi-pace", asked[1].name]
    assert (asked[1] / "model").is_dir()


@pytest.mark.deep
def test_trainings_run_at_the_same_time(tmp_path: Path) -> None:
    both, one, trained = threading.Barrier(2, timeout=300), threading.Lock(), []

    def train_elsewhere(recipe: dict[str, Any], **options: Any) -> list[RunResult]:
        if not recipe["output"].endswith("-pace"):
            both.wait()  # fails unless the other begins before this one has ended
            trained.append(recipe["model"]["kind"])
        with one:  # threads of a process share its random numbers
            return polyrank.train(recipe, **options)

    data = few(tmp_path / "data", 6, 3)
    options = {"minutes": 30, "train": train_elsewhere, "at_once": 2, "show": stop_at("ConveRT")}
    fitted = polyrank.fit(data, tmp_path / "support", **options)
    assert sorted(trained) == ["bi", "convert"]
    assert fitted.report["untried"]["Bi-encoder, another seed"] > 0  # takes as long as the first
    assert fitted.report["untried"]["second stage"] is None
    assert [line["step"] for line in fitted.report["lines"]][-2:] == ["Bi-encoder", "ConveRT"]


def test_the_report_is_one_file_in_three_forms(stopped: tuple[Path, Fitted]) -> None:
    folder, fitted = stopped
    page, text = ((folder / "support" / f"report.{form}").read_text("utf-8") for form in ("html", "md"))
    assert f"<title>polyrank fit {fitted.report['settings']['data']}</title>" in page
    assert json.loads((folder / "support" / "report.json").read_text("utf-8")) == fitted.report
    for word in ("Result", "Steps", "Right answers", "Not tried", "Data", "ms per answer", "polyrank tune"):
        assert word in page
        assert word in text
    assert not re.search(r"(src|href|url)\W+https?:", re.sub(r"xmlns:\w+=", "", page))
    assert "<svg" in page
    shown = [one for one in fitted.report["test"]["answers"] if one["right"]]
    assert all(one["reasons"] for one in shown)


@pytest.mark.deep
def test_the_figures_of_the_report_are_those_of_its_ranker_and_data(
    stopped: tuple[Path, Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fitted = stopped
    report, data = fitted.report, read(folder / "data", folder)
    ranker = polyrank.load(fitted.folder / "ranker")
    evaluation = polyrank.evaluate(ranker, data.tests)
    assert polyrank.summarise(evaluation)["metrics"] == pytest.approx(report["test"]["ranker"]["metrics"], abs=1e-6)
    best = [
        one.candidates[int(record.scores.argmax())] for one, record in zip(data.tests, evaluation.records, strict=True)
    ]
    answers = [
        (list(one.context), one.response, text, text == one.response)
        for one, text in zip(data.tests, best, strict=True)
    ]
    shown = [(one["context"], one["said"], one["answer"], one["right"]) for one in report["test"]["answers"]]
    assert shown == sorted(answers, key=lambda one: not one[3])  # the right ones first, each in the order of the file
    assert {one[3] for one in shown} == {True, False}
    monkeypatch.setattr("polyrank.fitting.report.N_ANSWERS", 1)
    few_shown = answers_of(ranker, data.tests, evaluation, str)
    assert [one["context"] for one in few_shown] == [
        next(context for context, *_, right in answers if right is wanted) for wanted in (True, False)
    ]
    said = Counter(example.response or "" for example in data.pairs)
    frequency = polyrank.Ranker([(Counts.of(said), (1.0,))])
    for number, baseline in enumerate((polyrank.load("bm25", corpus=corpus_of(data.lists)), frequency)):
        metrics = polyrank.summarise(polyrank.evaluate(baseline, data.lists))["metrics"]
        line = report["lines"][number]["metrics"]
        assert {name: line[name]["mean"] for name in line} == pytest.approx(
            {name: metrics[name] for name in ("MRR", "R@1")}
        )
    bm25 = polyrank.evaluate(polyrank.load("bm25", corpus=corpus_of(data.tests)), data.tests)
    assert polyrank.summarise(bm25)["metrics"] == pytest.approx(report["test"]["BM25"]["metrics"])
    kept = [one["step"] for one in report["lines"] if one["kept"]]
    assert len(kept) == len([row for row in report["terms"] if row["weights"]])
    (tuned,) = (command for command in report["commands"] if command.startswith("polyrank tune "))
    models = [row["name"] for row in report["terms"] if row["weights"] and row["kind"] == "encoder"]
    assert tuned.partition(" --")[0] == f"polyrank tune {' '.join(models)}"
    found = polyrank.evaluate(ranker, data.lists).records  # of a single model, which no fold changes
    last = [one.placement.groups[0].n_above + 1 == one.placement.n_candidates for one in found]
    suspects = [[one.context[-1], one.response] for one, is_last in zip(data.lists, last, strict=True) if is_last]
    assert report["data"] == {**data.facts(), "suspects": suspects}


@pytest.mark.deep
def test_a_resumed_fit_repeats_no_step_and_makes_the_same_ranker(
    stopped: tuple[Path, Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fitted = stopped
    this_module = sys.modules["polyrank.fitting.fit"]  # its name in the package is the function's
    monkeypatch.setattr(this_module, "make_clock", lambda on_processor: lambda: 0.0)  # this call takes no time
    steps = folder / "support" / "steps"
    before = {file.name: file.stat().st_mtime_ns for file in steps.iterdir()}
    again = polyrank.fit(folder / "data", folder / "support", minutes=0.001, precision=0.7, resume=True)
    assert again.report["ranker"] == fitted.report["ranker"]
    lines = fitted.report["lines"]
    assert again.report["lines"][: len(lines)] == lines  # it stopped before the re-rankers
    assert {file.name: file.stat().st_mtime_ns for file in steps.iterdir() if file.name in before} == before
    assert set(again.report["untried"]) == set(fitted.report["untried"])
    earlier = sum(json.loads((steps / name).read_text("utf-8"))["seconds"] for name in before)
    assert again.report["settings"]["used"] == pytest.approx(earlier / 60)


def test_a_request_to_end_finishes_nothing_and_neither_does_one_without_a_model(stopped: tuple[Path, Fitted]) -> None:
    folder, fitted = stopped
    before = (fitted.folder / "report.json").stat().st_mtime_ns

    def end_training(line: Line) -> None:
        if line.step == "words":
            raise InterruptedTraining(signal.SIGTERM, "runs/bi")

    for show in (stop_at("words", signal.SIGTERM), end_training, stop_at("BM25")):
        with pytest.raises((KeyboardInterrupt, InterruptedTraining)):
            polyrank.fit(folder / "data", folder / "support", resume=True, show=show)
    assert (fitted.folder / "report.json").stat().st_mtime_ns == before


def test_a_folder_of_split_is_read_where_it_is(stopped: tuple[Path, Fitted], tmp_path: Path) -> None:
    folder, _ = stopped
    one = read(folder / "data", tmp_path)
    assert one.speaker == "agent"
    assert len(one.lists) == len(one.tests) == 6


def test_an_earlier_fit_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years", "utf-8")
    for overwrite, message in ((False, "already exists"), (True, "holds other files")):
        with pytest.raises(UsageError, match=message):
            polyrank.fit(SAMPLE, tmp_path, overwrite=overwrite)
    with pytest.raises(UsageError, match="0 minutes"):
        polyrank.fit(SAMPLE, tmp_path / "new", minutes=0)
    with pytest.raises(UsageError, match=r"30 minutes, 0 ms, .*; give numbers above 0"):
        polyrank.fit(SAMPLE, tmp_path / "new", ms=0)
    with pytest.raises(UsageError, match="0 trainings at once; give numbers above 0"):
        polyrank.fit(SAMPLE, tmp_path / "new", at_once=0)
    with pytest.raises(UsageError, match=r"none\.jsonl does not exist"):
        polyrank.fit(tmp_path / "none.jsonl", tmp_path / "new")
    assert (tmp_path / "thesis.txt").read_text("utf-8") == "years"


def test_data_that_cannot_be_read_leave_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "one.jsonl").write_text('{"context": ["hi"], "response": "yes?"}\n', "utf-8")
    for name in ("empty.csv", "one.jsonl", "none.csv"):
        with pytest.raises((DataError, UsageError)):
            polyrank.fit(tmp_path / name, tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_an_earlier_fit_is_continued_or_replaced(
    stopped: tuple[Path, Fitted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fitted = stopped
    with pytest.raises(UsageError, match=r"holds a fit; pass `resume=True` to continue it, or `overwrite=True`"):
        polyrank.fit(SAMPLE, fitted.folder)
    with pytest.raises(UsageError, match=r"none\.jsonl does not exist"):
        polyrank.fit(tmp_path / "none.jsonl", fitted.folder, resume=True)
    with (
        hold(fitted.folder / "fit.lock", "the test has it"),
        pytest.raises(LockedError, match=rf"support is being fitted in by process {os.getpid()}; wait until"),
    ):
        polyrank.fit(folder / "data", fitted.folder, overwrite=True)
    assert (fitted.folder / "report.json").exists()
    for name in ("index", "ranker", "data", "runs/bi", "scores", "steps"):
        (tmp_path / "old" / name).mkdir(parents=True)
        (tmp_path / "old" / name / "file").touch()
    for name in ("chats.jsonl", "replies.jsonl", "report.md", "fit.lock"):
        (tmp_path / "old" / name).touch()
    (own := tmp_path / "own.txt").write_text("of course\nmaybe\n", "utf-8")
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # this process takes no time
    for train in (polyrank.train, lambda *_, **__: list[RunResult]()):
        with pytest.raises(KeyboardInterrupt):
            polyrank.fit(
                folder / "data", tmp_path / "old", replies=own, overwrite=True, show=stop_at("BM25"), train=train
            )
        assert [one.text for one in polyrank.read_pool(tmp_path / "old" / "replies.jsonl")] == ["of course", "maybe"]
        seconds = json.loads((tmp_path / "old" / "steps" / "data.json").read_text("utf-8"))["seconds"]
        assert (seconds > 0) == (train is not polyrank.train)  # a cluster's time counts as it passes
    left = {str(path.relative_to(tmp_path / "old")) for path in (tmp_path / "old").rglob("*")}
    assert left == {"fit.lock", "replies.jsonl", "steps", "steps/baselines.json", "steps/data.json"}


@pytest.mark.deep
def test_chats_become_parts_by_conversation(tmp_path: Path) -> None:
    """An export, through polyrank-chats; replies that were given once are the catalogue if few repeat."""
    said = [json.loads(line) for line in (SAMPLE / "train.jsonl").read_text("utf-8").splitlines()[:30]]
    with (tmp_path / "export.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[one["id"], turn["speaker"], turn["text"]] for one in said for turn in one["turns"]]
        csv.writer(file).writerows([["ticket", "sender", "message"], *rows])
    (tmp_path / "chats.jsonl").write_text("half", "utf-8")  # of an earlier call, which was killed
    data = read(tmp_path / "export.csv", tmp_path)
    ids = {json.loads(row)["id"] for row in (tmp_path / "data" / "train.jsonl").read_text("utf-8").splitlines()}
    assert data.facts()["conversations"]["train"] == len(ids) < len(data.pairs)
    assert data.facts()["languages"]["en"] > 0.8
    alone = [{"id": f"p{n}", "context": [f"where is {n}"], "response": f"it is at place {n}"} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in alone), "utf-8")
    pairs = read(tmp_path / "pairs.jsonl", tmp_path / "more")
    assert pairs.repeated == 0
    assert pairs.speaker is None
    assert len(pairs.replies) > 10


@pytest.mark.parametrize(("n_replies", "n_drawn"), [(2, 1), (8, 7), (9, 8), (30, 8)])
def test_a_second_stage_draws_no_more_negatives_than_there_are(
    n_replies: int, n_drawn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"context": [f"where is {n}"], "response": f"at {n % n_replies}"} for n in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = read(tmp_path / "pairs.jsonl", tmp_path / "parts")
    data = replace(data, pairs=[Example(one["context"], (one["response"],), (0,)) for one in rows])
    monkeypatch.setattr("polyrank.fitting.recipes.best_start", lambda: "shipped:minilm")
    (late,) = (one for one in planned_trainings(data) if one.tables["model"]["kind"] == "late")
    assert late.tables["train"]["negatives"]["n"] == n_drawn


@pytest.mark.parametrize(("n_times", "passes", "dropout"), [(1, 2, 0.0), (3, 4, 0.1)])
def test_trainings_suit_the_data(
    n_times: int, passes: int, dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"id": f"p{n}", "context": [f"where is {n}"], "response": f"it is at {n % (60 // n_times)}"} for n in range(60)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = read(tmp_path / "pairs.jsonl", tmp_path / "parts")
    with monkeypatch.context() as patch:
        patch.setattr("polyrank.config.starter_recipe.find_spec", lambda name: None)  # no larger model is installed
        assert [one.name for one in planned_trainings(data)] == ["ConveRT"]
    with_wrong = replace(data, pairs=[replace(one, candidates=(*one.candidates, "no")) for one in data.pairs])
    for known, sources in ((data, None), (with_wrong, ["given"])):  # wrong candidates of the data are the negatives
        tables = [one.tables for one in planned_trainings(known)[:2]]
        assert [table["train"].get("negatives", {}).get("sources") for table in tables] == [sources] * 2
    planned = planned_trainings(data)
    first: dict[str, Any] = dict(planned[0].tables["train"])
    if planned[0].name == "Bi-encoder":
        assert (first["epochs"], first["dropout"]) == (passes, dropout)
        assert planned[0].n_steps(data) == passes * -(-len(data.pairs) // first["batch_size"])
    recipes = [polyrank.load_recipe(one.recipe(data, tmp_path / "run")) for one in planned]
    kept = [recipe for recipe, one in zip(recipes, planned, strict=True) if one.is_kept]
    assert all(kept.index(recipe) == n for n, recipe in enumerate(kept))  # each trains another model
    if planned[0].name == "Bi-encoder":
        names = [one.name for one in planned]
        assert [one.like for one in planned if one.tables["model"]["kind"] == "bi"] == ["", *["bi"] * 4]
        assert {one.like for one in planned if one.tables["model"]["kind"] != "bi"} == {""}
        again = recipes[names.index("Bi-encoder, another seed")]
        assert again.train.seeds != recipes[0].train.seeds
        assert replace(again, train=replace(again.train, seeds=recipes[0].train.seeds)) == recipes[0]
        of_parts = {one.name: recipe for one, recipe in zip(planned, recipes, strict=True) if not one.is_kept}
        for name, n in (("1/4 of the", len(data.pairs) // 4), ("1/2 of the", len(data.pairs) // 2), ("all", None)):
            recipe = of_parts[f"Bi-encoder of {name} pairs"]
            assert recipe == replace(recipes[0], data=replace(recipes[0].data, max_train=n))
        for repeated, n in ((0.2, 2), (0.201, 4)):  # a fifth is not more
            assert planned_trainings(replace(data, repeated=repeated))[0].tables["train"]["epochs"] == n
    for most in (5, 24, 40, 75, 80, 100):  # pairs of a pass
        monkeypatch.setattr("polyrank.fitting.recipes.MAX_PASS", most)
        if planned[0].name == "Bi-encoder":
            n = max(1, min(passes, 2 * most // len(data.pairs)))
            found = planned_trainings(data)[0].tables["train"]
            assert (found["epochs"], found["dropout"]) == (n, 0.1 if n > 2 else 0.0)
