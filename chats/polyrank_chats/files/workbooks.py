"""Rows of workbooks: of the sheets that the user names, or of the largest sheet and those with the same columns."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from python_calamine import CalamineWorkbook, PasswordError

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.csv_records import Record, below_header, n_filled
from polyrank_chats.files.members import Member
from polyrank_chats.files.unpacking import check_archive
from polyrank_chats.messages import ReadOptions, Rows
from polyrank_chats.report import Report

ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def sheet_rows(member: Member, data: bytes, options: ReadOptions) -> Rows:
    """Rows of an .xlsx, .xlsb, .xls or .ods workbook with their numbers; cells become texts.

    Raises:
        DataError: the workbook is empty, damaged or encrypted, or unpacks to too much.
        UsageError: the workbook has no sheet of this name.
    """
    try:
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                check_archive(member.path, len(data), archive.infolist(), options.max_bytes)
        with CalamineWorkbook.from_filelike(io.BytesIO(data)) as book:
            sheets = {
                name: [list(map(_text, row)) for row in book.get_sheet_by_name(name).to_python(skip_empty_area=False)]
                for name in book.sheet_names
            }
    except DataError:
        raise
    except Exception as error:  # the reader raises many kinds for damaged files
        what = f"is not a valid workbook ({' '.join(str(error).split())}); save it again as .xlsx or CSV"
        if isinstance(error, PasswordError) or ENCRYPTED in data:
            what = "has a password; save it without one"
        raise DataError(f"{member.path}: {what}") from error
    return _chosen_rows(member, sheets, options)


def _text(value: Any) -> str:
    """A cell as a text; numbers are floats in a workbook.

    >>> [_text(value) for value in (3.0, 2.5, True, "a", "")]
    ['3', '2.5', 'true', 'a', '']
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _chosen_rows(member: Member, sheets: Mapping[str, Sequence[Sequence[str]]], options: ReadOptions) -> Rows:
    for name in options.sheet:
        if name not in sheets:
            raise UsageError(f"{member.path} has no sheet {name!r}; it has {', '.join(sheets)}")
    tables = {}
    for name, cells in sheets.items():
        report = Report(skip_bad=True)
        records = [Record(number, row) for number, row in enumerate(cells, 1) if n_filled(row)]
        tables[name] = below_header(member, records, report), report
    sizes = {name: sum(n_filled([*row.values()]) for _, row in rows) for name, (rows, _) in tables.items()}
    filled = [name for name, cells in sheets.items() if any(map(n_filled, cells))]
    if not filled:
        raise DataError(f"{member.path}: is empty; give a file with messages")
    largest = max(sizes, key=sizes.__getitem__)
    keys = {name: list(rows[0][1]) if rows else [] for name, (rows, _) in tables.items()}
    chosen = options.sheet or [name for name, own in keys.items() if own == keys[largest]]
    if not options.sheet and len(filled) > 1:
        shown = " and ".join(map(repr, chosen))
        options.report.note(
            f"{member.path.name}: read {shown} of the sheets {', '.join(filled)} (choose others with the option sheet)"
        )
    for name in chosen:
        for note in tables[name][1].notes:
            options.report.note(note)
    return [row for name in chosen for row in tables[name][0]]
