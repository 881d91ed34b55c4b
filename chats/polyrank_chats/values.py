"""Values of JSON, which may have any type: what they are, and what they hold if they have the expected type."""

from typing import Any, TypeGuard

TYPE_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

Row = dict[str, Any]
CELL_BYTES = 64  # memory of a table cell in addition to its value


def type_name(value: object) -> str:
    """The type of a JSON value, for errors.

    >>> type_name([1]), type_name(None), type_name(3)
    ('a list', 'null', 'a number')
    """
    return TYPE_NAMES.get(type(value), "a number")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a JSON number; true and false, which Python counts as numbers, are not.

    >>> is_number(2), is_number(True)
    (True, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def text_of(value: object) -> str:
    """The value itself if it is a text, else an empty text."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> Row:
    """The value itself if it is a JSON object, else an empty object.

    >>> object_of({"a": 1}), object_of("a")
    ({'a': 1}, {})
    """
    return value if isinstance(value, dict) else {}


def objects_in(value: object) -> list[Row]:
    """The objects in a JSON list; empty if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def items_of(value: Any) -> list[Any]:
    """The value itself if it is a JSON list, else a list of it."""
    return value if isinstance(value, list) else [value]


def in_object(value: Any, name: str) -> Any:
    """An object with the value as its only field if it is a JSON list, else the value itself."""
    return {name: value} if isinstance(value, list) else value
