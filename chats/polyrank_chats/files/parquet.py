"""Rows of Parquet files."""

import io
from typing import Any, cast

from polyrank_chats.errors import DataError, MissingLibraryError, row_error
from polyrank_chats.files.members import Member
from polyrank_chats.files.unpacking import check_size
from polyrank_chats.messages import ReadOptions, Rows
from polyrank_chats.values import CELL_BYTES, Row


def parquet_rows(member: Member, data: bytes, options: ReadOptions) -> Rows:
    """Rows of a Parquet file with their numbers; rows that are not UTF-8 go to the report.

    Raises:
        DataError: the file is damaged, or unpacks to too much.
        MissingLibraryError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError("pyarrow", "parquet") from error
    path, rows, n_bytes = member.path, [], 0
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        declared = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        check_size(path, declared, options.max_bytes)
        number = 0
        for batch in file.iter_batches(batch_size=1024):
            for column in batch.columns:
                decoded = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                n_bytes += decoded.nbytes + CELL_BYTES * len(decoded)
            check_size(path, n_bytes, options.max_bytes)
            for row in _values(batch):
                number += 1
                if row is None:
                    options.report.count_bad(row_error(path, number, "holds text that is not UTF-8; save it as UTF-8"))
                else:
                    rows.append((number, row))
    except (pyarrow.ArrowException, OSError) as error:
        problem = f"not a valid Parquet file ({str(error).splitlines()[0]})"
        raise DataError(f"{path}: {problem}; download or export it again") from error
    return rows


def _values(batch: Any) -> list[Row | None]:
    """The rows of a batch; None for a row that is not UTF-8."""
    try:
        return cast("list[Row | None]", batch.to_pylist())
    except UnicodeDecodeError:
        if len(batch) == 1:
            return [None]
        return [row for i in range(len(batch)) for row in _values(batch.slice(i, 1))]
