"""Rows of Parquet files."""

import io

from polyrank_chats.errors import DataError, MissingLibraryError
from polyrank_chats.files.members import CELL_BYTES, Member, check_size
from polyrank_chats.messages import Rows
from polyrank_chats.options import Options


def parquet_rows(member: Member, data: bytes, options: Options) -> Rows:
    """Rows of a Parquet file with their numbers.

    Raises:
        DataError: the file is damaged, holds texts that are not UTF-8, or unpacks to too much.
        MissingLibraryError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError("pyarrow", "parquet") from error
    rows: Rows = []
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        declared = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        check_size(member.path, declared, options.max_bytes, len(data))
        n_bytes = 0
        for batch in file.iter_batches(batch_size=1024):
            for column in batch.columns:
                decoded = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                n_bytes += decoded.nbytes + CELL_BYTES * len(decoded)
            check_size(member.path, n_bytes, options.max_bytes, len(data))
            rows += enumerate(batch.to_pylist(), len(rows) + 1)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"not a valid Parquet file ({str(error).splitlines()[0]})"
        raise DataError(f"{member.path}: {problem}; download or export it again") from error
    return rows
