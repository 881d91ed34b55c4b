"""Prints tables and figures of the papers: the published value, polyrank's, and the difference.

    python runs/papers/published.py NAME ... [--work FOLDER] [--needs]

NAME is a table of published.toml, such as iclr-4. polyrank's values come from the results in FOLDER (runs/work/papers),
which the scripts of this folder write. A figure is also drawn, as FOLDER/NAME.svg. --needs prints the files with
polyrank's values instead, one per line.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from polyrank.evaluation.plots import height_for, name_lines, new_figure, save, style

HERE = Path(__file__).parent
WORK = HERE.parent / "work" / "papers"
SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6}
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Value:
    """A value of polyrank's, in the published unit.

    Args:
        mean: of the files.
        std: over seeds, if there are several.
        n_examples: on which it was measured, if the result states them.
        better: whether a paired test found it better than what it was tested against.
    """

    mean: float
    std: float | None = None
    n_examples: int | None = None
    better: bool = False


Cells = Sequence[tuple[str, Value | None]]


def read_tables(path: Path = HERE / "published.toml") -> dict[str, dict[str, Any]]:
    """All tables by name."""
    return tomllib.loads(path.read_text("utf-8"))


def rows_of(table: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each row's label, its parts for the columns' places and its published values; a heading has no values."""
    for line in table["rows"].strip().splitlines():
        label, *cells = (cell.strip() for cell in line.split("|"))
        parts, published = (cells[0], cells[1:]) if cells else ("-", [])
        if published and len(published) != len(table["columns"]):
            raise ValueError(f"{line!r} has {len(published)} values for {len(table['columns'])} columns")
        yield label, [part.strip() for part in parts.split(";")], published


def source(place: str, parts: Sequence[str], published: str) -> tuple[str, str] | None:
    """The file and key of polyrank's value; None where the paper has no value, or polyrank no such row."""
    if published == "-" or parts == ["-"]:
        return None
    file, _, key = place.format(*parts, "").partition(" ")  # parts that a row leaves out are empty
    return file, key


def look_up(document: Any, path: str) -> float:
    """The number at a path; in a list, ``a=1,b=2`` selects the item with these values.

    >>> look_up({"rows": [{"n": 1, "ms": 5.0}, {"n": 10, "ms": 6.0}]}, "rows/n=10/ms")
    6.0
    """
    for name in path.split("/"):
        if isinstance(document, list):
            wanted = [pair.split("=") for pair in name.split(",")]
            document = next((item for item in document if all(str(item[k]) == v for k, v in wanted)), None)
        else:
            document = document.get(name)
        if document is None:
            raise LookupError(path)
    return float(document)


def measured(work: Path, file: str, key: str, factor: float) -> Value | None:
    """polyrank's value from the files in ``work``, or None if no file has it."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(work.glob(file))]
    try:
        values = [sum(look_up(document, path.strip()) for path in key.split(" + ")) for document in documents]
    except LookupError:
        return None
    if not values:
        return None
    first, metric = documents[0], key.removeprefix("metrics/")
    test = first.get("against") or {}
    tests = [test, *test.get("others", ())]
    better = any(t.get("metric") == metric and t["difference"] > 0 and t["p"] < SIGNIFICANT for t in tests)
    std = first.get("std", {}).get(metric)
    n_examples = first.get("n_examples") if metric != key else None
    return Value(factor * fmean(values), None if std is None else factor * std, n_examples, better)


def cells_of(table: Mapping[str, Any], work: Path) -> Iterator[tuple[str, Cells]]:
    """Each row's label and cells: the published value as printed, and polyrank's."""
    for label, parts, published in rows_of(table):
        cells = []
        for (_, place, *factor), printed in zip(table["columns"], published, strict=bool(published)):
            found = source(place, parts, printed)
            cells.append((printed, found and measured(work, *found, *(factor or [100]))))
        yield label, cells


def cell_text(published: str, value: Value | None) -> str:
    """One cell: published; polyrank's; the difference.

    >>> cell_text("81.7 ± 0.2", Value(80.0, 0.31)), cell_text("2.2M*", Value(1.5e6)), cell_text("?", Value(7.25))
    ('81.7 ± 0.2; 80.0 ± 0.3; -1.7', '2.2M*; 1,500,000; -700,000', '?; 7.2')
    """
    if value is None:
        return published
    number = re.match(r"(\d+(?:\.(\d+))?)([kM]?)", published)
    n_digits = len(number[2] or "") if number and not number[3] else 0 if number else 1
    own = f"{value.mean:,.{n_digits}f}" + (f" ± {value.std:.{n_digits}f}" if value.std is not None else "")
    parts = [published, own + "*" * value.better]
    if number:
        parts.append(f"{value.mean - float(number[1]) * SUFFIXES[number[3]]:+,.{n_digits}f}")
    return "; ".join(parts)


def print_table(table: Mapping[str, Any], rows: Sequence[tuple[str, Cells]]) -> None:
    """A table in Markdown, with the numbers of polyrank's examples below its rows."""
    heads = [column[0] for column in table["columns"]]
    print(f"\n## {table['title']}\n\nEach cell: published; polyrank's; difference.\n")
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for label, cells in rows:
        texts = [cell_text(*cell) for cell in cells] if cells else [""] * len(heads)
        print(f"| {label.replace('# ', '')} | {' | '.join(texts)} |")
    counts = [{value.n_examples for value in column if value and value.n_examples} for column in columns(rows)]
    if any(counts):
        ranges = [" to ".join(f"{n:,}" for n in sorted({min(each), max(each)})) if each else "" for each in counts]
        print(f"| polyrank's examples | {' | '.join(ranges)} |")
    if "note" in table:
        print(f"\n{' '.join(table['note'].split())}")


