"""Estimate the memory of a workbook before reading it: a file of a kilobyte may declare cells that fill any memory.

Readers allocate the whole rectangle around the non-empty cells of every sheet. An .xlsx names each cell, an .ods
repeats cells and rows, an .xls is a chain of sectors with records. This module reads no values.
"""

import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polyrank_chats.errors import DataError
from polyrank_chats.unpacking import check_archive

MAX_CELLS = 20_000_000  # in all sheets of a file
_XLSX_CELL = re.compile(rb"""<(?:\w+:)?(?:c|row)\b[^<]*?\sr\s*=\s*["']([A-Za-z]{0,3})([0-9]{1,7})["']""")
_XLSX_SHEET = re.compile(rb"<(?:\w+:)?sheet\s")
_ODS_PART = re.compile(rb"<table:(table-row|table-cell|covered-table-cell|table)(?=[\s/>])([^<]*)(<text:)?")
_ODS_REPEATED = re.compile(rb"""number-(?:rows|columns)-repeated\s*=\s*["']([0-9]{1,18})["']""")
_XLS_CELLS = {2, 3, 4, 5, 6, 0xBD, 0xBE, 0xD6, 0xFD, 0x201, 0x203, 0x204, 0x205, 0x206, 0x27E, 0x406}
_XLS_SEVERAL = {0xBD, 0xBE}  # records with several cells of a row, which end in the last column
_XLS_SHEET, _XLS_END = 0x85, 0x0A  # the name and offset of a sheet; the end of its records
_MINI = 4096  # smaller streams are in mini sectors


def check_workbook(path: Path, data: bytes, max_bytes: int) -> None:
    """Check the unpacked size and the number of cells of a workbook (.xlsx, .ods, .xls).

    Raises:
        DataError: the workbook is too large.
        zipfile.BadZipFile, struct.error, IndexError: the workbook is damaged.
    """
    if data[:2] != b"PK":
        n = sum(map(_xls_cells, _xls_streams(data)))
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_archive(path, len(data), archive.infolist(), max_bytes)
            if "xl/workbook.bin" in archive.namelist():
                raise DataError(f"{path}: is a binary workbook (.xlsb); save it as .xlsx")
            sheets = [xlsx_cells(part) for name in archive.namelist() if b"sheetData" in (part := archive.read(name))]
            n_named = len(_XLSX_SHEET.findall(_part(archive, "xl/workbook.xml")))
            n = sum(sheets) + max(sheets, default=0) * max(0, n_named - len(sheets))  # two names may share a sheet
            n += ods_cells(_part(archive, "content.xml"))
    if n > MAX_CELLS:
        raise DataError(
            f"{path}: its sheets span {n:,} cells, the limit is {MAX_CELLS:,}; delete empty rows and columns, or save"
            " the sheet as CSV"
        )


def _part(archive: zipfile.ZipFile, name: str) -> bytes:
    return archive.read(name) if name in archive.namelist() else b""


def xlsx_cells(sheet: bytes) -> int:
    """Cells of the rectangle around the non-empty cells.

    >>> xlsx_cells(b'<row r="1"><c r="A1"/></row><row r="3"><c r="C3"/></row>')
    9
    """
    found = [(int(number), _column(letters)) for letters, number in _XLSX_CELL.findall(sheet)]
    return _rectangle([row for row, _ in found], [column for _, column in found if column])


def _rectangle(rows: Sequence[int], columns: Sequence[int]) -> int:
    return (max(rows) - min(rows) + 1) * (max(columns) - min(columns) + 1) if rows and columns else 0


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters.upper():
        number = 26 * number + letter - 64
    return number


def ods_cells(content: bytes) -> int:
    """Cells up to the last non-empty cell, in all sheets.

    >>> row = b'<table:table-row table:number-rows-repeated="5"><table:table-cell office:value="1"/></table:table-row>'
    >>> ods_cells(b"<table:table>" + row + row + b'<table:table-row table:number-rows-repeated="9000"/></table:table>')
    10
    """
    total = rows = columns = bottom = right = 0
    for part, attributes, text in _ODS_PART.findall(content):
        repeated = int(found[1]) if (found := _ODS_REPEATED.search(attributes)) else 1
        if part == b"table":
            total, rows, columns, bottom = total + rows * columns, 0, 0, 0
        elif part == b"table-row":
            bottom, right = bottom + repeated, 0
        else:
            right += repeated
            if text or b"office:" in attributes or b"formula" in attributes:
                rows, columns = bottom, max(columns, right)
    return total + rows * columns


def _xls_streams(data: bytes) -> list[bytes]:
    """The streams of a compound file that contain sheets."""
    (shift,) = struct.unpack_from("<H", data, 30)
    directory_at, mini_at, more_at = (struct.unpack_from("<I", data, at)[0] for at in (48, 60, 68))

    def sector(number: int) -> bytes:
        return data[(number + 1) << shift : (number + 2) << shift]

    blocks = list(_words(data[76:512]))
    for _ in range(len(data) >> shift):
        if len(part := _words(sector(more_at))) > 1:
            blocks, more_at = [*blocks, *part[:-1]], part[-1]
    table = [number for block in blocks for number in _words(sector(block))]
    directory = _chained(directory_at, table, sector, len(data) >> shift)
    entries = [directory[at : at + 128] for at in range(0, len(directory) - 127, 128)]
    starts = [struct.unpack_from("<II", entry, 116) for entry in entries]
    root = _chained(starts[0][0], table, sector, len(data) >> shift)
    minis = _words(_chained(mini_at, table, sector, len(data) >> shift))
    names = [entry[:64].decode("utf-16-le", "replace").partition("\0")[0].lower() for entry in entries]
    return [
        _chained(start, minis, lambda number: root[64 * number : 64 * number + 64], len(root) // 64)
        if size < _MINI
        else _chained(start, table, sector, len(data) >> shift)
        for name, (start, size) in zip(names, starts, strict=True)
        if name in ("workbook", "book")
    ]


def _chained(start: int, table: Sequence[int], piece: Callable[[int], bytes], most: int) -> bytes:
    """The pieces of a chain; ``table`` holds the successor of each. A cycle ends after ``most`` pieces."""
    parts: list[bytes] = []
    while start < len(table) and len(parts) <= most:
        parts.append(piece(start))
        start = table[start]
    return b"".join(parts)


def _words(part: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(part) // 4}I", part[: len(part) // 4 * 4])


def _xls_cells(stream: bytes) -> int:
    """Cells of all sheets whose offsets are in the first records."""
    sheets = [stream[at : at + 4] for kind, at, _ in _records(stream, 0) if kind == _XLS_SHEET]
    n_left = len(stream) // 4  # the most records that valid sheets can have in total
    cells: dict[bytes, int] = {}
    for start in set(sheets):
        rows, columns = [], []
        for kind, at, n in _records(stream, int.from_bytes(start, "little")):
            n_left -= 1
            if kind in _XLS_CELLS and n >= 6:
                row, column = struct.unpack_from("<HH", stream, at)
                rows.append(row)
                columns += [column, *struct.unpack_from("<H", stream, at + n - 2)] if kind in _XLS_SEVERAL else [column]
            if n_left < 0:
                raise struct.error("its sheets share records")
        cells[start] = _rectangle(rows, columns)
    return sum(cells[start] for start in sheets)


def _records(stream: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Kind, start and length of each record up to the end record."""
    while start + 4 <= len(stream):
        kind, n = struct.unpack_from("<HH", stream, start)
        if kind == _XLS_END:
            return
        yield kind, start + 4, min(n, len(stream) - start - 4)
        start += 4 + n
