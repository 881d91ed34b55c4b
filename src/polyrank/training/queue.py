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
    """The latest distinct candidates.

    Args:
        size: N, the maximum number of candidates.
        dimension: D, of the vectors.
        device: of the vectors.
    """

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        self.size = size
        self.keys = np.empty(0, np.int64)  # in host memory, where the masks are made; oldest first
        self.vectors = torch.empty(0, dimension, device=device)

    def wrong(self, present: Sequence[str], right: Sequence[Collection[str]]) -> Tensor:
        """Which candidates may be negatives of which context: ``[B, n]``, false for right answers and duplicates.

        Args:
            present: the candidates of the batch.
            right: for each context, its right answers.
        """
        wrong = np.tile(~np.isin(self.keys, _keys_of(present)), (len(right), 1))
        rows = np.repeat(np.arange(len(right)), [len(texts) for texts in right])
        keys = _keys_of([text for texts in right for text in texts])
        place_of = {key: place for place, key in enumerate(self.keys.tolist())}
        places = np.array([place_of.get(key, -1) for key in keys.tolist()], np.int64)
        wrong[rows[places >= 0], places[places >= 0]] = False
        return to_device(torch.from_numpy(wrong), self.vectors.device)

    def push(self, texts: Sequence[str], vectors: Tensor) -> None:
        """Append distinct candidates ``[K, D]`` and drop the oldest; a batch with a non-finite vector is not added.

        >>> queue = CandidateQueue(3, 1, torch.device("cpu"))
        >>> for texts in (["a", "b"], ["c"], ["a", "d"]):
        ...     queue.push(texts, torch.tensor([[float(ord(text))] for text in texts]))
        >>> queue.vectors.flatten().tolist() == [ord("c"), ord("a"), ord("d")]
        True
        """
        vectors = vectors.detach().float()
        if not vectors.isfinite().all():
            return
        keys = _keys_of(texts)
        stays = np.flatnonzero(~np.isin(self.keys, keys))
        stays = stays[max(0, len(stays) + len(keys) - self.size) :]
        kept = self.vectors[to_device(torch.from_numpy(stays), self.vectors.device)]
        self.keys = np.concatenate([self.keys[stays], keys])[-self.size :]
        self.vectors = torch.cat([kept, vectors])[-self.size :]

    def state(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint."""
        return {"keys": torch.from_numpy(self.keys), "vectors": self.vectors}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors that ``state`` returned."""
        self.keys, self.vectors = tensors["keys"].numpy(), tensors["vectors"].to(self.vectors.device)


def _keys_of(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([text_key(text) for text in texts], np.int64)
