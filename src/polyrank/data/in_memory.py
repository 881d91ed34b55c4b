"""Rows in memory: lists, generators, and tables of pandas, polars, pyarrow and datasets."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from polyrank.data.rows import TOO_DEEP
from polyrank.errors import DataError

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
