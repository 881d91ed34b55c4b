"""Values of JSON, which may have any type: what they are, and what they hold if they have the expected type."""

from typing import Any

Row = dict[str, Any]


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
