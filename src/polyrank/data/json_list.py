"""Read a file that is one JSON value: a list of objects, one at a time, or one object.

This module does not know what the objects mean.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from polyrank.data.lines import OnBad, check_object, gzip_errors, open_file, raise_bad, row_error, strict_json, suffix
from polyrank.data.values import Row
from polyrank.errors import DataError

_blanks = re.compile(r"[ \t\r\n]*")


def is_one_value(path: Path) -> bool:
    """Whether a file is one list, or, if it is named ``.json``, an object that does not end with the first line.

    False for a pipe, or if the file's reader reports that it is damaged.
    """
    start = b""
    if path.is_file():
        with suppress(DataError, OSError, EOFError), open_file(path) as stream:
            start = stream.read(2**20).lstrip(b"\xef\xbb\xbf \t\r\n")
    line, end, rest = start.partition(b"\n")
    is_cut = not line.rstrip().endswith(b"}") if end else len(line) > 2**19
    if start[:1] == b"[":  # else each line is a list
        return not (line.rstrip().endswith(b"]") and (line[1:].lstrip()[:1] == b'"' or rest.lstrip()[:1] == b"["))
    return suffix(path) == ".json" and start[:1] == b"{" and is_cut


def listed_rows(path: Path, on_bad: OnBad = raise_bad) -> Iterator[tuple[int, Row]]:
    """Each object of the list with the line that it starts on; only the text of the file is in memory as a whole.

    A file that is one object is a list of one.

    Args:
        path: the file; gzip if named ``.gz``.
        on_bad: called for an object with a lone surrogate.

    Raises:
        DataError: the file is not a JSON list, or its JSON is broken, because reading cannot continue after that.
    """
    text = whole_text(path)

    def skip(position: int) -> int:
        """The next position that is not blank."""
        blanks = _blanks.match(text, position)
        return blanks.end() if blanks else len(text)

    def broken(position: int, problem: str) -> DataError:
        return row_error(path, 1 + text.count("\n", 0, position), problem)

    at, line = skip(0), 1
    line += text.count("\n", 0, at)
    mark = text[at : at + 1]
    if mark == "{":
        text, mark = f"{text[:at]}[{text[at:]}]", "["
    if mark not in ("", "["):
        raise broken(at, "not a JSON list of examples; is this the right format?")
    while mark in ("[", ","):
        start = skip(at + 1)
        line += text.count("\n", at, start)
        if text.startswith("]", start):
            at = start
            break
        if not text.startswith(("{", "["), start):
            problem = "the list is truncated or holds something other than objects; write objects, or download it again"
            raise broken(start, problem)
        try:
            value, end = strict_json.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise broken(getattr(error, "pos", start), f"not JSON: {what}; download the file again") from error
        try:
            yield line, check_object(value, escaped="\\ud" in text[start:end].lower())
        except ValueError as error:
            on_bad(row_error(path, line, error))
        at = skip(end)
        line += text.count("\n", start, at)
        mark = text[at : at + 1]
        if mark not in (",", "]"):
            raise broken(at, "a comma or the end of the list is missing, the file is truncated; download it again")
    if (rest := skip(at + 1)) < len(text):
        raise broken(rest, "something follows the end of the list; give one list per file")


def whole_text(path: Path) -> str:
    """The text of a file in UTF-8; gzip if named ``.gz``.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
    """
    with gzip_errors(path, lambda: 1), open_file(path) as stream:
        data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise row_error(path, line, "not UTF-8; save the file as UTF-8") from error
