"""Evaluation end to end with real small scorers: fairness, intervals, paired tests, scores files."""

import gzip
import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

import polyrank
from polyrank.errors import ArtifactError, DataError, UsageError
from polyrank.evaluation import (
    Evaluation,
    Record,
    against_responses,
    breakdown,
    evaluate,
    paired_test,
    plot_comparison,
    rankable,
    read_scores,
    read_task,
    summarise,
    table,
    write_scores,
)
from polyrank.evaluation.layout import markdown
from polyrank.evaluation.models import Comparison
from polyrank.evaluation.scores_file import scores_files
from polyrank.ranking.metrics import Group, Placement, placement_of
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.lexical import BM25
from polyrank.scorers.protocols import Scorer


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
# the right answer is always last, as in some published files
EXAMPLES = [
    Example(("turn",) * (n % 5) + (f"r{n}",), (*(f"w{n}-{i}" for i in range(9)), f"r{n}"), (9,), f"e{n}")
    for n in range(300)
]


def test_a_table_of_examples_has_the_figures_as_its_means() -> None:
    pytest.importorskip("pandas")
    unanswerable = Example(("turn",), ("a", "b"), (), "none")
    several = ByRule(lambda context, texts: [-int(text) for text in texts])
    numbers = Example(("turn",), tuple("3124"), (0, 2), "several")  # ranks 3 and 2
    (row,) = evaluate(several, [numbers]).to_pandas().to_dict("records")
    assert (row["rank"], row["n_relevant"], row["MRR"]) == (2, 2, 1 / 2)
    result = evaluate(noisy, [unanswerable, *EXAMPLES])
    means = summarise(result)["metrics"]
    shown = ", ".join(f"{name} {100 * means[name]:.1f}" for name in ("R@1", "MRR"))
    assert repr(result).startswith(f"Evaluation(301 examples, lists, {shown}")
    assert ">301<" in result._repr_html_()
    frame, figures = result.to_pandas(), summarise(result)["metrics"]
    assert frame["id"].tolist() == [example.id for example in EXAMPLES]
    assert {name: pytest.approx(frame[name].mean()) for name in figures} == figures
    assert ((frame["rank"] == 1) == (frame["R@1"] == 1)).all()
    assert frame.iloc[3][["n_turns", "n_candidates", "n_relevant"]].tolist() == [4, 10, 1]


def test_a_table_of_models_has_their_figures_and_intervals() -> None:
    pytest.importorskip("pandas")
    models = polyrank.resolve_contestants(["bm25", "tfidf"])
    result = polyrank.evaluate_models(models, polyrank.read_task(EXAMPLES[:20]))
    frame = result.to_pandas()
    assert frame["name"].tolist() == ["bm25", "tfidf"]
    for row, known in zip(frame.to_dict("records"), result.rows, strict=True):
        assert row["MRR"] == known["metrics"]["MRR"]
        assert [row["MRR low"], row["MRR high"]] == list(known["intervals"]["MRR"])


def test_a_comparison_shows_a_figure_that_was_measured() -> None:
    models, task = polyrank.resolve_contestants(["bm25", "tfidf"]), read_task(EXAMPLES[:20])
    for metrics, shown in ((None, "R@1"), (["R@5", "R@1"], "R@1"), (["MRR"], "MRR"), (["R@5"], "MRR")):
        found = polyrank.evaluate_models(models, task, metrics=metrics)
        figures = [f"{row['name']} {100 * row['metrics'][shown]:.1f}" for row in found.rows]
        assert repr(found) == f"Comparison({shown}: {', '.join(figures)})"
        assert not any("by_turns" in row for row in found.rows)
        assert [f">{name}<" in found._repr_html_() for name in ("R@1", "R@5", "MRR")] == [
            name in found.rows[0]["metrics"] for name in ("R@1", "R@5", "MRR")
        ]


def test_the_notebook_table_of_models_has_the_metrics_of_each() -> None:
    rows = [{"name": "a", "metrics": {"R@1": 0.25}}, {"name": "b", "metrics": {"R@1": 0.5, "R@10": 0.75}}]
    for listed in (rows, rows[::-1]):
        assert ">R@10<" in Comparison(listed, [])._repr_html_()


def test_lengths_that_are_fixed_are_not_said_to_be_set(tiny_encoders: dict[str, Path], tiny_backbone: Path) -> None:
    task = read_task([Example(("my wifi is down " * 200,), ("thanks", "hi"), (0,))])
    named = polyrank.resolve_contestants([str(tiny_encoders["bi"]), f"untuned:{tiny_backbone}"])
    for model, settable in ((named[0], False), (polyrank.load(tiny_encoders["bi"]), False), (named[1], True)):
        said: list[str] = []
        polyrank.evaluate_models([model], task, notify=said.append)
        (line,) = (line for line in said if "did not fit" in line)
        assert ("max_context_tokens" in line) == settable


def test_answers_that_the_pool_lacks_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("yes\nno\n", "utf-8")
    pairs = [
        {"context": "a", "response": "yes"},
        {"context": "b", "response": "maybe"},
        {"context": "c", "response": "no"},
    ]
    models, task = polyrank.resolve_contestants(["bm25", "tfidf"]), read_task(pairs, pool=tmp_path / "pool.txt")
    for n in (1, 2):
        lines: list[str] = []
        found = polyrank.evaluate_models(models[:n], task, notify=lines.append)
        assert lines == ["1 of 3 examples cannot be answered: the pool holds none of their right answers"]
        assert [(row["n_examples"], row["n_unanswerable"]) for row in found.rows] == [(3, 1)] * n


