"""Packed files within limits: a few kilobytes may unpack to more than any memory holds. Knows nothing of chats."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from polyrank.errors import DataError

MAX_BYTES = 2**30  # of all that a file unpacks to
PIECE = 2**20
GZIP = 31  # zlib's word for a gzip header


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
    """Refuse a file that is too large, or unpacks to too much.

    Raises:
        DataError: it does.
    """
    if n > max_bytes:
        raise DataError(
            f"{path}: is or unpacks to more than {max_bytes:,} bytes; give it in parts,"
            " or raise max_bytes (--max-bytes)"
        )


def check_archive(path: Path, entries: Iterable[zipfile.ZipInfo], max_bytes: int) -> None:
    """Refuse an archive that unpacks to too much, before any of it is. An entry never gives more than it declares.

    Raises:
        DataError: it does.
    """
    check_size(path, sum(entry.file_size for entry in entries), max_bytes)
