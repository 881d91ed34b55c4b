"""Packed files within limits: a few kilobytes may unpack to more than any memory holds. Knows nothing of chats."""

import io
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from polyrank.errors import DataError

MAX_BYTES = 2**30  # of all that a file unpacks to
MAX_CELLS = 20_000_000  # of one sheet: its reader holds the whole rectangle around those that are filled
PIECE = 2**20
GZIP = 31  # zlib's word for a gzip header
_CELL = re.compile(rb'<(?:c|row)\b[^>]*?\br="([A-Z]{0,3})([0-9]{1,7})"')


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """What gzip packed, in one member or several.

    Raises:
        DataError: it is more than ``max_bytes``.
        zlib.error, EOFError: it is damaged.
    """
    parts: list[bytes] = []
    n = 0
    while data:
        stream = zlib.decompressobj(GZIP)
        while not stream.eof:
            part = stream.decompress(data, PIECE)
            data = stream.unconsumed_tail
            n += len(part)
            check_size(path, n, max_bytes)
            parts.append(part)
            if not part and not data and not stream.eof:
                raise EOFError("it ends too soon")
        data = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def check_size(path: Path, n: int, max_bytes: int) -> None:
    """Refuse what unpacks to too much.

    Raises:
        DataError: it does.
    """
    if n > max_bytes:
        raise DataError(
            f"{path}: unpacks to more than {max_bytes:,} bytes; give it in parts, or raise max_bytes (--max-bytes)"
        )


def check_archive(path: Path, entries: Iterable[zipfile.ZipInfo], max_bytes: int) -> None:
    """Refuse an archive that unpacks to too much, before any of it is. An entry never gives more than it declares.

    Raises:
        DataError: it does.
    """
    check_size(path, sum(entry.file_size for entry in entries), max_bytes)


def check_workbook(path: Path, data: bytes, max_bytes: int) -> None:
    """Refuse a workbook (.xlsx) that would fill the memory: by what it unpacks to, or by how far apart its cells are.

    Raises:
        DataError: it would.
        zipfile.BadZipFile: it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_archive(path, archive.infolist(), max_bytes)
        for entry in archive.infolist():
            if entry.filename.startswith("xl/worksheets/") and entry.filename.endswith(".xml"):
                n = _cells(archive.read(entry))
                if n > MAX_CELLS:
                    raise DataError(
                        f"{path}: a sheet spans {n:,} cells, the limit is {MAX_CELLS:,}; delete its empty rows and"
                        " columns, or save it as CSV"
                    )


def _cells(sheet: bytes) -> int:
    """Cells of the rectangle around those that are filled.

    >>> _cells(b'<row r="1"><c r="A1"/></row><row r="3"><c r="C3"/></row>')
    9
    """
    rows, columns = [0], [0]
    for letters, number in _CELL.findall(sheet):
        rows.append(int(number))
        if letters:
            columns.append(_column(letters))
    return (max(rows) - min(rows[1:], default=0) + 1) * (max(columns) - min(columns[1:], default=0) + 1)


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number
