"""A file of dialogues or pairs as token ids on disk, written once and memory-mapped.

The ids of each turn are stored once: the turns of a dialogue are concatenated with separators, and a pair is two ranges
of them. So memory holds neither texts nor ids. The folder's name is a hash of its inputs: the file's bytes, the
vocabulary and the separator.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyrank.data.mapped_examples import answered_rows
from polyrank.errors import DataError
from polyrank.records import Example
from polyrank.storage.document import DocumentKind, new_parts, open_or_write, read_parts
from polyrank.storage.durable import sha256_file
from polyrank.text import Subwords
from polyrank.wording import counted

PARTS = ("ids.bin", "pairs.bin")
DOCUMENT = DocumentKind(name="folder of token ids", file="tokens.json", remedy="delete the folder", parts=PARTS)
ROWS = 1000  # whose texts are encoded together
COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Pairs:
    """N contexts with their responses.

    Args:
        ids: of all turns, each as ``2 * id``, plus 1 if the token continues a word.
        table: ``[N, 5]``: start and end of the context in ``ids``, start and end of the response, and a hash of the
            response's ids, which is equal for equal responses.
    """

    ids: NDArray[np.uint32]
    table: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.table)

    def first(self, n: int) -> "Pairs":
        """The first ``n`` pairs."""
        return Pairs(self.ids, self.table[:n])


def texts_of(examples: list[Example]) -> tuple[str, ...]:
    """All turns of a row, after the facts of its background; the last example holds them all."""
    last = examples[-1]
    return (*last.background, *last.context, last.response or "")


def open_pairs(
    path: Path,
    subwords: Subwords,
    separator: str,
    cache: Path,
    *,
    skip_bad: bool,
    notify: Callable[[str], None] = lambda text: None,
) -> Pairs:
    """The pairs of a file, from the cache, or encoded and added to it.

    Args:
        path: file of dialogues or pairs.
        subwords: the vocabulary.
        separator: token between turns.
        cache: folder of cached folders.
        skip_bad: count and skip bad rows instead of stopping.
        notify: called with lines for the user.

    Raises:
        DataError: a row is bad and ``skip_bad`` is false, or the file holds no pair.
    """
    read = partial(answered_rows, path, [path], skip_bad=skip_bad)
    first = next(read(), None)  # a missing or bad file raises its own error before its bytes are hashed
    if first is None:
        raise DataError(f"{path}: no row has a response to a context; give dialogues of two turns or more, or pairs")
    key = hashlib.sha256(
        repr((sha256_file(path), hashlib.sha256(subwords.to_bytes()).hexdigest(), separator, skip_bad)).encode()
    )
    folder = cache / key.hexdigest()[:24]

    def write() -> None:
        _make(folder, path, subwords, separator, read(notify=notify))

    pairs = open_or_write(folder, DOCUMENT, _open, write, notify)
    if len(pairs) < 2:
        raise DataError(f"{path}: {counted(len(pairs), 'pair')} with words on both sides; give at least two")
    notify(f"{path}: {counted(len(pairs), 'pair')}, {counted(len(pairs.ids), 'token')}")
    return pairs


def _open(folder: Path) -> Pairs:
    _, (ids, table) = read_parts(folder, DOCUMENT)
    if not table.stat().st_size:
        return Pairs(np.zeros(0, np.uint32), np.zeros((0, COLUMNS), np.int64))
    return Pairs(np.memmap(ids, np.uint32, "r"), np.memmap(table, np.int64, "r").reshape(-1, COLUMNS))


def _make(folder: Path, path: Path, subwords: Subwords, separator: str, read: Iterator[list[Example]]) -> None:
    with new_parts(folder, DOCUMENT) as (document, (ids, table)):
        document["of"], start = path.name, 0
        while batch := list(islice(read, ROWS)):
            start = _write(batch, subwords, 2 * subwords.id_of(separator), start, ids, table)


def _write(
    batch: list[list[Example]], subwords: Subwords, separator: int, start: int, ids: BinaryIO, table: BinaryIO
) -> int:
    """Write the turns of some rows and their pairs after ``start`` ids; returns how many ids there are now."""
    turns = [texts_of(examples) for examples in batch]
    encoded = iter(subwords.encode_words([text for texts in turns for text in texts]))
    for examples, texts in zip(batch, turns, strict=True):
        row: list[Any] = []
        stretches = []
        for number, (words, continues) in enumerate(islice(encoded, len(texts))):
            if number:
                row.append(np.array([separator], np.uint32))
            turn = np.array(words, np.uint32) * 2 + np.array(continues, np.uint32)
            at = start + sum(map(len, row))
            stretches.append((at, at + len(turn)))
            row.append(turn)
        for example in examples:
            number = len(example.background) + len(example.context)  # of its response among the turns
            (begin, end), response = (stretches[0][0], stretches[number - 1][1]), stretches[number]
            if begin < end and response[0] < response[1]:
                digest = hashlib.blake2b(row[2 * number].tobytes(), digest_size=8).digest()
                entry = (begin, end, *response, int.from_bytes(digest, "little", signed=True))
                table.write(np.array(entry, np.int64).tobytes())
        data = np.concatenate(row)
        ids.write(data.tobytes())
        start += len(data)
    return start
