"""Texts, rows and bytes of files, whatever their names: the first bytes decide what a file is.

This module knows encodings and file formats; it does not know what a conversation is.
"""

import codecs
import io
import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from polyrank.data.chats import sqlite_tables
from polyrank.data.chats.csv_records import csv_rows
from polyrank.data.chats.json_files import json_rows
from polyrank.data.chats.members import Member, Members
from polyrank.data.chats.messages import ReadOptions, Rows
from polyrank.data.chats.unpacking import check_size
from polyrank.data.chats.workbooks import sheet_rows
from polyrank.data.read_report import counted
from polyrank.data.rows import parquet_stream, row_error
from polyrank.errors import DataError, MissingExtraError, UsageError

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SHEETS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
SIGNS = "’‘“”„‚–—…€•·«»‹›°©®™§№\xa0"
USUAL = {
    "cp1252": frozenset("àâäáãåæçéèêëíîïñóôöõøœúùûüßÿÀÂÄÁÃÅÆÇÉÈÊËÍÎÏÑÓÔÖÕØŒÚÙÛÜŸìòÌÒªº¿¡£´²³½" + SIGNS),
    "cp1251": frozenset("абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯёЁіІїЇєЄґҐўЎ" + SIGNS),
    "cp1254": frozenset("çğıöşüâîûÇĞİÖŞÜÂÎÛ" + SIGNS),
    "cp1250": frozenset("ąćęłńóśźżáčďéěíňřšťúůýžľĺŕôäöőüűăâîşţđĄĆĘŁŃÓŚŹŻÁČĎÉĚÍŇŘŠŤÚŮÝŽĽĹŔÔÄÖŐÜŰĂÂÎŞŢĐß" + SIGNS),
}
"""Windows' encodings: the letters and signs of Western European, East Slavic, Turkish, Central European languages."""
MIN_USUAL = 0.95  # share of them in a text
MAX_SAMPLE = 100_000  # bytes to detect the encoding from
MAX_OTHERS = 0.1  # of the lines with other than ASCII letters
EXPORT = "export the chats as JSON, CSV, a sheet or text"
REFUSED = {
    b"%PDF": f"a PDF; {EXPORT}",
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
INSIDE = {  # other files with the same first bytes as workbooks
    b"word/document.xml": f"a Word document; {EXPORT}",
    b"ppt/presentation.xml": f"a presentation; {EXPORT}",
    "__substg1.0_".encode("utf-16-le"): "an Outlook message (.msg); export the mails as .eml or mbox",
    "WordDocument".encode("utf-16-le"): f"a Word document; {EXPORT}",
}


@dataclass(frozen=True)
class File:
    """A file for readers: its bytes, its text, or its rows, each computed on first access.

    Args:
        member: the file.
        options: how to read it; bad rows go to its log.
        others: all files of the same folder or archive.
    """

    member: Member
    options: ReadOptions
    others: Members = field(default_factory=Members)

    @property
    def path(self) -> Path:
        """Path of the file, for messages."""
        return self.member.path

    @property
    def stem(self) -> str:
        """The file name without suffixes."""
        return self.member.stem

    @cached_property
    def data(self) -> bytes:
        """The bytes, decompressed.

        Raises:
            DataError: the file cannot be read, or its format is not supported.
        """
        data = self.member.read()
        inside = INSIDE if data.startswith(SHEETS) else {}
        known = [what for magic, what in REFUSED.items() if data.startswith(magic)]
        if known := known or [what for mark, what in inside.items() if mark in data]:
            raise DataError(f"{self.path}: is {known[0]}")
        return data

    @cached_property
    def content(self) -> tuple[str | None, Rows]:
        """The text of the file, or its good rows if it has rows; bad rows go to the log.

        Raises:
            DataError: the file is empty or damaged, or its format is not supported.
            MissingExtraError: a library is not installed.
            UsageError: the encoding, the sheet or the table is unknown.
        """
        data, log = self.data, self.options.log
        if data.startswith(SHEETS):
            return None, sheet_rows(self.member, data, self.options)
        if data.startswith(sqlite_tables.MAGIC):
            return None, sqlite_tables.table_rows(self.member, data, self.options)
        if self.options.sheet:
            raise UsageError(f"{self.path} is not a workbook or a database; leave the option sheet out")
        if data.startswith(b"PAR1"):
            check = partial(check_size, self.path, max_bytes=self.options.max_bytes)
            return None, [*parquet_stream(self.path, io.BytesIO(data), log.bad.add, check)]
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
            return None, json_rows(self.member, text, log.bad.add)
        return text, []

    @property
    def text(self) -> str | None:
        """The text of the file; None for JSON, workbooks, databases and Parquet."""
        return self.content[0]

    @property
    def objects(self) -> Rows:
        """The objects of JSON, or the rows of a workbook, a database or Parquet; empty for text."""
        return self.content[1]

    @cached_property
    def rows(self) -> Rows:
        """As ``objects``; for text, its records as CSV."""
        return self.objects if self.text is None else csv_rows(self.member, self.text, self.options.log)


def decoded(member: Member, data: bytes, options: ReadOptions) -> str:
    """Decode a file: with the user's encoding, else by its byte order mark, else as UTF-8, else by detection.

    A file with a few lines of another encoding is UTF-8; those lines are read as cp1252.
    """
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
            raise row_error(member.path, line, f"is not {encoding}; give its encoding") from error
    lines = data.split(b"\n")
    telling = [number for number, line in enumerate(lines) if not line.isascii()]  # the others are in any encoding
    others = [number for number in telling if not _is_utf8(lines[number])]
    if len(others) <= MAX_OTHERS * len(telling):
        options.log.note(
            f"{member.path.name}: {counted(len(others), 'line')} not in UTF-8, the first is line {others[0] + 1}; read"
            " as cp1252"
        )
        for number in others:
            lines[number] = lines[number].decode("cp1252", "replace").encode()
        return b"\n".join(lines).decode()
    sample = b"\n".join(lines[number] for number in telling)
    if len(sample) > MAX_SAMPLE:
        sample = sample[:MAX_SAMPLE].rpartition(b"\n")[0] or sample[:MAX_SAMPLE]
    guess = _detected(sample)
    if guess is None:
        raise DataError(f"{member.path}: is not readable text; give its encoding")
    options.log.note(f"{member.path.name} is not UTF-8; read as {guess} (choose another with the option encoding)")
    try:
        return data.decode(guess)
    except UnicodeDecodeError as error:
        raise DataError(f"{member.path}: is only partly {guess}; give its encoding") from error


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _detected(sample: bytes) -> str | None:
    """The encoding of lines with other than ASCII letters; None: no encoding fits.

    Many encodings fit a text equally well. Then it is Windows' encoding, by far the most frequent, if the text has
    hardly any letters and signs that are rare in its languages.
    """
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise MissingExtraError("charset-normalizer", "chats") from error
    if (best := from_bytes(sample).best()) is None:
        return None
    for name, usual in USUAL.items():
        like = from_bytes(sample, cp_isolation=[name]).best()
        if like is None or _is_other(best, name):
            continue
        shown = [sign for sign in str(like) if not sign.isascii()]
        fits = sum(sign in usual for sign in shown) >= MIN_USUAL * len(shown)
        if fits and like.chaos <= best.chaos + 0.1 and like.coherence >= best.coherence - 0.25:  # of short texts, noise
            return name
    return best.encoding


def _is_other(best: Any, name: str) -> bool:
    """Whether the best match is better evidence than the usual letters in the encoding ``name``."""
    if name == "cp1252":  # which shows two letters of Hungarian as usual ones
        return best.language == "Hungarian" and not set("őűŐŰ").isdisjoint(str(best))
    if name == "cp1251":
        return not any("Cyrillic" in alphabet for alphabet in best.alphabets)
    return str(best.encoding).startswith("mac_")