@pytest.mark.parametrize("form", [iter, pyarrow.Table.from_pylist], ids=["generator", "table"])
def test_a_task_may_be_read_once(form: Callable[[list[Any]], Any]) -> None:
    said = [
        {"speaker": "customer", "text": "hi"},
        {"speaker": "agent", "text": "a"},
        {"speaker": "customer", "text": "b"},
    ]
    rows = [{"turns": [{**turn, "text": f"{turn['text']} {n}"} for turn in said]} for n in range(8)]
    pairs = [{"context": f"question {n}", "response": f"answer {n}"} for n in range(8)]
    for data in (rows, pairs):
        task, same = (polyrank.read_task(given) for given in (data, form(data)))
        assert [(one.context, one.candidates) for one in same.examples] == [
            (one.context, one.candidates) for one in task.examples
        ]
        assert len(task.examples) == 8


def test_constant_and_perfect_scorers() -> None:
    summary = summarise(evaluate(constant, EXAMPLES))
    assert summary["n_examples"] == 300
    assert summary["n_candidates"] == 10
    assert summary["metrics"]["R@1"] == pytest.approx(0.1, abs=1e-15)
    assert summary["metrics"]["R@5"] == pytest.approx(0.5, abs=1e-15)
    assert summary["ties"] == 1
    assert summarise(evaluate(knowing, EXAMPLES))["metrics"] == {"R@1": 1, "R@2": 1, "R@5": 1, "MRR": 1, "MAP": 1}


def test_a_scorer_that_uses_positions_gains_nothing() -> None:
    low, high = summarise(evaluate(last_place, EXAMPLES))["intervals"]["R@1"]
    assert low <= 0.1 <= high


def test_shuffling_candidates_changes_nothing() -> None:
    by_text = ByRule(lambda context, texts: [hash((context.turns, text)) % 7 for text in texts])
    reversed_ = [Example(e.context, e.candidates[::-1], (0,), e.id) for e in EXAMPLES]
    assert summarise(evaluate(by_text, EXAMPLES)) == summarise(evaluate(by_text, reversed_))


def test_pools_and_copies_of_the_right_text(tmp_path: Path) -> None:
    pool = [Candidate("a", "yes"), Candidate("b", "no"), Candidate("c", "yes")]
    examples = [Example(("yes",), relevant_ids=("a",), id="1"), Example(("no",), relevant_ids=("b",), id="2")]
    summary = summarise(evaluate(knowing, examples, pool=pool))
    assert summary["metrics"]["MAP"] == 1  # the copy is also right
    assert summary["n_candidates"] == 3
    missing = [Example(("yes",), relevant_ids=("z", "a"), id="3"), Example(("x",), relevant_ids=("z",), id="4")]
    found = evaluate(knowing, missing, pool=pool)
    assert (summarise(found)["n_unanswerable"], summarise(found)["metrics"]["R@1"]) == (1, 1)
    lines: list[str] = []
    rows = [{"id": candidate.id, "text": candidate.text} for candidate in pool]
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    read_task(missing, pool=tmp_path / "pool.jsonl", notify=lines.append)
    assert lines[-1] == "2 examples of 2 name right answers that are not in the pool; only those in it count"
    known = Example(("yes",), relevant_ids=("a",), id="5")
    read_task([*missing, known, *missing], pool=tmp_path / "pool.jsonl", limit=3, notify=lines.append)
    assert lines[-1].startswith("2 examples of 3 name")
    short = [Example(("yes",), ("yes",), (0,), str(n)) for n in range(4)]
    task = read_task([short[0], *EXAMPLES[:3], *short], limit=3, notify=lines.append)
    assert ([one.id for one in task.examples], task.n_left_out) == (["e0", "e1"], 1)
    assert lines[-1].startswith("1 of 3 examples left out")


def test_candidates_are_drawn_from_all_examples_whatever_the_limit() -> None:
    pairs = [{"context": [f"where {i}"], "response": f"at {i}"} for i in range(40)]
    whole = read_task(pairs).examples
    for limit in (1, 2, 30):
        assert read_task(pairs, limit=limit).examples == whole[:limit]
    drawn = {text for example in whole[:2] for text in example.candidates}
    assert not drawn <= {f"at {i}" for i in range(20)}


def test_examples_without_an_answer_are_counted_apart() -> None:
    mixed = [*EXAMPLES[:10], Example(("x",), ("a", "b"), (), "none")]
    summary = summarise(evaluate(knowing, mixed))
    assert summary["n_unanswerable"] == 1
    assert summary["metrics"]["R@1"] == 1
    with pytest.raises(DataError, match="so nothing can be measured"):
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
        with pytest.raises(DataError, match="`pool=responses`"):
            evaluate(knowing, short)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20).filter(lambda found: len(set(found)) > 1))
@settings(deadline=None, max_examples=30)
def test_pairs_are_ranked_among_all_responses(said: list[int]) -> None:
    pairs = [Example((f"r{n}",), (f"r{n}",), (0,), str(i)) for i, n in enumerate(said)]
    examples, pool = against_responses(pairs)
    assert [candidate.text for candidate in pool] == list(dict.fromkeys(f"r{n}" for n in said))
    by_id, by_text = (evaluate(constant, some, pool=pool) for some in (examples, pairs))
    assert by_id == by_text
    assert summarise(by_id)["metrics"]["R@1"] == pytest.approx(1 / len(pool))
    assert summarise(evaluate(knowing, examples, pool=pool))["metrics"]["R@1"] == 1


