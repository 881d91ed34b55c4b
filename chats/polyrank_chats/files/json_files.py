"""Objects of JSON files and of JSON lines, more tolerant than JSON: NaN becomes null."""

import json
from collections.abc import Callable
from typing import Any

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import Row, in_object, items_of, type_name

TOO_DEEP = "nested too deeply; give flatter JSON"
json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN


def json_rows(member: Member, text: str, on_bad: Callable[[DataError], None]) -> Rows:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list in it is a conversation."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    by_line = False
    try:
        numbered = [*enumerate(items_of(_decoded(text)), 1)]
    except ValueError as error:
        if not _is_json(lines[0][1]):
            line = lines[0][0] + error.lineno - 1 if isinstance(error, json.JSONDecodeError) else lines[0][0]
            raise row_error(member.path, line, _problem(error)) from error
        numbered, by_line = lines, True
    if numbered and not by_line and all(isinstance(item, str) for _, item in numbered):
        raise DataError(f"{member.path}: is a list of texts; write objects with the sender of each text")
    escaped = "\\ud" in text.lower()
    rows: Rows = []
    for number, item in numbered:
        try:
            value = _decoded(item) if by_line else item
            rows.append((number, check_object(in_object(value, "messages"), escaped=escaped)))
        except ValueError as error:
            on_bad(row_error(member.path, number, _problem(error)))
    return rows


def _decoded(text: str) -> Any:
    try:
        return json_decoder.decode(text.strip())
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(f"cannot be read ({error}); write shorter numbers") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def _is_json(line: str) -> bool:
    try:
        _decoded(line)
    except ValueError:
        return False
    return True


def _problem(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.colno}; the file may be truncated, export it again"
    return str(error)


def check_object(value: object, *, escaped: bool) -> Row:
    """Return ``value`` if it is a JSON object without lone surrogates.

    Only escapes can bring lone surrogates into JSON, so values without escapes (``escaped`` is False) skip that check.
    """
    if not isinstance(value, dict):
        raise ValueError(f"holds {type_name(value)}, not an object; write one JSON object per row")
    try:
        if escaped:
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"lone surrogate \\u{ord(error.object[error.start]):04x}; write whole characters") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    return value
