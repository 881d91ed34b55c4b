"""Evaluation end to end with real small scorers: fairness, intervals, paired tests, scores files."""

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from polyrank.errors import DataError
from polyrank.evaluation import (
    Evaluation,
    against_responses,
    breakdown,
    evaluate,
    paired_test,
    plot_breakdown,
    read_scores,
    summarise,
    table,
    write_scores,
)
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.lexical import BM25


class ByRule:
    """A scorer that applies a rule to each candidate list."""

    def __init__(self, rule: object) -> None:
        self.rule = rule

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [np.asarray(self.rule(c, texts), np.float32) for c, texts in zip(contexts, candidates, strict=True)]  # type: ignore[operator]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> np.ndarray:
        return np.stack(self.score(contexts, [pool] * len(contexts)))


constant = ByRule(lambda context, texts: np.zeros(len(texts)))
knowing = ByRule(lambda context, texts: [text == context.turns[-1] for text in texts])
last_place = ByRule(lambda context, texts: np.arange(len(texts)))
noisy = ByRule(
    lambda context, texts: [
        (text == context.turns[-1]) + np.random.default_rng(abs(hash((context.turns, i))) % 2**32).normal()
        for i, text in enumerate(texts)
    ]
)
# the right answer is always the last, as in some published files
EXAMPLES = [
    Example(("turn",) * (n % 5) + (f"r{n}",), (*(f"w{n}-{i}" for i in range(9)), f"r{n}"), (9,), f"e{n}")
    for n in range(300)
]


def test_constant_and_knowing_scorers() -> None:
    summary = summarise(evaluate(constant, EXAMPLES))
    assert summary["n_examples"] == 300
    assert summary["n_candidates"] == 10
    assert summary["metrics"]["R@1"] == pytest.approx(0.1, abs=1e-15)
    assert summary["metrics"]["R@5"] == pytest.approx(0.5, abs=1e-15)
    assert summary["ties"] == 1
    assert summarise(evaluate(knowing, EXAMPLES))["metrics"] == {"R@1": 1, "R@2": 1, "R@5": 1, "MRR": 1, "MAP": 1}


def test_a_scorer_that_looks_at_places_gains_nothing() -> None:
    low, high = summarise(evaluate(last_place, EXAMPLES))["intervals"]["R@1"]
    assert low <= 0.1 <= high


def test_shuffling_candidates_changes_nothing() -> None:
    by_text = ByRule(lambda context, texts: [hash((context.turns, text)) % 7 for text in texts])
    reversed_ = [Example(e.context, e.candidates[::-1], (0,), e.id) for e in EXAMPLES]
    assert summarise(evaluate(by_text, EXAMPLES)) == summarise(evaluate(by_text, reversed_))


def test_pools_and_copies_of_the_right_text() -> None:
    pool = [Candidate("a", "yes"), Candidate("b", "no"), Candidate("c", "yes")]
    examples = [Example(("yes",), relevant_ids=("a",), id="1"), Example(("no",), relevant_ids=("b",), id="2")]
    summary = summarise(evaluate(knowing, examples, pool=pool))
    assert summary["metrics"]["MAP"] == 1  # the copy is as right
    assert summary["n_candidates"] == 3
    with pytest.raises(DataError, match="names candidate 'z'"):
        evaluate(knowing, [Example(("x",), relevant_ids=("z",), id="3")], pool=pool)


def test_examples_without_an_answer_are_counted_apart() -> None:
    mixed = [*EXAMPLES[:10], Example(("x",), ("a", "b"), (), "none")]
    summary = summarise(evaluate(knowing, mixed))
    assert summary["n_unanswerable"] == 1
    assert summary["metrics"]["R@1"] == 1
    with pytest.raises(DataError, match="nothing to measure"):
        summarise(evaluate(knowing, mixed[-1:]))
    with pytest.raises(DataError, match="at least one"):
        evaluate(knowing, [])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
