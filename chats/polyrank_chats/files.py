"""Texts, rows and bytes of files, whatever their names: the first bytes decide what a file is.

This module knows file formats; it does not know what a conversation is.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from polyrank_chats import sqlite_tables
from polyrank_chats.csv_records import csv_rows
from polyrank_chats.encodings import decoded
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.json_files import json_rows
from polyrank_chats.members import Member, Members
from polyrank_chats.messages import ReadOptions, Rows
from polyrank_chats.parquet import parquet_rows
from polyrank_chats.workbooks import sheet_rows

SHEETS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
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
        options: how to read it; bad rows go to its report.
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
        """The text of the file, or its good rows if it has rows; bad rows go to the report.

        Raises:
            DataError: the file is empty or damaged, or its format is not supported.
            MissingLibraryError: a library is not installed.
            UsageError: the encoding, the sheet or the table is unknown.
        """
        data = self.data
        if data.startswith(SHEETS):
            return None, sheet_rows(self.member, data, self.options)
        if data.startswith(sqlite_tables.MAGIC):
            return None, sqlite_tables.table_rows(self.member, data, self.options)
        if self.options.sheet:
            raise UsageError(f"{self.path} is not a workbook or a database; leave the option sheet out")
        if data.startswith(b"PAR1"):
            return None, parquet_rows(self.member, data, self.options)
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
            return None, json_rows(self.member, text, self.options.report.count_bad)
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
        return self.objects if self.text is None else csv_rows(self.member, self.text, self.options.report)
