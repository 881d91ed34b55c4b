"""Objects of JSON, of JSON lines and of XML.

JSON may hold NaN, which becomes null. In XML, attributes and elements are fields, and repeated elements are lists.
"""

import json
from collections.abc import Callable
from typing import Any
from xml.parsers.expat import ExpatError

import xmltodict

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import in_object, items_of, type_name

json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN


def json_rows(member: Member, text: str, on_bad: Callable[[DataError], None]) -> Rows:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list in it is a conversation."""
    by_line = False
    try:
        numbered = [*enumerate(items_of(json_decoder.decode(text)), 1)]
    except (ValueError, RecursionError) as error:
        by_line = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        if not by_line:
            raise row_error(member.path, getattr(error, "lineno", 1), _problem(error)) from error
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not by_line and numbered and all(isinstance(item, str) for _, item in numbered):
        raise DataError(f"{member.path}: is a list of texts; write objects with the sender of each text")
    rows: Rows = []
    for number, item in numbered:
        try:
            value = in_object(json_decoder.decode(item) if by_line else item, "messages")
            if "\\u" in text:  # only escapes bring halves of characters, which are not Unicode
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            on_bad(row_error(member.path, number, _problem(error)))
            continue
        if isinstance(value, dict):
            rows.append((number, value))
        else:
            on_bad(row_error(member.path, number, f"holds {type_name(value)}; write one JSON object per row"))
    return rows


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply; give flatter JSON"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.colno}; the file may be truncated, export it again"
    return f"cannot be read ({error}); write whole characters and shorter numbers"


def xml_rows(member: Member, data: bytes) -> Rows:
    """The outermost element as a single row; the text of an element with attributes is the field ``text``.

    Raises:
        DataError: the file is damaged, or declares entities, which may expand to more than the memory holds.
    """

    def named(path: object, key: str, value: Any) -> tuple[str, Any]:
        return key.rpartition(":")[2], value  # without the namespace

    try:
        return [(1, xmltodict.parse(data, attr_prefix="", cdata_key="text", postprocessor=named))]
    except (ExpatError, ValueError) as error:
        raise DataError(f"{member.path}: is XML that cannot be read ({error}); export it again, or as JSON") from error
