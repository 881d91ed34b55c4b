"""Comparing models: joining seeds, tests over examples and over seeds, and layouts of tables."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from polyrank.config.models import BiConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.errors import DataError, UsageError
from polyrank.evaluation import (
    Evaluation,
    Record,
    breakdown,
    evaluate_models,
    paired_test,
    paired_tests,
    read_task,
    summarise,
    write_scores,
)
from polyrank.evaluation.comparison import ModelScores, compare_models, group_by_model, read_scored
from polyrank.evaluation.layout import latex, markdown, remarks
from polyrank.evaluation.scores_file import read_scores_and_header
from polyrank.loading.runs import resolve_runs
from polyrank.ranking.metrics import Group, Placement
from polyrank.ranking.statistics import holm, paired_t, student_p, student_t
from polyrank.records import Example
from polyrank.scorers.lexical import BM25
from polyrank.scorers.protocols import Composed
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.training import train
from processes import run
from train_settings import train_config
from word_models import WordEncoder

C = 20


def ranked(ranks: Any, prefix: str = "e") -> Evaluation:
    """An evaluation with the right answers at these ranks, for contexts of 1 to 4 turns."""
    records = [
        Record(f"{prefix}{i}", 1 + i % 4, (0,), None, Placement(C, (Group(int(rank) - 1, 1, 1),)))
        for i, rank in enumerate(ranks)
    ]
    return Evaluation(tuple(records), "pool")


def drawn(seed: int, skill: float, n: int = 60) -> Evaluation:
    generator = np.random.default_rng(seed)
    return ranked(np.where(generator.random(n) < skill, 1, generator.integers(2, C + 1, n)))


def three_seeds(name: str, skill: float, first: int = 1) -> ModelScores:
    return ModelScores(name, (1, 2, 3), tuple(drawn(first + seed, skill) for seed in range(3)))


# statistics


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 1_000, 1_001, 10**6])
def test_students_p_equals_scipys(freedom: int) -> None:
    for t in (-8.0, -0.3, 0.0, 0.7, 1.96, 4.5, 30.0) if freedom < 10**6 else ():  # of many degrees it takes a second
        assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)
    for p in (0.5, 0.05, 0.01):
        assert student_t(p, freedom) == pytest.approx(stats.t.isf(p / 2, freedom), rel=1e-8)


def test_the_paired_test_over_seeds_equals_scipys() -> None:
    a, b = [0.61, 0.64, 0.60, 0.66], [0.58, 0.63, 0.61, 0.60]
    found = paired_t([x - y for x, y in zip(a, b, strict=True)])
    assert found["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert (found["n_seeds"], found["difference"]) == (4, pytest.approx(np.mean(a) - np.mean(b)))
    assert paired_t([0.0, 0.0])["p"] == 1
    assert paired_t([0.5, 0.5])["p"] == paired_t([0.3 - 0.2, 0.1, 0.4 - 0.3])["p"] == 1  # no spread is known


def test_holm_is_never_below_the_plain_p_and_keeps_the_order() -> None:
    plain = [0.001, 0.2, 0.012, 0.04, 0.04]
    adjusted = holm(plain)
    assert adjusted == pytest.approx([0.005, 0.2, 0.048, 0.12, 0.12])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_several_seeds_are_summarised_by_hand() -> None:
    first, second = ranked([1, 1, 2, 4]), ranked([1, 2, 2, 2])
    summary = summarise([first, second])
    assert summary["metrics"]["R@1"] == (0.5 + 0.25) / 2
    assert summary["std"]["R@1"] == pytest.approx(np.std([0.5, 0.25], ddof=1))
    assert [each["R@1"] for each in summary["by_seed"]] == [0.5, 0.25]
    assert summarise([first]) == summarise(first)
    rows = breakdown([first, second], edges=(1, 3))
    assert [row["metrics"]["R@1"] for row in rows] == [(1.0 + 0.5) / 2, 0.0]
    with pytest.raises(DataError, match="evaluated on different examples"):
        summarise([first, ranked([1, 2, 2, 2], "other")])
    moved = [replace(record, relevant=(1,)) for record in second.records]
    with pytest.raises(DataError, match="evaluated on different examples"):  # the same lists with other answers
        summarise([first, Evaluation(tuple(moved), "pool")])
    tied = [replace(record, placement=Placement(C, (Group(0, 2, 1),))) for record in second.records[:2]]
    assert summarise([first, Evaluation((*tied, *second.records[2:]), "pool")])["ties"] == 2 / 8


def test_tests_of_several_metrics_equal_the_single_ones() -> None:
    a, b = [drawn(1, 0.6), drawn(2, 0.6)], [drawn(3, 0.4), drawn(4, 0.4)]
    both = paired_tests(a, b, ["R@1", "MRR"])
    assert both == [paired_test(a, b, metric="R@1"), paired_test(a, b, metric="MRR")]
    assert both[0]["difference"] == pytest.approx(
        np.mean([summarise(each)["metrics"]["R@1"] for each in a])
        - np.mean([summarise(each)["metrics"]["R@1"] for each in b])
    )


# rows


def test_models_of_one_name_are_joined_unless_a_seed_comes_twice() -> None:
    alone = [ModelScores("poly", (seed,), (drawn(seed, 0.5),)) for seed in (0, 2)]
    other = ModelScores("bm25", (None,), (drawn(9, 0.5),))
    assert group_by_model([alone[0], other, alone[1]]) == [
        ModelScores("poly", (0, 2), (*alone[0].evaluations, *alone[1].evaluations)), other,
    ]  # fmt: skip
    assert group_by_model(group_by_model([*alone, other])) == group_by_model([*alone, other])
    for twice in alone:
        with pytest.raises(UsageError, match=f"poly has seed {twice.seeds[0]} twice; name them apart"):
            group_by_model([*alone, other, twice])


def test_scores_of_seeds_are_named_by_model_and_others_by_file(tmp_path: Path) -> None:
    about = {"a": {"model": "m", "seed": "0"}, "b": {"model": "m", "seed": "2"}, "c": {"model": "n", "seed": "1"},
             "d": {}, "e": {"model": "m"}}  # fmt: skip
    for name, header in about.items():
        write_scores(tmp_path / name, drawn(1, 0.5), **header)
    files: list[tuple[str | None, Path]] = [(None, tmp_path / name) for name in "abcded"]
    assert [(each.name, each.seeds) for each in read_scored([*files, ("x", tmp_path / "a")])] == [
        ("m", (0,)), ("m", (2,)), ("c", (1,)), ("d", (None,)), ("e", (None,)), ("d (2)", (None,)), ("x", (0,))
    ]  # fmt: skip
    for name, header in (("1.jsonl", {"model": "k", "seed": "3"}), ("2.jsonl.gz", {"seed": "5"}), ("notes.txt", {})):
        write_scores(tmp_path / "folder" / name, drawn(1, 0.5), **header)
    assert [each.name for each in read_scored([("y", tmp_path / "d"), (None, tmp_path / "d")])] == ["y", "d"]
    assert [each.name for each in read_scored([("y", tmp_path / "d"), ("y", tmp_path / "d")])] == ["y", "y"]
    inside = read_scored([(None, tmp_path / "folder"), ("x", tmp_path / "folder")])
    assert [(each.name, each.seeds) for each in inside] == [
        ("k", (3,)), ("2.jsonl.gz", (5,)), ("x", (3,)), ("x", (5,))
    ]  # fmt: skip


def test_a_row_holds_measurements_and_tests() -> None:
    base, better = three_seeds("base", 0.3), three_seeds("better", 0.9, 10)
    rows = compare_models([base, better, ModelScores("single", (None,), (drawn(5, 0.3),))], ["MRR", "R@5"])
    assert "against" not in rows[0]
    test = rows[1]["against"]
    assert (test["scores"], test["metric"], [each["metric"] for each in test["others"]]) == ("base", "MRR", ["R@5"])
    assert test["p"] < 0.001
    assert test["p_adjusted"] == pytest.approx(2 * test["p"])
    means = [[summarise(each)["metrics"]["MRR"] for each in model.evaluations] for model in (better, base)]
    assert test["over_seeds"]["p"] == pytest.approx(stats.ttest_rel(*means).pvalue)
    assert test["over_seeds"]["difference"] == pytest.approx(np.mean(means[0]) - np.mean(means[1]))
    assert "over_seeds" not in rows[2]["against"]
    assert "seeds" not in rows[2]
    assert [each["seed"] for each in rows[1]["by_seed"]] == [1, 2, 3]
    lines = remarks(rows)
    assert any(line.startswith("better against base: MRR +") and "over 3 seeds" in line for line in lines)
    assert lines[-1].startswith(
        "† differs from base: p < 0.05, paired randomisation test over examples, adjusted for 2"
    )
    assert compare_models([better], ["R@1"], base)[0]["against"]["scores"] == "base"
    assert not any("by_turns" in row for row in rows)
    assert [len(row["by_turns"]) for row in compare_models([base], by_turns=True)] == [len(breakdown(base.evaluations))]


def test_tests_over_seeds_use_the_examples_that_both_models_have() -> None:
    whole = ModelScores("whole", (1, 2), (ranked([1, 1, 2, 4]), ranked([1, 2, 2, 2])))
    part = ModelScores("part", (1, 2), (ranked([1, 1]), ranked([1, 1])))
    for one, other, sign in ((whole, part, 1), (part, whole, -1)):
        _, row = compare_models([one, other], ["R@1"])
        assert row["against"]["difference"] == sign * 0.25
        assert row["against"]["over_seeds"]["difference"] == sign * 0.25


def test_any_depth_can_be_tested_and_depths_are_shown_in_their_order() -> None:
    base, better = three_seeds("base", 0.3), three_seeds("better", 0.9, 10)
    rows = compare_models([base, better], ["R@7", "R@10", "R@5"])
    for row in rows:
        assert [name for name in row["metrics"] if name.startswith("R@")] == ["R@5", "R@7", "R@10"]
    share = [
        [np.mean([record.placement.groups[0].n_above < 7 for record in each.records]) for each in model.evaluations]
        for model in (better, base)
    ]
    over_seeds = rows[1]["against"]["over_seeds"]
    assert over_seeds["difference"] == pytest.approx(np.mean(share[0]) - np.mean(share[1]))
    assert over_seeds["p"] == pytest.approx(stats.ttest_rel(*share).pvalue)
    for name in ("R@ten", "R@", "recall"):
        with pytest.raises(DataError, match="better has none of the requested metrics; choose R@k with a lower k"):
            compare_models([base, better], [name])


# layouts


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    models = [ModelScores("a|b_50%", (None,), (drawn(4, 0.3),)), three_seeds("good", 0.9, 10)]
    return compare_models(models, ["R@1", "MRR"])


def test_markdown_has_as_many_cells_in_each_line(rows: list[dict[str, Any]]) -> None:
    lines = markdown(rows, ["R@1", "MRR"]).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]} == {7}
    assert lines[0] == "| scorer | seeds | n | C | R@1 | MRR |"
    assert lines[2].startswith(r"| a\|b_50% | 1 | 60 | 20 | ")
    figure = rows[1]["metrics"]["R@1"], rows[1]["std"]["R@1"]
    assert f"**{100 * figure[0]:.1f} ± {100 * figure[1]:.1f}** †" in lines[3]
    assert "± standard deviation over seeds; in brackets 95% intervals" in lines[5]
    assert "† differs from a|b_50%" in lines[7]
    assert "adjusted" not in lines[7]  # of one comparison


def test_a_figure_that_no_other_model_has_is_not_the_best(rows: list[dict[str, Any]]) -> None:
    alone, several = rows
    several["metrics"] |= {"R@10": 0.9}
    for form, bold in ((markdown, "**"), (latex, "textbf")):
        assert bold not in form([alone], ["R@1", "MRR"])
        assert bold not in form([alone, several], ["R@10"])
        assert bold in form([alone, several], ["R@1"])


def test_seeds_are_counted_and_named() -> None:
    models = [
        ModelScores(name, seeds, (drawn(1, 0.5), drawn(2, 0.5))) for name, seeds in (("a", (3, 7)), ("b", (5, None)))
    ]
    rows = compare_models(models)
    assert [line.split(" | ")[1] for line in markdown(rows).splitlines()[2:4]] == ["2", "2"]
    seeds = [
        re.findall(r"(\w+): [\d.]+", line.partition(" of seed ")[2]) for line in remarks(rows) if " of seed " in line
    ]
    assert seeds == [["3", "7"], ["5", "unknown"]]


def test_marks_are_of_adjusted_tests(rows: list[dict[str, Any]]) -> None:
    base, row = rows
    row["against"] |= {"p": 0.03, "p_adjusted": 0.03}
    other = {**row, "name": "second", "against": {**row["against"], "p": 0.04, "p_adjusted": 0.06, "others": []}}
    lines = markdown([base, row, other], ["R@1"]).splitlines()
    assert ["†" in line for line in lines[2:5]] == [False, True, False]
    assert "adjusted for 2 comparisons (Holm)" in lines[-1]
    row["against"] |= {"p_adjusted": 0.05, "others": []}
    assert "†" not in markdown([base, row, other], ["R@1"])


def test_latex_means_every_character_of_a_name_itself() -> None:
    row = {"n_examples": 1, "n_candidates": 2, "metrics": {"R@1": 0.5}}
    name = latex([{"name": "a&b%c$d#e_f{g}h~i^j\\k", **row}], ["R@1"]).splitlines()[5].partition(" & 1 &")[0]
    assert name == (r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k")


def test_latex_is_escaped_and_balanced(rows: list[dict[str, Any]]) -> None:
    text = latex(rows, ["R@1", "MRR"])
    assert text.count("{") == text.count("}")
    lines = text.splitlines()
    notes = lines[lines.index(r"\end{tabular}") + 1 :]
    assert len(notes) == 2
    assert all(note.startswith("% ") for note in notes)
    assert lines[1] == r"\begin{tabular}{lrrrrr}"
    body = [line for line in lines if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {5}
    assert r"a|b\_50\%" in body[1]
    assert re.search(r"\\textbf\{[0-9.]+ \$\\pm\$ [0-9.]+\}\$\^\{\\dagger\}\$", body[2])


# run folders and the command line

WORDS = ("wifi", "bill", "router", "light")


@pytest.fixture(scope="module")
def runs(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two seeds each, and test data."""
    folder = tmp_path_factory.mktemp("runs")
    pairs = [{"context": [f"my {word}", other], "response": f"{word} thanks"} for word in WORDS for other in WORDS]
    replies = [f"{word} thanks" for word in WORDS]
    lists = [
        {"id": f"{word}-{i}", "context": [f"my {word}"] * i, "candidates": replies, "relevant": WORDS.index(word)}
        for word in WORDS
        for i in (1, 2, 5)
    ]
    for name, examples in (("train.jsonl", pairs), ("test.jsonl", lists)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in examples), "utf-8")
    for name, lr in (("low", 1e-5), ("high", 1e-2)):
        settings = train_config(batch_size=16, epochs=2, lr=lr, train_layers="all", precision="fp32", seeds=(0, 2))
        train(
            Recipe(
                model=BiConfig(backbone=str(tiny_backbone), reduction="mean"),
                text=TextPolicy(max_context_tokens=24, max_candidate_tokens=8),
                data=DataConfig(train=str(folder / "train.jsonl")),
                train=settings,
                output=str(folder / name),
            )
        )
    return folder