def test_pools_that_do_not_match_the_examples() -> None:
    pool = [Candidate("a", "yes"), Candidate("b", "no")]
    lists = [Example(("yes",), ("yes", "x"), (0,), "1"), Example(("so",), ("so", "no"), (0,), "2")]
    summary = summarise(evaluate(knowing, lists, pool=pool))
    assert (summary["n_examples"], summary["n_unanswerable"], summary["metrics"]["R@1"]) == (2, 1, 1)
    with pytest.raises(DataError, match="nothing to rank"):
        evaluate(knowing, lists, pool=pool[:1])
    with pytest.raises(DataError, match="'3' names its right answers only by id"):
        against_responses([Example(("x",), relevant_ids=("a",), id="3")])
    with pytest.raises(DataError, match="no example has a right answer"):
        against_responses([Example(("x",), ("a", "b"))])


def test_a_paired_test_detects_only_real_differences() -> None:
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
        with pytest.raises(DataError, match="example 'e3' has other candidates or right answers on the two sides"):
            paired_test(a, b)
    with pytest.raises(DataError, match="two examples have the id 'e0'"):
        paired_test(a, Evaluation((*a.records, a.records[0]), "lists"))


def test_names_are_printed_without_markup() -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(table([{"name": "x[bold].jsonl", **summarise(evaluate(knowing, EXAMPLES[:5]))}]))
    assert "x[bold].jsonl" in console.file.getvalue()  # type: ignore[attr-defined]


def test_breakdown_covers_every_example_once() -> None:
    rows = breakdown(evaluate(knowing, EXAMPLES), edges=(1, 3, 5))
    assert sum(row["n_examples"] for row in rows) == 300
    assert [(row["from"], row["to"]) for row in rows] == [(1, 2), (3, 4), (5, None)]


@pytest.mark.deep
def test_tables_are_printed_again_without_torch(tmp_path: Path) -> None:
    """Of lists, and of a pool."""
    candidates = [Candidate(str(i), f"r{i}") for i in range(30)]
    examples = [Example((f"r{i}",), relevant_ids=(str(i),), id=str(i)) for i in range(30)]
    results = [evaluate(noisy, EXAMPLES), evaluate(noisy, examples, pool=candidates)]
    paths = [str(tmp_path / f"{number}.jsonl.gz") for number, _ in enumerate(results)]
    for path, result in zip(paths, results, strict=True):
        write_scores(Path(path), result, scorer="noisy")
    code = (
        "import sys, json; sys.modules['torch'] = None\n"
        "from pathlib import Path\nfrom polyrank.evaluation import read_scores, summarise\n"
        f"print(json.dumps([summarise(read_scores(Path(path))) for path in {paths!r}]))"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == [summarise(result) for result in results]


def test_damaged_scores_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    write_scores(path, evaluate(knowing, EXAMPLES[:3]), scorer="x")
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:-9], lines[3]]), "utf-8")
    with pytest.raises(DataError, match=r"scores\.jsonl:3"):
        read_scores(path)


GOOD = {"id": "a", "turns": 1, "relevant": [0], "n": 3, "groups": [[1, 1, 1]]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": "x"}, "'x' is not a whole number"),
        ({"id": ["a"]}, 'field "id" holds a list'),
        ({"turns": "a"}, "'a' is not a whole number"),
        ({"groups": [["a", 0, 1]]}, "'a' is not a whole number"),
        ({"groups": [[0, 0, 1]]}, "'0' is not a whole number of at least 1"),
        ({"groups": [[3, 1, 1]]}, "cannot have the group"),
        ({"groups": []}, "0 of 1 right candidates have a rank"),
        ({"relevant": [-1]}, "outside the 3 candidates"),
        ({"relevant": [3]}, "outside the 3 candidates"),
        ({"scores": [0.5], "relevant": [1]}, "outside the 1 candidates"),
        ({"scores": ["1", "2"]}, "not a number"),
        ({"scores": 3}, "not iterable"),
        ({"groups": [[1, 1, 1, 1]], "grades": [0]}, "'0' is not a whole number of at least 1"),
    ],
)
def test_lines_that_do_not_belong_in_a_scores_file(tmp_path: Path, changed: dict[str, object], message: str) -> None:
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
        with pytest.raises(DataError, match="gzip"):
            read_scores(path)


def test_a_paired_test_of_a_missing_metric() -> None:
    lists = [Example(("a",), ("a", "b", "c"), (0,), id="1"), Example(("b",), ("a", "b", "c"), (1,), id="2")]
    found = evaluate(BM25(), lists)
    with pytest.raises(DataError, match="R@5 cannot be measured"):
        paired_test(found, found, metric="R@5")


# pairing of contexts and candidates


def test_scores_keep_the_order_of_candidates_in_any_batch() -> None:
    lengths = ByRule(lambda context, texts: [len(text) + len(context.turns) for text in texts])
    words = ("a", "bb", "ccc", "dddd", "eeeee", "ffffff")
    examples = [Example(("x",) * (1 + n % 3), words[: 2 + n % 5][:: 1 - 2 * (n % 2)], (0,), str(n)) for n in range(40)]
    seen: list[int] = []

    class Counted(ByRule):
        def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
            seen.append(len(contexts))
            return super().score(contexts, candidates)

    batches: list[list[range]] = []

    def progress(given: list[range]) -> list[range]:
        batches.append(given)
        return given

    whole = evaluate(Counted(lengths.rule), examples, batch_size=7, progress=progress)
    assert seen == [7, 7, 7, 7, 7, 5]
    assert [list(batch) for batch in batches[0]] == [list(range(i, min(i + 7, 40))) for i in range(0, 40, 7)]
    for example, record in zip(examples, whole.records, strict=True):
        assert record.scores is not None
        assert record.scores.tolist() == [len(text) + len(example.context) for text in example.candidates]
        assert record.placement == placement_of(record.scores, (0,))
        assert (record.id, record.n_turns, record.relevant) == (example.id, len(example.context), (0,))
    assert summarise(whole) == summarise(evaluate(lengths, examples))
    assert whole.protocol == "lists"


