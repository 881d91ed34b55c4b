"""Options of commands have an effect: each is given a value that is not the default."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polyrank
from polyrank.cli.commands import app
from polyrank.config.models import CrossConfig, TextPolicy
from polyrank.config.names import SAMPLE
from polyrank.errors import DataError, UsageError
from polyrank.feedback import FeedbackStore, Outcome, Reply, Shown
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Context
from polyrank.scorers.open import load_encoder
from test_several_outputs import run, talks, written

LONG = "restart the router " * 20


def refusal(*arguments: object) -> str:
    """The message of the error that a command ends with."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    return str(done.exception)


class StopError(Exception):
    """Ends a command when it calls the library."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a command until it calls a function that would take long; returns the named arguments of the call."""

    def arguments_of(function: str, *command: object) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def stop(*_: object, **named: Any) -> None:
            found.update(named)
            raise StopError

        with monkeypatch.context() as patch:
            patch.setattr(function, stop)
            done = CliRunner().invoke(app, [*map(str, command)])
        assert isinstance(done.exception, StopError), (done.output, done.exception)
        return found

    return arguments_of


def test_every_command_computes_with_the_requested_backend(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    """Or refuses it: this model has no export."""
    model, replies = tiny_encoders["bi"], tmp_path / "replies.txt"
    replies.write_text("restart it\nthanks\n", "utf-8")
    lists = written(tmp_path / "lists.jsonl", [{"context": "hi", "candidates": ["a", "b"], "relevant": 0}])
    run("index", "build", model, replies, "-o", tmp_path / "index")
    for command in (
        ("rank", model, "hi", replies), ("explain", model, "hi", "--reply", "thanks"), ("evaluate", model, lists),
        ("respond", tmp_path / "index", "hi"), ("explain", tmp_path / "index", "hi"),
        ("index", "build", model, replies, "-o", tmp_path / "other"), ("index", "add", tmp_path / "index", replies),
        ("bench", "respond", model, "-n", "2"),
    ):  # fmt: skip
        assert f"{model} has no onnx export; make it with" in refusal(*command, "--backend", "onnx"), command
    with pytest.raises(UsageError, match="has no onnx export"):
        load_encoder(model, backend="onnx")


def test_an_index_has_the_requested_structure_and_cut_texts_are_reported(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    replies, more = tmp_path / "replies.txt", tmp_path / "more.txt"
    replies.write_text(f"restart it\nthanks\n{LONG}\n", "utf-8")
    more.write_text(f"pay the bill\nthe {LONG}\nmy {LONG}\n", "utf-8")
    for kind in ("flat", "none"):
        built = run("index", "build", tiny_encoders["bi"], replies, "-o", tmp_path / kind, "--ann", kind)
        assert "1 candidate did not fit into 16 tokens" in " ".join(built.stderr.split())
        assert json.loads(run("index", "info", tmp_path / kind).stdout)["ann"] == kind.removeprefix("none")
    added = run("index", "add", tmp_path / "flat", more)
    assert "2 candidates did not fit into 16 tokens" in " ".join(added.stderr.split())


def test_words_of_an_explanation_by_omission_end_at_the_limit(tiny_backbone: Path, tmp_path: Path) -> None:
    config = CrossConfig(backbone=str(tiny_backbone))
    save_model(tmp_path / "m", *new_model(config, TextPolicy(max_context_tokens=32), seed=1, sample=["thanks"]))
    command = ("explain", tmp_path / "m", "restart the router please", "--reply", "thanks a lot", "--json")
    for options, n in (((), (4, 3)), (("--words", "1"), (1, 1)), (("--words", "0"), (0, 0))):
        why = json.loads(run(*command, *options).stdout)
        assert (sum(len(turn["tokens"]) for turn in why["turns"]), len(why["candidate"]["tokens"])) == n


def test_the_options_of_a_fit_are_those_of_the_library(called: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    options = {"minutes": 2.5, "ms": 7.5, "precision": 0.95, "replies": tmp_path / "r.txt", "device": "cpu"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    fit, out = "polyrank.fitting.fit", tmp_path / "out"
    for flag in ("resume", "overwrite"):
        both = {name: name == flag for name in ("resume", "overwrite")}
        given = called(fit, "fit", SAMPLE / "train.jsonl", "-o", out, *words, f"--{flag}")
        assert {name: given[name] for name in (*options, *both)} == options | both
        given = called(fit, "quickstart", "--output", out, f"--{flag}")
        assert {name: given[name] for name in both} == both
    assert called(fit, "fit", SAMPLE / "train.jsonl", "-o", out)["precision"] == 0.8


def test_a_server_for_agents_may_be_read_only(
    called: Callable[..., dict[str, Any]], tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("mcp", reason="polyrank[mcp] is not installed")
    polyrank.build_index(tmp_path / "index", tiny_encoders["bi"], ["restart it"])
    for options, read_only in (((), False), (("--read-only",), True)):
        given = called("polyrank.integrations.mcp.make_server", "mcp", tmp_path / "index", *options)
        assert given["read_only"] is read_only


def test_a_model_is_pushed_to_a_private_repository_on_request(
    called: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for options, private in (((), False), (("--private",), True)):
        given = called("polyrank.loading.sharing.push_model", "push", tmp_path / "m", "hf:me/m", *options)
        assert given["private"] is private


def test_intents_are_predicted_with_an_encoder_that_has_moved(
    called: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    command = ("polyrank.tuning.intents.load_intents", "intents", "predict", tmp_path / "c", "hi")
    for options, encoder in (((), None), (("--encoder", "shipped:convert"), "shipped:convert")):
        assert called(*command, *options)["encoder"] == encoder


def test_a_reranker_of_words_has_the_statistics_of_all_candidates(tmp_path: Path) -> None:
    """Not those of each list, whose scores do not compare with the right answer's."""
    pool = ["red bill", "a green parcel", "the other bill of all of them", "my red red bill", "my own"]
    pool += ["red one", "red two", "red three"]
    (tmp_path / "pool.txt").write_text("\n".join(pool), "utf-8")
    pairs = written(tmp_path / "pairs.jsonl", [{"context": "my red bill", "response": "a bill for you"}])
    command = ("mine", pairs, "--from", "bm25", "--pool", tmp_path / "pool.txt", "-o", tmp_path / "mined.jsonl")
    found = json.loads(run(*command, "--rerank", "bm25", "--json").stdout)
    right, *scores = polyrank.load("bm25", corpus=pool).score(["my red bill"], [["a bill for you", *pool]])[0]
    assert found["n_doubtful"] == sum(score > right for score in scores) == 3


def test_texts_that_a_tuning_did_not_read_whole_are_reported(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"context": f"{LONG} {n}", "candidates": ["pay it", f"thanks {n}"], "relevant": 0} for n in range(20)]
    command = ("tune", tiny_encoders["bi"], "--valid", written(tmp_path / "lists.jsonl", rows), "-o", tmp_path / "best")
    said = " ".join(run(*command, "--without", "hubs", "--without", "words").stderr.split())
    assert "20 contexts did not fit into 32 tokens" in said


def test_a_plot_has_the_chosen_metrics(called: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"context": f"my bill {n}", "candidates": ["pay the bill", "thanks"], "relevant": 0} for n in range(3)]
    run("evaluate", "bm25", written(tmp_path / "lists.jsonl", rows), "--scores", tmp_path / "a.jsonl")
    plot = ("polyrank.evaluation.plot_comparison", "compare", tmp_path / "a.jsonl", "--plot", tmp_path / "plot.svg")
    assert len(called(*plot)["metrics"]) > 2
    assert [*called(*plot, "--metric", "R@1,MRR")["metrics"]] == ["R@1", "MRR"]


def test_a_training_on_feedback_is_on_the_latest(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    """Until the split, which refuses so few examples."""
    with FeedbackStore(tmp_path / "feedback.db", keep_text=True) as store:
        for n in range(2):
            replies, day = (Reply("a", 1.0, f"pay {n}"), Reply("b", 0.5, "no")), datetime(2026, 5, n + 1, tzinfo=UTC)
            shown = Shown(f"q{n}", replies, Context((f"my bill {n}",)), conversation=f"c{n}", time=day)
            store.record(shown, Outcome(f"q{n}", "taken", "a"))
    command = ["feedback", "train", tmp_path / "feedback.db", tiny_encoders["bi"], "-o", tmp_path / "new"]
    for since, n in ((None, 2), ("2026-05-02", 1)):
        options = [] if since is None else ["--since", since]
        done = CliRunner().invoke(app, [*map(str, [*command, "--overwrite", *options])])
        assert isinstance(done.exception, DataError), done.exception
        assert len((tmp_path / "new" / "used.jsonl").read_text("utf-8").splitlines()) == n


def test_the_table_of_a_split_counts_conversations_and_their_examples(tmp_path: Path) -> None:
    rows = talks(20, "customer", "agent", "12:00:00Z")
    for n, row in enumerate(rows):
        row["turns"] += [{"speaker": "customer", "text": f"and {n}?"}, {"speaker": "agent", "text": f"also at {n}"}]
    lines = run("split", written(tmp_path / "chats.jsonl", rows), "-o", tmp_path / "parts").stdout.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:4]] for line in lines if "│" in line]
    assert cells == [["train", "16", "32"], ["valid", "2", "4"], ["test", "2", "4"]]
