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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from polyrank.data.chats.messages import ReadLog, ReadOptions
from polyrank.data.chats.sheets import check_workbook
from polyrank.data.chats.unpacking import MAX_BYTES, check_archive, check_size, gunzipped
from polyrank.data.read_report import counted
from polyrank.data.rows import GZIP_MAGIC, MAX_LINE_BYTES, Row, checked, parquet_stream, row_error
from polyrank.errors import DataError, MissingExtraError, UsageError

Rows = list[tuple[int, Row]]

TEXTS = (".txt", ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".vtt", ".srt", ".eml", ".mbox", ".mbx")
READ = (*TEXTS, ".xlsx", ".xlsm", ".xls", ".ods", ".parquet")
MAILDIR = ("cur", "new")
SEPARATORS = ",;\t|"
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SHEETS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
EXPORT = "export the chats as JSON, CSV, a sheet or text"
REFUSED = {
    b"%PDF": f"a PDF; {EXPORT}",
    b"SQLite format 3": "a SQLite database; export its table of messages as CSV",
    b"Rar!": "a RAR archive; unpack it",
    b"7z\xbc\xaf": "a 7-Zip archive; unpack it",
    b"BZh": "packed by bzip2; unpack it",
    b"\xfd7zXZ": "packed by xz; unpack it",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it",
    b"!BDN": "an Outlook data file (.pst); export the mails as .eml or mbox",
    b"{\\rtf": f"an RTF document; {EXPORT}",
    b"BEGIN:VCARD": "a file of contacts; give the file of messages",
    b"BEGIN:VCALENDAR": "a calendar; give the file of messages",
    b"bplist": f"a property list; {EXPORT}",
    b"\x89PNG": f"a picture; {EXPORT}",
    b"\xff\xd8\xff": f"a picture; {EXPORT}",
    b"GIF8": f"a picture; {EXPORT}",
    b"OggS": "a sound; transcribe it to text",
    b"ID3": "a sound; transcribe it to text",
    b"RIFF": "a sound or a film; transcribe it to text",
    b"\x7fELF": "a program; give the file of messages",
}
INSIDE = {  # of what begins as workbooks do
    b"word/document.xml": f"a Word document; {EXPORT}",
    b"ppt/presentation.xml": f"a presentation; {EXPORT}",
    "__substg1.0_".encode("utf-16-le"): "an Outlook message (.msg); export the mails as .eml or mbox",
    "WordDocument".encode("utf-16-le"): f"a Word document; {EXPORT}",
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
        check_archive(path, [entry for entry in entries if _is_read(Path(entry.filename))], max_bytes)
        inside = [
            (Path(entry.filename), Member(path / entry.filename, partial(_unpacked, path, archive, entry, max_bytes)))
            for entry in entries
        ]
    else:
        return [Member(path, partial(_bytes, path, max_bytes))]
    hidden = [name for name, _ in inside if any(part.startswith((".", "__MACOSX")) for part in name.parts)]
    read = [member for name, member in inside if name not in hidden and _is_read(name)]
    if not read:
        raise DataError(f"{path}: holds no file that chats come in; give one with {', '.join(READ)}")
    if n_others := len(inside) - len(hidden) - len(read):
        note(f"passed over {counted(n_others, 'other file')}, such as pictures")
    return read


def _is_read(name: Path) -> bool:
    return _ending(name) in READ or name.parent.name in MAILDIR


def _ending(name: Path) -> str:
    return Path(name.name.lower().removesuffix(".gz")).suffix


def _bytes(path: Path, max_bytes: int) -> bytes:
    try:
        check_size(path, path.stat().st_size, max_bytes)
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


@dataclass(frozen=True)
class File:
    """A file as readers look at it: its bytes, its text, or its rows, each made when one looks at it.

    Args:
        member: the file.
        options: how it is read; bad rows go to its log.
        others: all files of the same folder or archive.
    """

    member: Member
    options: ReadOptions
    others: Sequence[Member] = ()

    @property
    def path(self) -> Path:
        """For messages."""
        return self.member.path

    @property
    def stem(self) -> str:
        """Its name without endings."""
        return self.member.stem

    @cached_property
    def data(self) -> bytes:
        """Its bytes, unzipped.

        Raises:
            DataError: it cannot be read, or is of a kind that is not read.
        """
        data = self.member.read()
        inside = INSIDE if data.startswith(SHEETS) else {}
        known = [what for magic, what in REFUSED.items() if data.startswith(magic)]
        if known := known or [what for mark, what in inside.items() if mark in data]:
            raise DataError(f"{self.path}: is {known[0]}")
        return data

    @cached_property
    def content(self) -> tuple[str | None, Rows]:
        """The good rows of a file of rows, or the text of any other; bad rows go to the log.

        Raises:
            DataError: it is empty, of a kind that is not read, or damaged.
            MissingExtraError: a library is not installed.
            UsageError: the encoding or the sheet is unknown.
        """
        data, log = self.data, self.options.log
        if data.startswith(SHEETS):
            return None, _sheet_rows(self.member, data, self.options)
        if self.options.sheet:
            raise UsageError(f"{self.path} is not a workbook; leave the option sheet out")
        if data.startswith(b"PAR1"):
            check = partial(check_size, self.path, max_bytes=self.options.max_bytes)
            return None, _good(parquet_stream(self.path, io.BytesIO(data), check), log)
        text = decoded(self.member, data, self.options).replace("\r\n", "\n")
        if not text.strip():
            raise DataError(f"{self.path}: is empty; give a file with messages")
        if "\n" not in text:
            text = text.replace("\r", "\n")
        start = text.lstrip()[:15].lower()
        if start.startswith("<"):
            page = "an HTML page" if start.startswith(("<html", "<!doctype", "<table", "<div", "<head")) else "XML"
            raise DataError(f"{self.path}: is {page}; {EXPORT}")
        if re.match(r"\{|\[\s*[\[{\]\"]", start):  # WhatsApp has a bracket before each date
            return None, _good(json_rows(self.member, text), log)
        return text, []

    @property
    def text(self) -> str | None:
        """The text of a file that holds neither JSON nor a sheet."""
        return self.content[0]

    @property
    def objects(self) -> Rows:
        """The objects of JSON, or the rows of a sheet or of Parquet; none of a text."""
        return self.content[1]

    @cached_property
    def rows(self) -> Rows:
        """The same, and the records of a text that is a table."""
        return self.objects if self.text is None else csv_rows(self.member, self.text, self.options.log)


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
    """Records with the line that each starts on, whatever separates their cells, and below which lines they stand."""
    start = 0
    separator = ""
    if text[:4].lower() == "sep=":  # what Excel writes and reads
        separator, start = text[4:5], text.index("\n") + 1 if "\n" in text else len(text)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    separator = separator or _separator(text)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    n_before = 1 if start else 0
    records: list[tuple[int, list[str] | DataError]] = []
    while True:
        line = n_before + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            records.append((line, row_error(member.path, line, f"not CSV: {error}; check its quotes")))
            continue
        if any(cell.strip() for cell in cells):
            records.append((line, cells))
    return _below_header(member, records, log)


def _separator(text: str) -> str:
    """The separator by which most records have one number of cells, more than one; else the first line's."""
    first = next((line for line in text.split("\n") if line.strip()), "")

    def fit(separator: str) -> tuple[int, int]:
        records = csv.reader(io.StringIO(text[:100_000], newline=""), delimiter=separator)
        widths: Counter[int] = Counter()
        with suppress(csv.Error):
            widths.update(len(cells) for cells in islice(records, 100) if any(cells))
        width, n = max(widths.items(), key=lambda item: (item[0] > 1, item[1], item[0]), default=(1, 0))
        return (n, width) if width > 1 else (0, 0)

    return max(SEPARATORS, key=lambda separator: (*fit(separator), "".join(first.split('"')[::2]).count(separator)))


def _below_header(member: Member, records: Sequence[tuple[int, Sequence[Any] | DataError]], log: ReadLog) -> Rows:
    """The records below the header as rows; what stands above the header is passed over, and that is noted."""
    good = [cells for _, cells in records[:200] if not isinstance(cells, DataError)]
    width = max(Counter(map(_width, good)).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    top = next(
        (
            position
            for position, (_, cells) in enumerate(records)
            if not isinstance(cells, DataError) and _width(cells) >= width and 2 * _n_filled(cells) > width
        ),
        0,
    )
    if top:
        line = records[top][0]
        log.note(f"{member.path.name}: {counted(top, 'row')} above the header in row {line} passed over")
    header: list[str] = []
    rows: Rows = []
    for line, cells in records[top:]:
        if isinstance(cells, DataError):
            log.bad.add(cells)
        elif not header:
            header = unique([str(cell or "").strip() for cell in cells])
        elif len(cells) > len(header) and any(cells[len(header) :]):
            problem = f"{len(cells)} cells, but the header names {len(header)}; check its separators and quotes"
            log.bad.add(row_error(member.path, line, problem))
        else:
            rows.append((line, dict(zip(header, cells, strict=False))))
    return rows


def _width(cells: Sequence[Any]) -> int:
    """Cells up to the last one that is filled."""
    return max((position for position, cell in enumerate(cells, 1) if _n_filled([cell])), default=0)


def _n_filled(cells: Sequence[Any]) -> int:
    return sum(cell is not None and str(cell).strip() != "" for cell in cells)


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
    return _rows_of_sheets(member, {name: list(sheet.iter_rows()) for name, sheet in sheets.items()}, options)


def _rows_of_sheets(member: Member, sheets: Mapping[str, list[tuple[Any, ...]]], options: ReadOptions) -> Rows:
    """The rows of the sheets that were named, else of the largest and those with the same columns, which is noted."""
    for name in options.sheet:
        if name not in sheets:
            raise UsageError(f"{member.path} has no sheet {name!r}; it has {', '.join(sheets)}")
    tables = {}
    for name, cells in sheets.items():
        log = ReadLog(skip_bad=True)
        tables[name] = _below_header(member, [(n, row) for n, row in enumerate(cells, 1) if _n_filled(row)], log), log
    sizes = {name: sum(_n_filled([*row.values()]) for _, row in rows) for name, (rows, _) in tables.items()}
    if not any(_n_filled(row) for cells in sheets.values() for row in cells):
        raise DataError(f"{member.path}: is empty; give a file with messages")
    largest = max(sizes, key=sizes.__getitem__)
    keys = {name: list(rows[0][1]) if rows else [] for name, (rows, _) in tables.items()}
    chosen = options.sheet or [name for name, own in keys.items() if own == keys[largest]]
    filled = [name for name, cells in sheets.items() if any(map(_n_filled, cells))]
    if not options.sheet and len(filled) > 1:
        shown = " and ".join(map(repr, chosen))
        options.log.note(
            f"{member.path.name}: read {shown} of the sheets {', '.join(filled)} (the option sheet names others)"
        )
    for name in chosen:
        for note in tables[name][1].notes:
            options.log.note(note)
    return [row for name in chosen for row in tables[name][0]]


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