@pytest.mark.deep
def test_a_run_folder_means_each_of_its_seeds(runs: Path, tmp_path: Path) -> None:
    found = resolve_runs([str(runs / "low"), "bm25", str(runs / "high" / "seed-2" / "model")])
    assert [(member.group, member.seed) for member in found] == [
        (str(runs / "low"), 0), (str(runs / "low"), 2), ("bm25", None), (str(runs / "high"), 2),
    ]  # fmt: skip
    assert [Path(member.name).parts[-2] for member in found[:2]] == ["seed-0", "seed-2"]
    (seed,) = resolve_runs([str(runs / "low" / "seed-0")])
    assert (seed.name, seed.group) == (str(runs / "low" / "seed-0" / "model"), str(runs / "low"))
    (elsewhere,) = resolve_runs(["other/seed-7"])  # a model without a seed in its metadata
    assert (elsewhere.group, elsewhere.seed) == ("other", 7)
    shutil.copytree(runs / "low" / "seed-2", tmp_path / "seed-9")
    (moved,) = resolve_runs([str(tmp_path / "seed-9")])
    assert moved.seed == 2  # the training's seed, whatever the folder's name
    shutil.copytree(runs / "low" / "seed-0" / "model", tmp_path / "plain")
    assert [member.seed for member in resolve_runs([str(tmp_path / "plain")])] == [0]


