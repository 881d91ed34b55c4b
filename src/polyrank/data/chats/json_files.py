"""Objects of JSON files and of JSON lines, more tolerant than ``polyrank.data.rows``: NaN becomes null."""

import json
from collections.abc import Iterator
from typing import Any

from polyrank.data.chats.members import Member
from polyrank.data.rows import Row, check_object, row_error
from polyrank.errors import DataError

json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN


def json_rows(member: Member, text: str) -> Iterator[tuple[int, Row | DataError]]:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list in it is a conversation."""
    try:
        value = json_decoder.decode(text.strip())
    except RecursionError as error:
        raise DataError(f"{member.path}: nested too deeply; give flatter JSON") from error
    except json.JSONDecodeError as error:
        first = text.strip().partition("\n")[0]
        try:
            json_decoder.decode(first.strip())
        except (ValueError, RecursionError):
            line = text[: len(text) - len(text.lstrip())].count("\n") + error.lineno
            problem = f"not JSON: {error.msg}; the file may be truncated, download or export it again"
            raise row_error(member.path, line, problem) from error
        lines = enumerate(text.split("\n"), 1)
        yield from ((number, _line(member, number, each)) for number, each in lines if each.strip())
        return
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, str) for item in items):
        raise DataError(f"{member.path}: is a list of texts; write objects with the sender of each text")
    escaped = "\\ud" in text.lower()
    for number, item in enumerate(items, 1):
        yield number, _object(member, number, item, escaped)


def _line(member: Member, number: int, line: str) -> Row | DataError:
    try:
        value = json_decoder.decode(line.strip())
    except json.JSONDecodeError as error:
        problem = f"not JSON at character {error.pos + 1}: {error.msg}; write one JSON object per line"
        return row_error(member.path, number, problem)
    except RecursionError as error:
        return row_error(member.path, number, f"{error}; write one JSON object per line")
    return _object(member, number, value, "\\ud" in line.lower())


def _object(member: Member, number: int, value: Any, escaped: bool) -> Row | DataError:
    try:
        return check_object({"messages": value} if isinstance(value, list) else value, escaped=escaped)
    except ValueError as error:
        return row_error(member.path, number, error)
