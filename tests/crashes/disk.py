"""A simulated disk: replays a log of changes, and computes the folder that a power loss would leave.

Only synced data survive for sure: a file's bytes after a sync of the file, a folder's entries after a sync of the
folder. Of the rest, any sectors of 512 bytes and, in each folder, the first changes up to any point may survive.
"""

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WRITE, SYNC, TRUNCATE, RENAME, EXCHANGE, UNLINK, RMDIR, MKDIR, CREATE, NOTE, LOST = range(1, 12)
SECTOR = 512
_HEAD = struct.Struct("=5q")


@dataclass(frozen=True, slots=True)
class Change:
    """One call that changed the disk, or a note of the process between two calls."""

    kind: int
    path: str
    other: str
    offset: int
    data: bytes


def read_journal(path: Path) -> Iterator[Change]:
    """The changes that the preloaded library logged."""
    data, at = path.read_bytes(), 0
    while at + _HEAD.size <= len(data):
        kind, n_path, n_other, offset, n_data = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        ends = [at + n_path, at + n_path + n_other, at + n_path + n_other + n_data]
        path_, other, rest = data[at : ends[0]], data[ends[0] : ends[1]], data[ends[1] : ends[2]]
        yield Change(kind, os.fsdecode(path_), os.fsdecode(other), offset, rest)
        at = ends[2]


@dataclass(slots=True, eq=False)
class File:
    """A file's bytes as processes see them, the bytes at the last sync, and the writes since."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and bytes; None: cut to the offset

    def write(self, offset: int, data: bytes | None) -> None:
        """Write data; None truncates."""
        self.pending.append((offset, data))
        _apply(self.data, offset, data)

    def after_power_loss(self, chance: random.Random | None) -> bytes:
        """The bytes after a power loss: the synced ones, and a random part of the writes since."""
        if chance is None:
            return self.durable
        result = bytearray(self.durable)
        for offset, data in self.pending:
            if data is None:
                if chance.random() < 0.5:
                    _apply(result, offset, None)
                continue
            for start in range(offset - offset % SECTOR, offset + len(data), SECTOR):
                if chance.random() < 0.5:
                    low, high = max(start, offset), min(start + SECTOR, offset + len(data))
                    _apply(result, low, data[low - offset : high - offset])
        return bytes(result)


def _apply(data: bytearray, offset: int, new: bytes | None) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    if new is None:
        del data[offset:]
    else:
        data[offset : offset + len(new)] = new


@dataclass(slots=True, eq=False)
class Folder:
    """A folder's entries as processes see them, the entries at the last sync, and the changes since."""

    entries: "dict[str, File | Folder]" = field(default_factory=dict)
    durable: "dict[str, File | Folder]" = field(default_factory=dict)
    pending: "list[dict[str, File | Folder | None]]" = field(default_factory=list)

    def change(self, new: "dict[str, File | Folder | None]") -> None:
        """Set or remove entries in one atomic step."""
        self.pending.append(new)
        _set(self.entries, new)

    def after_power_loss(self, chance: random.Random | None) -> "dict[str, File | Folder]":
        """The entries after a power loss: the synced ones, and a random number of the first changes since."""
        result = dict(self.durable)
        for new in self.pending[: chance.randint(0, len(self.pending)) if chance else 0]:
            _set(result, new)
        return result


