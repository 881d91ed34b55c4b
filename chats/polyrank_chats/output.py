"""Write dialogues as JSON lines: after a crash the file holds all of the old bytes or all of the new bytes."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

from polyrank_chats.errors import UsageError, row_error
from polyrank_chats.values import Row


def check_output(path: Path, *, inputs: Iterable[Path | None] = (), overwrite: bool = False) -> None:
    """Check the path of a new file before the work that produces it.

    Args:
        path: path of the new file.
        inputs: files that are read; None entries are ignored.
        overwrite: whether an existing file may be replaced. An input never is.

    Raises:
        UsageError: the file exists and ``overwrite`` is false, it is one of ``inputs`` or not a regular file, or the
            folder is not writable.
    """
    if path.exists():
        if any(other is not None and other.exists() and path.samefile(other) for other in inputs):
            raise UsageError(f"{path} already exists and is read by this command; give another file")
        if not path.is_file():
            raise UsageError(f"{path} is not a regular file, so it cannot be replaced; give another path")
        if not overwrite:
            raise UsageError(f"{path} already exists; choose another path or pass --overwrite")
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written because {folder} is not a writable folder; give another path")


def write_dialogues(path: Path | str, dialogues: Iterable[Row]) -> None:
    """Write rows of dialogues as JSON lines, atomically, gzipped if named ``.gz``; the same rows give the same bytes.

    Raises:
        DataError: a row holds a lone surrogate or a number that is not finite; no file is written.
        UsageError: ``path`` is not a regular file.
    """
    path = Path(path).resolve()
    lines = []
    for number, row in enumerate(dialogues, 1):
        try:
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
        except ValueError as error:
            what = "a lone surrogate" if isinstance(error, UnicodeError) else "a number that is not finite"
            raise row_error(path, number, f"holds {what}; write whole characters and null") from error
    data = gzip.compress(b"".join(lines), mtime=0) if path.name.endswith(".gz") else b"".join(lines)
    check_output(path, overwrite=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)  # of a synced sibling
    finally:
        temporary.unlink(missing_ok=True)  # it still exists after an error or an interrupt
