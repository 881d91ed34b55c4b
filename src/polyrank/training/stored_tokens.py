"""The token ids and right answers of examples on disk, written once and memory-mapped.

A folder holds the ids of each example's context and response, as the text policy cuts them, and hashes of the right
answers to its context if there are several. Its name is a hash of the examples' folder, the choice of examples, the
vocabulary and the policy, so runs with the same texts share it. Shapes: N examples.
"""

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank._version import __version__
from polyrank.data.mapped_examples import StoredExamples
from polyrank.devices import distributed
from polyrank.negatives.random import right_answers, text_key
from polyrank.storage.document import DocumentKind, new_parts, open_or_write, read_parts
from polyrank.text import Texts
from polyrank.wording import counted

COLUMNS = ("contexts", "responses", "rights")
PARTS = tuple(f"{column}{what}.bin" for column in COLUMNS for what in ("", "-ends"))
DOCUMENT = DocumentKind(name="folder of token ids", file="tokens.json", remedy="delete the folder", parts=PARTS)
EXAMPLES = 1000  # to encode at a time
Ids = NDArray[np.integer[Any]]


class _Rows:
    """Rows of numbers, concatenated in one file, with their ends in another."""

    def __init__(self, values: Path, ends: Path, kind: str) -> None:
        self._values, self._ends = _mapped(values, kind), _mapped(ends, "<i8")

    def __getitem__(self, number: int) -> Ids:
        return self._values[self._ends[number - 1] if number else 0 : self._ends[number]]


def _mapped(path: Path, kind: str) -> Ids:
    """A file as a plain array, whose slices cost a tenth of a memmap's; an empty file cannot be mapped."""
    return np.asarray(np.memmap(path, kind, "r")) if path.stat().st_size else np.empty(0, kind)


class StoredTokens:
    """The ids of N contexts and responses, in a folder that ``open_tokens`` wrote.

    Args:
        folder: the folder.

    Raises:
        ArtifactError: the folder is damaged.
    """

    def __init__(self, folder: Path) -> None:
        document, parts = read_parts(folder, DOCUMENT)
        kinds = document["type"], document["type"], "<i8"
        self._contexts, self._responses, self._rights = map(_Rows, parts[::2], parts[1::2], kinds)

    def contexts(self, positions: Iterable[int]) -> list[Ids]:
        """The ids of the contexts of some examples."""
        return [self._contexts[position] for position in positions]

    def responses(self, positions: Iterable[int]) -> list[Ids]:
        """The ids of the responses of some examples."""
        return [self._responses[position] for position in positions]

    def rights(self, position: int) -> list[int]:
        """Keys (``text_key``) of all right answers to an example's context if there are several; else empty."""
        keys: list[int] = self._rights[position].tolist()
        return keys


def open_tokens(
    examples: StoredExamples, texts: Texts, notify: Callable[[str], None] = lambda text: None
) -> StoredTokens:
    """Open the tokens of examples, next to their folder; rank 0 writes them if necessary.

    Args:
        examples: to tokenize.
        texts: the text policy.
        notify: called with messages for the user.
    """
    key = repr((examples.key, texts.key, __version__, version("tokenizers")))
    folder = examples.folder.parent / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def write() -> None:
        notify(f"writing the tokens of {counted(len(examples), 'example')} to {folder}")
        _write(folder, examples, texts)

    return distributed.rank_zero_first(lambda: open_or_write(folder, DOCUMENT, StoredTokens, write, notify))


def _write(folder: Path, examples: StoredExamples, texts: Texts) -> None:
    repeats, types = examples.repeats(), (texts.id_type, texts.id_type, np.dtype("<i8"))
    with new_parts(folder, DOCUMENT) as (document, streams):
        document["type"] = texts.id_type.str
        n_written = [0] * len(COLUMNS)
        for start in range(0, len(examples), EXAMPLES):
            part = examples[start : start + EXAMPLES]
            columns = (
                [texts.context_ids(example.query) for example in part],
                texts.all_candidate_ids([example.candidates[0] for example in part]),  # the right ones come first
                [
                    sorted(map(text_key, right_answers(example, examples.rights))) if repeated else []
                    for example, repeated in zip(part, repeats[start:], strict=False)
                ],
            )
            for number, (rows, kind) in enumerate(zip(columns, types, strict=True)):
                ends = [*accumulate(map(len, rows), initial=n_written[number])]
                streams[2 * number].write(b"".join(np.array(row, kind).tobytes() for row in rows))
                streams[2 * number + 1].write(np.array(ends[1:], "<i8").tobytes())
                n_written[number] = ends[-1]
