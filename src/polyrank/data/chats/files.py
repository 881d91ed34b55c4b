"""Files, folders and archives to texts and rows, whatever they are called: what a file is, is seen from its bytes.

Knows encodings, sheets and JSON; refuses to know what a conversation is.
"""

import codecs
import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from polyrank.data.chats.messages import ReadLog, ReadOptions
from polyrank.data.chats.unpacking import MAX_BYTES, check_archive, check_workbook, gunzipped
from polyrank.data.read_report import counted
from polyrank.data.rows import GZIP_MAGIC, MAX_LINE_BYTES, Row, checked, parquet_stream, row_error
from polyrank.errors import DataError, MissingExtraError, UsageError

Rows = list[tuple[int, Row]]

READ = (".txt", ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".xlsx", ".xlsm", ".xls", ".ods", ".parquet")
SEPARATORS = ",;\t|"
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SHEETS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
REFUSED = {
    b"%PDF": "a PDF; export the chats as CSV, JSON or text",
    b"SQLite format 3": "a database; export its table of messages as CSV",
    b"Rar!": "a RAR archive; unpack it",
    b"7z\xbc\xaf": "a 7-Zip archive; unpack it",
}
json_decoder = json.JSONDecoder(parse_constant=lambda _: None)  # pandas writes NaN for nothing


@dataclass(frozen=True)
class Member:
    """A file, or a file in a folder or an archive.

    Args:
        path: for messages and names.
        read: its bytes, unzipped.
    """

    path: Path
    read: Callable[[], bytes]

    @cached_property
    def stem(self) -> str:
        """Its name without endings; WhatsApp calls every chat the same, so that one has its archive's name."""
        name = self.path.parent.stem if self.path.name == "_chat.txt" else self.path.name.removesuffix(".gz")
        return Path(name).stem or "chat"


def members(path: Path, note: Callable[[str], None], max_bytes: int = MAX_BYTES) -> list[Member]:
    """The file itself, or those of a folder or an archive that may hold chats, in the order of their names.

    Raises:
        DataError: there is no such file, it is no sound archive, it unpacks to more than ``max_bytes``, or there is
            nothing in it to read.
    """
    if path.is_dir():
        names = sorted(entry for entry in path.rglob("*") if entry.is_file())
        inside = [(entry.relative_to(path), Member(entry, partial(_bytes, entry, max_bytes))) for entry in names]
    elif _is_archive(path):
        archive = zipfile.ZipFile(path)
        entries = sorted(
            (entry for entry in archive.infolist() if not entry.is_dir()), key=lambda entry: entry.filename
        )
        check_archive(path, [entry for entry in entries if _ending(Path(entry.filename)) in READ], max_bytes)
        inside = [
            (Path(entry.filename), Member(path / entry.filename, partial(_unpacked, path, archive, entry, max_bytes)))
            for entry in entries
        ]
    else:
        return [Member(path, partial(_bytes, path, max_bytes))]
    hidden = [name for name, _ in inside if any(part.startswith((".", "__MACOSX")) for part in name.parts)]
    read = [member for name, member in inside if name not in hidden and _ending(name) in READ]
    if not read:
        raise DataError(f"{path}: holds no file that chats come in; give one with {', '.join(READ)}")
    if n_others := len(inside) - len(hidden) - len(read):
        note(f"passed over {counted(n_others, 'other file')}, such as pictures")
    return read


def _ending(name: Path) -> str:
    return Path(name.name.lower().removesuffix(".gz")).suffix


def _bytes(path: Path, max_bytes: int) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        problem = error.strerror or error
        raise DataError(f"{path}: cannot be read: {problem}; check the path and its permissions") from error
    if data[:2] != GZIP_MAGIC:
        return data
    try:
        return gunzipped(path, data, max_bytes)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip ({error}); get the file again") from error


