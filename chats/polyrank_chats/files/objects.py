"""Objects of JSON, of JSON lines and of XML.

JSON may hold NaN, which becomes null. In XML, attributes and elements are fields, and repeated elements are lists.
"""

import json
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLParser

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import Row, in_object, items_of, type_name

json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN
SMS_KINDS = {"1": "received", "2": "sent"}  # of Android


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
    """The outermost element as a single row.

    Raises:
        DataError: the file is damaged, or declares entities, which may expand to more than the memory holds.
    """
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        raise DataError(f"{member.path}: is XML with a document type; remove the declaration, or export JSON or CSV")
    parser = XMLParser()
    try:
        parser.feed(data)
        root = parser.close()
    except ParseError as error:
        raise DataError(f"{member.path}: is damaged XML ({error}); export it again") from error
    return [(1, {root.tag: _value(root)})]


def _value(element: Element) -> Any:
    """A text, or an object of the attributes and elements; text among elements is the field ``text``."""
    row: Row = dict(element.attrib)
    if "readable_date" in row:
        row |= {"direction": SMS_KINDS.get(row.get("type") or row.get("msg_box") or "")}
    for child in element:
        name, value = child.tag.rpartition("}")[2], _value(child)
        if name not in row:
            row[name] = value
        elif isinstance(row[name], list):
            row[name].append(value)
        else:
            row[name] = [row[name], value]
    text = (element.text or "").strip()
    if not row:
        return text
    return {**row, "text": text} if text else row
