"""Negatives from earlier batches: candidates with the vectors that they had then, first in, first out. Knows no loss.

Such vectors lag behind the weights by as many updates as the queue is long, and no gradient reaches them: they cost a
product each, and no encoding.

Source: Wang et al., Cross-Batch Memory for Embedding Learning (2020), section 3.2, https://arxiv.org/abs/1912.06798
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

import torch
from torch import Tensor


class CandidateQueue:
    """The latest distinct candidates.

    Args:
        size: N, the most that it holds.
        dimension: D, of their vectors.
        device: where these are.
    """

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        self.size = size
        self.keys = torch.empty(0, dtype=torch.int64, device=device)  # oldest first
        self.vectors = torch.empty(0, dimension, device=device)

    def wrong(self, present: Sequence[str], right: Sequence[Collection[str]]) -> Tensor:
        """Which may be negatives of which context: ``[B, n]``, false for right answers and what the batch has itself.

        Args:
            present: the candidates of the batch.
            right: of each context, its right answers.
        """
        fresh = ~torch.isin(self.keys, self._keys_of(present))
        return torch.stack([fresh & ~torch.isin(self.keys, self._keys_of(texts)) for texts in right])

    def push(self, texts: Sequence[str], vectors: Tensor) -> None:
        """Add distinct candidates ``[K, D]`` behind the others, of which the oldest go; none where one is not finite.

        >>> queue = CandidateQueue(3, 1, torch.device("cpu"))
        >>> for texts in (["a", "b"], ["c"], ["a", "d"]):
        ...     queue.push(texts, torch.tensor([[float(ord(text))] for text in texts]))
        >>> queue.vectors.flatten().tolist() == [ord("c"), ord("a"), ord("d")]
        True
        """
        vectors = vectors.detach().float()
        if not vectors.isfinite().all():
            return
        keys = self._keys_of(texts)
        stays = ~torch.isin(self.keys, keys)
        self.keys = torch.cat([self.keys[stays], keys])[-self.size :]
        self.vectors = torch.cat([self.vectors[stays], vectors])[-self.size :]

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return {"keys": self.keys, "vectors": self.vectors}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what ``state`` gave."""
        self.keys, self.vectors = (tensors[name].to(self.keys.device) for name in ("keys", "vectors"))

    def _keys_of(self, texts: Collection[str]) -> Tensor:
        digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
        keys = [int.from_bytes(digest, "little", signed=True) for digest in digests]
        return torch.tensor(keys, dtype=torch.int64, device=self.keys.device)
