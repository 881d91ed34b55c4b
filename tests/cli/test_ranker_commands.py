"""The commands with a ranker: each prints what the library returns for the same texts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polyrank
from polyrank.cli.commands import app
from polyrank.index import open_index
from polyrank.ranking.abstention import Abstention
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.words import WordCounts, Words

REPLIES = ["restart the router", "the bill is too high", "thanks", "did that"]
CONTEXT = ["hi", "my wifi is down"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ranker of the shipped ConveRT, counts and words, an index of it, and files."""
    folder = tmp_path_factory.mktemp("ranker")
    terms = [
        (EncoderTerm(polyrank.load("shipped:convert")), (1.0,)),
        (Counts.of({"thanks": 9, "did that": 2}), (0.25,)),
        (Words(WordCounts.of(REPLIES)), (0.1, 0.2, 0.3, -0.4)),
    ]
    polyrank.Ranker(terms, abstention=Abstention("margin", 1e-6)).save(folder / "best")
    (folder / "replies.txt").write_text("\n".join(REPLIES), "utf-8")
    (folder / "lists.jsonl").write_text(
        json.dumps({"context": CONTEXT, "candidates": REPLIES, "relevant": [0]}), "utf-8"
    )
    run("index", "build", folder / "best", folder / "replies.txt", "-o", folder / "index")
    return folder


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_info_shows_the_terms_and_their_weights(folder: Path) -> None:
    shown = json.loads(run("info", folder / "best", "--json"))
    assert (shown["kind"], shown["fingerprint"]) == ("ranker", polyrank.load(folder / "best").fingerprint)
    assert [(term["kind"], term["weights"]) for term in shown["terms"]] == [
        ("encoder", {"score": 1.0}),
        ("counts", {"score": 0.25}),
        ("words", {"match": 0.1, "earlier": 0.2, "overlap": 0.3, "echo": -0.4}),
    ]
    assert shown["threshold"] == {"measure": "margin", "threshold": 1e-6}
    assert [term["name"] for term in shown["terms"]][:1] == ["shipped:convert"]
    assert shown["terms"][0]["fingerprint"] == polyrank.load("shipped:convert").fingerprint
    ranker = polyrank.load(folder / "best")
    assert isinstance(ranker, polyrank.Ranker)
    assert (shown["n_retrieved"], shown["figures"]) == (ranker.n_retrieved, ranker.figures)
    assert "scale" in shown
    table = run("info", folder / "best")
    for word in ("ranker, fingerprint", "shipped:convert", "score 0.25", "earlier 0.2, echo -0.4, match 0.1"):
        assert word in table


def test_rank_evaluate_and_respond_give_the_librarys_scores(folder: Path) -> None:
    ranker = polyrank.load(folder / "best")
    wanted = {reply.text: reply.score for reply in ranker.rank(CONTEXT, REPLIES)}
    row = {"context": CONTEXT, "candidates": REPLIES}
    done = CliRunner().invoke(app, ["rank", str(folder / "best"), "--scores-only"], input=json.dumps(row) + "\n")
    assert json.loads(done.stdout)["scores"] == pytest.approx([wanted[text] for text in REPLIES], abs=1e-4)
    run("evaluate", folder / "best", folder / "lists.jsonl", "--scores", folder / "scores.jsonl", "--json")
    _, line = (folder / "scores.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["scores"] == pytest.approx([wanted[text] for text in REPLIES], abs=1e-4)
    answer = json.loads(run("respond", folder / "index", *CONTEXT))
    assert {reply["text"]: reply["score"] for reply in answer["results"]} == pytest.approx(wanted, abs=1e-4)
    assert [reply["text"] for reply in answer["results"]] == [*wanted]
    assert answer["confidence"] > 0
    why = json.loads(run("explain", folder / "index", *CONTEXT, "--reply", "thanks", "--json"))
    assert why["score"] == pytest.approx(wanted["thanks"], abs=1e-4)
    assert sum(part["weight"] * part["score"] for part in why["parts"].values()) == pytest.approx(
        why["score"], abs=1e-4
    )
    assert [name.split()[-1] for name in why["parts"]] == ["shipped:convert", "counts", "words"]


def test_counts_of_an_index_are_updated(folder: Path) -> None:
    def counts() -> dict[str, int]:
        with open_index(folder / "index") as index:
            return {c.text: c.metadata.get("count", 0) for _, c in index.iter_candidates()}

    (folder / "more.txt").write_text("thanks a lot\n", "utf-8")
    assert counts() == {"restart the router": 0, "the bill is too high": 0, "thanks": 9, "did that": 2}
    run("index", "add", folder / "index", folder / "more.txt")
    (folder / "counts.jsonl").write_text('{"text": "thanks a lot", "count": 100000000}\n', "utf-8")
    run("index", "update-counts", folder / "index", folder / "counts.jsonl")
    assert counts()["thanks a lot"] == 10**8
    assert counts()["thanks"] == 9
    (best, *_) = json.loads(run("respond", folder / "index", *CONTEXT))["results"]
    assert best["text"] == "thanks a lot"