@settings(deadline=None, max_examples=30)
def test_short_lists_change_no_figure(sizes: list[int]) -> None:
    short = [Example(("x",), tuple("abc"[:n]), tuple(range(min(n, 1))), f"s{i}") for i, n in enumerate(sizes)]
    rankable = [example for example in short if len(example.candidates) > 1]
    found = evaluate(constant, [*short, *EXAMPLES[:3]])
    assert [record.id for record in found.records] == [example.id for example in [*rankable, *EXAMPLES[:3]]]
    assert summarise(found)["metrics"] == summarise(evaluate(constant, [*rankable, *EXAMPLES[:3]]))["metrics"]
    if not rankable:
        with pytest.raises(DataError, match="--pool responses"):
            evaluate(knowing, short)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20).filter(lambda found: len(set(found)) > 1))
@settings(deadline=None, max_examples=30)
def test_pairs_are_ranked_among_all_responses(said: list[int]) -> None:
    pairs = [Example((f"r{n}",), (f"r{n}",), (0,), str(i)) for i, n in enumerate(said)]
    examples, pool = against_responses(pairs)
    assert [candidate.text for candidate in pool] == list(dict.fromkeys(f"r{n}" for n in said))
    by_id, by_text = evaluate(constant, examples, pool=pool), evaluate(constant, pairs, pool=pool)
    assert by_id == by_text
    assert summarise(by_id)["metrics"]["R@1"] == pytest.approx(1 / len(pool))
    assert summarise(evaluate(knowing, examples, pool=pool))["metrics"]["R@1"] == 1


def test_pools_that_do_not_fit() -> None:
    pool = [Candidate("a", "yes"), Candidate("b", "no")]
    lists = [Example(("yes",), ("yes", "x"), (0,), "1"), Example(("so",), ("so", "no"), (0,), "2")]
    summary = summarise(evaluate(knowing, lists, pool=pool))
    assert (summary["n_examples"], summary["n_unanswerable"], summary["metrics"]["R@1"]) == (2, 1, 1)
    with pytest.raises(DataError, match="nothing to rank"):
        evaluate(knowing, lists, pool=pool[:1])
    with pytest.raises(DataError, match="'3' names its right answers by id only"):
        against_responses([Example(("x",), relevant_ids=("a",), id="3")])
    with pytest.raises(DataError, match="no example has a right answer"):
        against_responses([Example(("x",), ("a", "b"))])


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for trial in range(60):
        hits = generator.random(80) < 0.4
        rule = ByRule(
            lambda c, texts, hits=hits: [(t == c.turns[-1]) == bool(hits[int(c.turns[-1][1:])]) for t in texts]
        )
        examples = [Example((f"r{n}",), (f"r{n}", "w"), (0,), str(n)) for n in range(80)]
        low, high = summarise(evaluate(rule, examples), seed=trial, n_bootstrap=400)["intervals"]["R@1"]
        held += low <= 0.4 <= high
    assert held >= 50


def test_paired_test_sees_a_difference_and_only_then() -> None:
    good, same, chance = (evaluate(scorer, EXAMPLES) for scorer in (knowing, knowing, constant))
    assert paired_test(good, same)["p"] == 1
    found = paired_test(good, chance)
    assert found["p"] < 0.001
    assert found["difference"] == pytest.approx(0.9)
    assert found["interval"][0] > 0.8
    part = Evaluation(good.records[:50], "lists")
    assert paired_test(part, chance) == paired_test(part, Evaluation(chance.records[:50], "lists"))
    assert paired_test(part, chance)["n_examples"] == 50
    with pytest.raises(DataError, match="same examples"):
        paired_test(part, Evaluation(good.records[1:], "lists"))


def test_paired_test_refuses_other_data_of_the_same_ids() -> None:
    a = evaluate(knowing, EXAMPLES[:5])
    for other in (
        Example(("x",), ("a", "b"), (0,), "e3"),
        Example(("x",), (*(f"w{i}" for i in range(9)), "r"), (4,), "e3"),
    ):
        b = evaluate(knowing, [*EXAMPLES[:3], other, EXAMPLES[4]])
        with pytest.raises(DataError, match="example 'e3' differs on the two sides"):
            paired_test(a, b)
    with pytest.raises(DataError, match="id 'e0' names two examples"):
        paired_test(a, Evaluation((*a.records, a.records[0]), "lists"))


