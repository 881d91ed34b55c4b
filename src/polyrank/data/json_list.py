"""Read a file that is one JSON list of objects, one object at a time.

This module does not know what the objects mean.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path

from polyrank.data.rows import (
    MAX_LINE_BYTES,
    OnBad,
    check_object,
    gzip_errors,
    open_file,
    raise_bad,
    row_error,
    strict_json,
)
from polyrank.data.values import Row

_blanks = re.compile(r"[ \t\r\n]*")


def listed_rows(
    path: Path, on_bad: OnBad = raise_bad, *, max_item_bytes: int = MAX_LINE_BYTES, chunk_bytes: int = 2**20
) -> Iterator[tuple[int, Row]]:
    """Each object of the list with the line that it starts on; the list is never in memory as a whole.

    Args:
        path: the file; gzip if named ``.gz``.
        on_bad: called for an object with a lone surrogate.
        max_item_bytes: the longest object, in characters.
        chunk_bytes: bytes to read at a time.

    Raises:
        DataError: the file is not a JSON list, or its JSON is broken, because reading cannot continue after that.
    """
    window, at, n_breaks = "", 0, 0  # the part of the text in memory, the position in it, and line breaks before it
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode

    def line(end: int | None = None) -> int:
        """The line of a position in the window; None: of the current one."""
        return 1 + n_breaks + window.count("\n", 0, at if end is None else end)

    def more() -> bool:
        """Read a chunk; False at the end of the file."""
        nonlocal window, at, n_breaks
        chunk = stream.read(chunk_bytes)
        try:
            added = decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            number = line(len(window)) + bytes(error.object[: error.start]).count(b"\n")
            raise row_error(path, number, "not UTF-8; save the file as UTF-8") from error
        window, at, n_breaks = window[at:] + added, 0, line() - 1
        return bool(chunk)

    def next_mark() -> str:
        """The next character that is not blank; empty at the end of the file."""
        nonlocal at
        while True:
            blanks = _blanks.match(window, at)
            at = blanks.end() if blanks else at
            if at < len(window) or not more():
                return window[at : at + 1]

    with gzip_errors(path, line), open_file(path) as stream:
        mark = next_mark()
        if mark not in ("", "["):
            raise row_error(path, line(), "not a JSON list of examples; is this the right format?")
        while mark in ("[", ","):
            at += 1
            if (mark := next_mark()) == "]":
                break
            if mark != "{":
                problem = "the list is truncated or holds something other than objects; download the file again"
                raise row_error(path, line(), problem)
            while True:
                try:
                    value, end = strict_json.raw_decode(window, at)
                    break
                except (ValueError, RecursionError) as error:
                    # an object that ends after the window looks like a broken one, so read more first
                    cut = isinstance(error, json.JSONDecodeError) and len(window) - at <= max_item_bytes
                    if not cut or not more():
                        what = error.msg if isinstance(error, json.JSONDecodeError) else error
                        where = line(getattr(error, "pos", None))
                        raise row_error(path, where, f"not JSON: {what}; download the file again") from error
            try:
                yield line(), check_object(value, escaped="\\ud" in window[at:end].lower())
            except ValueError as error:
                on_bad(row_error(path, line(), error))
            at = end
            if (mark := next_mark()) not in (",", "]"):
                problem = "a comma or the end of the list is missing, the file is truncated; download it again"
                raise row_error(path, line(), problem)
        at += 1
        if mark and next_mark():
            raise row_error(path, line(), "something follows the end of the list; give one list per file")
