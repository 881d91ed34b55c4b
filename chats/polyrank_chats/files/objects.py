"""Objects of JSON, of JSON lines and of XML.

JSON may hold NaN, which becomes null. In XML, attributes and elements are fields, repeated elements are lists, and the
text of an element with attributes is the field ``text``.
"""

import json
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring, tostring
from xml.sax.saxutils import escape

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.messages import Rows
from polyrank_chats.values import Row, object_of, objects_in

MARKUP = {"p", "div", "span", "br", "b", "i", "u", "em", "strong"}
json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes missing values as NaN


def json_rows(member: Member, text: str, on_bad: Callable[[DataError], None]) -> Rows:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list in it is a conversation."""
    try:
        value, by_line = json_decoder.decode(text), False
        given = value if isinstance(value, list) else objects_in(object_of(value).get("@graph")) or [value]
        numbered = [*enumerate((one for item in given for one in _asked(object_of(item)) or [item]), 1)]
    except (ValueError, RecursionError) as error:
        by_line = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        if not by_line:
            raise row_error(member.path, getattr(error, "lineno", 1), _problem(error)) from error
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not by_line and all(isinstance(item, str) for _, item in numbered):
        return [(number, {"text": item}) for number, item in numbered]
    rows: Rows = []
    for number, item in numbered:
        try:
            value = json_decoder.decode(item) if by_line else item
            if "\\u" in text:  # only escapes bring halves of characters, which are not Unicode
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            on_bad(row_error(member.path, number, _problem(error)))
            continue
        if isinstance(value, dict | list):
            rows.append((number, value if isinstance(value, dict) else {"messages": value}))
        else:
            on_bad(row_error(member.path, number, f"holds {str(value)[:40]!r}; write one JSON object per row"))
    return rows


def _asked(page: Row) -> list[Any]:
    """The questions and answers in an object whose names are questions, or in a FAQPage of schema.org.

    >>> _asked({"Where is it?": "Here."})
    [{'question': 'Where is it?', 'answer': 'Here.'}]
    >>> _asked({"mainEntity": [{"name": "Return it", "acceptedAnswer": {"text": "Within 30 days."}}]})
    [{'question': 'Return it', 'answer': 'Within 30 days.'}]
    """
    if all(name.endswith(("?", "\uff1f", "\u061f")) and isinstance(text, str) for name, text in page.items()):
        return [{"question": name, "answer": text} for name, text in page.items()]
    entries = [(one.get("name"), object_of(one.get("acceptedAnswer"))) for one in objects_in(page.get("mainEntity"))]
    return [{"question": name, "answer": answer["text"]} for name, answer in entries if "text" in answer]


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply; give flatter JSON"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.colno}; the file may be truncated, export it again"
    return f"cannot be read ({error}); write whole characters and shorter numbers"


def xml_rows(member: Member, text: str) -> Rows:
    """The outermost element as a single row.

    Raises:
        DataError: the file is damaged, or declares entities, which may expand to more than the memory holds.
    """
    try:
        if "<!ENTITY" in text:
            raise ParseError("it declares entities")
        root = fromstring(text)
        for message in root.iterfind("mms"):  # of SMS Backup & Restore, whose parts are pictures and texts
            said = "\n".join(part.get("text", "") for part in message.iterfind(".//*[@ct='text/plain']"))
            message.tag, message.attrib["body"], message[:] = "sms", said, ()
        return [(1, {_local(root.tag): _value(root)})]
    except (ParseError, ValueError) as error:
        raise DataError(f"{member.path}: is XML that cannot be read ({error}); export it again, or as JSON") from error


def _value(element: Element) -> Any:
    """The attributes and elements of an element, or its text, which stays HTML if there is markup between the words.

    >>> _value(fromstring('<message from="Ann"><body>It <b>is</b> on</body></message>'))
    {'from': 'Ann', 'body': '<div>It <b>is</b> on</div>'}
    """
    row: dict[str, Any] = {_local(name): value for name, value in element.items()}
    said = [text for text in (element.text, *(child.tail for child in element)) if text and text.strip()]
    if said or (len(element) and MARKUP.issuperset(_local(child.tag) for child in element)):
        markup = "".join(tostring(child, "unicode") for child in element)
        text = f"<div>{escape(element.text or '')}{markup}</div>" if markup else (element.text or "").strip()
        return row | {"text": text} if row else text
    fields: dict[str, list[Any]] = {}
    for child in element:
        fields.setdefault(_local(child.tag), []).append(_value(child))
    return row | {name: values if len(values) > 1 else values[0] for name, values in fields.items()} or None


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]