@pytest.mark.deep
def test_evaluate_accepts_a_run_of_several_seeds(runs: Path) -> None:
    found = run("evaluate", "low", "test.jsonl", "--json", cwd=runs)
    assert found.returncode == 0, found.stderr
    row = json.loads(found.stdout)
    singly = [
        json.loads(run("evaluate", f"low/seed-{seed}/model", "test.jsonl", "--json", cwd=runs).stdout)["metrics"]
        for seed in (0, 2)
    ]
    assert (row["name"], row["seeds"]) == ("low", [0, 2])
    assert [each["metrics"] for each in row["by_seed"]] == singly
    for name in ("R@1", "MRR"):
        assert row["metrics"][name] == pytest.approx(np.mean([each[name] for each in singly]))
        assert row["std"][name] == pytest.approx(np.std([each[name] for each in singly], ddof=1))
    shown = run("evaluate", "low", "test.jsonl", cwd=runs).stdout
    assert f"± {100 * row['std']['R@1']:.1f}" in shown
    assert "low: R@1 of seed 0: " in shown


@pytest.mark.deep
def test_several_models_are_one_table_and_their_scores_are_compared_again(runs: Path, tmp_path: Path) -> None:
    scores, plot = tmp_path / "scores", tmp_path / "plot.svg"
    found = run("evaluate", "bm25", "low", "high", "test.jsonl", "--json", "--scores", scores, cwd=runs)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("12 rows, 12 examples") == 1  # the file is read once
    rows = json.loads(found.stdout)
    assert [row["name"] for row in rows] == ["bm25", "low", "high"]
    assert [row["against"]["scores"] for row in rows[1:]] == ["bm25", "bm25"]
    names = ["bm25.jsonl", "high-seed-0.jsonl", "high-seed-2.jsonl", "low-seed-0.jsonl", "low-seed-2.jsonl"]
    assert sorted(path.name for path in scores.iterdir()) == names
    headers = [read_scores_and_header(scores / name)[1] for name in names]
    stated = [[header.get(name) for name in ("model", "seed", "data", "precision")] for header in headers]
    assert stated == [
        ["bm25", None, "test.jsonl", None],
        *([model, seed, "test.jsonl", "fp32"] for model in ("high", "low") for seed in ("0", "2")),
    ]
    assert [row.get("precision") for row in rows] == [None, "fp32", "fp32"]
    again = json.loads(run("compare", scores, "--json", "--plot", plot).stdout)
    assert plot.read_text("utf-8").startswith("<?xml")
    wanted = {row["name"]: row["metrics"] for row in rows}
    assert {row["name"]: row["metrics"] for row in again} == wanted
    labelled = run("compare", f"b={scores / 'bm25.jsonl'}", f"x={scores / 'low-seed-0.jsonl'}",
                   f"x={scores / 'low-seed-2.jsonl'}", "--json", "--metric", "R@2,hits@9,MRR")  # fmt: skip
    table = json.loads(labelled.stdout)
    assert [(row["name"], row.get("seeds")) for row in table] == [("b", None), ("x", [0, 2])]
    assert table[1]["metrics"]["MRR"] == pytest.approx(wanted["low"]["MRR"])
    assert table[1]["against"]["metric"] == "R@2"  # the main metric is the first that the command names
    assert "R@9 left out: k must be below 4" in labelled.stderr


