"""``polyrank tune`` on the sample that ships with polyrank: its table, JSON, folder and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polyrank
from polyrank.cli.commands import app
from polyrank.config.names import SAMPLE
from polyrank.data import read_examples
from polyrank.errors import PolyrankError

Tune = Callable[..., Any]


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """Run the command on a few lists of the sample."""
    lists = (SAMPLE / "valid.jsonl").read_text("utf-8").splitlines()[:24]
    (tmp_path / "valid.jsonl").write_text("\n".join(lists), "utf-8")
    dialogues = (SAMPLE / "train.jsonl").read_text("utf-8").splitlines()[:60]
    (tmp_path / "train.jsonl").write_text("\n".join(dialogues), "utf-8")

    def run(*arguments: str | Path) -> Any:
        words = ["tune", *arguments, "--valid", tmp_path / "valid.jsonl", "-o", tmp_path / "best"]
        return CliRunner().invoke(app, [*map(str, words)])

    return run


def test_a_ranker_is_chosen_printed_and_written(tune: Tune, tmp_path: Path) -> None:
    done = tune("shipped:convert", "bm25", "--dialogues", tmp_path / "train.jsonl", "--weight", "counts=0.2", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert {row["kind"] for row in figures["terms"]} == {"encoder", "lexical", "counts", "hubs", "words"}
    ranker = polyrank.load(tmp_path / "best")
    assert isinstance(ranker, polyrank.Ranker)
    assert ranker.prior == 0.2
    assert ranker.figures == figures
    assert not (tmp_path / "best.scores").exists()
    assert "already exists" in str(tune("shipped:convert").exception)
    polyrank.build_index(tmp_path / "index", tmp_path / "best", ["try another cable", "restart the router", "goodbye"])
    with polyrank.open(tmp_path / "index") as replies:
        assert len(replies.answer("my wifi is slow", 3).ranked) == 3


def test_a_model_alone_is_best_if_no_term_helps(tune: Tune, tmp_path: Path) -> None:
    done = tune("shipped:convert", "--without", "hubs", "--without", "words")
    assert done.exit_code == 0, done.output
    assert "words" not in done.stdout  # also the second term is not tried
    said = " ".join(done.stderr.split())
    assert "shipped:convert alone is best: no measurable difference on 24 lists" in said
    assert repr(polyrank.load(tmp_path / "best")) == "Ranker(1 shipped:convert)"
    for word in ("term", "weight", "R@1, MRR w", "ms", "shipped:convert"):
        assert word in done.stdout
    itself = tune(tmp_path / "best", "--overwrite").exception
    assert str(itself) == f"{tmp_path / 'best'} would be a part of itself; choose another path"
    done = tune("shipped:convert", "--without", "words", "--without", "hubs", "--precision", "0.99", "--overwrite")
    assert "no threshold reaches a precision of 99.0%" in str(done.exception)


def test_a_ranker_without_an_encoder_is_for_ranking(tune: Tune, tmp_path: Path) -> None:
    dialogues = tmp_path / "train.jsonl"
    options = ("--max-lists", "20", "--json", "--dialogues", dialogues, "--speaker", "customer")
    done = tune("bm25", "tfidf", "--weight", "tfidf=0.5", *options)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["n_lists"] == 20
    said = "".join(done.stderr.splitlines())
    n = len(read_examples(dialogues, speaker="customer").examples)
    assert n != len(read_examples(dialogues, speaker="agent").examples)
    assert f"{dialogues}: 60 rows, {n} examples" in said  # the lists have no speakers
    assert said.endswith(f"wrote {tmp_path / 'best'}; next: polyrank rank {tmp_path / 'best'} QUERY FILE")
    assert "alone is best" not in said  # the user chose the weight


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("shipped:other", "shipped:other does not ship with polyrank"),
        ("shipped:convert --without hub", "no term is called 'hub'; leave out one of counts, cross"),
        ("shipped:convert --weight counts", "--weight 'counts' is not TERM=WEIGHT; write for example"),
        ("shipped:convert --weight counts=a", "--weight 'counts=a' is not TERM=WEIGHT; write for example"),
        ("shipped:convert --weight nobody=1", "no term is called 'nobody'; fix the weight of one of shipped:convert"),
        ("shipped:convert --ms 0.000001", "no model answers in 1e-06 ms: shipped:convert, the fastest"),
        ("shipped:convert --ms 1000 --catalogue 1000000000000", "no model answers in 1000 ms: shipped:convert, the"),
        ("shipped:convert --dialogues nowhere", "nowhere"),
    ],
)
def test_wrong_arguments_are_refused(tune: Tune, tmp_path: Path, arguments: str, reason: str) -> None:
    done = tune(*arguments.split())
    assert isinstance(done.exception, PolyrankError)
    assert reason in str(done.exception)
    assert not (tmp_path / "best").exists()
