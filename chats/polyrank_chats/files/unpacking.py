"""Unpack compressed files within limits, because a few kilobytes may unpack to more than the memory holds."""

import gzip
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

from polyrank_chats.errors import DataError

MAX_BYTES = 2**30  # of the unpacked file
MAX_RATIO = 200  # of its size to that of the compressed file, above FREE_BYTES; chats compress 5 to 50 times
FREE_BYTES = 2**26
GZIP_MAGIC = b"\x1f\x8b"


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """Decompress gzip data of one or several members.

    Raises:
        DataError: the result is larger than ``max_bytes``, or far larger than the data.
        gzip.BadGzipFile, zlib.error, EOFError: the data are damaged.
    """
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(data)))
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        unpacked = stream.read(most + 1)
    check_unpacked(path, len(unpacked), len(data), max_bytes)
    return unpacked


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
