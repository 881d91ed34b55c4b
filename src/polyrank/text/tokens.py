"""Tokens: padded ids with their mask, the input format of every network."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Row = Sequence[int] | NDArray[np.integer[Any]]
"""The ids of one text."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A padded batch.

    Args:
        ids: ``[B, T]`` int64.
        mask: ``[B, T]`` bool, true for real tokens, which come first.
        segments: ``[B, T]`` int64: 1 for the candidate of a pair, else 0.
        lengths: row lengths ``[B]`` in host memory, to avoid waiting for a device; None: unknown.
        copied: ``ids`` in host memory if a device has them; None: they are there, or unknown.
    """

    ids: Tensor
    mask: Tensor
    segments: Tensor
    lengths: NDArray[np.int64] | None = None
    copied: NDArray[np.int64] | None = None

    def on_host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids ``[B, T]`` and row lengths ``[B]`` in host memory; waits for a device only if they are unknown."""
        return self.ids.cpu().numpy() if self.copied is None else self.copied, self.host_lengths()

    def host_lengths(self) -> NDArray[np.int64]:
        """Row lengths ``[B]`` in host memory; waits for a device only if they are unknown."""
        return self.mask.sum(1).cpu().numpy() if self.lengths is None else self.lengths

    @property
    def is_full(self) -> bool | None:
        """Whether the batch has no padding; None: unknown."""
        return None if self.lengths is None else bool((self.lengths == self.ids.shape[1]).all())

    def to(self, device: torch.device) -> "Tokens":
        """The same batch on another device."""
        ids, mask, segments = (to_device(part, device) for part in (self.ids, self.mask, self.segments))
        copied = self.ids.numpy() if self.ids.device.type == "cpu" else self.copied
        return Tokens(ids, mask, segments, self.lengths, copied)

    def part(self, rows: Tensor) -> "Tokens":
        """Select rows, preferably given in host memory, and drop the columns that are padding in all of them.

        >>> pad([[5, 6, 7], [8], [9]]).part(torch.tensor([2, 1])).ids.tolist()
        [[9], [8]]
        """
        chosen = rows.cpu().numpy()
        lengths = self.host_lengths()[chosen]
        width = int(lengths.max(initial=0))
        copied = None if self.copied is None else self.copied[chosen, :width]
        rows = to_device(rows, self.ids.device)
        return Tokens(self.ids[rows, :width], self.mask[rows, :width], self.segments[rows, :width], lengths, copied)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values.to(device)``; a copy from the host to a GPU uses pinned memory and does not wait for it."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def token_batches(lengths: Sequence[int], max_tokens: int, *, alike: bool = False) -> list[list[int]]:
    """Positions grouped so that each padded batch holds at most ``max_tokens`` tokens, longest first.

    Texts of like length go together, so little is computed on padding.

    Args:
        lengths: of the texts.
        max_tokens: of a padded batch, unless it has a single text.
        alike: whether the texts of a batch have the same length.

    >>> token_batches([2, 9, 3, 2], max_tokens=9), token_batches([2, 9, 3, 2], max_tokens=9, alike=True)
    ([[1], [2, 0, 3]], [[1], [2], [0, 3]])
    """
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        width = lengths[batches[-1][0]] if batches else -1
        fits = (len(batches[-1]) + 1) * max(width, 1) <= max_tokens if batches else False
        if fits and (lengths[position] == width or not alike):
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def like_lengths(lengths: Sequence[int], padding: int) -> list[list[int]]:
    """Positions grouped by length, longest first, so that each group is padded with at most ``padding`` tokens.

    >>> like_lengths([2, 9, 3, 3], padding=1)
    [[1], [2, 3, 0]]
    """
    groups: list[list[int]] = []
    padded = 0
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded += lengths[groups[-1][0]] - lengths[position] if groups else padding + 1
        if padded > padding:
            groups.append([])
            padded = 0
        groups[-1].append(position)
    return groups


def pad(
    rows: Sequence[Row], segments: Sequence[Sequence[int]] | None = None, pad_id: int = 0, width: int = 0
) -> Tokens:
    """Pad rows of ids on the right to the length of the longest row, or to ``width`` if that is more.

    >>> pad([[5, 6], [7]]).ids.tolist(), pad([[5, 6], [7]]).mask.tolist()
    ([[5, 6], [7, 0]], [[True, True], [True, False]])
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max(initial=width)) < lengths[:, None]  # [B, T]
    ids, kinds = np.full(mask.shape, pad_id, np.int64), np.zeros(mask.shape, np.int64)
    ids[mask] = _flat(rows, lengths)
    if segments is not None:
        kinds[mask] = _flat(segments, lengths)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(kinds), lengths)


def _flat(rows: Sequence[Row], lengths: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    """The concatenated rows, in the order in which a boolean mask is filled."""
    if rows and {*map(type, rows)} == {np.ndarray}:
        return np.concatenate(rows)
    return np.fromiter(chain.from_iterable(rows), np.int64, count=int(lengths.sum()))
