"""Encoding a batch in groups of texts of similar length: the same vectors and gradients with less padding."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from polyrank.text import Tokens
from polyrank.text.tokens import to_device, token_batches

Vectors = TypeVar("Vectors", Tensor, tuple[Tensor, ...])

GROUP = 1024
"""Padded tokens per group: few enough for similar lengths, enough for matrices that keep a core busy."""


def encode_in_groups(encode: Callable[[Tokens], Vectors], tokens: Tokens) -> Vectors:
    """``encode(tokens)``; on a CPU, where time depends on tokens and not on calls, in groups of ``GROUP`` tokens.

    On other devices networks pack the texts, see ``models.backbone``.

    Args:
        encode: encodes each text on its own, to one tensor or several; see ``encode_in_chunks``.
        tokens: of the batch, ``[B, T]``.

    Returns:
        The encodings of the whole batch, padded as by ``encode_in_chunks``.
    """
    if tokens.ids.device.type != "cpu" or tokens.ids.numel() <= GROUP:
        return encode(tokens)
    groups = [torch.tensor(group) for group in token_batches(tokens.mask.sum(1).tolist(), GROUP)]
    return in_order([encode(tokens.part(group)) for group in groups], groups)


def in_order(parts: Sequence[Vectors], rows: Sequence[Tensor]) -> Vectors:
    """Concatenate the results of parts of a batch, in the order of the batch.

    Args:
        parts: for each part, one tensor or several, ``[B, ...]``.
        rows: for each part, the numbers of its texts in the batch, in host memory.
    """
    first = parts[0] if isinstance(parts[0], Tensor) else parts[0][0]
    back = to_device(torch.cat(list(rows)).argsort(), first.device)
    if isinstance(parts[0], Tensor):
        return cast(Vectors, _joined(cast(Sequence[Tensor], parts))[back])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, tuple(_joined(each)[back] for each in zip(*parts, strict=True)))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts, padded to the widest."""
    if parts[0].dim() < 2:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (*[0, 0] * (part.dim() - 2), 0, width - part.shape[1])) for part in parts])
