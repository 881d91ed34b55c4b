"""A batch in groups of texts of like length: the same vectors and gradients with less padding. Knows no loss."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from polyrank.scorers.network import token_batches
from polyrank.text import Tokens

Vectors = TypeVar("Vectors", Tensor, tuple[Tensor, ...])

GROUP = 1024
"""Padded tokens of a group: few enough for like lengths, many enough for matrices that keep a core busy."""


def in_groups(encode: Callable[[Tokens], Vectors], tokens: Tokens) -> Vectors:
    """``encode(tokens)``; on a CPU, whose time goes by tokens and not by calls, in groups of ``GROUP`` tokens.

    Args:
        encode: each text by itself, to one tensor or several, see ``in_chunks``.
        tokens: of the batch, ``[B, T]``.

    Returns:
        What ``encode`` gives for the whole batch; where M differs from group to group, rows of the shorter ones end in
        zeros, as of ``in_chunks``.
    """
    if tokens.ids.device.type != "cpu" or tokens.ids.numel() <= GROUP:
        return encode(tokens)
    groups = [torch.tensor(group) for group in token_batches(tokens.mask.sum(1).tolist(), GROUP)]
    return in_order([encode(tokens.part(group)) for group in groups], groups)


def in_order(parts: Sequence[Vectors], rows: Sequence[Tensor]) -> Vectors:
    """The results of parts of a batch as those of the whole.

    Args:
        parts: of each part, one tensor or several, ``[B, ...]``.
        rows: of each part, which texts of the batch it has.
    """
    back = torch.cat(list(rows)).argsort()
    if isinstance(parts[0], Tensor):
        return cast(Vectors, _joined(cast(Sequence[Tensor], parts))[back])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, tuple(_joined(each)[back] for each in zip(*parts, strict=True)))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts one below the other, as wide as the widest."""
    if parts[0].dim() < 2:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (*[0, 0] * (part.dim() - 2), 0, width - part.shape[1])) for part in parts])
