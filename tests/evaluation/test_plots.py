"""Plots: they show the measured figures, labels do not overlap, and equal figures have equal bytes."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")


from polyrank.cli.console import check_plot_path
from polyrank.errors import DataError, MissingExtraError, UsageError
from polyrank.evaluation import plot_comparison
from polyrank.evaluation.curves import Check, plot_curves, read_curves
from polyrank.evaluation.plots import LINES, MARKERS, style


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


def curves(n: int, last: float = 0.5) -> dict[str, list[Check]]:
    """Curves of runs that end close to each other."""
    return {
        f"model-{i:02d} with a name": [Check(s, s / 4, {"R@1": last * s / 8 + i / 1000}) for s in range(1, 9)]
        for i in range(n)
    }


@pytest.mark.parametrize("n", [1, 2, 30])
def test_lines_are_named_in_the_order_of_their_ends(figures: list[Any], tmp_path: Path, n: int) -> None:
    plot_curves(curves(n), tmp_path / "x.svg")
    (axes,) = figures[0].axes
    assert names(axes) == list(reversed(curves(n)))  # later runs end higher
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}
    assert len(looks) == n


def test_seeds_are_thin_lines_around_their_mean(figures: list[Any], tmp_path: Path) -> None:
    runs = {
        f"poly/seed-{seed}": [Check(s, s / 2, {"R@1": 0.1 * seed * s}) for s in (1, 2, 2 + seed)] for seed in (1, 2)
    }
    plot_curves({**runs, "bi/seed-1": [Check(1, 0.5, {"R@1": 0.3})]}, tmp_path / "x.svg")
    (axes,) = figures[0].axes
    assert names(axes) == ["poly (2 seeds)", "bi/seed-1"]
    thick = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    mean = np.asarray(thick["poly (2 seeds)"].get_xydata(), float)
    np.testing.assert_allclose(mean, [[0.5, 15], [1, 30]])  # at common checks
    assert len(axes.get_lines()) == 4


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [
        {"name": "bm25", "n_examples": 100, "n_candidates": 20, "metrics": {"R@1": 0.4, "MRR": 0.5},
         "intervals": {"R@1": [0.3, 0.45], "MRR": [0.45, 0.6]}},
        {"name": "poly", "n_examples": 100, "n_candidates": 20, "metrics": {"R@1": 0.6, "MRR": 0.7},
         "intervals": {"R@1": [0.5, 0.7], "MRR": [0.6, 0.8]}, "std": {"R@1": 0.02, "MRR": 0.01}, "seeds": [1, 2],
         "by_seed": [{"seed": n, "metrics": {"R@1": r1, "MRR": 0.7}} for n, r1 in ((1, 0.58), (2, 0.62))]},
    ]  # fmt: skip


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
    assert (
        figures[0].get_suptitle().startswith("100 examples, 20 candidates each\nbars: 95% intervals; of several seeds")
    )


def test_a_comparison_shows_metrics_of_only_one_model(figures: list[Any], tmp_path: Path, rows: list[Any]) -> None:
    del rows[0]["metrics"]["MRR"]
    plot_comparison(rows, {}, tmp_path / "x.svg", metrics=["R@1", "MRR"])
    first, second = figures[0].axes
    assert [axes.get_xlabel() for axes in (first, second)] == ["R@1 (%)", "MRR (%)"]
    assert [len(axes.containers) for axes in (first, second)] == [2, 1]


def test_a_file_that_is_no_record_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\x7fELF\xd0")
    with pytest.raises(DataError, match=r"metrics\.jsonl is not UTF-8; give the metrics\.jsonl of a training"):
        read_curves([tmp_path / "metrics.jsonl"])


def test_a_comparison_without_figures_is_refused(tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(UsageError, match="no model has R@50 to draw; choose R@k with a lower k, or MRR"):
        plot_comparison(rows, {}, tmp_path / "x.svg", metrics=["R@50"])


DRAW = """
from pathlib import Path
from polyrank.evaluation import plot_comparison
for ending in {endings!r}:
    plot_comparison({rows!r}, {{}}, Path("b." + ending), metrics=["R@1", "MRR"])
"""


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
