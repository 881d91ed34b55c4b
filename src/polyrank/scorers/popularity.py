"""How often a reply was said, as an Encoder of one dimension for sums, indexes and searches; and its folder.

Shapes: B contexts, N candidates; T distinct texts that were counted.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyrank.data.pool import read_pool
from polyrank.errors import DataError
from polyrank.index import COUNT_FIELD
from polyrank.records import ContextLike, Example, contexts_of
from polyrank.scorers.inputs import as_texts
from polyrank.scorers.protocols import Encoder, Floats

KIND = "popularity"
SCALE = 16.0  # log(1 + 8.9 million): candidates' vectors get about the length of other encoders', which int8 needs


class Popularity(Encoder):
    """``score = log(1 + count(candidate))`` for every context: a prior over replies.

    A sum with another encoder, ``score + w log(1 + count)``, prefers replies that people give often. The vector of
    every context is ``[16]``, that of a candidate ``[log(1 + count) / 16]``. The encoder stores hashes, not texts.

    Args:
        keys: 64-bit hashes of the counted texts, ascending, ``[T]``.
        counts: how often each text was said, ``[T]``.

    Source: Henderson et al., Efficient Natural Language Response Suggestion for Smart Reply (2017), section 4.4,
        https://arxiv.org/abs/1705.00652, which adds a language model's score to the similarity; polyrank adds counts.

    >>> prior = Popularity.of({"yes": 3, "no": 1})
    >>> prior.score(["ready?"], [["yes", "no", "never said"]])[0].round(4)  # ln 4, ln 2, ln 1
    array([1.3863, 0.6931, 0.    ], dtype=float32)
    """

    def __init__(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.keys, self.counts, self.dimension = keys, counts, 1
        self.fingerprint = hashlib.sha256(KIND.encode() + keys.tobytes() + counts.tobytes()).hexdigest()

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """A prior from texts and how often each was said.

        Raises:
            DataError: ``counts`` is empty, or a count is not a whole number above 0.
        """
        if not counts:
            raise DataError("0 replies to count; give examples that have right answers")
        for text, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**62:
                raise DataError(f"the count of {text!r} is {count!r}; give a whole number above 0")
        keys, order = np.unique(_keys(list(counts)), return_index=True)
        return cls(keys, np.array(list(counts.values()), np.int64)[order])

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """The same vector for each context: ``[B, 1, 1]``, and a mask ``[B, 1]``."""
        n = len(contexts_of(contexts))
        return np.full((n, 1, 1), SCALE, np.float32), np.ones((n, 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """``log(1 + count) / 16`` of each candidate: ``[N, 1]``."""
        keys = _keys(as_texts(candidates, "candidates"))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        counts = np.where(self.keys[places] == keys, self.counts[places], 0)
        vectors: Floats = (np.log1p(counts) / SCALE).astype(np.float32)[:, None]
        return vectors


def count_replies(examples: Iterable[Example]) -> Counter[str]:
    """How often each text is a right answer.

    >>> count_replies([Example(("hi",), ("hello", "bye"), (0,)), Example(("hey",), ("hello",), (0,))])
    Counter({'hello': 2})
    """
    return Counter(example.candidates[i] for example in examples for i in example.relevant)


def catalogue_counts(path: Path, *, default: int | None = None) -> Counter[str]:
    """How often each reply of a file was said, by its field ``count``; ``default`` for replies without the field.

    Raises:
        DataError: a reply has no count, or the count is not a whole number.
    """
    counts: Counter[str] = Counter()
    for reply in read_pool(path):
        if COUNT_FIELD not in reply.metadata and default is None:
            raise DataError(f"{path}: reply {reply.id!r} has no field `count`; add a count to each reply")
        count = str(reply.metadata.get(COUNT_FIELD, default))  # a number of JSON, or the digits of a table
        if not (count.isascii() and count.isdigit() and len(count) < 19):
            raise DataError(f"{path}: reply {reply.id!r} has the count {count[:20]!r}; give a number above 0")
        counts[reply.text] += int(count)
    return counts


def _keys(texts: Sequence[str]) -> NDArray[np.int64]:
    """64 bits of each text's BLAKE2: among ten million texts, two collide with a probability of 3 in a million."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.dtype("<i8")).astype(np.int64)


def save_popularity(
    path: Path, prior: Popularity, *, metadata: dict[str, Any] | None = None, replace: bool = False
) -> None:
    """Write popularity.json and popularity.safetensors: hashes and counts.

    Args:
        path: the folder to make.
        prior: the counts.
        metadata: where the counts come from.
        replace: whether earlier counts may be replaced.

    Raises:
        UsageError: the path exists.
        ResourceError: the disk is full.
    """
    import torch

    from polyrank.storage.tensors import write_tensors

    document = {"fingerprint": prior.fingerprint, "metadata": metadata or {}}
    tensors = {"keys": torch.from_numpy(prior.keys), "counts": torch.from_numpy(prior.counts)}
    write_tensors(path, KIND, document, tensors, replace=replace)


def load_popularity(path: Path) -> Popularity:
    """Read a folder of counts.

    Raises:
        ArtifactError: the folder is damaged.
    """
    from polyrank.storage.tensors import read_tensors

    _, tensors = read_tensors(path, KIND)
    return Popularity(tensors["keys"].numpy(), tensors["counts"].numpy())
