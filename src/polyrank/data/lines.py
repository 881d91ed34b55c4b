"""Read numbered rows of text files, one at a time, plain or gzipped: JSON lines and CSV. Write JSON lines.

A reader calls ``on_bad`` with the DataError of each bad row and continues with the next row; the default raises the
error. If the file as a whole cannot be read (missing, damaged gzip), the reader itself raises. This module knows bytes,
rows and line numbers; it does not know what the fields mean.
"""

import ast
import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias, cast

from polyrank.data.forms import holds_texts
from polyrank.data.values import TOO_DEEP, Row, type_name
from polyrank.errors import DataError
from polyrank.loading.data import plain_name
from polyrank.storage.durable import write_file

MAX_LINE_BYTES = 8 * 2**20  # of a line: a longer one is a broken file, not a conversation

# the most bytes that a byte of gzip or Parquet unpacks to, above ``FREE_BYTES``; texts compress 5 to 50 times
MAX_RATIO = 100
FREE_BYTES = 2**22  # as examples, short texts take up to 50 times their size

GZIP_MAGIC = b"\x1f\x8b"
# binary formats that users give in place of text, by their first bytes
BINARY = {
    b"PK\x03\x04": "an Excel workbook or another zip archive; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"PAR1": "a Parquet file; give it the ending .parquet",
    b"ARROW1": "an Arrow file; give it the ending .arrow",
    b"\xff\xff\xff\xff": "an Arrow stream; give it the ending .arrow",
    b"SQLite": "an SQLite database; save the table as CSV",
}
# a cell of CSV with a list of texts or objects, as JSON or by Python's or NumPy's ``str``
LISTED = re.compile(r"""\[\s*(?:'.*'|".*"|\{.*\})\s*\]""", re.DOTALL)

Numbered: TypeAlias = Iterator[tuple[int, Row]]
OnBad: TypeAlias = Callable[[DataError], None]  # called with the error of each bad row


def row_error(path: Path, line: int, problem: object) -> DataError:
    """An error that starts with the file and the line.

    >>> str(row_error(Path("train.jsonl"), 3, "not JSON"))
    'train.jsonl:3: not JSON'
    """
    return DataError(f"{path}:{line}: {problem}")


def raise_bad(error: DataError) -> NoReturn:
    """Stop at the first bad row."""
    raise error


def stem(path: Path) -> str:
    """The file name without ``.gz`` and its suffix, for ids.

    >>> stem(Path("data/train.jsonl.gz")), stem(Path("test.pool.jsonl"))
    ('train', 'test.pool')
    """
    return Path(plain_name(path)).stem


def suffix(path: Path) -> str:
    """The suffix of the file name in lower case, ignoring ``.gz``.

    >>> suffix(Path("train.JSONL.gz"))
    '.jsonl'
    """
    return Path(plain_name(path)).suffix.lower()


def check_ratio(path: Path, n_unpacked: int, n_packed: int) -> None:
    """Refuse a file that unpacks to far more than its size, such as one made to fill the memory."""
    if n_unpacked > max(FREE_BYTES, MAX_RATIO * n_packed):
        raise DataError(f"{path}: unpacks to more than {MAX_RATIO} times its size; give it as JSON lines, unpacked")


