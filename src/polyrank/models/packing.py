"""Packed rows: the real tokens of a batch without padding.

ConveRT's attention and that of late Cross-encoders pad them again. BERT's does not, on devices that have a kernel for
texts of different lengths.
Shapes: B texts, T tokens of the longest, N real tokens of all, D dimensions, H heads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.devices.varlen import Kernel, varlen_attention
from polyrank.text.tokens import to_device


@dataclass(frozen=True, slots=True)
class Packing:
    """The positions of real tokens in a padded batch.

    Args:
        mask: ``[B, T]``, true on real tokens.
        positions: ``[N]``, of real tokens in the flattened batch.
        offsets: ``[T, T]``, key position minus query position.
    """

    mask: Tensor
    positions: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, mask: Tensor, lengths: NDArray[np.int64] | None = None) -> "Packing":
        """The packing of a padded batch whose real tokens come first.

        Args:
            mask: ``[B, T]``.
            lengths: row lengths ``[B]`` in host memory, to avoid waiting for a device; None: unknown.

        >>> Packing.of(torch.tensor([[True, False], [True, True]])).positions
        tensor([0, 2, 3])
        """
        columns = torch.arange(mask.shape[1], device=mask.device)
        if lengths is None:
            real = mask.flatten().nonzero()[:, 0]
        else:
            flat = np.flatnonzero(np.arange(mask.shape[1]) < lengths[:, None])
            real = to_device(torch.from_numpy(flat), mask.device)
        return cls(mask, real, columns[None, :] - columns[:, None])

    def pack(self, padded: Tensor) -> Tensor:
        """``[B, T, ...]`` to ``[N, ...]``."""
        return padded.flatten(0, 1).index_select(0, self.positions)

    def pad(self, packed: Tensor) -> Tensor:
        """``[N, D]`` to ``[B, T, D]`` with zeros."""
        B, T = self.mask.shape
        padded = packed.new_zeros(B * T, packed.shape[1]).index_copy(0, self.positions, packed)
        return padded.view(B, T, packed.shape[1])


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """A packing with attention that needs no padding.

    Args:
        packing: of the batch.
        kernel: of the device.
        starts: ``[B + 1]`` int32: the first packed row of each text that is not empty, and N.
        longest: T.
    """

    packing: Packing
    kernel: Kernel
    starts: Tensor
    longest: int

    @classmethod
    def of(cls, mask: Tensor, lengths: NDArray[np.int64], kernel: Kernel) -> "PackedAttention":
        """The packing of a padded batch, see ``Packing.of``."""
        starts = np.concatenate([[0], lengths[lengths > 0].cumsum()]).astype(np.int32)
        packing = Packing.of(mask, lengths)
        return cls(packing, kernel, to_device(torch.from_numpy(starts), mask.device), int(lengths.max()))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float) -> Tensor:
        """Attention within each text, ``[N, H, d]``, from queries, keys and values of this shape."""
        return varlen_attention(self.kernel, query, key, value, self.starts, self.longest, dropout=dropout, scale=scale)