def test_each_list_has_its_own_shuffle() -> None:
    """Otherwise a scorer that uses positions would be right always or never."""
    found = [record.placement.groups[0].n_above for record in evaluate(last_place, EXAMPLES).records]
    counts = np.bincount(found, minlength=10)
    assert counts.min() > 12  # of 300; 30 are expected at each position
    assert counts.max() < 50
    again = [record.placement.groups[0].n_above for record in evaluate(last_place, EXAMPLES, batch_size=11).records]
    assert again == found


def test_records_contain_the_length_of_the_context() -> None:
    examples = [Example(("one two", " three  four five "), ("a", "b"), (0,), "1"), Example((), ("a", "b"), (1,), "2")]
    assert [record.n_turns for record in evaluate(constant, examples).records] == [2, 0]
    assert summarise(evaluate(constant, examples))["metrics"]["R@1"] == 0.5


def test_an_error_names_the_example_of_a_nan_score() -> None:
    broken = ByRule(lambda context, texts: [float("nan")] * len(texts))
    with pytest.raises(DataError, match=r"example 'e0': the score of candidate 0 is NaN"):
        evaluate(broken, EXAMPLES[:2])


def test_examples_without_wrong_candidates_are_left_out() -> None:
    all_right = Example(("x",), ("a", "a"), (0,), "all")
    fine = Example(("x",), ("a", "b"), (0,), "fine")
    no_answer = Example(("x",), ("a", "b"), (), "none")
    assert rankable([all_right, fine, no_answer]) == [fine, no_answer]
    pool = [Candidate("1", "a"), Candidate("2", "a")]
    # a pool of right answers only cannot be evaluated
    assert evaluate(constant, [Example(("x",), relevant_ids=("1",), id="1")], pool=pool).answerable == ()
    pool.append(Candidate("3", "b"))
    (record,) = evaluate(constant, [Example(("x",), relevant_ids=("2",), id="1")], pool=pool).answerable
    assert (record.relevant, record.scores, record.placement.n_candidates) == ((0, 1), None, 3)
    assert evaluate(constant, [fine], pool=pool).protocol == "pool"


def test_pairs_with_no_or_several_answers_become_retrieval() -> None:
    examples = [
        Example(("1",), ("a", "b", "c"), (2, 0), "1"),
        Example(("2",), ("x",), (), "2"),
        Example(("3",), ("c", "d"), (1, 0), "3"),
    ]
    found, pool = against_responses(examples)
    assert [(c.id, c.text) for c in pool] == [("0", "c"), ("1", "a"), ("2", "d")]
    assert [e.relevant_ids for e in found] == [("0", "1"), (), ("2", "0")]
    assert [(e.context, e.id, e.candidates, e.relevant) for e in found] == [((n,), n, (), ()) for n in "123"]


def test_grades_follow_their_answers_to_a_pool_of_responses() -> None:
    """Two judged documents may have one text, or none in the corpus: then the grades of the texts are unknown."""
    graded = Example(("a",), ("a", "b"), (0, 1), "1", relevant_ids=("x", "y"), grades=(3, 1))
    same = Example(("c",), ("c", "c"), (0, 1), "2", relevant_ids=("v", "w"), grades=(2, 1))
    absent = Example(("d",), ("d",), (0,), "3", relevant_ids=("t", "u"), grades=(1, 2))
    found, pool = against_responses([graded, same, absent])
    assert [(e.relevant_ids, e.grades) for e in found] == [(("0", "1"), (3, 1)), (("2",), ()), (("3",), ())]
    assert evaluate(knowing, found, pool=pool).records[0].placement.grades == (3, 1)


# tables


def outcomes(*placements: Placement, turns: int = 1, name: str = "") -> list[Record]:
    return [Record(f"{name}{i}", turns, tuple(range(p.n_relevant)), None, p) for i, p in enumerate(placements)]


def at(rank: int, n: int = 10) -> Placement:
    return Placement(n, (Group(rank - 1, 1, 1),))


