"""The decompressed files of a path: a single file, or the files of a folder or an archive."""

import gzip
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from polyrank_chats.errors import DataError
from polyrank_chats.files.unpacking import GZIP_MAGIC, MAX_BYTES, check_archive, check_size, gunzipped
from polyrank_chats.wording import counted

TEXTS = (".txt", ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".vtt", ".srt", ".eml", ".mbox", ".mbx", ".log")
READ = (*TEXTS, ".xlsx", ".xlsm", ".xls", ".ods", ".parquet")
MAILDIR = ("cur", "new")
NAMELESS = re.compile(r"_chat\.txt|chat\.md|messages?(_\d+)?\.json")  # the folder names the chat
NO_CHATS = ("group_info.json", "user_info.json")  # lists of people next to Google Chat's messages


@dataclass(frozen=True)
class Member:
    """A single file, or a file in a folder or an archive.

    Args:
        path: for messages and names.
        read: returns its bytes, decompressed.
        place: its path in the folder or archive, if another file there has the same stem; without suffixes, unless that
            would also be the other file's; else empty.
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
    if path.is_dir():
        names = sorted(entry for entry in path.rglob("*") if entry.is_file())
        inside = [(entry.relative_to(path), Member(entry, partial(_bytes, entry, max_bytes))) for entry in names]
    elif _is_archive(path):
        archive = zipfile.ZipFile(path)
        entries = sorted(
            (entry for entry in archive.infolist() if not entry.is_dir()), key=lambda entry: entry.filename
        )
        wanted = [entry for entry in entries if _is_read(Path(entry.filename))]
        check_archive(path, path.stat().st_size, wanted, max_bytes)
        inside = [
            (Path(entry.filename), Member(path / entry.filename, partial(_unpacked, path, archive, entry, max_bytes)))
            for entry in entries
        ]
    else:
        return [Member(path, partial(_bytes, path, max_bytes))]
    hidden = [name for name, _ in inside if any(part.startswith((".", "__MACOSX")) for part in name.parts)]
    chosen = [(name, member) for name, member in inside if name not in hidden and _is_read(name)]
    read = [member for _, member in chosen]
    if not read:
        raise DataError(f"{path}: holds no file of a supported type; give one with {', '.join(READ)}")
    if n_others := len(inside) - len(hidden) - len(read):
        note(f"skipped {counted(n_others, 'other file')}, such as pictures")
    same = Counter(member.stem for member in read)
    places = Counter(_place(name) for name, _ in chosen)

    def place(name: Path) -> str:
        alone = places[_place(name)] == 1 or NAMELESS.fullmatch(name.name.removesuffix(".gz"))
        return _place(name) if alone else name.as_posix()

    return [replace(member, place=place(name)) if same[member.stem] > 1 else member for name, member in chosen]


def _place(name: Path) -> str:
    """A path without suffixes; of its folder for names that never differ.

    >>> _place(Path("2024/01/15.txt.gz")), _place(Path("Ann/2024/_chat.txt"))
    ('2024/01/15', 'Ann/2024')
    """
    own = name.name.removesuffix(".gz")
    return name.parent.as_posix() if NAMELESS.fullmatch(own) else name.with_name(Path(own).stem or own).as_posix()


def _is_read(name: Path) -> bool:
    known = Path(name.name.lower().removesuffix(".gz")).suffix in READ or name.name == "chat.md"
    return (known and name.name not in NO_CHATS) or name.parent.name in MAILDIR


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
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip ({error}); download the file again") from error


def _is_archive(path: Path) -> bool:
    """Whether the file is a zip archive and not a workbook."""
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
    except (zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, NotImplementedError, EOFError) as error:
        raise DataError(f"{path}: {entry.filename} is damaged ({error}); download the archive again") from error
