"""Rows of delimited text: detect the separator and the header, and skip lines above the header."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from polyrank_chats.errors import row_error
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.report import Report
from polyrank_chats.wording import counted

SEPARATORS = ",;\t|"
MAX_CELL = 8 * 2**20  # letters: a longer one is a broken file, not a message


Records = list[tuple[int, Sequence[Any]]]
"""The cells of the records of a table that are not empty, with their numbers."""


def csv_rows(member: Member, text: str, report: Report) -> Rows:
    """Rows of a text with any separator, with the line that each starts on."""
    separator = text[4:5] if text[:4].lower() == "sep=" else _separator(text)  # Excel's way to name the separator
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records: Records = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            report.count_bad(row_error(member.path, line, f"not CSV: {error}; check its quotes"))
            continue
        if n_filled(cells):
            records.append((line, cells))
    return below_header(member, records, report)


def _separator(text: str) -> str:
    """The separator for which most records have the same number of cells, above one; else the most frequent."""
    first = next((line for line in text.split("\n") if line.strip()), "")

    def fit(separator: str) -> tuple[int, int]:
        records = csv.reader(io.StringIO(text[:100_000], newline=""), delimiter=separator)
        widths: Counter[int] = Counter()
        with suppress(csv.Error):
            widths.update(len(cells) for cells in islice(records, 100) if any(cells))
        width, n = max(widths.items(), key=lambda item: (item[0] > 1, item[1], item[0]), default=(1, 0))
        return (n, width) if width > 1 else (0, 0)

    return max(SEPARATORS, key=lambda separator: (*fit(separator), "".join(first.split('"')[::2]).count(separator)))


def below_header(member: Member, records: Records, report: Report) -> Rows:
    """Detect the header and return the records below it as rows; note how many records are above it."""
    widths = Counter(_width(cells) for _, cells in records[:200])
    width = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    wide = (at for at, (_, cells) in enumerate(records) if _width(cells) >= width and 2 * n_filled(cells) > width)
    if top := next(wide, 0):
        report.note(f"{member.path.name}: skipped {counted(top, 'row')} above the header in row {records[top][0]}")
    header = unique([str(cell or "").strip() for _, cells in records[top : top + 1] for cell in cells])
    rows: Rows = []
    for line, cells in records[top + 1 :]:
        if n_filled(cells[len(header) :]):
            problem = f"{len(cells)} cells, but the header names {len(header)}; check its separators and quotes"
            report.count_bad(row_error(member.path, line, problem))
        else:
            rows.append((line, dict(zip(header, cells, strict=False))))
    return rows


def _width(cells: Sequence[Any]) -> int:
    """Number of cells up to the last non-empty one."""
    return max((position for position, cell in enumerate(cells, 1) if n_filled([cell])), default=0)


def n_filled(cells: Sequence[Any]) -> int:
    """Number of non-empty cells."""
    return sum(cell is not None and str(cell).strip() != "" for cell in cells)


def unique(names: list[str]) -> list[str]:
    """Make column names unique by numbers; name columns without a name.

    >>> unique(["id", "text", "text", "", "text"])
    ['id', 'text', 'text 2', 'column 4', 'text 3']
    """
    numbered: list[str] = []
    for position, name in enumerate(names, 1):
        own = name = name or f"column {position}"
        n = 1
        while own in numbered:
            n += 1
            own = f"{name} {n}"
        numbered.append(own)
    return numbered