def test_names_are_shown_as_they_are() -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(table([{"name": "x[bold].jsonl", **summarise(evaluate(knowing, EXAMPLES[:5]))}]))
    assert "x[bold].jsonl" in console.file.getvalue()  # type: ignore[attr-defined]


def test_breakdown_covers_every_example_once() -> None:
    rows = breakdown(evaluate(knowing, EXAMPLES), edges=(1, 3, 5))
    assert sum(row["n_examples"] for row in rows) == 300
    assert [(row["from"], row["to"]) for row in rows] == [(1, 2), (3, 4), (5, None)]


@pytest.mark.parametrize("pool", [False, True])
def test_tables_are_made_again_without_torch(tmp_path: Path, pool: bool) -> None:
    candidates = [Candidate(str(i), f"r{i}") for i in range(30)]
    examples = [Example((f"r{i}",), relevant_ids=(str(i),), id=str(i)) for i in range(30)] if pool else EXAMPLES
    result = evaluate(noisy, examples, pool=candidates if pool else None)
    path = tmp_path / "scores.jsonl.gz"
    write_scores(path, result, scorer="noisy")
    code = (
        "import sys, json; sys.modules['torch'] = None\n"
        "from pathlib import Path\nfrom polyrank.evaluation import read_scores, summarise\n"
        f"print(json.dumps(summarise(read_scores(Path({str(path)!r})))))"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == summarise(result)


def test_damaged_scores_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    write_scores(path, evaluate(knowing, EXAMPLES[:3]), scorer="x")
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:-9], lines[3]]), "utf-8")
    with pytest.raises(DataError, match=r"scores\.jsonl:3"):
        read_scores(path)


GOOD = {"id": "a", "turns": 1, "words": 1, "relevant": [0], "n": 3, "groups": [[1, 1, 1]]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": "x"}, "'x' is no whole number"),
        ({"id": ["a"]}, 'field "id" holds a list'),
        ({"turns": "a"}, "'a' is no whole number"),
        ({"groups": [["a", 0, 1]]}, "'a' is no whole number"),
        ({"groups": [[0, 0, 1]]}, "'0' is no whole number from 1 on"),
        ({"groups": [[3, 1, 1]]}, "no such group"),
        ({"groups": []}, "0 right ones are placed, of 1"),
        ({"relevant": [-1]}, "outside the 3 candidates"),
        ({"relevant": [3]}, "outside the 3 candidates"),
        ({"scores": [0.5], "relevant": [1]}, "outside the 1 candidates"),
        ({"scores": ["1", "2"]}, "no number"),
        ({"scores": 3}, "not iterable"),
    ],
)
def test_lines_that_no_scores_file_has(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    path = tmp_path / "x.jsonl"
    header = {"format": 1, "protocol": "pool"}
    path.write_text(f"{json.dumps(header)}\n{json.dumps(GOOD)}\n", "utf-8")
    assert read_scores(path).records[0].placement.n_candidates == 3
    path.write_text(f"{json.dumps(header)}\n{json.dumps(GOOD | changed)}\n", "utf-8")
    with pytest.raises(DataError, match=rf"x\.jsonl:2: .*{message}"):
        read_scores(path)


def test_damaged_headers_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    for header in ('{"format": 1}', "[]", '{"format": "1", "protocol": "pool"}', '{"format": 1, "protocol": "x"}'):
        path.write_bytes(gzip.compress(header.encode()))
        with pytest.raises(DataError, match=r"x\.jsonl\.gz:1: not a line"):
            read_scores(path)
    whole = gzip.compress(np.random.default_rng(0).bytes(200))
    for damaged in (whole[:-20], whole[:12] + b"\xff" * 30 + whole[42:], b"plain"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot read"):
            read_scores(path)


def test_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_breakdown({"knowing": evaluate(knowing, EXAMPLES[:50])}, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text("utf-8").startswith("<?xml")


def test_a_paired_test_of_what_was_not_measured() -> None:
    lists = [Example(("a",), ("a", "b", "c"), (0,), id="1"), Example(("b",), ("a", "b", "c"), (1,), id="2")]
    found = evaluate(BM25(), lists)
    with pytest.raises(DataError, match="R@5 is not measured"):
        paired_test(found, found, metric="R@5")
