"""Unpack compressed files within limits, because a few kilobytes may unpack to more than the memory holds."""

import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from polyrank_chats.errors import DataError

MAX_BYTES = 2**30  # of the unpacked file
MAX_RATIO = 200  # of its size to that of the compressed file, above FREE_BYTES; chats compress 5 to 50 times
FREE_BYTES = 2**26
PIECE = 2**20
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31  # zlib's wbits for gzip
PADDING = re.compile(rb"\0*")  # after a member


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """Decompress gzip data of one or several members.

    Raises:
        DataError: the result is larger than ``max_bytes``, or far larger than the data.
        zlib.error, EOFError: the data are damaged.
    """
    parts: list[bytes] = []
    n = at = 0
    while at < len(data):
        stream = zlib.decompressobj(GZIP)
        while not stream.eof:
            packed = data[at : at + PIECE]  # given all data, each call would copy what is left
            part = stream.decompress(packed, PIECE)
            at += len(packed) - len(stream.unused_data if stream.eof else stream.unconsumed_tail)
            n += len(part)
            check_unpacked(path, n, len(data), max_bytes)
            parts.append(part)
            if not part and not packed and not stream.eof:
                raise EOFError("it is truncated")
        at = PADDING.match(data, at).end()  # type: ignore[union-attr]  # matches anything
    return b"".join(parts)


def check_size(path: Path, n: int, max_bytes: int) -> None:
    """Check the size of a file, packed or unpacked.

    Raises:
        DataError: ``n`` is larger than ``max_bytes``.
    """
    if n > max_bytes:
        raise DataError(f"{path}: is or unpacks to more than {max_bytes:,} bytes; divide it, or raise `max_bytes`")


def check_unpacked(path: Path, n: int, n_packed: int, max_bytes: int) -> None:
    """Check the size of an unpacked file, also relative to that of the compressed one.

    Raises:
        DataError: ``n`` is larger than ``max_bytes``, or than ``MAX_RATIO`` times ``n_packed``.
    """
    check_size(path, n, max_bytes)
    if n > max(FREE_BYTES, MAX_RATIO * n_packed):
        raise DataError(f"{path}: unpacks to more than {MAX_RATIO} times its size; unpack it and give the result")


def check_archive(path: Path, n_packed: int, entries: Iterable[zipfile.ZipInfo], max_bytes: int) -> None:
    """Check the total size of an archive before unpacking it. An entry never unpacks to more than it declares.

    Raises:
        DataError: the total is larger than ``max_bytes``, or far larger than the archive of ``n_packed`` bytes.
    """
    check_unpacked(path, sum(entry.file_size for entry in entries), n_packed, max_bytes)
