"""Examples in memory-mapped files, for data larger than memory; each example is built when it is accessed.

The texts of a row are stored once, however many examples it gives: contexts of a dialogue are ranges of its turns. The
name of the folder is a hash of its sources, so that the same files are converted once. Shapes: N examples.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from polyrank.data.beir import example_rows
from polyrank.data.examples import Kind, Reader
from polyrank.data.published import grouped
from polyrank.data.read_report import BadRows, parsed
from polyrank.errors import DataError
from polyrank.loading.data import resolve_data
from polyrank.records import Context, Example
from polyrank.storage.document import DocumentKind, new_parts, open_or_write, read_parts
from polyrank.storage.durable import sha256_file
from polyrank.wording import counted

PARTS = ("texts.bin", "ends.bin", "table.bin", "keys.bin")
DOCUMENT = DocumentKind(name="folder of examples", file="examples.json", remedy="delete the folder", parts=PARTS)
ROWS = 1000  # rows to write at a time
MANY = 1 << 24  # keys to compare at a time
MAX_RIGHTS = 1000  # right answers in other examples to look up for a context
# For each example: "base" is the number of the first text of its row, which is the row's id. Relative to it: where its
# turns start (the background comes before them) and end, and its first and last candidate. "right" is the number of
# right candidates, which come first. "turn" is its turn in the dialogue, or -1.
ROW = np.dtype([("base", "<i8")] + [(name, "<i4") for name in ("turns", "end", "first", "last", "right", "turn")])


class StoredExamples(Sequence[Example]):
    """Examples with a right answer, in a folder that ``open_stored`` wrote.

    Args:
        folder: the folder.

    Raises:
        ArtifactError: the folder is of another kind or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        document, (texts, ends, table, keys) = read_parts(folder, DOCUMENT)
        with texts.open("rb") as stream:
            self._texts = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        # as plain arrays, whose elements cost a fifth
        self._ends = np.asarray(np.memmap(ends, np.int64, "r"))
        self._table = np.asarray(np.memmap(table, ROW, "r"))
        self._keys = np.asarray(np.memmap(keys, np.uint64, "r"))
        self._chosen: NDArray[np.int64] | None = None
        self.n_given: int = document["n_given"]
        self.rights = StoredRights(self)

    def choose(self, numbers: NDArray[np.int64]) -> "StoredExamples":
        """Select examples, in this order. ``rights`` still covers all examples of the folder."""
        part = copy(self)
        part._chosen = numbers if self._chosen is None else self._chosen[numbers]
        part.n_given = int(((own := self._table[part._chosen])["last"] - own["first"] > own["right"]).sum())
        return part

    @property
    def key(self) -> str:
        """Equal for equal examples."""
        chosen = b"" if self._chosen is None else hashlib.sha256(self._chosen.tobytes()).digest()
        return f"{self.folder.name} {chosen.hex()}"

    def __len__(self) -> int:
        return len(self._table) if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, number: int) -> Example: ...
    @overload
    def __getitem__(self, number: slice) -> list[Example]: ...
    def __getitem__(self, number: int | slice) -> Example | list[Example]:
        rows = range(len(self))[number]
        if isinstance(rows, range):
            return [self[i] for i in rows]
        return self.stored(rows if self._chosen is None else int(self._chosen[rows]))

    def stored(self, number: int) -> Example:
        """An example of the folder, whether or not it is selected."""
        base, turns, end, first, last, right, turn = self._table[number].item()
        id_, *texts = self._read(base, max(end, last))
        return Example(
            tuple(texts[turns - 1 : end - 1]),
            tuple(texts[first - 1 : last - 1]),
            tuple(range(right)),
            id_ if turn < 0 else f"{id_}#{turn}",
            tuple(texts[: turns - 1]),
        )

    def sizes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the contexts of some examples, for batches of similar length."""
        own = self._table[numbers if self._chosen is None else self._chosen[numbers]]
        return np.asarray(self._ends[own["base"] + own["end"] - 1] - self._ends[own["base"]])

    def with_hash_of(self, context: Context) -> Iterator[Example]:
        """Stored examples whose context has the same hash."""
        key = _key(context)
        low, high = np.searchsorted(self._keys, np.array([key << 32, (key << 32) + (1 << 32) - 1], np.uint64))
        for entry in self._keys[low : min(high, low + MAX_RIGHTS)].tolist():
            yield self.stored(entry & 0xFFFFFFFF)

    def repeats(self) -> NDArray[np.bool_]:
        """``[N]``: false where no other example of the folder has the same context; true in nearly all other cases."""
        found = np.zeros(len(self._table), np.bool_)
        for start in range(0, len(self._keys), MANY):
            keys = self._keys[max(start - 1, 0) : start + MANY]
            same = np.flatnonzero(keys[1:] >> 32 == keys[:-1] >> 32)
            found[keys[same] & 0xFFFFFFFF] = found[keys[same + 1] & 0xFFFFFFFF] = True
        return found if self._chosen is None else found[self._chosen]

    def _read(self, start: int, n: int) -> list[str]:
        """Read ``n`` texts, the first with the number ``start``."""
        ends = self._ends[start - 1 : start + n].tolist() if start else [0, *self._ends[:n].tolist()]
        data = self._texts[ends[0] : ends[-1]]
        return [data[a - ends[0] : b - ends[0]].decode() for a, b in pairwise(ends)]


def choose(examples: Sequence[Example], numbers: NDArray[np.int64]) -> Sequence[Example]:
    """Select examples in memory or on disk, in this order."""
    return examples.choose(numbers) if isinstance(examples, StoredExamples) else [examples[i] for i in numbers.tolist()]


class StoredRights(Mapping[Context, list[str]]):
    """All right answers to a context in the folder; the first thousand for a very frequent context."""

    def __init__(self, examples: StoredExamples) -> None:
        self._examples = examples

    def __getitem__(self, context: Context) -> list[str]:
        right: dict[str, None] = {}
        for example in self._examples.with_hash_of(context):
            if example.query == context:
                right.update(dict.fromkeys(example.candidates[i] for i in example.relevant))
        if not right:
            raise KeyError(context)
        return list(right)

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Context]:
        return (example.query for example in self._examples)


class StoredResponses(Sequence[str]):
    """The response of each example; repeated responses are included."""

    def __init__(self, examples: StoredExamples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [example.candidates[0] for example in self._examples[number]]
        return self._examples[number].candidates[0]  # the right ones come first


def open_stored(
    source: Path,
    cache: Path,
    *,
    kind: Kind | None = None,
    speaker: str | None = None,
    skip_bad: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> StoredExamples:
    """Open the examples of a file, or of all files of a folder or pattern, from the cache; convert them if necessary.

    The conversion has at most a thousand rows in memory.

    Args:
        source: a file that ``read_examples`` reads, a folder of such files, or a pattern.
        cache: the folder with the converted data.
        kind, speaker: see ``read_examples``.
        skip_bad: count and skip bad rows instead of stopping.
        notify: called with messages for the user.

    Raises:
        DataError: a row is bad and ``skip_bad`` is false, or no example has a right answer.
    """
    files = [file.path for file in resolve_data(source)]
    key = repr(([(file.name, sha256_file(file)) for file in files], kind, speaker, skip_bad))
    folder = cache / f"examples-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def write() -> None:
        _make(folder, source, answered_rows(source, files, kind, speaker, skip_bad=skip_bad, notify=notify))

    examples = open_or_write(folder, DOCUMENT, StoredExamples, write, notify)
    notify(f"{source}: {counted(len(examples), 'example')} on disk, in {folder}")
    return examples


def answered_rows(
    source: Path,
    files: Sequence[Path],
    kind: Kind | None = None,
    speaker: str | None = None,
    *,
    skip_bad: bool,
    notify: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Example]]:
    """The examples of each row that have a right answer; in a dialogue, each turn after the first is one.

    Args:
        source: of the files, for messages.
        files: to read.
        kind, speaker, skip_bad, notify: see ``open_stored``.

    Raises:
        DataError: a row is bad and ``skip_bad`` is false, or the files have no rows.
    """
    n_good, bad = 0, BadRows(skip=skip_bad)
    for file in files:
        for item in parsed(file, grouped(partial(example_rows, file)), Reader(file, kind, speaker).examples)(bad.add):
            n_good += 1
            if examples := [example for example in item if example.relevant]:
                yield examples
    if not n_good + bad.n:
        raise DataError(f"{source}: holds no rows; give a file with at least one")
    if bad.n:
        notify(f"{counted(bad.n, 'bad row')} left out ({bad.messages[0]})")


def _make(folder: Path, source: Path, read: Iterator[list[Example]]) -> None:
    with new_parts(folder, DOCUMENT) as (document, streams):
        writer = _Writer(*streams)
        while batch := list(islice(read, ROWS)):
            writer.write(batch)
        if not writer.n_examples:
            raise DataError(f"{source}: no example has the text of a right answer; training needs some")
        streams[-1].flush()
        keys = np.memmap(streams[-1], np.uint64, "r+")
        keys.sort()
        keys.flush()
        document["n_given"] = writer.n_given


class _Writer:
    """Appends rows to the files."""

    def __init__(self, texts: BinaryIO, ends: BinaryIO, table: BinaryIO, keys: BinaryIO) -> None:
        self._texts, self._ends, self._table, self._keys = texts, ends, table, keys
        self._n_texts = self._n_bytes = self.n_examples = self.n_given = 0

    def write(self, batch: Sequence[list[Example]]) -> None:
        """Write the examples of several rows; every row has at least one."""
        texts: list[bytes] = []
        table: list[tuple[int, ...]] = []
        keys: list[int] = []
        for examples in batch:
            for texts_of_row, entries in _rows_of(examples):
                base = self._n_texts + len(texts)
                texts += [text.encode() for text in texts_of_row]
                table += [(base, *entry) for entry in entries]
            for example in examples:
                keys.append((_key(example.query) << 32) + self.n_examples)
                self.n_examples += 1
                self.n_given += len(example.candidates) > len(example.relevant)
        if self.n_examples > 1 << 32:
            raise DataError(f"there are more than {1 << 32:,} examples; train on a part of them")
        ends = self._n_bytes + np.cumsum([len(text) for text in texts], dtype=np.int64)
        self._n_texts, self._n_bytes = self._n_texts + len(texts), int(ends[-1])
        self._texts.write(b"".join(texts))
        self._ends.write(ends.tobytes())
        self._table.write(np.array(table, ROW).tobytes())
        self._keys.write(np.array(keys, np.uint64).tobytes())


def _rows_of(examples: list[Example]) -> Iterator[tuple[list[str], list[tuple[int, ...]]]]:
    """The texts of a row with the entries of its examples. Examples of one dialogue share the texts."""
    last = examples[-1]
    spoken = (*last.context, *last.candidates)
    together = all(
        example.candidates == spoken[len(example.context) : len(example.context) + 1]
        and example.context == spoken[: len(example.context)]
        and example.background == last.background
        for example in examples
    )
    if together and len(examples) > 1:
        name, turns = last.id.rpartition("#")[0], 1 + len(last.background)
        entries: list[tuple[int, ...]] = []
        for example in examples:
            end = turns + len(example.context)
            entries.append((turns, end, end, end + 1, 1, len(example.context)))
        yield [name, *last.background, *spoken], entries
        return
    for example in examples:
        right = set(example.relevant)
        others = [text for i, text in enumerate(example.candidates) if i not in right]
        turns = 1 + len(example.background)
        end = turns + len(example.context)
        candidates = [*(example.candidates[i] for i in example.relevant), *others]
        entry = (turns, end, end, end + len(candidates), len(right), -1)
        yield [example.id, *example.background, *example.context, *candidates], [entry]


def _key(context: Context) -> int:
    """32 bits of a hash, the same in every process."""
    data = "\0".join((*context.background, "", *context.turns)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little")