@pytest.mark.deep
def test_lengths_apply_to_models_that_support_them(runs: Path, tiny_backbone: Path) -> None:
    untuned = f"untuned:{tiny_backbone}"
    done = run("evaluate", untuned, "bm25", "test.jsonl", "--json", "--max-context-tokens", "4", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert "did not fit into 4 tokens" in done.stderr
    assert len(json.loads(done.stdout)) == 2
    refused = run("evaluate", "bm25", "test.jsonl", "--max-candidate-tokens", "4", cwd=runs)
    assert (refused.returncode, "bm25" in refused.stderr) == (2, True)


@pytest.mark.deep
def test_missing_parts_of_a_run_are_reported(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "low", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "seed-2" / "model")
    done = run("evaluate", tmp_path / "run", runs / "test.jsonl", "--json")
    assert f"{tmp_path / 'run' / 'seed-2'} has no model yet and is left out" in done.stderr.replace("\n", "")
    assert "std" not in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("evaluate low bm25 low test.jsonl", 2, "is named twice"),
        ("evaluate low bm25 test.jsonl --scores x.jsonl", 2, "is one file for the scores of 3 models; name a folder"),
        ("evaluate bm25 low nowhere test.jsonl", 2, "nowhere is not a model folder"),
        ("evaluate bm25 low gone.jsonl", 3, "no such file"),
        ("evaluate low test.jsonl --against gone.jsonl", 3, "gone.jsonl: no such file"),
        ("compare low --format html", 2, "'html' is not one of 'table', 'markdown', 'latex'"),
        ("evaluate low test.jsonl --metric recall", 2, "write for example R@1,R@5,MRR"),
        ("evaluate low test.jsonl --metric R@0", 2, "write for example R@1,R@5,MRR"),
        ("compare test.jsonl", 3, "not a line of a scores file"),
        ("compare empty", 2, "has no scores files"),
        ("compare gone", 3, "gone: no such file"),
    ],
)
def test_errors_are_reported_before_any_model_is_loaded(runs: Path, arguments: str, code: int, message: str) -> None:
    (runs / "empty").mkdir(exist_ok=True)
    done = run(*arguments.split(), cwd=runs)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_scores_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    files = {"a": (drawn(1, 0.5), "1"), "b": (ranked([1, 2], "x"), "2"), "c": (drawn(2, 0.5), "1")}
    for name, (evaluation, seed) in files.items():
        write_scores(tmp_path / f"{name}.jsonl", evaluation, scorer=name, model="poly", seed=seed)
    done = run("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert (done.returncode, "evaluated on different examples" in done.stderr) == (3, True)
    done = run("compare", tmp_path / "a.jsonl", tmp_path / "c.jsonl")
    assert (done.returncode, "poly has seed 1 twice" in done.stderr) == (2, True)
    done = run("compare", f"x={tmp_path / 'a.jsonl'}", f"y={tmp_path / 'c.jsonl'}")
    assert done.returncode == 0, done.stderr


def test_every_metric_of_every_model_is_tested_adjusted_and_shown() -> None:
    models = [three_seeds(name, skill, first) for name, skill, first in (("a", 0.5, 1), ("b", 0.6, 4), ("c", 0.9, 7))]
    models.append(ModelScores("d", (2, 3, 9), tuple(drawn(20 + seed, 0.7) for seed in range(3))))
    metrics = ["R@1", "R@5", "MRR"]
    rows = compare_models(models, metrics, by_turns=True)
    assert [row["by_turns"] for row in rows] == [breakdown(model.evaluations) for model in models]
    tests = [[row["against"], *row["against"]["others"]] for row in rows[1:]]
    assert [[test["metric"] for test in each] for each in tests] == [metrics] * 3
    for same in zip(*tests, strict=True):
        assert [test["p_adjusted"] for test in same] == holm([test["p"] for test in same])
    for row, model in zip(rows[1:], models[1:], strict=True):
        common = [seed for seed in model.seeds if seed in models[0].seeds]
        shares = [
            [summarise(of.evaluations[of.seeds.index(seed)], n_bootstrap=1)["metrics"]["R@1"] for seed in common]
            for of in (model, models[0])
        ]
        found = row["against"]["over_seeds"]
        assert found == paired_t([x - y for x, y in zip(*shares, strict=True)])
        (line,) = (line for line in remarks(rows) if line.startswith(f"{model.name} against a: "))
        assert f"over {len(common)} seeds, p = {found['p']:.4f}" in line
        assert f"R@1 {100 * found['difference']:+.1f} ± {100 * found['std']:.1f} points" in line
        assert f"], p = {row['against']['p']:.4f}" in line
    (spread,) = (line for line in remarks(rows) if line.startswith("c: R@1 of seed"))
    assert re.findall(r"(\d+): ([\d.]+)", spread) == [
        (str(one["seed"]), f"{100 * one['metrics']['R@1']:.1f}") for one in rows[2]["by_seed"]
    ]


def test_a_row_names_the_precisions_of_its_models_in_order() -> None:
    names = ("int8", "fp16", "bf16", "fp32")
    scorers: list[Any] = [type("Own", (BM25,), {"precision": precision, "name": "one"})() for precision in names]
    (row,) = evaluate_models(scorers, read_task([Example(("a",), ("a", "b"), (0,))])).rows
    assert row["precision"] == "bf16, fp16, fp32, int8"
    whole: Any = type("Whole", (Composed,), {"networks": (*scorers, scorers[0])})()
    assert whole.precision == "bf16, fp16, fp32, int8"


def test_rows_and_scores_files_name_the_fingerprint_of_every_model(tmp_path: Path) -> None:
    lists = [Example((f"w{n}",), (f"w{n}", "w7", "w8 w9"), (0,), f"d{n}#0") for n in range(6)]
    encoders = [WordEncoder("first", 1), WordEncoder("second", 2)]
    ranker = Ranker([(EncoderTerm(each), (1.0,)) for each in encoders])
    ranker.name = "both"
    files = [tmp_path / "a.jsonl", None, tmp_path / "b.jsonl"]
    found = evaluate_models([encoders[0], BM25(), ranker], read_task(lists), scores=files)
    first, second = (each.fingerprint for each in encoders)
    assert [row["fingerprints"] for row in found.rows] == [
        {"first": first}, {}, {"both": ranker.fingerprint, "first": first, "second": second},
    ]  # fmt: skip
    seeds = [Ranker([(EncoderTerm(each), (1.0,))]) for each in encoders]  # of one name, so that they share a row
    for each in seeds:
        each.name = "seeds"
    (row,) = evaluate_models(seeds, read_task(lists)).rows
    assert row["fingerprints"] == {"seeds": seeds[1].fingerprint, "first": first, "second": second}
    for file, fingerprint in ((files[0], first), (files[2], ranker.fingerprint)):
        assert file is not None
        assert read_scores_and_header(file)[1]["fingerprint"] == fingerprint