def test_a_summary_by_hand() -> None:
    tied = Placement(4, (Group(0, 2, 1),))
    both = Placement(12, (Group(0, 2, 2),))  # two right ones tie only with each other
    none = Placement(20, ())
    found = summarise(Evaluation((*outcomes(at(1), at(4), tied, both, none),), "lists"), ks=(1, 3, 4), n_bootstrap=50)
    assert (found["n_examples"], found["n_unanswerable"], found["n_candidates"]) == (5, 1, [4, 20])
    assert found["ties"] == 1 / 4
    assert found["metrics"]["R@1"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert found["metrics"]["recall@1"] == pytest.approx((1 + 0 + 0.5 + 0.5) / 4)
    assert found["metrics"]["R@3"] == pytest.approx(3 / 4)
    assert "R@4" not in found["metrics"]
    assert found["metrics"]["MRR"] == pytest.approx((1 + 1 / 4 + 3 / 4 + 1) / 4)
    assert set(found["intervals"]) == set(found["metrics"])
    assert all(0 <= low <= found["metrics"][name] <= high <= 1 for name, (low, high) in found["intervals"].items())
    default = summarise(Evaluation(tuple(outcomes(at(1, 100), at(60, 100))), "lists"))
    assert list(default["metrics"]) == ["R@1", "R@2", "R@5", "R@10", "R@50", "MRR", "MAP"]


def test_an_example_is_tied_where_one_of_its_right_answers_is() -> None:
    clear, tied = Group(0, 1, 1), Group(1, 3, 1)
    found = summarise(Evaluation(tuple(outcomes(Placement(9, (clear, tied)), Placement(9, (clear,)))), "lists"))
    assert found["ties"] == 1 / 2


def test_the_seed_draws_the_resamples() -> None:
    result = Evaluation(tuple(outcomes(*(at(1 + i % 7) for i in range(40)))), "lists")
    assert summarise(result) == summarise(result, seed=0) != summarise(result, seed=1)
    assert breakdown(result) == breakdown(result, seed=0) != breakdown(result, seed=1)
    other = Evaluation(tuple(outcomes(*(at(1 + i % 5) for i in range(40)))), "lists")
    assert paired_test(result, other) == paired_test(result, other, seed=0) != paired_test(result, other, seed=1)
    (low, high) = summarise(result, n_bootstrap=1)["intervals"]["MRR"]  # no more resamples than were requested
    assert low == high


def test_a_breakdown_by_hand() -> None:
    records = [
        *outcomes(at(1), at(2), turns=1, name="a"),
        *outcomes(at(1), turns=2, name="b"),
        *outcomes(at(4), turns=3, name="c"),
        *outcomes(at(2), turns=4, name="d"),
        *outcomes(at(5), turns=16, name="e"),
        *outcomes(Placement(10, ()), turns=2, name="no answer"),
    ]
    by_turns = breakdown(Evaluation(tuple(records), "lists"))
    assert [(r["from"], r["to"], r["n_examples"]) for r in by_turns] == [
        (1, 1, 2), (2, 3, 2), (4, 7, 1), (16, None, 1)
    ]  # fmt: skip
    assert [r["metrics"] for r in by_turns] == [
        {"R@1": 0.5, "MRR": 0.75}, {"R@1": 0.5, "MRR": 0.625}, {"R@1": 0, "MRR": 0.5}, {"R@1": 0, "MRR": 0.2},
    ]  # fmt: skip
    assert by_turns[0]["intervals"] == {"R@1": [0, 1], "MRR": [0, 1]}  # two examples tell little
    talks = [replace(record, id=f"{record.id[0]}#{i}") for i, record in enumerate(records)]
    assert breakdown(Evaluation(tuple(talks), "lists"))[0] == by_turns[0]  # also if both are of one dialogue
    length = {"a0": 6, "a1": 7, "b0": 3, "c0": 4, "d0": 4, "e0": 5}
    other = breakdown(Evaluation(tuple(records), "lists"), length=lambda r: length[r.id], edges=(3, 4, 6))
    assert [(r["from"], r["to"], r["n_examples"]) for r in other] == [(3, 3, 1), (4, 5, 3), (6, None, 2)]


def test_a_breakdown_passes_over_the_records_as_often_for_many_examples_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answerable, n_passes = Evaluation.answerable.fget, []
    monkeypatch.setattr(Evaluation, "answerable", property(lambda self: (n_passes.append(1), answerable(self))[1]))
    counts = []
    for n in (10, 100):
        n_passes.clear()
        breakdown(Evaluation(tuple(outcomes(*(at(1 + i % 7) for i in range(n)))), "lists"))
        counts.append(len(n_passes))
    assert counts[0] == counts[1]


def test_examples_are_paired_by_id_not_by_position() -> None:
    ranks = [1, 2, 1, 5, 1, 3, 2, 2]
    a = Evaluation(tuple(outcomes(*(at(rank) for rank in ranks))), "lists")
    b = Evaluation(tuple(outcomes(*(at(1 + rank % 3) for rank in ranks))), "lists")
    want = paired_test(a, b, metric="MRR")
    got = paired_test(a, Evaluation(b.records[::-1], "lists"), metric="MRR")
    assert got == want
    assert want["metric"] == "MRR"
    assert want["difference"] == pytest.approx(np.mean([1 / rank - 1 / (1 + rank % 3) for rank in ranks]))
    assert paired_test(a, b)["metric"] == "R@1"
    twos = paired_test(a, b, metric="R@2")
    assert twos["difference"] == pytest.approx(np.mean([(rank <= 2) - (1 + rank % 3 <= 2) for rank in ranks]))


def test_blocks_of_permutations_are_all_counted() -> None:
    """With more examples and permutations than one block; without a difference every permutation counts."""
    same = Evaluation(tuple(outcomes(*[at(1), at(2)] * 600)), "lists")
    assert paired_test(same, same, n_permutations=4001)["p"] == 1
    worse = Evaluation(tuple(outcomes(*[at(2), at(2)] * 600)), "lists")
    tracemalloc.start()
    try:
        assert paired_test(same, worse, n_permutations=4001)["p"] == 1 / 4002
        assert tracemalloc.get_traced_memory()[1] < 60e6  # a block has 16 MB, and all permutations together 38 MB
    finally:
        tracemalloc.stop()


def test_examples_with_one_id_are_paired_by_position() -> None:
    """The ids of conversations repeat, and their examples are resampled together."""
    ranks = [(1, 2), (3, 3), (1, 4), (2, 2), (1, 1), (5, 1)]
    a, b = (
        [replace(record, id=f"chat {i // 2}") for i, record in enumerate(outcomes(*(at(pair[side]) for pair in ranks)))]
        for side in (0, 1)
    )
    got = paired_test(Evaluation(tuple(a), "lists"), Evaluation(tuple(b), "lists"), metric="MRR")
    assert got["difference"] == pytest.approx(np.mean([1 / x - 1 / y for x, y in ranks]))
    assert (got["n_examples"], got["n_dialogues"]) == (6, 3)
    numbered = [[replace(r, id=f"{r.id}#{i}") for i, r in enumerate(side)] for side in (a, b)]
    assert got == paired_test(*(Evaluation(tuple(side), "lists") for side in numbered), metric="MRR")


def test_both_sides_need_the_same_examples() -> None:
    records = outcomes(*(at(1) for _ in range(6)))
    a, b = Evaluation(tuple(records[:4]), "lists"), Evaluation(tuple(records[2:]), "lists")
    with pytest.raises(DataError, match="4 of 6 ids differ"):
        paired_test(a, b)
    with pytest.raises(DataError, match="5 of 5 ids differ"):
        paired_test(a, Evaluation(tuple(outcomes(at(1), name="x")), "lists"))


def test_tables_in_percent() -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": "one",
            "n_examples": 1234,
            "n_candidates": 10,
            "metrics": {"R@1": 0.1234, "MRR": 0.5},
            "intervals": {"R@1": [0.1, 0.15], "MRR": [0.45, 0.5555]},
        },
        {
            "name": "two",
            "n_examples": 5,
            "n_candidates": [2, 2000],
            "metrics": {"R@1": 1},
            "intervals": {"R@1": [1, 1]},
        },
    ]
    console = Console(width=100, file=io.StringIO())
    console.print(table(rows))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in text.splitlines()]
    assert ["scorer", "n", "C", "R@1", "R@5", "R@10", "MRR"] in cells
    assert ["one", "1,234", "10", "12.3", "", "", "50.0"] in cells
    assert ["", "", "", "10.0-15.0", "", "", "45.0-55.5"] in cells
    assert ["two", "5", "2-2,000", "100.0", "", "", ""] in cells
    assert text.count("├") == 1  # a line between the two rows


