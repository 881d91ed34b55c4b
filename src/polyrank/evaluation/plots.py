"""Plots. Lines differ in more than their colours, and the same data always makes the same bytes.

matplotlib is an extra.
"""

import io
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from polyrank.data.values import items_of
from polyrank.errors import UsageError, needs
from polyrank.evaluation.tables import Evaluations, breakdown
from polyrank.storage.durable import write_file

# Okabe and Ito, Color Universal Design (2008), without yellow, which is hard to see on white
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")
NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
INCHES_PER_LABEL = 0.2


def new_figure(width: float = 7.5, height: float = 4) -> Any:
    """A matplotlib figure, in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with needs("matplotlib", "plots"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def style(number: int) -> dict[str, Any]:
    """Colour, line style and marker of line ``number``, distinct for the first 300 lines.

    >>> len({tuple(sorted(style(number).items())) for number in range(300)})
    300
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def literal(name: str) -> str:
    """A name as matplotlib shows it: without formulas, and not left out of the legend.

    >>> literal("_a$b"), literal("poly-64")
    (' _a\\\\$b', 'poly-64')
    """
    return " " * name.startswith("_") + name.replace("$", r"\$")


def name_lines(axes: Any) -> None:
    """Name the lines in a legend to the right of the axes, in the order in which their ends lie, highest first."""
    if not (lines := list(zip(*axes.get_legend_handles_labels(), strict=True))):  # that of an error bar is inside
        return
    ordered: Any = sorted(lines, key=lambda pair: -(getattr(pair[0], "lines", None) or pair)[0].get_ydata()[-1])
    handles, labels = zip(*ordered, strict=True)
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small")


def height_for(n_labels: int) -> float:
    """The height in inches for ``n_labels`` labels."""
    return max(4.0, 1.2 + INCHES_PER_LABEL * n_labels)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of its path's suffix. The same figure always makes the same bytes."""
    from matplotlib import rc_context

    kind, stream = path.suffix.lower(), io.BytesIO()
    with rc_context({"svg.hashsalt": "polyrank"}):
        figure.savefig(stream, format=kind.removeprefix("."), dpi=200, metadata=NO_DATE.get(kind))
    write_file(path, stream.getvalue())


def plot_comparison(
    rows: Sequence[Mapping[str, Any]], evaluations: Mapping[str, Evaluations], path: Path, *, metrics: Sequence[str]
) -> None:
    """Plot ``compare_models``: each figure with its interval or its seeds, and R@1 by the length of the context.

    Args:
        rows: one for each model.
        evaluations: by model; if empty, or if all contexts have one length, the second part is left out.
        path: .svg, .png or .pdf.
        metrics: the first four with figures are drawn.

    Raises:
        UsageError: no model has one of them.
    """
    shown = [name for name in metrics if any(name in row["metrics"] for row in rows)][:4]
    if not shown:
        raise UsageError(f"no model has {' or '.join(metrics)} to draw; choose R@k with a lower k, or MRR")
    parts = {name: breakdown(evaluation) for name, evaluation in evaluations.items()}
    by_turns = len({row["from"] for part in parts.values() for row in part}) > 1
    heights = [1.3 + 0.3 * len(rows), *([height_for(len(rows))] if by_turns else [])]
    figure = new_figure(3.0 + 1.8 * len(shown), sum(heights))
    above, *below = figure.subfigures(len(heights), 1, height_ratios=heights) if by_turns else (figure,)
    above.suptitle(_title(rows), fontsize="medium")
    panels = above.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        _draw_metric(axes, rows, name)
    panels[0].set_yticks(range(len(rows)), [literal(row["name"]) for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    for part in below:
        _draw_breakdown(part.subplots(), parts)
    save(figure, path)


def _title(rows: Sequence[Mapping[str, Any]]) -> str:
    spread = "bars: standard deviation over seeds, each a tick" if any("std" in row for row in rows) else ""
    if any("intervals" in row and "std" not in row for row in rows):
        spread = "bars: 95% intervals" + (f"; of several seeds, {spread.removeprefix('bars: ')}" if spread else "")
    if len(rows) > 1:
        spread += f"; dotted: {literal(rows[0]['name'])}"
    of = " to ".join(f"{size:,}" for size in items_of(rows[0]["n_candidates"]))
    return f"{rows[0]['n_examples']:,} examples, {of} candidates each\n{spread}"


def _draw_metric(axes: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    for number, row in enumerate(rows):
        if name not in row["metrics"]:
            continue
        value, look = 100 * row["metrics"][name], style(number)
        low, high = value, value
        if name in row.get("std", {}):
            low, high = value - 100 * row["std"][name], value + 100 * row["std"][name]
            seeds = [100 * one["metrics"][name] for one in row["by_seed"]]
            axes.plot(seeds, [number + 0.25] * len(seeds), "|", color=look["color"], alpha=0.7, markersize=5)
        elif name in row.get("intervals", {}):
            low, high = (100 * end for end in row["intervals"][name])
        spread = [[value - low], [high - value]]
        axes.errorbar([value], [number], xerr=spread, capsize=3, color=look["color"], marker=look["marker"])
    if len(rows) > 1 and name in rows[0]["metrics"]:
        axes.axvline(100 * rows[0]["metrics"][name], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xlabel(f"{name} (%)")
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _draw_breakdown(axes: Any, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    classes = sorted({(r["from"], inf if r["to"] is None else r["to"]) for rows in parts.values() for r in rows})
    axes.set_xticks(
        range(len(classes)),
        [f"{first}-" if last == inf else str(first) if first == last else f"{first}-{last}" for first, last in classes],
    )
    for number, (name, rows) in enumerate(parts.items()):
        # next to each other, so that intervals do not overlap
        aside = 0.3 * ((number + 0.5) / len(parts) - 0.5) if len(parts) > 1 else 0.0
        positions = [classes.index((r["from"], inf if r["to"] is None else r["to"])) + aside for r in rows]
        middle = [100 * r["metrics"]["R@1"] for r in rows]
        spread = [[m - 100 * r["intervals"]["R@1"][0] for m, r in zip(middle, rows, strict=True)],
                  [100 * r["intervals"]["R@1"][1] - m for m, r in zip(middle, rows, strict=True)]]  # fmt: skip
        axes.errorbar(positions, middle, yerr=spread, capsize=2, elinewidth=0.8, label=literal(name), **style(number))
    axes.set(xlabel="turns in the context", ylabel="R@1 (%)")
    axes.grid(axis="y", color="0.9")
    name_lines(axes)
