"""Rows of figures as a table for a terminal, Markdown or LaTeX.

A row has a ``name`` and ``metrics``, and may have ``n_examples`` and ``n_candidates``, ``intervals`` (95%), ``seeds``
with ``std``, and ``against``: a test of one metric, with those of other metrics in ``others``. Figures are in percent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from polyrank.data.values import items_of

SHOWN = ("R@1", "R@5", "R@10", "MRR")
MARK, LEVEL = "†", 0.05
Row = Mapping[str, Any]


def table(rows: Sequence[Row], metrics: Sequence[str] = SHOWN) -> Table:
    """A table for a terminal, in percent, with the 95% interval below each figure."""
    result = Table(show_lines=True)
    headings = _headings(rows)
    for heading in (*headings, *metrics):
        result.add_column(heading, justify="left" if heading == "scorer" else "right", overflow="fold")
    for row in rows:
        cells = [_figure_cell(row, name) + _mark(row, name) + _interval(row, name, "\n{}-{}") for name in metrics]
        result.add_row(*(escape(_about_cell(row, heading)) for heading in headings), *cells)
    return result


def markdown(rows: Sequence[Row], metrics: Sequence[str] = SHOWN) -> str:
    """A GitHub Markdown table; the best of each column is bold."""
    headings = [*_headings(rows), *metrics]
    lines = [headings, [":--", *("--:" for _ in headings[1:])]]
    for number, row in enumerate(rows):
        about = [_about_cell(row, heading).replace("|", "\\|") for heading in _headings(rows)]
        figures = [
            (f"**{text}**" if best else text) + _mark(row, name)
            for name, best in _best(rows, metrics, number)
            for text in [_figure_cell(row, name) + _interval(row, name, " ({}-{})")]
        ]
        lines.append(about + figures)
    notes = [f"\n{note}" for note in (_units(rows), *notes_of(rows))]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + notes)


def latex(rows: Sequence[Row], metrics: Sequence[str] = SHOWN) -> str:
    """A ``tabular`` with booktabs rules; the best of each column is bold."""
    headings = [*_headings(rows), *metrics]
    lines = ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(_latex, headings)) + r" \\", "\\midrule"]
    for number, row in enumerate(rows):
        about = [_latex(_about_cell(row, heading)) for heading in _headings(rows)]
        figures = [
            (rf"\textbf{{{text}}}" if best else text)
            + (r"$^{\dagger}$" if _mark(row, name) else "")
            + _interval(row, name, r" {{\scriptsize [{}, {}]}}")
            for name, best in _best(rows, metrics, number)
            for text in [_figure_cell(row, name).replace(" ± ", r" $\pm$ ")]
        ]
        lines.append(" & ".join(about + figures) + r" \\")
    notes = [f"% {note}" for note in (_units(rows), *notes_of(rows))]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *notes])


def _units(rows: Sequence[Row]) -> str:
    spread = ["± standard deviation over seeds"] if any("std" in row for row in rows) else []
    if any("intervals" in row and "std" not in row for row in rows):
        spread.append(f"in brackets 95% intervals over {_unit(rows)}")
    return "; ".join(["In percent", *spread])


def _unit(rows: Sequence[Row]) -> str:
    """The unit of resampling."""
    numbers = {row["n_dialogues"] for row in rows if "n_dialogues" in row}
    return "examples of one dialogue" if numbers == {1} else "dialogues" if numbers else "examples"


def notes_of(rows: Sequence[Row]) -> list[str]:
    """The meaning of a table's marks."""
    tests = [row["against"] for row in rows if "against" in row]
    if not any(_mark(row, name) for row in rows for name in _tests(row)):
        return []
    over = f"randomisation test over {_unit(tests)}"
    many = f", adjusted for {len(tests)} comparisons (Holm)" if len(tests) > 1 else ""
    return [f"{MARK} differs from {tests[0]['scores']}: p < {LEVEL}, paired {over}{many}"]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Lines below a table in a terminal: examples without figures, each seed, and tests in full."""
    lines = []
    for row in rows:
        name = row["name"]
        if row.get("n_unanswerable"):
            lines.append(
                f"{name}: {row['n_unanswerable']} of {row['n_examples']} examples have no right answer and are not in"
                " the figures"
            )
        if row.get("std"):
            metric = next(iter(row["std"]))
            seeds = ", ".join(
                f"{'unknown' if one['seed'] is None else one['seed']}: {100 * one['metrics'][metric]:.1f}"
                for one in row["by_seed"]
            )
            lines.append(f"{name}: {metric} of seed {seeds}")
        if "against" in row:
            lines.append(f"{name} against {row['against']['scores']}: {_test_text(row['against'])}")
    return lines + notes_of(rows)


def _test_text(test: Row) -> str:
    metric, (low, high) = test["metric"], (f"{100 * end:+.1f}" for end in test["interval"])
    text = f"{metric} {100 * test['difference']:+.1f} points [{low}, {high}], p = {test['p']:.4f}"
    if paired := test.get("over_seeds"):
        spread = f"{metric} {100 * paired['difference']:+.1f} ± {100 * paired['std']:.1f} points"
        text += f"; {spread} over {paired['n_seeds']} seeds, p = {paired['p']:.4f}"
    return text


def _headings(rows: Sequence[Row]) -> list[str]:
    return ["scorer", *(["seeds"] if any("std" in row for row in rows) else []), "n", "C"]


def _about_cell(row: Row, heading: str) -> str:
    match heading:
        case "scorer":
            return str(row.get("name", ""))
        case "seeds":
            return str(len(row["seeds"])) if "std" in row else "1"
        case "n":
            return f"{row['n_examples']:,}"
    return "-".join(f"{size:,}" for size in items_of(row["n_candidates"]))


def _figure_cell(row: Row, name: str) -> str:
    if name not in row["metrics"]:
        return ""
    text = f"{100 * row['metrics'][name]:.1f}"
    return f"{text} ± {100 * row['std'][name]:.1f}" if name in row.get("std", {}) else text


def _interval(row: Row, name: str, form: str) -> str:
    """The interval over examples, unless the spread over seeds is shown."""
    if "std" in row or name not in row.get("intervals", {}):
        return ""
    return form.format(*(f"{100 * end:.1f}" for end in row["intervals"][name]))


def _tests(row: Row) -> dict[str, Row]:
    test = row.get("against")
    return {} if test is None else {one["metric"]: one for one in (test, *test.get("others", ()))}


def _mark(row: Row, name: str) -> str:
    test = _tests(row).get(name, {"p": 1.0})
    return f" {MARK}" if test.get("p_adjusted", test["p"]) < LEVEL else ""


def _best(rows: Sequence[Row], metrics: Sequence[str], number: int) -> Iterator[tuple[str, bool]]:
    """Each metric, and whether the row of this number is the best by it; at least two rows must have it."""
    for name in metrics:
        values = [row["metrics"][name] for row in rows if name in row["metrics"]]
        top = max(values, default=0.0)
        yield name, len(values) > 1 and rows[number]["metrics"].get(name) == top


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