# scores files


def test_each_model_has_its_own_scores_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (None, tmp_path / "out", tmp_path / "one.jsonl"):
        assert scores_files(path, ["bm25"]) == [path]
    assert scores_files(None, ["bm25", "tfidf"]) == [None, None]
    names, stems = ["bm25", "runs/a/seed-1/model", "bm25:k1=2"], ["bm25", "runs-a-seed-1", "bm25-k1-2"]
    assert scores_files(tmp_path, names) == [tmp_path / f"{stem}.jsonl" for stem in stems]
    for alike in (["runs/a/model", "runs-a"], ["bm25:k1=2", "bm25-k1=2"], ["bm25", "../model"]):
        with pytest.raises(UsageError, match=f"of {', '.join(alike)} would have the same name, or none; run each"):
            scores_files(tmp_path, alike)
    for file in ("one.jsonl", "one.jsonl.gz", "file"):
        with pytest.raises(UsageError, match=f"{file} is one file for the scores of 2 models; name a folder"):
            scores_files(tmp_path / file, names[:2])


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.jsonl.gz"])
def test_scores_files_are_read_back_unchanged(tmp_path: Path, name: str) -> None:
    examples = [
        Example(("a b", "c"), ("x", "y", "z", "x"), (0,), "several"),
        Example(("q",), ("x", "y"), (), "none"),
        Example(("r7",), tuple(f"r{i}" for i in range(9)), (7, 8), "two"),
    ]
    lists = evaluate(ByRule(lambda context, texts: [np.float32(len(t) / 3 + ord(t[-1]) / 7) for t in texts]), examples)
    pool = [Candidate(str(i), text) for i, text in enumerate(("x", "y", "z", "x"))]
    pooled = evaluate(constant, examples[:2], pool=pool)
    # adjacent groups, up to the end of the list
    placement = Placement(6, (Group(0, 1, 1), Group(1, 2, 2), Group(4, 2, 1)))
    by_hand = Evaluation((Record("h", 0, (0, 1, 2, 3), None, placement),), "pool")
    for result in (lists, pooled, by_hand):
        write_scores(tmp_path / name, result, scorer="some one")
        again = read_scores(tmp_path / name)
        assert again.protocol == result.protocol
        for got, want in zip(again.records, result.records, strict=True):
            assert (got.id, got.n_turns) == (want.id, want.n_turns)
            assert (got.relevant, got.placement) == (want.relevant, want.placement)
            assert (got.scores is None) == (want.scores is None)
            if want.scores is not None:
                np.testing.assert_array_equal(got.scores, want.scores)
        before = (tmp_path / name).read_bytes()
        write_scores(tmp_path / name, again, scorer="some one")
        assert (tmp_path / name).read_bytes() == before
    data = (tmp_path / name).read_bytes()
    header = json.loads((gzip.decompress(data) if name.endswith("gz") else data).splitlines()[0])
    assert header == {"format": 1, "written_by": polyrank.__version__, "protocol": "pool", "scorer": "some one"}


@pytest.mark.parametrize(
    ("groups", "relevant"),
    [
        ([[0, 2, 1], [1, 1, 1]], [0, 1]),  # they overlap
        ([[1, 1, 1], [0, 1, 1]], [0, 1]),  # the worse one comes first
        ([[0, 1, 2]], [0, 1]),  # more right ones than candidates
        ([[0, 4, 1]], [0]),
        ([[2, 2, 1]], [0]),
        ([[-1, 1, 1]], [0]),
        ([[0, 1, 0]], []),
        ([[0, True, 1]], [0]),
    ],
)
def test_impossible_groups_are_refused(tmp_path: Path, groups: list[list[int]], relevant: list[int]) -> None:
    path = tmp_path / "x.jsonl"
    header = json.dumps({"format": 1, "protocol": "pool"})
    path.write_text(f"{header}\n{json.dumps(GOOD)}\n{json.dumps(GOOD | {'groups': groups, 'relevant': relevant})}\n")
    with pytest.raises(DataError, match=r"x\.jsonl:3: not a line"):
        read_scores(path)