def _is_archive(path: Path) -> bool:
    """Whether it is a zip that is no sheet."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        return not any(name in names for name in ("[Content_Types].xml", "content.xml"))
    return False


def _unpacked(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, max_bytes: int) -> bytes:
    try:
        data = archive.read(entry)
        return gunzipped(path, data, max_bytes) if data[:2] == GZIP_MAGIC else data
    except RuntimeError as error:
        raise DataError(f"{path}: the archive has a password; unpack it and give the folder") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise DataError(f"{path}: {entry.filename} is damaged ({error}); get the archive again") from error


def content(member: Member, options: ReadOptions) -> tuple[str | None, Rows]:
    """The good rows of a file of rows, or the text of any other; bad rows go to the log.

    Raises:
        DataError: it is empty, of a kind that is not read, or damaged.
        MissingExtraError: a library is not installed.
        UsageError: the encoding or the sheet is unknown.
    """
    data = member.read()
    for magic, what in REFUSED.items():
        if data.startswith(magic):
            raise DataError(f"{member.path}: is {what}")
    if data.startswith(SHEETS):
        return None, _sheet_rows(member, data, options)
    if data.startswith(b"PAR1"):
        return None, _good(parquet_stream(member.path, io.BytesIO(data)), options.log)
    text = decoded(member, data, options).replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{member.path}: is empty; give a file with messages")
    if "\n" not in text:
        text = text.replace("\r", "\n")
    start = text.lstrip()[:15].lower()
    if start.startswith("<"):
        page = "an HTML page" if start.startswith(("<html", "<!doctype", "<table", "<div", "<head")) else "XML"
        raise DataError(f"{member.path}: is {page}; export the chats as JSON, CSV, a sheet or text")
    if re.match(r"\{|\[\s*[\[{\]\"]", start):  # WhatsApp has a bracket before each date
        return None, _good(json_rows(member, text), options.log)
    return text, []


def decoded(member: Member, data: bytes, options: ReadOptions) -> str:
    """The text of a file: in the encoding that was named, its mark's, UTF-8, or what it looks like, which is noted."""
    encoding = options.encoding or next((name for mark, name in MARKS if data.startswith(mark)), None)
    if encoding is None and data[:1000].count(0) > len(data[:1000]) // 4:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding or "utf-8")
    except LookupError as error:
        raise UsageError(f"encoding {encoding!r} is unknown; use utf-8, cp1252, utf-16, shift_jis, ...") from error
    except UnicodeDecodeError as error:
        if encoding is not None:
            line = data.count(b"\n", 0, error.start) + 1
            raise row_error(member.path, line, f"is not {encoding}; name its encoding") from error
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise MissingExtraError("charset-normalizer", "chats") from error
    # lines in ASCII say nothing of an encoding, and would outvote the others
    telling = b"\n".join(line for line in data.split(b"\n") if not line.isascii())[:100_000]
    best = from_bytes(telling.rpartition(b"\n")[0] or telling).best()
    if best is None:
        raise DataError(f"{member.path}: is no text that can be read; name its encoding")
    guess = "cp1252" if "cp1252" in best.could_be_from_charset else best.encoding
    options.log.note(f"{member.path.name} is not UTF-8; read as {guess} (the option encoding names another)")
    try:
        return data.decode(guess)
    except UnicodeDecodeError as error:
        raise DataError(f"{member.path}: is not all {guess}; name its encoding") from error


def csv_rows(member: Member, text: str, log: ReadLog) -> Rows:
    """Records with the line that each starts on; the separator is the one that the first line has most of."""
    start = 0
    separator = ""
    if text[:4].lower() == "sep=":  # what Excel writes and reads
        separator, start = text[4:5], text.index("\n") + 1 if "\n" in text else len(text)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    lines = io.StringIO(text[start:], newline="")
    if not separator:
        first = next((line for line in text.split("\n") if line.strip()), "")
        separator = max(SEPARATORS, key=_outside_quotes(first).count)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    n_before = 1 if start else 0
    header: list[str] = []
    rows: Rows = []
    while True:
        line = n_before + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return rows
        except csv.Error as error:
            log.bad.add(row_error(member.path, line, f"not CSV: {error}; check its quotes"))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = unique([cell.strip() for cell in cells])
        elif len(cells) > len(header) and any(cells[len(header) :]):
            problem = f"{len(cells)} cells, but the header names {len(header)}; check its separators and quotes"
            log.bad.add(row_error(member.path, line, problem))
        else:
            rows.append((line, dict(zip(header, cells, strict=False))))


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])


