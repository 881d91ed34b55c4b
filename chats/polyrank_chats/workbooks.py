"""Rows of workbooks: of the sheets that the user names, or of the largest sheet and those with the same columns."""

from collections.abc import Mapping
from typing import Any

from polyrank_chats.csv_records import Record, below_header, n_filled
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.members import Member
from polyrank_chats.messages import ReadLog, ReadOptions, Rows
from polyrank_chats.sheets import check_workbook

ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def sheet_rows(member: Member, data: bytes, options: ReadOptions) -> Rows:
    """Rows of an .xlsx, .xls or .ods workbook with their numbers.

    Raises:
        DataError: the workbook is empty, damaged or encrypted, or unpacks to too much.
        UsageError: the workbook has no sheet of this name.
    """
    import polars  # slow to import

    try:
        check_workbook(member.path, data, options.max_bytes)
        sheets = polars.read_excel(
            data, sheet_id=0, has_header=False, infer_schema_length=0, drop_empty_rows=False, raise_if_empty=False
        )
    except DataError:
        raise
    except Exception as error:  # the readers raise many kinds for hostile files
        reason = " ".join(str(error).split("\n")[0].split())
        locked = ENCRYPTED in data or any(word in str(error).lower() for word in ("password", "encrypt"))
        what = (
            "has a password; save it without one"
            if locked
            else f"is not a valid workbook ({reason}); save it again as .xlsx or CSV"
        )
        raise DataError(f"{member.path}: {what}") from error
    return _chosen_rows(member, {name: list(sheet.iter_rows()) for name, sheet in sheets.items()}, options)


def _chosen_rows(member: Member, sheets: Mapping[str, list[tuple[Any, ...]]], options: ReadOptions) -> Rows:
    for name in options.sheet:
        if name not in sheets:
            raise UsageError(f"{member.path} has no sheet {name!r}; it has {', '.join(sheets)}")
    tables = {}
    for name, cells in sheets.items():
        log = ReadLog(skip_bad=True)
        records = [Record(number, row) for number, row in enumerate(cells, 1) if n_filled(row)]
        tables[name] = below_header(member, records, log), log
    sizes = {name: sum(n_filled([*row.values()]) for _, row in rows) for name, (rows, _) in tables.items()}
    filled = [name for name, cells in sheets.items() if any(map(n_filled, cells))]
    if not filled:
        raise DataError(f"{member.path}: is empty; give a file with messages")
    largest = max(sizes, key=sizes.__getitem__)
    keys = {name: list(rows[0][1]) if rows else [] for name, (rows, _) in tables.items()}
    chosen = options.sheet or [name for name, own in keys.items() if own == keys[largest]]
    if not options.sheet and len(filled) > 1:
        shown = " and ".join(map(repr, chosen))
        options.log.note(
            f"{member.path.name}: read {shown} of the sheets {', '.join(filled)} (choose others with the option sheet)"
        )
    for name in chosen:
        for note in tables[name][1].notes:
            options.log.note(note)
    return [row for name in chosen for row in tables[name][0]]
