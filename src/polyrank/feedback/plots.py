"""Plots of acceptance with intervals, in the style of ``polyrank.evaluation.plots``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.evaluation.plots import new_figure, save, style
from polyrank.feedback.rates import BY

MAX_LABELS = 8  # per axis; with more rows, every second, third, ... is labelled
LABELS = {"rank": "rank shown", "week": "week", "model": "model"}


def plot_report(figures: Mapping[str, Any], path: Path) -> None:
    """Acceptance with its 95% interval, by rank, week and model.

    Args:
        figures: returned by ``report``.
        path: ends in .svg, .png or .pdf.
    """
    panels = {name: [row for row in figures[f"by_{name}"] if row["interval"]] for name in BY}
    figure = new_figure(1.0 + 3.2 * len(panels), 4)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for number, (axes, (name, rows)) in enumerate(zip(all_axes, panels.items(), strict=True)):
        _draw(axes, rows, number, joined=name == "week")
        axes.set_xlabel(LABELS[name])
    all_axes[0].set_ylabel("accepted (%)")
    answered = figures["taken"] + figures["edited"] + figures["refused"]
    figure.suptitle(f"{answered:,} requests with an outcome; bars: 95% intervals", fontsize="medium")
    save(figure, path)


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], number: int, *, joined: bool) -> None:
    shares = [100 * row["acceptance"] for row in rows]
    spread = [
        [share - 100 * row["interval"][0] for share, row in zip(shares, rows, strict=True)],
        [100 * row["interval"][1] - share for share, row in zip(shares, rows, strict=True)],
    ]
    look = style(number) if joined else style(number) | {"linestyle": "none"}
    axes.errorbar(range(len(rows)), shares, yerr=spread, capsize=3, **look)
    names = [str(row["name"]) for row in rows]
    step = -(-len(rows) // MAX_LABELS)
    slanted = {"rotation": 30, "ha": "right"} if sum(map(len, names[:: step or 1])) > 24 else {}
    axes.set_xticks(range(0, len(rows), step or 1), names[:: step or 1], fontsize="small", **slanted)
    axes.set_xlim(-0.5, max(len(rows), 1) - 0.5)
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
