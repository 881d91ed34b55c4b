"""Unpack compressed files within limits, because a few kilobytes may unpack to more than the memory holds."""

import gzip
import io
import zlib
from pathlib import Path

from polyrank_chats.errors import DataError

MAX_BYTES = 2**30  # of the unpacked file
MAX_RATIO = 200  # of its size to that of the compressed file, above FREE_BYTES; chats compress 5 to 50 times
FREE_BYTES = 2**26
GZIP_MAGIC = b"\x1f\x8b"


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """Decompress gzip data of one or several members; other data are returned unchanged.

    Raises:
        DataError: the data are damaged, or the result is larger than ``max_bytes``, or far larger than the data.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(data)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip ({error}); download the file again") from error
    check_size(path, len(unpacked), max_bytes, len(data))
    return unpacked


def check_size(path: Path, n: int, max_bytes: int, n_packed: int | None = None) -> None:
    """Check the size of a file or of its unpacked data, also relative to ``n_packed``, the size of a compressed file.

    Raises:
        DataError: ``n`` is larger than ``max_bytes``, or than ``MAX_RATIO`` times ``n_packed``.
    """
    if n > max_bytes:
        raise DataError(f"{path}: is or unpacks to more than {max_bytes:,} bytes; divide it, or raise `max_bytes`")
    if n_packed is not None and n > max(FREE_BYTES, MAX_RATIO * n_packed):
        raise DataError(f"{path}: unpacks to more than {MAX_RATIO} times its size; unpack it and give the result")
