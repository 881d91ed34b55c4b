"""A queue of candidates from earlier batches as negatives, with the vectors that they had then.

The vectors lag behind the weights by up to the length of the queue, and no gradient reaches them: each costs one dot
product and no encoding.

Source: Wang et al., Cross-Batch Memory for Embedding Learning (2020), section 3.2, https://arxiv.org/abs/1912.06798
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

import torch
from torch import Tensor


class CandidateQueue:
    """The latest distinct candidates.

    Args:
        size: N, the maximum number of candidates.
        dimension: D, of the vectors.
        device: of the vectors.
    """

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        self.size = size
        self.keys = torch.empty(0, dtype=torch.int64, device=device)  # oldest first
        self.vectors = torch.empty(0, dimension, device=device)

    def wrong(self, present: Sequence[str], right: Sequence[Collection[str]]) -> Tensor:
        """Which candidates may be negatives of which context: ``[B, n]``, false for right answers and duplicates.

        Args:
            present: the candidates of the batch.
            right: for each context, its right answers.
        """
        fresh = ~torch.isin(self.keys, self._keys_of(present))
        return torch.stack([fresh & ~torch.isin(self.keys, self._keys_of(texts)) for texts in right])

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
        keys = self._keys_of(texts)
        stays = ~torch.isin(self.keys, keys)
        self.keys = torch.cat([self.keys[stays], keys])[-self.size :]
        self.vectors = torch.cat([self.vectors[stays], vectors])[-self.size :]

    def state(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint."""
        return {"keys": self.keys, "vectors": self.vectors}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors that ``state`` returned."""
        self.keys, self.vectors = (tensors[name].to(self.keys.device) for name in ("keys", "vectors"))

    def _keys_of(self, texts: Collection[str]) -> Tensor:
        digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
        keys = [int.from_bytes(digest, "little", signed=True) for digest in digests]
        return torch.tensor(keys, dtype=torch.int64, device=self.keys.device)
