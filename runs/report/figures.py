"""Results as the runs printed them, and how their numbers are written in Markdown."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import record

INSTRUCTIONS = {"amx_int8": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}  # the best one names a machine
LIBRARIES = ("python", "numpy", "torch", "transformers", "faiss-cpu")
BACKBONE, LEFT = "MiniLM", "left truncation, polyrank's learning rate"
Result = dict[str, Any]


def read(name: str) -> Result:
    """The JSON object of a run, by the name that runs/record.py keeps it by."""
    result: Result = record.read(name)
    return result


def read_if_there(name: str) -> Result | None:
    """The same, or None for a run that does not exist."""
    return read(name) if record.has(name) else None


def row(name: str, **wanted: Any) -> Result:
    """The one row of a benchmark that has these values."""
    rows = [row for row in read(name)["rows"] if all(row[key] == value for key, value in wanted.items())]
    if len(rows) != 1:
        raise ValueError(f"{name} has {len(rows)} rows with {wanted}")
    return rows[0]


def last_valid_loss(name: str) -> float:
    """The loss of the last validation in a run's metrics."""
    loss: float = [line["valid"]["loss"] for line in record.read(f"{name}.metrics") if "valid" in line][-1]
    return loss


def percent(value: float) -> str:
    """A share.

    >>> percent(0.588)
    '58.8'
    """
    return f"{100 * value:.1f}"


def change(value: float) -> str:
    """A difference of shares, with its sign."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding 0.0 makes -0.0 positive


def p_value(value: float) -> str:
    """The p value of a paired test."""
    return f"p = {value:.2g}"


def ms(value: float) -> str:
    """Milliseconds.

    >>> ms(9.588), ms(7286.6)
    ('9.6', '7,287')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def times(value: float) -> str:
    """How many times faster."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def share(result: Result | None, figure: str = "R@1") -> str:
    """A figure with its 95% interval, in percent, or nothing without a result."""
    if result is None:
        return ""
    low, high = result["intervals"][figure]
    return f"{percent(result['metrics'][figure])} ({percent(low)}-{percent(high)})"


def compared(test: Result) -> str:
    """The outcome of a paired test."""
    return f"{change(test['difference'])}, {p_value(test['p'])}"


def gain(test: Result) -> str:
    """The same with the difference's interval."""
    low, high = test["interval"]
    return f"{change(test['difference'])} points [{percent(low)}, {percent(high)}], {p_value(test['p'])}"


def machine(name: str) -> str:
    """The best instructions and the number of threads of a benchmark."""
    known = read(name)["machine"]
    best = next(flag for flag in INSTRUCTIONS if flag in known["flags"])
    return f"{INSTRUCTIONS[best]}, {known['threads']} thread{'s' if known['threads'] > 1 else ''}"


def described(name: str) -> list[str]:
    """The same at length: processor, instructions, cores, memory, libraries."""
    known = read(name)["machine"]
    libraries = [f"{library} {version}" for library, version in known["versions"].items() if library in LIBRARIES]
    return [
        known["cpu"],
        " ".join(known["flags"]),
        str(known["cores"]),
        f"{known['memory_gb']:.0f}",
        ", ".join(libraries),
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table of the rows that have values; the columns ``right`` are right-aligned."""
    line = "|".join("---:" if column in right else "---" for column in range(len(head)))
    return "\n".join(
        [f"| {' | '.join(head)} |", f"|{line}|", *(f"| {' | '.join(row)} |" for row in rows if any(row[1:]))]
    )


def prose(text: str) -> str:
    """A paragraph, wrapped."""
    return _wrapped(text)


def listed(*items: str) -> str:
    """A list with one bullet per item, wrapped.

    >>> print(listed("Training: one pass.", "Command: `bash runs/real.sh`."))
    - Training: one pass.
    - Command: `bash runs/real.sh`.
    """
    return "\n".join(_wrapped(item, "- ", "  ") for item in items)


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        130,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def section(title: str, *parts: str) -> str:
    """A title, and paragraphs, lists and tables below it."""
    return "\n\n".join([f"## {title}", *(part if part.startswith(("|", "- ")) else prose(part) for part in parts)])
