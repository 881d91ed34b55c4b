"""Rows of workbooks: of the sheets that the user names, or of the largest sheet and those with the same columns."""

import io
import zipfile
from collections.abc import Mapping
from typing import Any

from python_calamine import CalamineSheet, CalamineWorkbook, PasswordError

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.csv_records import Records, below_header, n_filled
from polyrank_chats.files.members import Member
from polyrank_chats.files.unpacking import check_size
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
                n_unpacked = sum(entry.file_size for entry in archive.infolist())
            check_size(member.path, n_unpacked, options.max_bytes, len(data))
        with CalamineWorkbook.from_filelike(io.BytesIO(data)) as book:
            sheets = {name: _records(book.get_sheet_by_name(name)) for name in book.sheet_names}
    except DataError:
        raise
    except Exception as error:  # the reader raises many kinds for damaged files
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
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _chosen_rows(member: Member, sheets: Mapping[str, Records], options: ReadOptions) -> Rows:
    sizes = {name: sum(n_filled(cells) for _, cells in records) for name, records in sheets.items()}
    filled = [name for name, size in sizes.items() if size]
    if unknown := [name for name in options.sheet if name not in sheets]:
        raise UsageError(f"{member.path} has no sheet {unknown[0]!r}; it has {', '.join(sheets)}")
    if not filled:
        raise DataError(f"{member.path}: is empty; give a file with messages")
    tables = {name: below_header(member, sheets[name], Report(skip_bad=True)) for name in filled}
    keys = {name: list(rows[0][1]) if rows else [] for name, rows in tables.items()}
    largest = max(filled, key=sizes.__getitem__)
    chosen = options.sheet or [name for name in filled if keys[name] == keys[largest]]
    if not options.sheet and len(filled) > 1:
        shown = " and ".join(map(repr, chosen))
        options.report.note(
            f"{member.path.name}: read {shown} of the sheets {', '.join(filled)} (choose others with the option sheet)"
        )
    return [row for name in chosen for row in below_header(member, sheets[name], options.report)]
