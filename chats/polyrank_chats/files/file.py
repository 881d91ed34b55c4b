"""Texts, rows and bytes of files, whatever their names: the first bytes decide what a file is.

This module knows file formats; it does not know what a conversation is.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.encodings import decoded
from polyrank_chats.files.members import Member, Members
from polyrank_chats.files.objects import json_rows, xml_rows
from polyrank_chats.files.parquet import parquet_rows
from polyrank_chats.files.sheets import csv_rows, sheet_rows
from polyrank_chats.messages import Rows
from polyrank_chats.names import NAMES
from polyrank_chats.options import Options
from polyrank_chats.patterns import pattern

SHEETS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
EXPORT = "export the chats as JSON, CSV, a sheet, text or a zip of them"
MANY = 2**19  # lines, lists, objects or elements, each of which takes up to a kilobyte of memory
YAML, MARKDOWN, ASSIGNED = pattern("yaml"), pattern("markdown"), pattern("assigned")
OTHERS = {mark.encode("latin-1"): kind for mark, _, kind in (each.partition("=") for each in NAMES["begins"])}
"""The first bytes of files that are not chats."""
INSIDE = {
    mark.encode(encoding): kind
    for mark, _, kind in (each.partition("=") for each in NAMES["inside"])
    for encoding in ("utf-8", "utf-16-le")
}
"""Names in documents that begin like workbooks."""


@dataclass(frozen=True)
class File:
    """A file for readers: its bytes, its text, or its rows, each computed on first access.

    Args:
        member: the file.
        options: how to read it; bad rows go to its report.
        others: all files of the same folder or archive.
    """

    member: Member
    options: Options
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
        kinds = [kind for magic, kind in OTHERS.items() if data.startswith(magic)]
        if data.startswith(SHEETS):
            kinds += [kind for mark, kind in INSIDE.items() if mark in data]
        if kinds:
            raise DataError(f"{self.path}: is {kinds[0]}; {EXPORT}")
        return data

    @cached_property
    def content(self) -> tuple[str | None, Rows]:
        """The text of the file, or its good rows if it has rows; bad rows go to the report.

        Raises:
            DataError: the file is empty or damaged, or its format is not supported.
            MissingLibraryError: a library is not installed.
            UsageError: the encoding or the sheet is unknown.
        """
        data = self.data
        if data.startswith(SHEETS):
            return None, sheet_rows(self.member, data, self.options)
        if self.options.sheet:
            raise UsageError(f"{self.path} is not a workbook; leave the option sheet out")
        if data.startswith(b"PAR1"):
            return None, parquet_rows(self.member, data, self.options)
        text = ASSIGNED.sub("", decoded(self.member, data, self.options).replace("\r\n", "\n"))
        if not text.strip():
            raise DataError(f"{self.path}: is empty; give a file with messages")
        if "\n" not in text:
            text = text.replace("\r", "\n")
        if max(text.count("\n"), text.count("<"), text.count("[") + text.count("{")) > max(MANY, len(text) / 12):
            raise DataError(f"{self.path}: is mostly brackets or line breaks, not messages; {EXPORT}")
        start = text.lstrip()[:15].lower()
        if start.startswith("<") and text.rstrip().endswith(">"):
            if start.startswith(("<html", "<!doctype", "<table", "<div", "<head", "<body")):
                raise DataError(f"{self.path}: is an HTML page; {EXPORT}")
            return None, xml_rows(self.member, text)
        if YAML.match(text) or self.path.suffix in (".yml", ".yaml"):
            raise DataError(f"{self.path}: is YAML; convert it to JSON, for example with: yq -o json {self.path.name}")
        if re.match(r"\{|\[\s*[\[{\]\"]", start):  # WhatsApp has a bracket before each date
            return None, json_rows(self.member, text, self.options.report.count_bad)
        return text, []

    @property
    def text(self) -> str | None:
        """The text of the file; None for JSON, workbooks and Parquet."""
        return self.content[0]

    @cached_property
    def rows(self) -> Rows:
        """The objects of JSON, the rows of a workbook or Parquet, or the records of text as CSV."""
        if self.text is None:
            return self.content[1]
        if MARKDOWN.search(self.text):
            raise DataError(f"{self.path}: is Markdown; {EXPORT}")
        return csv_rows(self.member, self.text, self.options.report)
