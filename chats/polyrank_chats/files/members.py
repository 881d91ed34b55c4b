"""The decompressed files of a path: a single file, or the files of a folder or an archive.

A few kilobytes may unpack to more than the memory holds, so there are limits.
"""

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from polyrank_chats.errors import DataError
from polyrank_chats.wording import counted

MAX_BYTES = 2**30  # of the unpacked file
MAX_RATIO = 100  # of its size to that of the compressed file, above FREE_BYTES; chats compress 5 to 50 times
CELL_BYTES = 64  # memory of a cell of a table in addition to its value
FREE_BYTES = 2**24  # JSON in memory takes up to 30 times its text
GZIP_MAGIC = b"\x1f\x8b"
TEXTS = (".txt", ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".vtt", ".srt", ".eml", ".mbox", ".mbx", ".log")
READ = (*TEXTS, ".xlsx", ".xlsm", ".xls", ".ods", ".parquet")
MAILDIR = ("cur", "new")
NAMELESS = re.compile(r"_chat\.txt|chat\.md|messages?(_\d+)?\.json")  # the folder names the chat


@dataclass(frozen=True)
class Member:
    """A single file, or a file in a folder or an archive.

    Args:
        path: for messages and names.
        read: returns its bytes, decompressed.
        place: its path in the folder or archive, if a file elsewhere there has the same stem; else empty.
    """

    path: Path
    read: Callable[[], bytes]
    place: str = ""

    @cached_property
    def stem(self) -> str:
        """The file name without suffixes, or that of the folder or archive for names that never differ."""
        folder, name = self.path.parent.stem, self.path.name.removesuffix(".gz")
        if self.place:
            return self.place
        return folder if folder and NAMELESS.fullmatch(name) else Path(name).stem or "chat"


@dataclass(frozen=True, eq=False)
class Members:
    """The files of a path, compared by identity, so that readers can cache what follows from all of them."""

    files: Sequence[Member] = ()


def members(path: Path, note: Callable[[str], None], max_bytes: int = MAX_BYTES) -> list[Member]:
    """The file itself, or the files of a folder or an archive that may hold chats, sorted by name.

    Raises:
        DataError: the path does not exist, the archive is damaged or unpacks to more than ``max_bytes``, or it holds no
            supported file.
    """
    sources: dict[Path, Callable[[], bytes] | None] = {}
    if path.is_dir():
        found = (entry for entry in path.rglob("*") if entry.is_file() and not entry.is_symlink())
        sources |= {entry.relative_to(path): None for entry in found}
    elif _is_archive(path):
        archive = zipfile.ZipFile(path)
        entries = {Path(entry.filename): entry for entry in archive.infolist() if not entry.is_dir()}
        n_unpacked = sum(entry.file_size for name, entry in entries.items() if _is_read(name))
        check_size(path, n_unpacked, max_bytes, path.stat().st_size)  # an entry never unpacks to more than it declares
        sources |= {name: partial(archive.read, entry) for name, entry in entries.items()}
    else:
        return [Member(path, partial(_read, path, max_bytes))]
    ordered = [(name, path / name, sources[name]) for name in sorted(sources)]
    inside = [(name, Member(full, partial(_read, full, max_bytes, unpack))) for name, full, unpack in ordered]
    shown = [each for each in inside if not any(part.startswith((".", "__MACOSX")) for part in each[0].parts)]
    chosen = [(name, member) for name, member in shown if _is_read(name)]
    if not chosen:
        raise DataError(f"{path}: holds no file of a supported type; give one with {', '.join(READ)}")
    if n_others := len(shown) - len(chosen):
        note(f"skipped {counted(n_others, 'other file')}, such as pictures")
    places: dict[str, set[str]] = {}
    for name, member in chosen:
        places.setdefault(member.stem, set()).add(_place(name))
    return [replace(each, place=_place(name)) if len(places[each.stem]) > 1 else each for name, each in chosen]


def _place(name: Path) -> str:
    """A path, or that of its folder for names that never differ.

    >>> _place(Path("2024/01/15.txt")), _place(Path("Ann/2024/_chat.txt"))
    ('2024/01/15.txt', 'Ann/2024')
    """
    return (name.parent if NAMELESS.fullmatch(name.name.removesuffix(".gz")) else name).as_posix()


def _is_read(name: Path) -> bool:
    known = Path(name.name.lower().removesuffix(".gz")).suffix in READ or name.name == "chat.md"
    return known or name.parent.name in MAILDIR


def _read(path: Path, max_bytes: int, unpack: Callable[[], bytes] | None = None) -> bytes:
    try:
        if unpack:
            return gunzipped(path, unpack(), max_bytes)
        check_size(path, path.stat().st_size, max_bytes)
        return gunzipped(path, path.read_bytes(), max_bytes)
    except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {why}; check the path and its permissions") from error


def _is_archive(path: Path) -> bool:
    """Whether the file is a zip archive and not a workbook."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return {"[Content_Types].xml", "content.xml"}.isdisjoint(archive.namelist())
    return False


def gunzipped(path: Path, data: bytes, max_bytes: int) -> bytes:
    """Decompress gzip data of one or several members; other data are returned unchanged.

    Raises:
        DataError: the data are damaged, or the result is larger than ``max_bytes``, or far larger than the data.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(data)))
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip ({error}); download the file again") from error
    check_size(path, len(unpacked), max_bytes, len(data))
    return unpacked


def check_size(path: Path, n: int, max_bytes: int, n_packed: int | None = None) -> None:
    """Check the size of a file or of its unpacked data, also relative to ``n_packed``, the size of a compressed file.

    Raises:
        DataError: ``n`` is larger than ``max_bytes``, or than ``MAX_RATIO`` times ``n_packed``.
    """
    if n > max_bytes:
        raise DataError(f"{path}: is or unpacks to more than {max_bytes:,} bytes; divide it, or raise `max_bytes`")
    if n_packed is not None and n > max(FREE_BYTES, MAX_RATIO * n_packed):
        raise DataError(f"{path}: unpacks to more than {MAX_RATIO} times its size; unpack it and give the result")
