"""Plots for what people would rather look at than read. matplotlib is an extra."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from polyrank.errors import MissingExtraError
from polyrank.evaluation.protocols import Evaluation
from polyrank.evaluation.tables import breakdown
from polyrank.ranking.abstention import Point


def new_figure(width: float = 7) -> Any:
    """A matplotlib figure, 4 inches high.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return Figure(figsize=(width, 4), layout="constrained")


def plot_breakdown(evaluations: Mapping[str, Evaluation], path: Path) -> None:
    """R@1 by the number of turns in the context, one line per scorer, with 95% intervals."""
    figure = new_figure()
    axes = figure.subplots()
    parts = {name: breakdown(evaluation) for name, evaluation in evaluations.items()}
    classes = sorted({(r["from"], r["to"] or inf) for rows in parts.values() for r in rows})
    axes.set_xticks(
        range(len(classes)),
        [f"{first}-" if last == inf else str(first) if first == last else f"{first}-{last}" for first, last in classes],
    )
    for name, rows in parts.items():
        positions = [classes.index((r["from"], r["to"] or inf)) for r in rows]
        middle = [100 * r["metrics"]["R@1"] for r in rows]
        spread = [[m - 100 * r["intervals"]["R@1"][0] for m, r in zip(middle, rows, strict=True)],
                  [100 * r["intervals"]["R@1"][1] - m for m, r in zip(middle, rows, strict=True)]]  # fmt: skip
        axes.errorbar(positions, middle, yerr=spread, marker="o", capsize=3, label=name)
    axes.set(xlabel="turns in the context", ylabel="R@1 (%)")
    axes.legend()
    figure.savefig(path)


def plot_times(rows: Sequence[Mapping[str, Any]], by: str, path: Path) -> None:
    """Milliseconds against one column of a speed table, one line per form; both axes logarithmic."""
    figure = new_figure()
    axes = figure.subplots()
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(f"{row['what']}, {row['form']}", []).append((row[by], row["ms"]))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set(xlabel=by, ylabel="ms", xscale="log", yscale="log")
    axes.legend(fontsize="small")
    figure.savefig(path)


def plot_coverage(curves: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Precision against coverage, one line per scorer, with the lower end of its 95% interval."""
    figure = new_figure()
    axes = figure.subplots()
    for name, curve in curves.items():
        coverage = [100 * point.coverage for point in curve]
        (line,) = axes.plot(coverage, [100 * point.precision for point in curve], label=name)
        axes.plot(coverage, [100 * point.low for point in curve], color=line.get_color(), alpha=0.4, linewidth=0.8)
    axes.set(xlabel="contexts answered (%)", ylabel="answers that are right (%)", ylim=(0, 101))
    axes.legend()
    figure.savefig(path)
