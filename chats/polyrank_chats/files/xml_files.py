"""XML as objects: attributes and elements are fields, repeated elements are lists."""

from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLParser

from polyrank_chats.errors import DataError
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import Row

SMS_KINDS = {"1": "received", "2": "sent"}  # of Android


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
