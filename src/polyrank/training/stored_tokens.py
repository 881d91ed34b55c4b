"""The token ids of training examples on disk, written once and memory-mapped.

A folder holds the ids of each example's context and response, as the text policy cuts them. Its name is a hash of the
examples' folder, the choice of examples, the vocabulary and the policy, so runs with the same texts share it.
Shapes: N examples.
"""

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank._version import __version__
from polyrank.data.mapped_examples import StoredExamples
from polyrank.data.read_report import counted
from polyrank.devices import distributed
from polyrank.errors import ArtifactError
from polyrank.storage.document import DocumentKind, check_part, has_document, read_document, seal
from polyrank.storage.durable import new_folder, sha256_file
from polyrank.text import Texts

DOCUMENT = DocumentKind(
    name="folder of token ids", file="tokens.json", missing="check the path", remedy="delete the folder"
)
IDS, ENDS = "ids.bin", "ends.bin"
EXAMPLES = 1000  # to encode at a time
Ids = NDArray[np.int64] | NDArray[np.uint32]


class StoredTokens:
    """The ids of N contexts and responses, in a folder that ``open_tokens`` wrote.

    Args:
        folder: the folder.

    Raises:
        ArtifactError: the folder is damaged.
    """

    def __init__(self, folder: Path) -> None:
        document = read_document(folder, DOCUMENT)
        ids, ends = (check_part(folder / name, document["parts"][name], DOCUMENT) for name in (IDS, ENDS))
        # as plain arrays, whose slices cost a tenth
        self._ids = np.asarray(np.memmap(ids, document["type"], "r"))
        self._ends = np.asarray(np.memmap(ends, np.int64, "r"))  # of context, response, context, ...

    def contexts(self, positions: Iterable[int]) -> list[Ids]:
        """The ids of the contexts of some examples."""
        return [self._row(2 * position) for position in positions]

    def responses(self, positions: Iterable[int]) -> list[Ids]:
        """The ids of the responses of some examples."""
        return [self._row(2 * position + 1) for position in positions]

    def _row(self, number: int) -> Ids:
        return self._ids[self._ends[number - 1] if number else 0 : self._ends[number]]


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
        try:
            StoredTokens(folder)
        except ArtifactError as error:
            if has_document(folder, DOCUMENT):
                notify(f"{error}; polyrank writes it again")
            notify(f"writing the tokens of {counted(len(examples), 'example')} to {folder}")
            _write(folder, examples, texts)

    distributed.on_rank_zero(write)
    return StoredTokens(folder)


def _write(folder: Path, examples: StoredExamples, texts: Texts) -> None:
    with new_folder(folder, replace=True, own_files=(IDS, ENDS, DOCUMENT.file)) as new:
        end = 0
        with (new / IDS).open("wb") as ids, (new / ENDS).open("wb") as ends:
            for start in range(0, len(examples), EXAMPLES):
                part = examples[start : start + EXAMPLES]
                responses = texts.all_candidate_ids([example.candidates[0] for example in part])  # right ones are first
                contexts = [texts.context_ids(example.query) for example in part]
                rows = [row for pair in zip(contexts, responses, strict=True) for row in pair]
                own = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
                ids.write(np.concatenate([np.array(row, texts.id_type) for row in rows]).tobytes())
                ends.write(own.tobytes())
                end = int(own[-1])
        parts = {name: sha256_file(new / name) for name in (IDS, ENDS)}
        (new / DOCUMENT.file).write_bytes(seal({"type": texts.id_type.str, "parts": parts}, DOCUMENT))