class _Unpacked(io.RawIOBase):
    """The bytes of a gzip file, unless they are far more than its own."""

    def __init__(self, path: Path, plain: BinaryIO) -> None:
        self._path, self._plain, self._stream = path, plain, gzip.GzipFile(fileobj=plain)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._stream.readinto(buffer)
        if self._plain.seekable():
            check_ratio(self._path, self._stream.tell(), self._plain.tell())
        return n


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes; decompress it if it is named ``.gz``.

    Raises:
        DataError: the file does not exist or cannot be read, or its first bytes contradict its name.
    """
    try:
        with path.open("rb") as plain:
            start = plain.peek(8)[:8]
            magic = start[:2]
            known = next((BINARY[mark] for mark in BINARY if start.startswith(mark)), "")
            if known and not (suffix(path) and known.endswith(suffix(path))):
                raise DataError(f"{path}: is {known}")
            zipped = plain_name(path) != path.name
            if zipped and magic and magic != GZIP_MAGIC:
                raise DataError(f"{path}: named .gz but is not gzip; rename it or compress it")
            if not zipped and magic == GZIP_MAGIC:
                raise DataError(f"{path}: is gzip but not named .gz; rename it or decompress it")
            yield cast(BinaryIO, io.BufferedReader(_Unpacked(path, plain))) if magic == GZIP_MAGIC else plain
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except gzip.BadGzipFile:
        raise  # the reader adds the line
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error


@contextmanager
def gzip_errors(path: Path, line: Callable[[], int]) -> Iterator[None]:
    """Raise errors of damaged gzip as DataErrors with the current line."""
    try:
        yield
    except EOFError as error:
        raise row_error(path, line(), "the gzip stream is truncated; download the file again") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise row_error(path, line(), f"damaged gzip ({error}); download the file again") from error


def numbered_lines(path: Path, on_bad: OnBad = raise_bad) -> Iterator[tuple[int, str]]:
    """Each line with its number, counted from 1. Lines keep their endings; a byte order mark is removed.

    Args:
        path: a text file in UTF-8; gzip if named ``.gz``.
        on_bad: called for a line that is not UTF-8, or longer than ``MAX_LINE_BYTES``; such a line is never loaded.

    Raises:
        DataError: the file cannot be read at all, or its gzip is damaged.
    """
    for number, raw in _byte_lines(path):
        try:
            if line := _text(path, number, raw):  # else the file is only a byte order mark
                yield number, line
        except DataError as error:
            on_bad(error)


def _byte_lines(path: Path) -> Generator[tuple[int, bytes]]:
    """Each line with its number; a longer one is cut after one more byte."""
    at = 0
    with gzip_errors(path, lambda: at + 1), open_file(path) as stream:
        while raw := stream.readline(MAX_LINE_BYTES + 1):
            at += 1
            rest = raw
            while len(raw) > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_LINE_BYTES)
            yield at, raw


def _delimiter(path: Path) -> str:
    """The sign between the cells of a table: a comma, or else a semicolon or a tab of the header; of .tsv a tab."""
    signs = ("\t", ",", ";") if suffix(path) == ".tsv" else (",", ";", "\t")
    first = next((line for _, line in _byte_lines(path) if line.strip()), b"")
    header = re.sub(rb'"[^"]*"', b"", first)
    return next((sign for sign in signs if sign.encode() in header), ",")


def _text(path: Path, number: int, raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise row_error(path, number, f"the line is longer than {MAX_LINE_BYTES:,} bytes; split or remove it")
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8"
        raise row_error(path, number, problem) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write null or leave the field out")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits} is too large; write a smaller one")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f'the key "{repeated}" is repeated; write it once')
    return row


strict_json = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_without_repeats)


def parse_object(text: str) -> Row:
    """Parse a JSON object strictly: no NaN, no infinities, no lone surrogates.

    A line of AmazonQA is a Python literal, which is read too.

    Raises:
        ValueError: the text is something else; the message explains it.

    >>> parse_object('{"id": "a"}'), parse_object("{'question': 'open?', 'answer': 'yes'}")
    ({'id': 'a'}, {'question': 'open?', 'answer': 'yes'})
    """
    if text.lstrip().startswith(("{'", "{u'")):
        try:
            return check_object(ast.literal_eval(text.strip()), escaped=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise ValueError(
                f"not a Python literal ({type(error).__name__}); write one JSON object per line"
            ) from error
    try:
        return check_object(strict_json.decode(text.strip()), escaped="\\ud" in text or "\\uD" in text)
    except json.JSONDecodeError as error:
        other = "" if text.lstrip().startswith("{") else ", or convert the file, see polyrank import --list"
        raise ValueError(
            f"not JSON at character {error.pos + 1}: {error.msg}; write one JSON object per line{other}"
        ) from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def check_object(value: object, *, escaped: bool) -> Row:
    """Return ``value`` if it is a JSON object, or the turns of a dialogue as a list, without lone surrogates.

    Only escapes can bring lone surrogates into JSON, so values without escapes (``escaped`` is False) skip that check.
    """
    if isinstance(value, list) and isinstance(next(iter(value), None), str | dict):
        value = {"turns": value}
    if not isinstance(value, dict):
        raise ValueError(f"holds {type_name(value)}, not an object; write one JSON object per row")
    try:
        if escaped:
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"lone surrogate \\u{ord(error.object[error.start]):04x}; write whole characters") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    return value


def json_rows(path: Path, on_bad: OnBad = raise_bad) -> Numbered:
    """Each object of a JSON-lines file with its line; blank lines are skipped."""
    for number, line in numbered_lines(path, on_bad):
        if not line.isspace():
            try:
                yield number, parse_object(line)
            except ValueError as error:
                on_bad(row_error(path, number, error))


def csv_rows(path: Path, on_bad: OnBad = raise_bad) -> Numbered:
    """Each record of a CSV file as a row, with the line that it starts on. The first line holds the column names.

    Raises:
        DataError: the header is bad, so no row can be read.
    """
    at = 0
    broken: list[DataError] = []  # lines of this record that are not UTF-8

    def text(line: tuple[int, bytes]) -> str:
        nonlocal at
        at, raw = line
        try:
            return _text(path, at, raw)
        except DataError as error:
            if len(raw) > MAX_LINE_BYTES:  # its end, which may hold a quote, is unknown
                raise
            broken.append(error)
            return raw.decode("utf-8", "replace")  # a record may have more lines that are not records

    # the default limit of the csv module, 131,072 characters, is too small for long turns; it is global to the process
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    # `map` survives an exception of its function, so reading can continue after a bad line; a generator would end
    delimiter = _delimiter(path)
    lines = _byte_lines(path)
    reader = csv.reader(map(text, lines), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        start = at + 1
        broken.clear()
        try:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                remedy = "check its quotes"
                if "new-line" in str(error):
                    remedy = "end its lines with LF or CRLF, not with CR, and quote cells of several lines"
                raise row_error(path, start, f"not CSV: {error}; {remedy}") from error
            if broken:
                raise broken[0]
            if header and cells and len(cells) != len(header):
                problem = f"{len(cells)} cells, but the header names {len(header)}; check its commas and quotes"
                raise row_error(path, start, problem)
            for name, cell in zip(header, cells or (), strict=False):
                if LISTED.fullmatch(cell) and holds_texts(name):
                    raise row_error(path, start, f"the cell {cell[:40]} holds a list; write JSON lines or Parquet")
        except DataError as error:
            unreadable = getgeneratorstate(lines) == GEN_CLOSED and not isinstance(error.__cause__, csv.Error)
            if unreadable or not header:  # there is nothing to continue with
                raise
            on_bad(error)
            continue
        if cells is None:
            return
        if header and cells:
            yield start, dict(zip(header, cells, strict=True))
        elif cells:
            header = cells
            if len(set(header)) < len(header):
                raise row_error(path, start, "two columns have the same name; rename one")


def write_rows(path: Path, objects: Iterable[Row]) -> None:
    """Write JSON lines atomically, gzipped if named ``.gz``; the same objects give the same bytes.

    Raises:
        DataError: an object holds a lone surrogate or a number that is not finite; no file is written.
    """
    lines = []
    for number, row in enumerate(objects, 1):
        try:
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise row_error(path, number, "holds a lone surrogate; write whole characters") from error
        except ValueError as error:
            raise row_error(path, number, "holds a number that is not finite; write null instead") from error
    data = b"".join(lines)
    write_file(path, gzip.compress(data, mtime=0) if plain_name(path) != path.name else data)
