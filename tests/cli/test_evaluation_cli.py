"""`evaluate` and `compare` from the command line, with a lexical scorer: figures, skipped examples, and errors."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from polyrank.cli.evaluation import _named
from processes import run

WORDS = ("router", "bill", "parcel", "password")
PAIRS = [{"id": word, "context": [f"about my {word}"], "response": f"the {word} is fine"} for word in WORDS]
LISTS = [
    {
        "id": word,
        "context": [f"about my {word}"],
        "candidates": [f"the {w} is fine" for w in WORDS],
        "relevant": WORDS.index(word),
    }
    for word in WORDS
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_random_groups_are_a_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script of the papers prints a row of a protocol that the command does not have."""
    pairs = written(tmp_path / "pairs.jsonl", PAIRS)
    script = Path(__file__).parents[2] / "runs" / "papers" / "evaluate.py"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "bm25", str(pairs), "--groups", "3", "--seed", "5"])
    runpy.run_path(str(script), run_name="__main__")
    done = json.loads(capsys.readouterr().out)
    assert (done["n_candidates"], done["n_examples"]) == (3, 3)


@pytest.mark.deep
def test_pairs_are_ranked_among_drawn_responses_or_all(tmp_path: Path) -> None:
    pairs = written(tmp_path / "pairs.jsonl", PAIRS)
    drawn = run("evaluate", "bm25", pairs, "--json")
    assert json.loads(drawn.stdout)["n_candidates"] == 4
    assert "each response is ranked among 3 other responses" in drawn.stderr
    assert "--pool responses" in drawn.stderr
    lists = tmp_path / "lists.jsonl"
    made = run("split", pairs, "-o", lists, "--candidates", "3", "--json")
    assert json.loads(made.stdout) == {"n_examples": 4, "n_candidates": 3}
    assert json.loads(run("evaluate", "bm25", lists, "--json").stdout)["n_candidates"] == 3
    refused = run("split", pairs, "-o", lists, "--candidates", "5", "--overwrite")
    assert refused.returncode == 3
    assert "4 different responses cannot fill lists of 5 candidates; choose 2 to 4" in refused.stderr
    for options, message in ((("--test", "0.5"), "need a folder"), ((), "already exists")):
        refused = run("split", pairs, "-o", lists, *options)
        assert (refused.returncode, message in refused.stderr) == (2, True)
    of_a_pool = written(tmp_path / "ids.jsonl", [{"context": ["hi"], "relevant_ids": ["a"]}])
    unlisted = run("evaluate", "bm25", of_a_pool)
    assert (unlisted.returncode, "rank all against one pool, with --pool FILE" in unlisted.stderr) == (3, True)
    found = json.loads(
        run("evaluate", "bm25", pairs, "--pool", "responses", "--metric", "R@1,R@3,MRR,MAP", "--json").stdout
    )
    assert found["n_candidates"] == 4
    assert (found["n_unanswerable"], found["n_left_out"]) == (0, 0)
    assert found["metrics"] == {"R@1": 1, "R@3": 1, "MRR": 1, "MAP": 1}
    assert [(row["from"], row["n_examples"], row["metrics"]["R@1"]) for row in found["by_turns"]] == [(1, 4, 1)]


def test_skipped_examples_are_reported(tmp_path: Path) -> None:
    absent = {"id": "n", "context": ["x"], "candidates": ["a", "b", "c", "d"], "relevant": []}
    short = {"id": "s", "context": ["about my bill"], "candidates": ["the bill is fine"], "relevant": 0}
    right = {"id": "r", "context": ["hi"], "candidates": ["hello", "hi", "hi"], "relevant": [0, 1]}
    found = run(
        "evaluate", "bm25", written(tmp_path / "x.jsonl", [*LISTS, short, right, absent]), "--metric", "R@3,R@100"
    )
    assert "2 of 7 examples left out" in found.stderr, found.stderr
    assert "R@100 left out: k must be below 4" in found.stderr
    assert "bm25: 1 of 5 examples have no right answer" in found.stdout
    assert "R@3" in found.stdout
    pool = written(tmp_path / "pool.jsonl", [{"text": "the bill is fine"}, {"text": "the password is fine"}])
    found = run("evaluate", "bm25", tmp_path / "x.jsonl", "--pool", pool)
    assert "3 of 7 examples cannot be answered" in found.stderr, found.stderr


@pytest.mark.deep
def test_files_of_one_name_are_compared_by_their_paths(tmp_path: Path) -> None:
    data = written(tmp_path / "x.jsonl", LISTS)
    scores = [tmp_path / name / "scores.jsonl" for name in ("one", "two")]
    for path in scores:
        path.parent.mkdir()
        run("evaluate", "bm25", data, "--scores", path)
    rows = json.loads(run("compare", *scores, "--json").stdout)
    assert [row["name"] for row in rows] == [str(path) for path in scores]
    assert rows[1]["against"]["p"] == 1


def test_a_name_precedes_an_equals_sign_unless_a_file_has_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr=3").touch()
    found = [_named(argument) for argument in ("bi=scores.jsonl", "bi=a=b", "lr=3", "=b", "scores.jsonl")]
    assert found == [
        ("bi", Path("scores.jsonl")),
        ("bi", Path("a=b")),
        *((None, Path(name)) for name in ("lr=3", "=b", "scores.jsonl")),
    ]
