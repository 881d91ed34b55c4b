"""Rows of cells below a header: of delimited text and of the sheets of workbooks."""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from python_calamine import CalamineSheet, CalamineWorkbook, PasswordError

from polyrank_chats.errors import DataError, UsageError, row_error
from polyrank_chats.files.members import CELL_BYTES, Member, check_size
from polyrank_chats.messages import Rows
from polyrank_chats.options import Options
from polyrank_chats.report import Report
from polyrank_chats.wording import counted

SEPARATORS = ",;\t|"
NUMBERS = re.compile(r"(?=\D*\d)[\W\d]+")  # also dates, times and phone numbers
MAX_CELL = 8 * 2**20  # letters: a longer one is a broken file, not a message


Records = list[tuple[int, Sequence[Any]]]  # of a table, that are not empty, with their numbers
ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


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
    start, header = _header(records)
    if start > 1:
        skipped = f"skipped {counted(start - 1, 'row')} above the header in row {records[start - 1][0]}"
        report.note(f"{member.path.name}: {skipped}")
    rows: Rows = []
    for line, cells in records[start:]:
        if n_filled(cells[len(header) :]):
            problem = f"{len(cells)} cells, but the header names {len(header)}; check its separators and quotes"
            report.count_bad(row_error(member.path, line, problem))
        else:
            rows.append((line, dict(zip(header, cells, strict=False))))
    return rows


def _header(records: Records) -> tuple[int, list[str]]:
    """The position of the first row, and the names of its columns: in the first record as wide as most.

    That record is a row itself if it has texts, and a number or a date where the next one has, too.
    """
    widths = Counter(_width(cells) for _, cells in records[:200])
    width = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    wide = (at for at, (_, cells) in enumerate(records) if _width(cells) >= width and 2 * n_filled(cells) > width)
    top = next(wide, 0)
    names, *below = ([str(cell or "").strip() for cell in cells] for _, cells in records[top : top + 2] or [(0, ())])
    numbers = [found for row in below for found in zip(names, row, strict=False) if NUMBERS.fullmatch(found[0])]
    if 0 < len(numbers) < n_filled(names) and any(NUMBERS.fullmatch(cell) for _, cell in numbers):
        return top, unique([""] * len(names))
    return top + 1, unique(names)


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
    numbered, repeats = dict[str, None](), Counter[str]()
    for position, name in enumerate(names, 1):
        own = name = name or f"column {position}"
        while own in numbered:
            repeats[name] += 1
            own = f"{name} {repeats[name] + 1}"
        numbered[own] = None
    return [*numbered]


def sheet_rows(member: Member, data: bytes, options: Options) -> Rows:
    """Rows of an .xlsx, .xlsb, .xls or .ods workbook with their numbers; cells become texts.

    Raises:
        DataError: the workbook is empty, damaged or encrypted, or unpacks to too much.
        UsageError: the workbook has no sheet of this name.
    """
    try:
        if data.startswith(b"PK"):
            entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
            check_size(member.path, sum(entry.file_size for entry in entries), options.max_bytes, len(data))
        with CalamineWorkbook.from_filelike(io.BytesIO(data)) as book:
            found = [book.get_sheet_by_name(name) for name in book.sheet_names]
            n_cells = sum(sheet.height * sheet.width for sheet in found)
            check_size(member.path, CELL_BYTES * n_cells, options.max_bytes, len(data))
            sheets = {sheet.name: _records(sheet) for sheet in found}
    except BaseException as error:  # the reader raises many kinds for damaged files, also PanicException
        if isinstance(error, DataError) or not (isinstance(error, Exception) or "Panic" in type(error).__name__):
            raise
        what = f"is not a valid workbook ({' '.join(str(error).split())}); save it again as .xlsx or CSV"
        if isinstance(error, PasswordError) or ENCRYPTED in data:
            what = "has a password; save it without one"
        raise DataError(f"{member.path}: {what}") from error
    return _chosen_rows(member, sheets, options)


def _records(sheet: CalamineSheet) -> Records:
    rows = enumerate(sheet.to_python(skip_empty_area=False), 1)
    return [(number, [*map(_text, cells)]) for number, cells in rows if n_filled(cells)]


def _text(value: Any) -> str:
    """A cell as a text; numbers are floats in a workbook.

    >>> [_text(value) for value in (3.0, 2.5, True, "a", "")]
    ['3', '2.5', 'true', 'a', '']
    """
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _chosen_rows(member: Member, sheets: Mapping[str, Records], options: Options) -> Rows:
    sizes = {name: sum(n_filled(cells) for _, cells in records) for name, records in sheets.items()}
    filled = [name for name, size in sizes.items() if size]
    if unknown := [name for name in options.sheet if name not in sheets]:
        raise UsageError(f"{member.path} has no sheet {unknown[0]!r}; it has {', '.join(sheets)}")
    if not filled:
        raise DataError(f"{member.path}: is empty; give a file with messages")
    headers = {name: _header(sheets[name])[1] for name in filled}
    chosen = options.sheet or [name for name in filled if headers[name] == headers[max(filled, key=sizes.__getitem__)]]
    if not options.sheet and len(filled) > 1:
        of = f"{' and '.join(map(repr, chosen))} of the sheets {', '.join(filled)}"
        options.report.note(f"{member.path.name}: read {of} (choose others with the option sheet)")
    return [row for name in chosen for row in below_header(member, sheets[name], options.report)]