def test_a_pool_of_one_candidate_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    header = json.dumps({"format": 1, "protocol": "pool"})
    path.write_text(f"{header}\n{json.dumps(GOOD | {'n': 1, 'groups': [[0, 1, 1]]})}\n")
    assert read_scores(path).records[0].placement.n_candidates == 1
    path.write_text(f"{header}\n{json.dumps(GOOD | {'n': 0, 'groups': []})}\n")
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a line"):
        read_scores(path)


def test_headers_and_lines_that_are_missing_or_newer(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"format": 2, "protocol": "pool"}\n')
    with pytest.raises(ArtifactError, match="in format 2, this version reads format 1; upgrade"):
        read_scores(path)
    path.write_text(" \n")
    with pytest.raises(DataError, match="has no rows"):
        read_scores(path)
    with pytest.raises(DataError, match="no such file"):
        read_scores(tmp_path / "gone.jsonl")
    path.write_text('{"format": 1, "protocol": "lists"}\n{"id": "a"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a line of a scores file \(no 'n'\)"):
        read_scores(path)
    path.write_text('{"format": 1, "protocol": "lists"}\n')
    assert read_scores(path).records == ()


# plots


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects every figure that matplotlib saves."""
    figure = pytest.importorskip("matplotlib.figure")
    found: list[Any] = []
    save = figure.Figure.savefig

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:
        found.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    return found


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []


def test_a_breakdown_is_drawn_in_percent_with_its_intervals(figures: list[Any], tmp_path: Path) -> None:
    short = Evaluation(tuple(outcomes(*(at(1 + (i > 6)) for i in range(10)), turns=1)), "lists")
    long = Evaluation((*outcomes(*(at(1 + (i > 3)) for i in range(10)), turns=2), *outcomes(at(1), turns=99)), "lists")
    both = Evaluation((*short.records, *long.records), "lists")
    evaluations = {"short": short, "both": both}
    rows = [{"name": name, **summarise(evaluation)} for name, evaluation in evaluations.items()]
    plot_comparison(rows, evaluations, tmp_path / "plot.svg", metrics=["R@1"])
    axes = figures[0].axes[-1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2-3", "16-"]
    drawn = {container.get_label(): container for container in axes.containers}
    assert legend_of(axes) == ["both", "short"]  # as the ends of the lines lie, highest first
    for aside, name, evaluation in ((-0.075, "short", short), (0.075, "both", both)):
        rows = breakdown(evaluation)
        line, _, (bars,) = drawn[name].lines
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [100 * row["metrics"]["R@1"] for row in rows])
        np.testing.assert_allclose(
            np.asarray(line.get_xdata(), float), [i + aside for i in range(len(rows))], atol=1e-9
        )
        ends = [(float(low[1]), float(high[1])) for low, high in bars.get_segments()]
        np.testing.assert_allclose(ends, [[100 * end for end in row["intervals"]["R@1"]] for row in rows])
    assert (tmp_path / "plot.svg").read_text("utf-8").startswith("<?xml")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("turns in the context", "R@1 (%)")
    facts = Evaluation((*outcomes(at(1), at(2), turns=0), *short.records), "lists")  # contexts that are only facts
    plot_comparison([{"name": "facts", **summarise(facts)}], {"facts": facts}, tmp_path / "plot.svg", metrics=["MRR"])
    axes = figures[1].axes[-1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1"]
    np.testing.assert_allclose(np.asarray(axes.containers[0].lines[0].get_xdata(), float), [0, 1])


# scorers of users, and arguments


class Fixed:
    """A user's scorer, which returns what it was given."""

    def __init__(self, found: object) -> None:
        self.found = found

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> object:
        return self.found

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> object:
        return self.found


@pytest.mark.parametrize("found", [[[3.0]], [[1.0] * 4], [[[1.0]] * 3], [["a", "b", "c"]], [], [[1.0] * 3] * 2])
def test_other_numbers_of_scores_are_refused(found: object) -> None:
    example = Example(("a",), ("a", "b", "c"), (0,))
    with pytest.raises(UsageError, match=r"Fixed'? returned .* (for each|return one)"):
        evaluate(Fixed(found), [example])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Fixed'? returned (scores of|list, not an array)"):
        evaluate(Fixed(found), [example], pool=[Candidate(text, text) for text in "abc"])  # type: ignore[arg-type]


def test_a_scorer_that_leaves_out_a_context_or_adds_one_is_refused() -> None:
    examples = [Example(("a",), ("a", "b", "c"), (0,), str(n)) for n in range(2)]
    for n in (1, 3):

        class Other(Scorer):
            def score(self, contexts: Any, candidates: Any, n: int = n) -> list[np.ndarray]:
                return [np.zeros(3, np.float32)] * n

        with pytest.raises(UsageError, match=rf"returned scores of {n} contexts for 2; return one row each"):
            evaluate(Other(), examples)


def test_a_scorer_keeps_its_own_matrix() -> None:
    pool, examples = [Candidate(text, text) for text in "abc"], [Example(("a", "b"), ("c",), (0,))]
    matrix = np.array([[3, 2, 1]], np.float32)
    matrix.flags.writeable = False
    for scores in (matrix, [[3, 2, 1]]):
        assert summarise(evaluate(Fixed(scores), examples, pool=pool))["metrics"]["MRR"] == pytest.approx(1 / 3)  # type: ignore[arg-type]


def test_lexical_scorers_are_fitted_to_all_candidates() -> None:
    lists = [Example((f"{n} a",), (f"a {n}", "a", f"b {n}", "c c"), (0,), f"x{n}") for n in range(9)]
    fitted = BM25().fit(list(dict.fromkeys(text for example in lists for text in example.candidates)))
    given = evaluate(BM25(), (example for example in lists))
    for got, want in zip(given.records, evaluate(fitted, lists).records, strict=True):
        np.testing.assert_array_equal(got.scores, want.scores)
    assert not np.array_equal(given.records[0].scores, BM25().score([lists[0].query], [lists[0].candidates])[0])


def test_numbers_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    file, found = tmp_path / "a.jsonl", evaluate(constant, EXAMPLES)
    file.write_text('{"context": ["a"], "candidates": ["b", "c"], "relevant": [0]}\n', "utf-8")
    with pytest.raises(UsageError, match="limit is 0; give 1 or more"):
        read_task(file, limit=0)
    with pytest.raises(UsageError, match="n_bootstrap is 0"):
        summarise(found, n_bootstrap=0)
    with pytest.raises(UsageError, match="n_permutations is 0"):
        paired_test(found, found, n_permutations=0)
    for metric in ("R@0", "R@x", "R@-1"):
        with pytest.raises(DataError, match="cannot be measured"):
            paired_test(found, found, metric=metric)


# dialogues


def of_ids(ids: Sequence[str], scorer: ByRule = knowing) -> Any:
    return evaluate(scorer, [replace(EXAMPLES[i], id=id_) for i, id_ in enumerate(ids)])


def test_an_example_without_an_id_is_a_dialogue_alone() -> None:
    assert "n_dialogues" not in summarise(of_ids([""] * 9))
    assert "n_dialogues" not in summarise(of_ids(["a#1", *[""] * 8]))
    assert summarise(of_ids(["a#1", "a#2", *[""] * 7]))["n_dialogues"] == 8
    marked = ["a#b#1", "a#b#2", "a#c#1", "a#d", "a#e", "#1", "#2"]  # only a last number is that of an example
    assert summarise(of_ids(marked))["n_dialogues"] == 6


def test_one_dialogue_is_named_as_the_unit() -> None:
    ids = [f"a#{n}" for n in range(9)]
    summary = summarise(of_ids(ids))
    assert summary["n_dialogues"] == 1
    assert paired_test(of_ids(ids), of_ids(ids, constant))["n_dialogues"] == 1
    assert "over examples of one dialogue" in markdown([{"name": "it", **summary}])
    several = summarise(of_ids([f"{n % 3}#{n}" for n in range(9)]))
    assert "over dialogues" in markdown([{"name": "it", **summary}, {"name": "them", **several}])


def test_all_right_or_all_wrong_is_not_certain() -> None:
    summary = summarise(of_ids([f"{n}" for n in range(10)]))
    assert summary["intervals"]["R@1"] == pytest.approx([0.7225, 1], abs=1e-4)  # Wilson's
    (row,) = breakdown(of_ids([f"{n}" for n in range(10)]), edges=(1,))
    assert row["intervals"]["R@1"] == summary["intervals"]["R@1"]
    two = summarise(of_ids([f"{n % 2}#{n}" for n in range(10)]))  # two dialogues are less
    assert two["intervals"]["R@1"] == pytest.approx([0.3424, 1], abs=1e-4)
    assert two["intervals"]["R@1"][1] == 1


def test_equal_results_on_few_examples_are_not_certain() -> None:
    ids = [f"{n}" for n in range(10)]
    test = paired_test(of_ids(ids), of_ids(ids))
    assert test["interval"] == pytest.approx([-0.2775, 0.2775], abs=1e-4)  # Wilson's of 0 of 10
    assert (test["difference"], test["p"]) == (0, 1)
    pairs = [f"{n // 2}#{n}" for n in range(20)]  # twenty examples of ten dialogues tell no more
    assert paired_test(of_ids(pairs), of_ids(pairs))["interval"] == test["interval"]


def test_contexts_that_are_only_a_background_have_a_class_of_their_own() -> None:
    lists = [Example((), ("a", "b"), (0,), background=("a",)), Example(("a",), ("a", "b"), (0,))]
    rows = breakdown(evaluate(constant, lists))
    assert [(row["from"], row["to"], row["n_examples"]) for row in rows] == [(0, 0, 1), (1, 1, 1)]


def test_grades_are_kept_in_scores_files(tmp_path: Path) -> None:
    pool = [Candidate(name, f"{name} text") for name in "abcd"]
    graded = Example(("a text",), relevant_ids=("a", "c"), grades=(1, 3), id="1")
    plain = Example(("b text",), relevant_ids=("b",), id="2")
    named_twice = Example(("d text",), ("d text",), (0,), relevant_ids=("a",), grades=(3,), id="3")
    found = evaluate(BM25(), [graded, plain, named_twice], pool=pool)
    assert [record.placement.grades for record in found.records] == [(3, 1), (), (3, 1)]
    write_scores(tmp_path / "scores.jsonl", found)
    assert read_scores(tmp_path / "scores.jsonl").records == found.records
    assert summarise(found)["metrics"]["nDCG@10"] < 1
