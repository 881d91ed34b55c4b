"""The term ``counts``: how often a reply was said.

Shapes: N texts; T distinct texts that were counted.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyrank.data.pool import read_pool
from polyrank.errors import DataError
from polyrank.index import COUNT_FIELD, as_count
from polyrank.records import Example
from polyrank.scorers.protocols import Floats
from polyrank.scorers.terms.protocol import LoadModel, Offer, ReplyTerm, State, Tensors


class Counts(ReplyTerm):
    """How often people gave a reply: ``log(1 + count(reply))``, a prior over replies.

    The term stores hashes of texts with their counts. In an index, a candidate's metadata field ``count`` takes their
    place: ``index build`` and ``add`` write it where it is missing, and ``index update-counts`` changes it.

    Args:
        keys: 64-bit hashes of the counted texts, ascending, ``[T]``.
        counts: how often each text was said, ``[T]``.

    Source: Henderson et al., Efficient Natural Language Response Suggestion for Smart Reply (2017), section 4.4,
        https://arxiv.org/abs/1705.00652, which adds a language model's score to the similarity; polyrank adds counts.

    >>> counts = Counts.of({"yes": 3, "no": 1})
    >>> counts.numbers(["yes", "no", "never said"])[:, 0].round(4)  # ln 4, ln 2, ln 1
    array([1.3863, 0.6931, 0.    ], dtype=float32)
    """

    kind = "counts"
    size = 16.0  # log(1 + 8.9 million)

    def __init__(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.keys, self.counts, self.name = keys, counts, self.kind
        self.fingerprint = hashlib.sha256(self.kind.encode() + keys.tobytes() + counts.tobytes()).hexdigest()

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """The term of texts and how often each was said.

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

    def of_texts(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """How often each text was said, ``[N]``."""
        keys = _keys(texts)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        counts: NDArray[np.int64] = np.where(self.keys[places] == keys, self.counts[places], 0)
        return counts

    def numbers(self, texts: Sequence[str]) -> Floats:
        """``log(1 + count)`` of texts ``[N, 1]``."""
        values: Floats = np.log1p(self.of_texts(texts)).astype(np.float32)[:, None]
        return values

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """The counts of the right answers of the dialogues, if there are dialogues."""
        counts = count_replies(offer.dialogues)
        return [cls.of(counts)] if counts else []

    def to_dict(self) -> tuple[State, Tensors]:
        """The hashes and counts."""
        import torch

        return {}, {"keys": torch.from_numpy(self.keys), "counts": torch.from_numpy(self.counts)}

    @classmethod
    def from_dict(cls, state: State, tensors: Tensors, load: LoadModel) -> Self:
        """The term with the stored hashes and counts."""
        return cls(tensors["keys"].numpy(), tensors["counts"].numpy())


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
        stated = reply.metadata.get(COUNT_FIELD, "")
        if stated == "" and default is None:
            raise DataError(f"{path}: reply {reply.id!r} has no field `count`; add a count to each reply")
        count = as_count(default if stated == "" else stated)
        if not (count.is_integer() and count < 1e18 and (count or stated in (0, "0", ""))):
            raise DataError(f"{path}: reply {reply.id!r} has the count {str(stated)[:20]!r}; give a number above 0")
        counts[reply.text] += int(count)
    return counts


def _keys(texts: Sequence[str]) -> NDArray[np.int64]:
    """64 bits of each text's BLAKE2: among ten million texts, two collide with a probability of 3 in a million."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.dtype("<i8")).astype(np.int64)