def columns(rows: Sequence[tuple[str, Cells]]) -> list[list[Value | None]]:
    """polyrank's values by column."""
    return [list(column) for column in zip(*([value for _, value in cells] for _, cells in rows if cells), strict=True)]


def draw(table: Mapping[str, Any], rows: Sequence[tuple[str, Cells]], path: Path) -> bool:
    """Draw polyrank's values, a panel for each axis, a line for each column; False if there are none."""
    values = columns(rows)
    lines = {
        axis: {
            table["columns"][number - 1][0]: [(i, value.mean) for i, value in enumerate(values[number - 1]) if value]
            for number in numbers
        }
        for axis, numbers in table["draw"].items()
    }
    panels = {axis: drawn for axis, each in lines.items() if (drawn := {k: line for k, line in each.items() if line})}
    if not panels:
        return False
    figure = new_figure(7.5 * len(panels), height_for(max(map(len, panels.values()))))
    for axes, (axis, drawn) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for number, (name, points) in enumerate(drawn.items()):
            axes.plot(*zip(*points, strict=True), label=name, **style(number))
        axes.set_xticks(range(len(rows)), [label for label, _ in rows])
        axes.set(ylabel=axis)
        axes.grid(axis="y", color="0.9")
        name_lines(axes)
    save(figure, path)
    return True


def needs(table: Mapping[str, Any]) -> list[str]:
    """The files with polyrank's values."""
    found = [
        source(place, parts, printed)
        for _, parts, published in rows_of(table)
        for (_, place, *_), printed in zip(table["columns"], published, strict=bool(published))
    ]
    return list(dict.fromkeys(each[0] for each in found if each))


def substitutes(files: Sequence[str]) -> list[str]:
    """For each corpus of these files that write_data.py wrote, a line that names its source."""
    names = {path.parent.name: path for path in sorted(WORK.glob("data/*/substitute.txt"))}
    return [
        f"{name}: not the published files, but {path.read_text('utf-8').strip()}; its differences mean nothing."
        for name, path in names.items()
        if any(re.search(rf"[/-]{name}[-/.]", file) for file in files)
    ]


def main() -> None:
    """Print, and draw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = read_tables()
    parser.add_argument("names", nargs="+", choices=tables, metavar="NAME", help=", ".join(tables))
    parser.add_argument("--work", type=Path, default=WORK, help="the folder with the results")
    parser.add_argument("--needs", action="store_true", help="print the files with polyrank's values")
    options = parser.parse_args()
    for name in options.names:
        table = tables[name]
        files = needs(table)
        if options.needs:
            print(*files, sep="\n")
            continue
        rows = list(cells_of(table, options.work))
        print_table(table, rows)
        for line in substitutes(files):
            print(f"\n{line}")
        path = options.work / f"{name}.svg"
        if "draw" in table and draw(table, rows, path):
            print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
