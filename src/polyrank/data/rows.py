"""Files to numbered rows and back: JSON lines, CSV and Parquet, plain or gzipped, read one row at a time.

Two kinds of trouble are kept apart. What is wrong with one row is *yielded* in its place, as a DataError, so that the
reader may go on with the next row. What is wrong with the file as a whole (absent, damaged gzip) is *raised*.
This module knows bytes, rows and line numbers; it refuses to know what the fields mean.
"""

import codecs
import csv
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from polyrank.errors import DataError, MissingExtraError
from polyrank.loading.data import data_file
from polyrank.storage.durable import write_file

MAX_LINE_BYTES = 8 * 2**20
CELL_BYTES = 64  # that a cell of a table takes in memory, whatever it holds
"""The longest line that is read, in bytes: a longer one is a broken file, not a conversation."""

GZIP_MAGIC = b"\x1f\x8b"
BINARY = {
    b"PK\x03\x04": "an Excel workbook or another zip archive; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"PAR1": "a Parquet file; give it the ending .parquet",
    b"SQLite": "an SQLite database; save the table as CSV",
}
"""What is taken for text now and then, by its first bytes; gzip aside, which is read."""

TYPE_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

Row = dict[str, Any]
T = TypeVar("T")


def row_error(path: Path, line: int, problem: object) -> DataError:
    """What is wrong, with where it is.

    >>> str(row_error(Path("train.jsonl"), 3, "not JSON"))
    'train.jsonl:3: not JSON'
    """
    return DataError(f"{path}:{line}: {problem}")


def sound(items: Iterable[tuple[int, T | DataError]]) -> Iterator[tuple[int, T]]:
    """Numbered lines or rows, for readers that stop at the first bad one.

    Raises:
        DataError: the first bad one.
    """
    for number, item in items:
        if isinstance(item, DataError):
            raise item
        yield number, item


def stem(path: Path) -> str:
    """The file's name without ``.gz`` and without its format, for making ids.

    >>> stem(Path("data/train.jsonl.gz")), stem(Path("test.pool.jsonl"))
    ('train', 'test.pool')
    """
    return Path(path.name.removesuffix(".gz")).stem


def suffix(path: Path) -> str:
    """The format by name, in lower case, ``.gz`` aside.

    >>> suffix(Path("train.JSONL.gz"))
    '.jsonl'
    """
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def named(value: object) -> str:
    """What a JSON value is, in words.

    >>> named([1]), named(None), named(3)
    ('a list', 'null', 'a number')
    """
    return TYPE_NAMES.get(type(value), "a number")


def object_of(value: object) -> Row:
    """The object that a JSON value is; an empty one where it is none.

    >>> object_of({"a": 1}), object_of("a")
    ({'a': 1}, {})
    """
    return value if isinstance(value, dict) else {}


def objects_in(value: object) -> list[Row]:
    """The objects of a JSON list; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unzipped if it is named ``.gz``.

    Raises:
        DataError: there is no such file, it cannot be read, or its name and its first bytes disagree about what it is.
    """
    try:
        with path.open("rb") as plain:
            start = plain.peek(8)[:8]
            magic = start[:2]
            known = "" if suffix(path) == ".parquet" else next((BINARY[m] for m in BINARY if start.startswith(m)), "")
            if known:
                raise DataError(f"{path}: is {known}")
            zipped = path.name.endswith(".gz")
            if zipped and magic and magic != GZIP_MAGIC:
                raise DataError(f"{path}: named .gz but is not gzip; rename it or compress it")
            if not zipped and magic == GZIP_MAGIC:
                raise DataError(f"{path}: is gzip but not named .gz; rename it or decompress it")
            if zipped and magic:
                with gzip.open(plain) as stream:
                    yield cast(BinaryIO, stream)
            else:
                yield plain
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except gzip.BadGzipFile:
        raise  # the reader knows the line, and says it
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error


@contextmanager
def gzip_checked(path: Path, line: Callable[[], int]) -> Iterator[None]:
    """Damaged gzip becomes a DataError that names the line being read."""
    try:
        yield
    except EOFError as error:
        raise row_error(path, line(), "the gzip stream ends too early; the file is cut off, get it again") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise row_error(path, line(), f"damaged gzip ({error}); get the file again") from error


def numbered_lines(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str | DataError]]:
    """Each line with its number, counted from 1; its line ending stays, a byte order mark goes.

    Args:
        path: a text file in UTF-8; gzip if named ``.gz``.
        max_line_bytes: a longer line is an error, and is never held in memory whole.

    Raises:
        DataError: the file cannot be read at all, or its gzip is damaged. A bad line is yielded instead.
    """
    at = 0
    with gzip_checked(path, lambda: at + 1), opened(path) as stream:
        while raw := stream.readline(max_line_bytes + 1):
            at += 1
            if len(raw) > max_line_bytes:
                while not raw.endswith(b"\n") and (raw := stream.readline(max_line_bytes)):
                    pass
                yield at, row_error(path, at, f"the line is longer than {max_line_bytes:,} bytes; split or remove it")
                continue
            if at == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
                if not raw:
                    continue  # a byte order mark alone is no line
            try:
                yield at, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                problem = f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8"
                yield at, row_error(path, at, problem)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write null or leave the field out")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large a number; write a smaller one")
    return value


