"""Plots for what people would rather look at than read. matplotlib is an extra."""

import json
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
        places = [classes.index((r["from"], r["to"] or inf)) for r in rows]
        middle = [100 * r["metrics"]["R@1"] for r in rows]
        spread = [[m - 100 * r["intervals"]["R@1"][0] for m, r in zip(middle, rows, strict=True)],
                  [100 * r["intervals"]["R@1"][1] - m for m, r in zip(middle, rows, strict=True)]]  # fmt: skip
        axes.errorbar(places, middle, yerr=spread, marker="o", capsize=3, label=name)
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


def plot_stages(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """hits@1 and milliseconds against the length of the shortlist, side by side; dotted: the retriever alone."""
    figure = new_figure(width=11)
    left, right = figure.subplots(1, 2)
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["what"], row["form"]), []).append(row)
    colors = {what: f"C{i}" for i, what in enumerate(dict.fromkeys(row["what"] for row in rows))}
    styles = {form: ("-", "-", "--", "-.")[i % 4] for i, form in enumerate(dict.fromkeys(f for _, f in lines))}
    for (what, form), points in lines.items():
        if form == "alone":
            left.axhline(points[0]["hits@1"], color=colors[what], linestyle=":")
            continue
        for axes, key in ((left, "hits@1"), (right, "ms")):
            ordered = sorted((row["n"], row[key]) for row in points)
            look = {"color": colors[what], "linestyle": styles[form], "marker": "o"}
            axes.plot(*zip(*ordered, strict=True), **look, label=f"{what} > {form}")
    left.set(xlabel="length of the shortlist", ylabel="hits@1", xscale="log")
    right.set(xlabel="length of the shortlist", ylabel="ms per context", xscale="log", yscale="log")
    if any(form != "alone" for _, form in lines):
        right.legend(fontsize="small")
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


def plot_training(metrics: Mapping[str, Path], path: Path) -> None:
    """Training loss and validation R@1 by step, one line per ``metrics.jsonl``."""
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    for name, file in metrics.items():
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        steps = [r for r in records if r.get("loss") is not None]
        checks = [r for r in records if "valid" in r]
        left.plot([r["step"] for r in steps], [r["loss"] for r in steps], label=name, linewidth=0.8)
        right.plot([r["step"] for r in checks], [100 * r["valid"]["R@1"] for r in checks], marker="o", label=name)
    left.set(xlabel="step", ylabel="training loss")
    right.set(xlabel="step", ylabel="validation R@1 (%)")
    left.legend()
    figure.savefig(path)
