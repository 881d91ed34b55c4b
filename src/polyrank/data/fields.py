"""Checked access to the fields of a row.

Each function returns the value of a field or raises a ValueError that explains the problem and the fix; the caller adds
the file and the line. This module checks types and does not know the kinds of rows.
"""

import json
from collections.abc import Collection
from typing import Any, TypeVar

from polyrank.data.values import Row, items_of, type_name
from polyrank.records import turns_of

T = TypeVar("T")


def field(row: Row, name: str) -> Any:
    """The value of a required field.

    >>> field({"text": "hi"}, "id")
    Traceback (most recent call last):
    ValueError: missing field "id"; add it to the row, which has text
    """
    if name not in row:
        has = ", ".join(map(str, row)) or "no fields"
        raise ValueError(f'missing field "{name}"; add it to the row, which has {has}')
    return row[name]


def text(row: Row, name: str) -> str:
    """One text; it may be empty.

    >>> text({"id": 3, "text": "hi"}, "text")
    'hi'
    """
    return checked(field(row, name), str, name, "a text")


def checked(value: object, kind: type[T], name: str, expected: str) -> T:
    """The value of a field, if it has a type of JSON.

    >>> checked(3, list, "ids", "a list of ids")
    Traceback (most recent call last):
    ValueError: field "ids" holds a number; write a list of ids
    """
    if isinstance(value, kind):
        return value
    raise ValueError(f'field "{name}" holds {type_name(value)}; write {expected}')


def texts(row: Row, name: str) -> tuple[str, ...]:
    """A list of texts; one text counts as a list of one.

    >>> texts({"context": "hi"}, "context"), texts({"context": ["a", "b"]}, "context")
    (('hi',), ('a', 'b'))
    """
    value = field(row, name)
    if isinstance(value, str):
        return (value,)
    return tuple(_list(value, str, name, "a text or a list of texts", "texts"))


def objects(row: Row, name: str) -> list[Row]:
    """A list of objects.

    >>> objects({"messages": [{"text": "hi"}]}, "messages")
    [{'text': 'hi'}]
    """
    return _list(field(row, name), dict, name, "a list of objects", "objects")


def _list(value: object, kind: type[T], name: str, expected: str, items: str) -> list[T]:
    listed: list[T] = checked(value, list, name, expected)
    for position, item in enumerate(listed):
        if not isinstance(item, kind):
            raise ValueError(f'field "{name}" holds {type_name(item)} at position {position}; write {items} only')
    return listed


def context(row: Row, name: str = "context") -> tuple[str, ...]:
    """The turns of a context, oldest first: a text, a list of texts, or a list of messages; at least one turn.

    >>> context({"context": [{"role": "user", "content": "hi"}]})
    ('hi',)
    """
    try:
        turns = texts({name: turns_if_messages(field(row, name))}, name)
    except TypeError as error:
        raise ValueError(f'field "{name}": {error}') from error
    if not turns:
        raise ValueError(f'field "{name}" is an empty list; give at least one turn, "" if it is empty')
    return turns


def turns_if_messages(value: Any) -> Any:
    """The turns of a list of messages; any other value unchanged.

    Raises:
        TypeError: the list begins with a message, but not all items are messages.
    """
    match value:
        case [dict(), *_]:
            return list(turns_of(value))
    return value


def optional_texts(row: Row, name: str) -> tuple[str, ...]:
    """As ``texts``, but empty if the field is missing, null or an empty text, which is how CSV writes null.

    >>> optional_texts({}, "background"), optional_texts({"background": ""}, "background")
    ((), ())
    """
    return () if row.get(name) in (None, "") else texts(row, name)


def identifier(value: object, name: str) -> str:
    """An id: a text or a whole number.

    >>> identifier(7, "id")
    '7'
    """
    if type(value) not in (str, int):
        raise ValueError(f'field "{name}" holds {type_name(value)}; write a text or a whole number')
    return str(value)


def optional_id(row: Row, default: str) -> str:
    """The ``id`` of a row, or ``default`` if the row has none."""
    return default if row.get("id") in (None, "") else identifier(row["id"], "id")


def identifiers(row: Row, name: str) -> tuple[str, ...]:
    """A list of ids; one id counts as a list of one, an empty text (CSV's null) as an empty list.

    >>> identifiers({"relevant_ids": ["u1", 2]}, "relevant_ids"), identifiers({"relevant_ids": ""}, "relevant_ids")
    (('u1', '2'), ())
    """
    value = field(row, name)
    if value == "":
        return ()
    names = tuple(identifier(item, name) for item in items_of(value))
    if len(set(names)) < len(names):
        raise ValueError(f'field "{name}" repeats an id; write each id once')
    return names


def metadata(row: Row, *, without: Collection[str], empty: Collection[object] = (None,)) -> dict[str, Any]:
    """The ``metadata`` of a row together with its other fields, except those in ``without`` and empty ones.

    >>> metadata({"text": "hi", "metadata": {"n": 1}, "lang": "en", "tier": None}, without=["text"])
    {'lang': 'en', 'n': 1}
    """
    known: Row = {}
    if row.get("metadata") not in (None, ""):
        known = checked(row["metadata"], dict, "metadata", "an object")
    others = {name: value for name, value in row.items() if name != "metadata" and name not in without}
    # pandas writes an empty number as NaN; Parquet has dates and bytes, which JSON cannot hold
    kept = {name: value for name, value in others.items() if value not in empty and value == value}
    return json.loads(json.dumps(kept | known, default=str, allow_nan=False)) if kept or known else {}


def indices(row: Row, name: str) -> tuple[int, ...]:
    """A list of positions; one position counts as a list of one.

    >>> indices({"relevant": 2}, "relevant"), indices({"relevant": []}, "relevant")
    ((2,), ())
    """
    items = items_of(field(row, name))
    for item in items:
        if type(item) is not int:
            problem = f"holds {type_name(item)}; write positions as whole numbers, counted from 0"
            raise ValueError(f'field "{name}" {problem}')
    if len(set(items)) < len(items):
        raise ValueError(f'field "{name}" repeats a position; write each position once')
    return tuple(items)


def grades(row: Row) -> tuple[int, ...]:
    """How relevant each of ``relevant_ids`` is: whole numbers above 0; empty without the field.

    >>> grades({"relevant_ids": ["a", "b"], "grades": [2, 1]})
    (2, 1)
    """
    if row.get("grades") in (None, ""):
        return ()
    values = tuple(_list(row["grades"], int, "grades", "a list of grades", "whole numbers"))
    if len(values) != len(identifiers(row, "relevant_ids")) or min(values, default=1) < 1:
        raise ValueError(f'field "grades" holds {list(values)}; write a whole number above 0 for each relevant id')
    return values
