"""A queue of candidates from earlier batches as negatives, with the vectors that they had then.

The vectors lag behind the weights by up to the length of the queue, and no gradient reaches them: each costs one dot
product and no encoding.

Source: Wang et al., Cross-Batch Memory for Embedding Learning (2020), section 3.2, https://arxiv.org/abs/1912.06798
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.negatives.random import text_key
from polyrank.text.tokens import to_device


class CandidateQueue:
    """The latest distinct candidates. A new one takes the place of the oldest, so that a step copies only its own.

    Args:
        size: N, the maximum number of candidates.
        dimension: D, of the vectors.
        device: of the vectors.
    """

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        self.size = size
        self._memory = torch.empty(size, dimension, device=device)
        # in host memory, where the masks are made, for each place that is taken
        self._keys, self._times = np.empty(0, np.int64), np.empty(0, np.int64)
        self._place_of: dict[int, int] = {}

    @property
    def vectors(self) -> Tensor:
        """``[n, D]``, in any order; the next ``push`` overwrites some of them."""
        return self._memory[: len(self._keys)]

    def wrong(self, present: Sequence[str], right: Sequence[Collection[str]]) -> Tensor:
        """Which candidates may be negatives of which context: ``[B, n]``, false for right answers and duplicates.

        Args:
            present: the candidates of the batch.
            right: for each context, its right answers.
        """
        wrong = np.ones((len(right), len(self._keys)), np.bool_)
        wrong[:, self._places_of(_keys_of(present))] = False
        for row, texts in enumerate(right):
            wrong[row, self._places_of(_keys_of(list(texts)))] = False
        return to_device(torch.from_numpy(wrong), self._memory.device)

    def push(self, texts: Sequence[str], vectors: Tensor) -> None:
        """Add distinct candidates ``[K, D]`` and drop the oldest; a batch with a non-finite vector is not added.

        >>> queue = CandidateQueue(3, 1, torch.device("cpu"))
        >>> for texts in (["a", "b"], ["c"], ["a", "d"]):
        ...     queue.push(texts, torch.tensor([[float(ord(text))] for text in texts]))
        >>> sorted(queue.vectors.flatten().tolist()) == [ord("a"), ord("c"), ord("d")]
        True
        """
        vectors = vectors.detach().float()
        if not vectors.isfinite().all():
            return
        keys = _keys_of(texts)[-self.size :]
        n, last = len(self._keys), int(self._times.max(initial=0))
        places = self._places_of(keys)  # first those of the same texts, then free ones, then the oldest
        places += range(n, min(self.size, n + len(keys) - len(places)))
        times = self._times.copy()
        times[[place for place in places if place < n]] = last + 1
        if n_oldest := len(keys) - len(places):
            places += np.sort(np.argpartition(times, n_oldest - 1)[:n_oldest]).tolist()
        for place in places:
            if place < n:
                del self._place_of[int(self._keys[place])]
        self._place_of.update(zip(keys.tolist(), places, strict=True))
        new = np.zeros(len(self._place_of) - n, np.int64)
        self._keys, self._times = np.concatenate([self._keys, new]), np.concatenate([self._times, new])
        self._keys[places], self._times[places] = keys, last + 1 + np.arange(len(keys))
        where = to_device(torch.tensor(places, dtype=torch.long), self._memory.device)
        self._memory[where] = vectors[len(vectors) - len(keys) :]

    def state(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint."""
        keys, times = torch.from_numpy(self._keys), torch.from_numpy(self._times)
        return {"keys": keys, "times": times, "vectors": self.vectors.clone()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors that ``state`` returned."""
        self._keys = tensors["keys"].numpy().copy()
        self._times = tensors["times"].numpy().copy()
        self._place_of = {key: place for place, key in enumerate(self._keys.tolist())}
        self._memory[: len(self._keys)] = tensors["vectors"].to(self._memory.device)

    def _places_of(self, keys: NDArray[np.int64]) -> list[int]:
        return [self._place_of[key] for key in keys.tolist() if key in self._place_of]


def _keys_of(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([text_key(text) for text in texts], np.int64)