def _set(entries: "dict[str, File | Folder]", new: "dict[str, File | Folder | None]") -> None:
    for name, node in new.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Disk:
    """A folder on a simulated disk, updated change by change.

    Args:
        root: the folder's path in the log; it exists, durable and empty.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.top = root, Folder()

    def apply(self, change: Change) -> None:
        """Apply one call of the log."""
        if change.kind == NOTE:
            return
        folder, name = self._parent(change.path)
        if change.kind in (SYNC, LOST) and Path(change.path) == self.root:
            if change.kind == SYNC:
                _sync(self.top)
            return
        if folder is None:  # the file or folder was deleted before
            return
        node = folder.entries.get(name)
        if change.kind in (RENAME, EXCHANGE):
            to, new = self._parent(change.other)
            assert to is not None, change
            if to is folder:
                folder.change({name: to.entries.get(new) if change.kind == EXCHANGE else None, new: node})
            else:
                there = to.entries.get(new) if change.kind == EXCHANGE else None
                to.change({new: node})
                folder.change({name: there})
        elif change.kind in (UNLINK, RMDIR):
            folder.change({name: None})
        elif change.kind == MKDIR:
            folder.change({name: Folder()})
        elif change.kind == CREATE:
            folder.change({name: File()})
        elif change.kind == SYNC and node is not None:
            _sync(node)
        elif change.kind == LOST:
            if isinstance(node, File):
                node.pending = [part for part in node.pending if part[1] is None]
        elif isinstance(node, File):
            node.write(change.offset, change.data if change.kind == WRITE else None)

    def _parent(self, path: str) -> tuple[Folder | None, str]:
        folder: File | Folder | None = self.top
        try:
            parts = Path(path).relative_to(self.root).parts
        except ValueError:
            return None, ""
        for part in parts[:-1]:
            folder = folder.entries.get(part) if isinstance(folder, Folder) else None
        return (folder if isinstance(folder, Folder) else None), parts[-1] if parts else ""

    def find(self, path: Path) -> "File | Folder | None":
        """The file or folder that processes see at a path, or None."""
        folder, name = self._parent(str(path))
        return self.top if path == self.root else folder.entries.get(name) if folder else None

    def seen(self, path: Path) -> dict[str, bytes]:
        """The files below a path as processes see them."""
        node = self.find(path)
        return _seen(node) if isinstance(node, Folder) else {}

    def left(self, path: Path, chance: random.Random | None = None) -> dict[str, bytes]:
        """The files below a path as a power loss now would leave them; see ``leave``."""
        node: File | Folder | None = self.top
        for part in path.relative_to(self.root).parts:
            node = node.after_power_loss(chance).get(part) if isinstance(node, Folder) else None
        return _left(node, chance) if isinstance(node, Folder) else {}

    def leave(self, place: Path, chance: random.Random | None) -> None:
        """Write the files that a power loss now would leave.

        Args:
            place: an empty folder.
            chance: decides which un-synced changes survive; None: none of them.
        """
        _leave(self.top, place, chance)


def _sync(node: File | Folder) -> None:
    if isinstance(node, File):
        durable = bytearray(node.durable)
        for offset, data in node.pending:
            _apply(durable, offset, data)
        node.durable = bytes(durable)
    else:
        node.durable = dict(node.entries)
    node.pending.clear()


def is_durable(node: File | Folder) -> bool:
    """Whether a power loss would keep a file, or a folder and its files except hidden ones, as processes see them."""
    if isinstance(node, File):
        return node.durable == node.data
    shown = {name: entry for name, entry in node.entries.items() if not name.startswith(".")}
    return all(node.durable.get(name) is entry and is_durable(entry) for name, entry in shown.items())


def _seen(folder: Folder, above: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, node in folder.entries.items():
        found |= {above + name: bytes(node.data)} if isinstance(node, File) else _seen(node, f"{above}{name}/")
    return found


def _left(folder: Folder, chance: random.Random | None, above: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, node in folder.after_power_loss(chance).items():
        file = isinstance(node, File)
        found |= {above + name: node.after_power_loss(chance)} if file else _left(node, chance, f"{above}{name}/")
    return found


def _leave(folder: Folder, place: Path, chance: random.Random | None) -> None:
    for name, node in folder.after_power_loss(chance).items():
        if isinstance(node, File):
            (place / name).write_bytes(node.after_power_loss(chance))
        else:
            (place / name).mkdir()
            _leave(node, place / name, chance)
