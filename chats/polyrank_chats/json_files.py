"""Objects of JSON files and of JSON lines, more tolerant than JSON: NaN becomes null."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import Row, in_object, items_of, type_name

TOO_DEEP = "nested too deeply; give flatter JSON"
json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN


def json_rows(member: Member, text: str, on_bad: Callable[[DataError], None]) -> Rows:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list in it is a conversation."""
    read: Callable[[Any], Row]
    try:
        value = json_decoder.decode(text.strip())
    except RecursionError as error:
        if not _is_too_deep(text.strip().partition("\n")[0]):  # then it is not a file of lines
            raise DataError(f"{member.path}: {TOO_DEEP}") from error
        numbered, read = _lines(text), _line
    except json.JSONDecodeError as error:
        first = text.strip().partition("\n")[0]
        try:
            json_decoder.decode(first.strip())
        except (ValueError, RecursionError):
            line = text[: len(text) - len(text.lstrip())].count("\n") + error.lineno
            problem = f"not JSON: {error.msg}; the file may be truncated, download or export it again"
            raise row_error(member.path, line, problem) from error
        numbered, read = _lines(text), _line
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"{member.path}: cannot be read ({error}); write shorter numbers") from error
    else:
        numbered, read = [*enumerate(items_of(value), 1)], partial(_object, escaped="\\ud" in text.lower())
        if numbered and all(isinstance(item, str) for _, item in numbered):
            raise DataError(f"{member.path}: is a list of texts; write objects with the sender of each text")
    rows: Rows = []
    for number, item in numbered:
        try:
            rows.append((number, read(item)))
        except ValueError as error:
            on_bad(row_error(member.path, number, error))
    return rows


def _lines(text: str) -> list[tuple[int, Any]]:
    return [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]


def _is_too_deep(text: str) -> bool:
    try:
        json_decoder.decode(text)
    except RecursionError:
        return True
    except ValueError:
        pass
    return False


def _line(line: str) -> Row:
    try:
        value = json_decoder.decode(line.strip())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON at character {error.pos + 1}: {error.msg}; write one JSON object per line"
        ) from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    return _object(value, "\\ud" in line.lower())


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


def _object(value: object, escaped: bool) -> Row:
    return check_object(in_object(value, "messages"), escaped=escaped)