strict_json = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def parse_object(text: str) -> Row:
    """One JSON object, strictly: no NaN, no infinities, no lone surrogates.

    Raises:
        ValueError: it is not that; the message says what is wrong.

    >>> parse_object('{"id": "a"}')
    {'id': 'a'}
    """
    try:
        return checked(strict_json.decode(text.strip()), escaped="\\ud" in text or "\\uD" in text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON at character {error.pos + 1}: {error.msg}; write one JSON object per line"
        ) from error
    except RecursionError as error:
        raise ValueError("nested too deeply; write flat objects") from error


def checked(value: object, *, escaped: bool) -> Row:
    """An object without lone surrogates, which only an escape (``escaped``: there are some) can bring into JSON."""
    if not isinstance(value, dict):
        raise ValueError(f"holds {named(value)}, not an object; write one JSON object per row")
    try:
        if escaped:
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"lone surrogate \\u{ord(error.object[error.start]):04x}; write whole characters"
        raise ValueError(problem) from error
    return value


def json_rows(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, Row | DataError]]:
    """Each object of a JSON-lines file with its line; blank lines are no rows."""
    for number, line in numbered_lines(path, max_line_bytes=max_line_bytes):
        if isinstance(line, DataError):
            yield number, line
        elif not line.isspace():
            try:
                yield number, parse_object(line)
            except ValueError as error:
                yield number, row_error(path, number, error)


def csv_rows(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, Row | DataError]]:
    """Each record of a CSV file, by the names in its first line, with the line that it starts on.

    Raises:
        DataError: also when the header line cannot be read, for then nothing can.
    """
    at = 0

    def text(item: tuple[int, str | DataError]) -> str:
        nonlocal at
        at, line = item
        if isinstance(line, DataError):
            raise line
        return line

    # the csv module's own limit is 131,072 characters, for the whole process; a long turn has more
    csv.field_size_limit(max(csv.field_size_limit(), max_line_bytes))
    # `map` survives an exception of its function, so the reader can go on behind a bad line; a generator would not
    reader = csv.reader(map(text, numbered_lines(path, max_line_bytes=max_line_bytes)), strict=True)
    header: list[str] | None = None
    while True:
        start = at + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (DataError, csv.Error) as error:
            bad = (
                error if isinstance(error, DataError) else row_error(path, start, f"not CSV: {error}; check its quotes")
            )
            if header is None:
                raise bad from None
            yield start, bad
            continue
        if not cells:
            continue
        if header is None:
            header = cells
            if len(set(header)) < len(header):
                raise row_error(path, start, "two columns have the same name; rename one")
        elif len(cells) != len(header):
            problem = f"{len(cells)} cells, but the header names {len(header)}; check its commas and quotes"
            yield start, row_error(path, start, problem)
        else:
            yield start, dict(zip(header, cells, strict=True))


def parquet_rows(path: Path) -> Iterator[tuple[int, Row | DataError]]:
    """Each row of a Parquet file with its number, counted from 1.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    _parquet_library()
    # read through our own stream, so that absent files and folders get the same words as everywhere
    with opened(path) as stream:
        yield from parquet_stream(path, stream)


def parquet_stream(
    path: Path, stream: BinaryIO, check: Callable[[int], None] = lambda n_bytes: None
) -> Iterator[tuple[int, Row | DataError]]:
    """The same of an open file, which ``path`` names in messages; ``check`` refuses what unpacks to too many bytes."""
    pyarrow = _parquet_library()
    try:
        number = n_bytes = 0
        file = pyarrow.parquet.ParquetFile(stream)
        check(sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)))
        for batch in file.iter_batches(batch_size=1024):
            for column in batch.columns:
                decoded = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                n_bytes += decoded.nbytes + CELL_BYTES * len(decoded)
            check(n_bytes)
            for row in _parquet_values(batch):
                number += 1
                bad = isinstance(row, UnicodeDecodeError)
                yield number, row_error(path, number, "holds text that is not UTF-8; save it as UTF-8") if bad else row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a sound Parquet file ({str(error).splitlines()[0]}); get it again") from error


def _parquet_library() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    return pyarrow


def _parquet_values(batch: Any) -> list[Any]:
    """Its rows; in place of one that is not UTF-8, the error."""
    try:
        return cast(list[Any], batch.to_pylist())
    except UnicodeDecodeError as error:
        if len(batch) == 1:
            return [error]
        return [row for i in range(len(batch)) for row in _parquet_values(batch.slice(i, 1))]


def rows(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, Row | DataError]]:
    """Rows of a ``.csv``, ``.parquet`` or, under any other name, JSON-lines file, with their line numbers."""
    form = data_file(path).form
    if form == "parquet":
        return parquet_rows(path)
    read = csv_rows if form == "csv" else json_rows
    return read(path, max_line_bytes=max_line_bytes)


def write_rows(path: Path, objects: Iterable[Row]) -> None:
    """Write JSON lines: atomically, gzipped if named ``.gz``, the same bytes for the same objects.

    Raises:
        DataError: an object holds a lone surrogate or a number that is not finite; nothing is written.
    """
    lines = []
    for number, row in enumerate(objects, 1):
        try:
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise row_error(
                path, number, "holds a lone surrogate, which no file can; write whole characters"
            ) from error
        except ValueError as error:
            raise row_error(path, number, "holds a number that is not finite; write null instead") from error
    data = b"".join(lines)
    write_file(path, gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)
