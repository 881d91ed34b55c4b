"""Read the numbered rows of a file or folder by the reader of its form.

This module knows the forms' names; it does not know what the fields mean.
"""

from pathlib import Path

from polyrank.data.columnar import parquet_rows
from polyrank.data.json_list import is_one_value, listed_rows
from polyrank.data.lines import Numbered, OnBad, csv_rows, json_rows, raise_bad
from polyrank.errors import DataError
from polyrank.loading.data import data_file, resolve_data


def rows(path: Path, on_bad: OnBad = raise_bad) -> Numbered:
    """Rows of a file with their line numbers: ``.csv``, ``.tsv``, ``.parquet``, ``.arrow``, or else JSON.

    JSON is one object per line, one list of objects, or one object, whose lists may hold the rows. A folder holds one
    file.

    Raises:
        DataError: a folder holds several files.
    """
    if path.is_dir():
        path, *others = (file.path for file in resolve_data(path))
        if others:
            raise DataError(f"{path.parent}: is a folder of {1 + len(others)} files; give one, such as {path.name}")
    form = data_file(path).form
    if form == "parquet":
        return parquet_rows(path, on_bad)
    if form == "json" and is_one_value(path):
        return listed_rows(path, on_bad)
    return (csv_rows if form == "csv" else json_rows)(path, on_bad)
