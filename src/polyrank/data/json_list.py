"""Read a file that is one JSON list of objects, one object at a time.

This module does not know what the objects mean.
"""

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

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
from polyrank.errors import DataError


def listed_rows(
    path: Path, on_bad: OnBad = raise_bad, *, max_item_bytes: int = MAX_LINE_BYTES, chunk_bytes: int = 2**20
) -> Iterator[tuple[int, Row]]:
    """Each object of the list, with the line that it starts on; the list is never in memory as a whole.

    Args:
        path: the file; gzip if named ``.gz``.
        on_bad: called for an object with a lone surrogate.
        max_item_bytes: the longest object, in characters.
        chunk_bytes: bytes to read at a time.

    Raises:
        DataError: the file is not a JSON list, or its JSON is broken, because reading cannot continue after that.
    """
    text = _Window(path, chunk_bytes)
    with gzip_errors(path, lambda: text.line), open_file(path) as stream:
        text.stream = stream
        mark = text.peek()
        if not mark:
            return
        if mark != "[":
            raise row_error(path, text.line, "not a JSON list of examples; is this the right format?")
        text.skip(1)
        while (mark := text.peek()) != "]":
            if mark != "{":
                problem = "the list is truncated or holds something other than objects; download the file again"
                raise row_error(path, text.line, problem)
            line, (value, escaped) = text.line, text.take(max_item_bytes)
            try:
                yield line, check_object(value, escaped=escaped)
            except ValueError as error:
                on_bad(row_error(path, line, error))
            mark = text.peek()
            if mark == ",":
                text.skip(1)
            elif mark != "]":
                problem = "a comma or the end of the list is missing, the file is truncated; download it again"
                raise row_error(path, text.line, problem)
        text.skip(1)
        if text.peek():
            raise row_error(path, text.line, "something follows the end of the list; give one list per file")


_blanks = re.compile(r"[ \t\r\n]*")


class _Window:
    """The unread part of a JSON text; only a window of it is in memory."""

    def __init__(self, path: Path, chunk_bytes: int) -> None:
        self.path, self.chunk_bytes = path, chunk_bytes
        self.stream: BinaryIO = io.BytesIO()
        self.buffer, self.position, self.line = "", 0, 1
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._ended = False

    def more(self) -> bool:
        """Read a chunk; False at the end of the file."""
        if self._ended:
            return False
        chunk = self.stream.read(self.chunk_bytes)
        self._ended = not chunk
        try:
            text = self._decode(chunk, self._ended)
        except UnicodeDecodeError as error:
            breaks = self.buffer.count("\n", self.position) + bytes(error.object[: error.start]).count(b"\n")
            raise row_error(self.path, self.line + breaks, "not UTF-8; save the file as UTF-8") from error
        if not self._ended:
            self.buffer, self.position = self.buffer[self.position :] + text, 0
        return not self._ended

    def skip(self, n: int) -> None:
        """Skip ``n`` characters."""
        self.line += self.buffer.count("\n", self.position, self.position + n)
        self.position += n

    def peek(self) -> str:
        """The next non-blank character; empty at the end of the file."""
        while True:
            blanks = _blanks.match(self.buffer, self.position)
            self.skip(blanks.end() - self.position if blanks else 0)
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self.more():
                return ""

    def take(self, limit: int) -> tuple[object, bool]:
        """Parse the object that starts here; also whether it may hold lone surrogates."""
        while True:
            try:
                value, end = strict_json.raw_decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                # an object that ends after the window looks like a broken one, so read more first
                if len(self.buffer) - self.position <= limit and self.more():
                    continue
                raise self._broken(error.pos, error.msg) from error
            except (ValueError, RecursionError) as error:
                raise self._broken(self.position, str(error)) from error
            escaped = any(self.buffer.find(mark, self.position, end) >= 0 for mark in ("\\ud", "\\uD"))
            self.skip(end - self.position)
            return value, escaped

    def _broken(self, where: int, what: str) -> DataError:
        line = self.line + self.buffer.count("\n", self.position, where)
        return row_error(self.path, line, f"not JSON: {what}; download the file again")
