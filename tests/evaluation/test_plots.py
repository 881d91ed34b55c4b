"""Plots: they show the measured figures, labels do not overlap, and equal figures have equal bytes."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib")


from polyrank.cli.commands import app
from polyrank.cli.console import check_plot_path
from polyrank.errors import MissingExtraError, UsageError
from polyrank.evaluation import evaluate, plot_comparison, summarise
from polyrank.evaluation.plots import INCHES_PER_LABEL, LINES, MARKERS, height_for, style
from polyrank.records import Example
from polyrank.scorers.lexical import BM25


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects every saved figure."""
    from matplotlib.figure import Figure

    found: list[Any] = []
    save = Figure.savefig

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:
        save(self, *arguments, **options)
        found.append(self)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def names(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [
        {"name": "bm25", "n_examples": 100, "n_candidates": 20, "metrics": {"R@1": 0.4, "MRR": 0.5},
         "intervals": {"R@1": [0.3, 0.45], "MRR": [0.45, 0.6]}},
        {"name": "poly", "n_examples": 100, "n_candidates": 20, "metrics": {"R@1": 0.6, "MRR": 0.7},
         "intervals": {"R@1": [0.5, 0.7], "MRR": [0.6, 0.8]}, "std": {"R@1": 0.02, "MRR": 0.01}, "seeds": [1, 2],
         "by_seed": [{"seed": n, "metrics": {"R@1": r1, "MRR": 0.7}} for n, r1 in ((1, 0.58), (2, 0.62))]},
    ]  # fmt: skip


def test_names_are_shown_as_they_are(figures: list[Any], tmp_path: Path) -> None:
    """Matplotlib leaves names that begin with an underscore out, and reads formulas between signs of dollars."""
    lists = [Example(("hi",) * n, ("hi there", "no", "yes"), (0,), f"{n}") for n in (1, 1, 3, 3)]
    models = {"_best": BM25(), "a$b_{$": BM25(), "50%": BM25()}
    evaluations = {name: [evaluate(model, lists)] for name, model in models.items()}
    rows = [{"name": name, **summarise(one[0])} for name, one in evaluations.items()]
    plot_comparison(rows, evaluations, tmp_path / "x.svg", metrics=["R@1"])
    above, below = figures[0].axes
    assert [label.get_text().strip().replace("\\$", "$") for label in above.get_yticklabels()] == [*models]
    assert sorted(name.strip().replace("\\$", "$") for name in names(below)) == sorted(models)


def test_a_comparison_shows_intervals_and_seeds(figures: list[Any], tmp_path: Path, rows: list[Any]) -> None:
    plot_comparison(rows, {}, tmp_path / "x.svg", metrics=["R@1", "R@5", "MRR"])
    first, second = figures[0].axes
    assert [axes.get_xlabel() for axes in (first, second)] == ["R@1 (%)", "MRR (%)"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["bm25", "poly"]
    assert first.get_ylim() == (1.5, -0.5)  # the first row on top
    spans = [container.lines[2][0].get_segments()[0][:, 0].tolist() for container in first.containers]
    np.testing.assert_allclose(spans, [[30, 45], [58, 62]])  # an interval, and a standard deviation over seeds
    (seeds,) = (line for line in first.get_lines() if line.get_marker() == "|" and len(line.get_xdata()) == 2)
    np.testing.assert_allclose(np.asarray(seeds.get_xdata(), float), [58, 62])
    title = figures[0].get_suptitle()
    assert title.startswith("100 examples, 20 candidates each\nbars: 95% intervals; of several seeds")
    for axes, share in ((first, 40), (second, 50)):  # a dotted line at the first model's figure, which the title names
        (dotted,) = (line for line in axes.get_lines() if line.get_linestyle() == ":")
        assert dotted.get_xdata() == pytest.approx([share, share])
    assert title.endswith("; dotted: bm25")
    plot_comparison([{**row, "n_candidates": [2, 20]} for row in rows], {}, tmp_path / "y.svg", metrics=["MRR"])
    assert figures[1].get_suptitle().startswith("100 examples, 2 to 20 candidates each\n")


@pytest.mark.parametrize(("n", "inches"), [(1, 4.0), (9, 4.0), (40, 1.2 + 40 * INCHES_PER_LABEL)])
def test_a_figure_is_as_high_as_its_labels_need_and_never_flat(n: int, inches: float) -> None:
    assert height_for(n) == pytest.approx(inches)


def test_a_comparison_shows_metrics_of_only_one_model(figures: list[Any], tmp_path: Path, rows: list[Any]) -> None:
    del rows[0]["metrics"]["MRR"]
    plot_comparison(rows, {}, tmp_path / "x.svg", metrics=["R@1", "MRR"])
    first, second = figures[0].axes
    assert [axes.get_xlabel() for axes in (first, second)] == ["R@1 (%)", "MRR (%)"]
    assert [len(axes.containers) for axes in (first, second)] == [2, 1]


@pytest.mark.deep
def test_the_first_model_is_the_dotted_line_and_the_title_names_it(
    figures: list[Any], tmp_path: Path, rows: list[Any]
) -> None:
    third = rows[0] | {"name": "late", "metrics": {"R@1": 0.5, "MRR": 0.9}, "intervals": {}}
    for n, shown in enumerate(([*rows, third], [third, *rows], rows[:1])):
        plot_comparison(shown, {}, tmp_path / "x.svg", metrics=["R@1", "MRR"])
        dotted = [[line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"
                   and len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]]
                  for axes in figures[n].axes]  # fmt: skip
        title = figures[n].get_suptitle()
        if len(shown) > 1:
            assert dotted == [[100 * shown[0]["metrics"][name]] for name in ("R@1", "MRR")]
            assert title.endswith(f"; dotted: {shown[0]['name']}")
        else:
            assert dotted == [[], []]
            assert "dotted" not in title


@pytest.mark.deep
@pytest.mark.parametrize("n", [1, 30])
def test_the_names_of_all_models_have_room(figures: list[Any], tmp_path: Path, rows: list[Any], n: int) -> None:
    lists = [Example(("hi",) * turns, ("hi a", "b"), (0,), f"d{turns}") for turns in (1, 9)]
    evaluation = evaluate(BM25(), lists)
    many = [rows[0] | {"name": f"model {number}"} for number in range(n)]
    plot_comparison(many, {row["name"]: [evaluation] for row in many}, tmp_path / "x.svg", metrics=["R@1"])
    (figure,) = figures
    above, below = figure.axes
    assert len(names(below)) == n
    assert figure.bbox.y0 <= below.get_legend().get_window_extent().y0
    heights = [label.get_window_extent() for label in above.get_yticklabels()]
    assert all(one.y0 > other.y1 for one, other in pairwise(heights))
    assert figure.get_size_inches()[1] >= 5.3  # the second part is readable however few the models are


def test_a_long_name_and_the_labels_are_inside_the_figure(figures: list[Any], tmp_path: Path, rows: list[Any]) -> None:
    plot_comparison([rows[0] | {"name": "a model with a long name"}], {}, tmp_path / "x.svg", metrics=["R@1"])
    (figure,) = figures
    figure.draw_without_rendering()  # at its own resolution; the file has another
    (axes,) = figure.axes
    drawn, whole = axes.get_tightbbox(), figure.bbox
    assert whole.x0 <= drawn.x0 < drawn.x1 <= whole.x1
    assert whole.y0 <= drawn.y0 < drawn.y1 <= whole.y1


@pytest.mark.deep
def test_a_comparison_is_drawn_with_the_chosen_metrics(figures: list[Any], tmp_path: Path) -> None:
    lists = [{"context": f"w{n}", "candidates": [f"w{n}", "a", "b", "c"], "relevant": n % 2} for n in range(6)]
    data = tmp_path / "lists.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in lists), "utf-8")
    invoke = CliRunner().invoke
    assert invoke(app, ["evaluate", "bm25", str(data), "--scores", str(tmp_path / "s.jsonl")]).exit_code == 0
    for n, (options, shown) in enumerate(((["--metric", "R@3,MRR"], ["R@3 (%)", "MRR (%)"]), ([], ["R@1 (%)", ...]))):
        plot = tmp_path / f"{n}.svg"
        done = invoke(app, ["compare", str(tmp_path / "s.jsonl"), "--plot", str(plot), *options])
        assert done.exit_code == 0, done.output
        drawn = [axes.get_xlabel() for axes in figures[n].axes]
        assert (drawn if options else [drawn[0], ...]) == shown
    measured = dict.fromkeys(("R@1", "R@2", "R@3", "MRR", "MAP"), 0.5)
    row = {"name": "m", "n_examples": 9, "n_candidates": 5, "metrics": measured}
    plot_comparison([row], {}, tmp_path / "x.svg", metrics=["R@2", "R@50", "R@1", "MAP", "MRR", "R@3"])
    assert [axes.get_xlabel() for axes in figures[-1].axes] == [f"{name} (%)" for name in ("R@2", "R@1", "MAP", "MRR")]


def test_a_comparison_without_figures_is_refused(tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(UsageError, match="no model has R@50 to draw; choose R@k with a lower k, or MRR"):
        plot_comparison(rows, {}, tmp_path / "x.svg", metrics=["R@50"])


DRAW = """
from pathlib import Path
from polyrank.evaluation import plot_comparison
for ending in {endings!r}:
    plot_comparison({rows!r}, {{}}, Path("b." + ending), metrics=["R@1", "MRR"])
"""


@pytest.mark.deep
def test_equal_figures_have_equal_bytes(tmp_path: Path, rows: list[Any]) -> None:
    endings = ["svg", "png", "pdf"]
    code = DRAW.format(endings=endings, rows=rows)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)  # in another process, with other hashes
    for ending in endings:
        plot_comparison(rows, {}, tmp_path / f"a.{ending}", metrics=["R@1", "MRR"])
        data = [(tmp_path / f"{name}.{ending}").read_bytes() for name in "ab"]
        assert data[0] == data[1], ending
        assert not re.search(rb"<dc:date>|CreationDate", data[0])


def test_lines_are_distinguishable_without_colours() -> None:
    looks = {(style(i)["linestyle"], style(i)["marker"]) for i in range(len(LINES) * len(MARKERS))}
    assert len(looks) == len(LINES) * len(MARKERS)


def test_a_missing_plot_library_is_reported_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"polyrank\[plots\]"):
        check_plot_path(tmp_path / "x.svg")
    assert check_plot_path(None) is None
