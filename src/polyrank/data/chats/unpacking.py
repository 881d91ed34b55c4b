"""Unpack compressed files within limits, because a few kilobytes may unpack to more than the memory holds."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from polyrank.errors import DataError

MAX_BYTES = 2**30  # of the unpacked file
PIECE = 2**20
GZIP = 31  # zlib's wbits for gzip


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """Decompress gzip data of one or several members.

    Raises:
        DataError: the result is larger than ``max_bytes``.
        zlib.error, EOFError: the data are damaged.
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
                raise EOFError("it is truncated")
        data = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def check_size(path: Path, n: int, max_bytes: int) -> None:
    """Check the size of a file, packed or unpacked.

    Raises:
        DataError: ``n`` is larger than ``max_bytes``.
    """
    if n > max_bytes:
        raise DataError(f"{path}: is or unpacks to more than {max_bytes:,} bytes; divide it, or raise `max_bytes`")


def check_archive(path: Path, entries: Iterable[zipfile.ZipInfo], max_bytes: int) -> None:
    """Check the total size of an archive before unpacking it. An entry never unpacks to more than it declares.

    Raises:
        DataError: the total is larger than ``max_bytes``.
    """
    check_size(path, sum(entry.file_size for entry in entries), max_bytes)
