"""Read numbered rows of Parquet and Arrow files, as ``datasets`` saves them too.

This module does not know what the columns mean.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from polyrank.data.lines import Numbered, OnBad, check_ratio, open_file, raise_bad, row_error, suffix
from polyrank.data.values import Row
from polyrank.errors import DataError, needs

CELL_BYTES = 64  # of a cell in addition to its value


def parquet_rows(path: Path, on_bad: OnBad = raise_bad) -> Numbered:
    """Each row of a Parquet or Arrow file with its number, counted from 1.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    with needs("pyarrow", "parquet"):
        import pyarrow
    with open_file(path) as stream:  # pyarrow would report missing files and folders in other words
        try:
            number = n_bytes = 0
            size = path.stat().st_size
            for batch in _batches(path, stream, size):
                for column in batch.columns:
                    is_coded = pyarrow.types.is_dictionary(column.type)
                    n_bytes += (column.dictionary_decode() if is_coded else column).nbytes + CELL_BYTES * len(column)
                check_ratio(path, n_bytes, size)
                for row in _values(batch):
                    number += 1
                    if row is None:
                        on_bad(row_error(path, number, "holds text that is not UTF-8; save it as UTF-8"))
                    else:
                        yield number, row
        except (pyarrow.ArrowException, OSError) as error:
            problem = f"not a valid {suffix(path)[1:].capitalize()} file ({str(error).splitlines()[0]})"
            raise DataError(f"{path}: {problem}; download or export it again") from error


def _batches(path: Path, stream: Any, size: int) -> Iterator[Any]:
    """The batches of rows of a Parquet file, of an Arrow file, or of an Arrow stream, as datasets saves them."""
    import pyarrow.parquet

    if suffix(path) == ".parquet":
        file = pyarrow.parquet.ParquetFile(stream)
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        check_ratio(path, sum(group.total_byte_size for group in groups), size)
        yield from file.iter_batches(batch_size=1024)
        return
    is_file = stream.peek(6).startswith(b"ARROW1")
    source = pyarrow.ipc.open_file(stream) if is_file else pyarrow.ipc.open_stream(stream)
    for batch in map(source.get_batch, range(source.num_record_batches)) if is_file else source:
        batch.validate(full=True)
        yield batch


def _values(batch: Any) -> list[Row | None]:
    """The rows of a batch; None for a row that is not UTF-8."""
    try:
        return cast("list[Row | None]", batch.to_pylist())
    except UnicodeDecodeError:
        if len(batch) == 1:
            return [None]
        return [row for i in range(len(batch)) for row in _values(batch.slice(i, 1))]
