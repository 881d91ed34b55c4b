"""Tokens: padded ids with their mask, the one shape in which text reaches a network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """A padded batch.

    Args:
        ids: ``[B, T]`` int64.
        mask: ``[B, T]`` bool, true on real tokens. Real tokens come first.
        segments: ``[B, T]`` int64: 0, or 1 on the candidate of a pair.
    """

    ids: Tensor
    mask: Tensor
    segments: Tensor

    def to(self, device: torch.device) -> "Tokens":
        """The same batch on another device."""
        return Tokens(self.ids.to(device), self.mask.to(device), self.segments.to(device))


def pad(rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None, pad_id: int = 0) -> Tokens:
    """Pad rows of ids on the right to the longest of them.

    >>> pad([[5, 6], [7]]).ids.tolist(), pad([[5, 6], [7]]).mask.tolist()
    ([[5, 6], [7, 0]], [[True, True], [True, False]])
    """
    width = max(map(len, rows), default=0)
    ids = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    kinds = [[0] * width for _ in rows] if segments is None else [[*s, *[0] * (width - len(s))] for s in segments]
    return Tokens(ids, torch.arange(width) < lengths[:, None], torch.tensor(kinds, dtype=torch.int64))
