"""Validation figures by epoch of one or more trainings: lines, JSON, or a plot.

    python runs/curves.py RUN... [-o FILE.svg] [--figure MRR] [--json]

RUN is the output folder of a training, or its metrics.jsonl. Seeds of one run are thin lines around their mean.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from polyrank.config.runs import without_seed
from polyrank.errors import DataError, UsageError
from polyrank.evaluation.plots import height_for, name_lines, new_figure, save, style

# a run; its two networks or its seeds; the networks of each seed
INSIDE = ("*metrics.jsonl", "*/*metrics.jsonl", "*/*/*metrics.jsonl")


@dataclass(frozen=True, slots=True)
class Check:
    """One validation of a training.

    Args:
        step: number of updates before it.
        epoch: number of passes over the data before it; None in a pre-training.
        figures: by name, such as "R@1" and "loss".
    """

    step: int
    epoch: float | None
    figures: dict[str, float]


def read_curves(folders: Sequence[Path]) -> dict[str, list[Check]]:
    """The validations of each run; a folder of several runs (two networks, seeds) has one curve for each.

    Args:
        folders: run folders, or ``metrics.jsonl`` files.

    Raises:
        UsageError: a folder has no metrics.jsonl.
        DataError: ``file:line: what is wrong``.
    """
    named: list[tuple[str, Path]] = []
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(file for way in INSIDE for file in folder.glob(way))
        if not files:
            raise UsageError(f"{folder} has no metrics.jsonl; give the output folder of a training")
        named += [(_name(folder, file), file) for file in files]
    shared = {name for name, count in Counter(name for name, _ in named).items() if count > 1}
    return {str(file) if name in shared else name: _checks(file) for name, file in named}


def _name(folder: Path, file: Path) -> str:
    if file == folder:
        own = file.name.removesuffix("metrics.jsonl").rstrip(".")
        return own or file.resolve().parent.name
    inside = file.relative_to(folder).as_posix().removesuffix("metrics.jsonl").rstrip("./")
    return f"{folder.resolve().name}/{inside}" if inside else folder.resolve().name


def _checks(file: Path) -> list[Check]:
    checks = []
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8; give the metrics.jsonl of a training") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if "valid" in record:
                finite = {name: value for name, value in record["valid"].items() if value is not None}
                checks.append(Check(record["step"], record.get("epoch"), finite))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file}:{number}: not a record of a training ({error}); remove the line") from error
    return checks


def plot_curves(curves: Mapping[str, Sequence[Check]], path: Path, *, figure: str = "R@1") -> None:
    """Plot one validation figure with a line for each run: by epoch if all runs record it, else by step.

    Seeds of one run are thin lines around the line of their mean.

    Args:
        curves: of ``read_curves``.
        path: .png or .svg to write.
        figure: to draw; R@1 is drawn in percent.

    Raises:
        UsageError: no run was validated, or none has this figure.
    """
    checks = [check for curve in curves.values() for check in curve]
    if not any(figure in check.figures for check in checks):
        known = ", ".join(sorted({name for check in checks for name in check.figures})) or "none"
        raise UsageError(f"no run has the validation figure {figure!r}; choose one of: {known}")
    by_epoch = all(check.epoch is not None for check in checks)
    scale = 1.0 if figure == "loss" else 100.0
    points = {
        name: [
            (check.epoch if by_epoch and check.epoch is not None else check.step, scale * check.figures[figure])
            for check in curve
            if figure in check.figures
        ]
        for name, curve in curves.items()
    }
    groups = _by_run({name: line for name, line in points.items() if line})
    canvas = new_figure(height=height_for(len(groups)))
    axes = canvas.subplots()
    for number, (name, lines) in enumerate(groups.items()):
        look = style(number)
        if len(lines) > 1:
            for line in lines:
                axes.plot(*zip(*line, strict=True), color=look["color"], linewidth=0.6, alpha=0.5)
        middle = _mean(lines)
        label = f"{name} ({len(lines)} seeds)" if len(lines) > 1 else name
        axes.plot(*zip(*middle, strict=True), label=label, markersize=4, **look)
    axes.set(xlabel="epoch" if by_epoch else "step", ylabel=f"validation {figure}" + (" (%)" if scale > 1 else ""))
    axes.grid(color="0.9")
    name_lines(axes)
    save(canvas, path)


Line = Sequence[tuple[float, float]]


def _by_run(lines: Mapping[str, Line]) -> dict[str, list[Line]]:
    """Lines by the name of their run, without the seed; a run with one seed keeps its name."""
    groups: dict[str, list[str]] = {}
    for name in lines:
        groups.setdefault(without_seed(name), []).append(name)
    return {run if len(names) > 1 else names[0]: [lines[name] for name in names] for run, names in groups.items()}


def _mean(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """The mean of several lines at the positions that all have; the first line if there are none."""
    known = [dict(line) for line in lines]
    common = [x for x, _ in lines[0] if all(x in line for line in known)]
    return [(x, sum(line[x] for line in known) / len(known)) for x in common] or list(lines[0])


def main() -> None:
    """Read the runs and print or draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, help=".svg, .png or .pdf")
    parser.add_argument("--figure", default="R@1", help="R@1, MRR or loss")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    curves = read_curves(options.runs)
    if options.output is not None:
        plot_curves(curves, options.output, figure=options.figure)
    if options.json:
        print(json.dumps({name: [asdict(check) for check in curve] for name, curve in curves.items()}))
    elif options.output is None:
        for name, curve in curves.items():
            for check in curve:
                when = f"step {check.step}" if check.epoch is None else f"epoch {check.epoch:g}"
                print(f"{name}\t{when}\t{options.figure} {check.figures.get(options.figure, float('nan')):.4f}")


if __name__ == "__main__":
    main()