def unique(names: list[str]) -> list[str]:
    """Names of columns, numbered where they come again and where there is none.

    >>> unique(["id", "text", "text", ""])
    ['id', 'text', 'text 2', 'column 4']
    """
    numbered: list[str] = []
    for position, name in enumerate(names, 1):
        name = name or f"column {position}"
        numbered.append(name if name not in numbered else f"{name} {numbered.count(name) + 1}")
    return numbered


def _sheet_rows(member: Member, data: bytes, options: ReadOptions) -> Rows:
    try:
        import fastexcel  # noqa: F401  # polars reads sheets with it
        import polars
    except ImportError as error:
        raise MissingExtraError(error.name or "fastexcel", "chats") from error
    try:
        if data[:2] == b"PK":
            check_workbook(member.path, data, options.max_bytes)
        sheets = polars.read_excel(
            data, sheet_id=0, has_header=False, infer_schema_length=0, drop_empty_rows=False, raise_if_empty=False
        )
    except DataError:
        raise
    except Exception as error:  # whatever the reader of a hostile file may raise
        reason = " ".join(str(error).split("\n")[0].split())
        locked = (
            "password" in str(error).lower()
            or "encrypt" in str(error).lower()
            or "EncryptedPackage".encode("utf-16-le") in data
        )
        what = (
            "has a password; save it without one"
            if locked
            else f"is no sound sheet ({reason}); save it anew as .xlsx or CSV"
        )
        raise DataError(f"{member.path}: {what}") from error
    filled = {name: sheet for name, sheet in sheets.items() if not sheet.is_empty()}
    if options.sheet is not None and options.sheet not in sheets:
        raise UsageError(f"{member.path} has no sheet {options.sheet!r}; it has {', '.join(sheets)}")
    if not filled:
        raise DataError(f"{member.path}: is empty; give a file with messages")
    name = options.sheet or next(iter(filled))
    if options.sheet is None and len(filled) > 1:
        options.log.note(
            f"{member.path.name}: read sheet {name!r} of {', '.join(filled)} (the option sheet names another)"
        )
    header: list[str] = []
    rows: Rows = []
    for number, cells in enumerate(sheets[name].iter_rows(), 1):
        if not any(cells):
            continue
        if header:
            rows.append((number, dict(zip(header, cells, strict=True))))
        else:
            header = unique([(cell or "").strip() for cell in cells])
    return rows


def json_rows(member: Member, text: str) -> Iterator[tuple[int, Row | DataError]]:
    """Objects of a JSON file, or of each of its lines, with their numbers; a list among them is one of messages."""
    try:
        value = json_decoder.decode(text.strip())
    except RecursionError as error:
        raise DataError(f"{member.path}: nested too deeply; give flatter JSON") from error
    except json.JSONDecodeError as error:
        first = text.strip().partition("\n")[0]
        try:
            json_decoder.decode(first.strip())
        except (ValueError, RecursionError):
            line = text[: len(text) - len(text.lstrip())].count("\n") + error.lineno
            raise row_error(
                member.path, line, f"not JSON: {error.msg}; the file may be cut off, get it again"
            ) from error
        lines = enumerate(text.split("\n"), 1)
        yield from ((number, _line(member, number, each)) for number, each in lines if each.strip())
        return
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, str) for item in items):
        raise DataError(f"{member.path}: is a list of texts; write objects that name the sender of each")
    escaped = "\\ud" in text.lower()
    for number, item in enumerate(items, 1):
        yield number, _object(member, number, item, escaped)


def _line(member: Member, number: int, line: str) -> Row | DataError:
    try:
        value = json_decoder.decode(line.strip())
    except (json.JSONDecodeError, RecursionError) as error:
        what = (
            f"not JSON at character {error.pos + 1}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
        )
        return row_error(member.path, number, f"{what}; write one JSON object per line")
    return _object(member, number, value, "\\ud" in line.lower())


def _object(member: Member, number: int, value: Any, escaped: bool) -> Row | DataError:
    if isinstance(value, list):
        value = {"messages": value}
    try:
        return checked(value, escaped=escaped)
    except ValueError as error:
        return row_error(member.path, number, error)


def _good(rows: Iterable[tuple[int, Row | DataError]], log: ReadLog) -> Rows:
    """The rows that could be read; the others go to the log."""
    found: Rows = []
    for number, row in rows:
        if isinstance(row, DataError):
            log.bad.add(row)
        else:
            found.append((number, row))
    return found
