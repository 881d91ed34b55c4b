"""Values of JSON, which may have any type: what they are, and what they hold if they have the expected type.

Also rows of such values in memory: lists, generators, and tables of pandas, polars, pyarrow and datasets.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from polyrank.errors import DataError

TYPE_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

TOO_DEEP = "nested too deeply; write flat objects"

Row = dict[str, Any]


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


# the method of each library that returns rows as dictionaries, with its arguments
TABLES: dict[str, dict[str, Any]] = {"iter_rows": {"named": True}, "to_pylist": {}, "to_dict": {"orient": "records"}}


def rows_of(source: Iterable[Any]) -> Iterator[Any]:
    """Each row of a table or an iterable; NumPy values become plain Python values.

    >>> list(rows_of([{"text": "hi", "n": np.int64(2)}, "hello"]))
    [{'text': 'hi', 'n': 2}, 'hello']

    Raises:
        TypeError: ``source`` is not a table and not iterable.
        DataError: a row is nested too deeply.
    """
    if hasattr(source, "columns") or hasattr(source, "column_names"):
        for method, options in TABLES.items():
            if callable(read := getattr(source, method, None)) and not hasattr(source, "features"):
                source = read(**options)
                break
    if isinstance(source, Mapping | str | bytes) or not isinstance(source, Iterable):
        raise TypeError(f"{type(source).__name__} is not a table of rows; give a list of rows")
    for number, row in enumerate(source):
        try:
            plain = _plain(row) if isinstance(row, Mapping) else row
        except RecursionError as error:
            raise DataError(f"row {number}: {TOO_DEEP}") from error
        yield plain


def _plain(value: Any) -> Any:
    """Convert arrays to lists, NumPy numbers to Python numbers, and NaN, which pandas writes for missing, to None."""
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return None if value != value else value
