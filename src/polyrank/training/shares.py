"""Distributed batches: each process encodes a share of the texts, and all processes gather the vectors of the batch.

If candidates are shared by the batch, each process then computes the loss of the contexts that it encodes, against all
candidates, whose gradients are summed over processes (``encode_own``, ``sum_of_parts``). With lists, every process
computes the loss of the whole batch and propagates the gradients of the vectors that it encoded. In both cases the sum
over processes is exactly the batch's gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.devices import distributed
from polyrank.text import Tokens, pad
from polyrank.text.tokens import Row, to_device
from polyrank.training.cached import encode_in_chunks
from polyrank.training.grouped import Vectors


@dataclass(frozen=True, slots=True)
class Share:
    """The texts of a batch that this process encodes.

    Args:
        tokens: of the process's own texts; of one that it need not encode if it has none, so that it knows the shape
            of vectors and has a graph.
        counts: how many texts each process has.
        rows: the ids of all texts of the batch, in host memory.
        own: the places in the batch of the texts that this process has, in host memory.
        back: ``[B]``: the place of each text of the batch in the concatenation of all shares; None: one process.
    """

    tokens: Tokens
    counts: tuple[int, ...]
    rows: Sequence[Row]
    own: Tensor
    back: Tensor | None = None

    def to(self, device: torch.device) -> "Share":
        """The same share on a device."""
        back = None if self.back is None else to_device(self.back, device)
        return Share(self.tokens.to(device), self.counts, self.rows, self.own, back)


def share_of(rows: Sequence[Row], segments: Sequence[Sequence[int]] | None = None, *, pad_id: int) -> Share:
    """The share of this process in the texts of a batch, padded. Texts are dealt by length, for even work.

    Args:
        rows: the ids of each text; the same in all processes.
        segments: as for ``pad``.
        pad_id: the padding id.
    """
    n = distributed.world_size()
    if n == 1:
        return Share(pad(rows, segments, pad_id), (len(rows),), rows, torch.arange(len(rows)))
    order = np.argsort([-len(row) for row in rows], kind="stable")
    shares = [order[first::n] for first in range(n)]
    own = shares[distributed.rank()] if len(shares[distributed.rank()]) else order[:1]
    tokens = pad([rows[i] for i in own], segments and [segments[i] for i in own], pad_id)
    back = torch.from_numpy(np.concatenate(shares).argsort())
    return Share(tokens, tuple(map(len, shares)), rows, torch.from_numpy(shares[distributed.rank()]), back)


def encode_own(encode: Callable[[Tokens], Vectors], share: Share, size: int | None) -> Vectors:
    """The encodings of the texts of this process, in the order of ``share.own``.

    Args:
        encode, share, size: as for ``encode_in_shares``.
    """
    vectors, n = encode_in_chunks(encode, share.tokens, size), len(share.own)
    if n == len(share.tokens.ids):
        return vectors
    if isinstance(vectors, Tensor):
        return cast(Vectors, vectors[:n])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, tuple(part[:n] for part in vectors))


def sum_of_parts(loss: Tensor) -> Tensor:
    """The sum over processes of each one's part of a loss; the gradient is that of the own part."""
    return loss if distributed.world_size() == 1 else cast(Tensor, _Summed.apply(loss))  # type: ignore[no-untyped-call]  # untyped in torch


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        del ctx
        total = loss.clone()
        distributed.all_reduce_sum(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0]


def encode_in_shares(
    encode: Callable[[Tokens], Vectors], share: Share, size: int | None, *, of_parts: bool = False
) -> Vectors:
    """Encode a batch of which each process has a share, with the same result in each.

    Gradients reach the weights of the process that encoded the text; ``add_gradients`` sums them.

    Args:
        encode: as for ``encode_in_chunks``.
        share: of this process.
        size: texts per chunk, within a process's share.
        of_parts: whether each process computes a part of the loss, see ``sum_of_parts``, instead of the whole loss.
    """
    vectors = encode_in_chunks(encode, share.tokens, size)
    if share.back is None:
        return vectors
    n_own = share.counts[distributed.rank()]
    parts = (vectors,) if isinstance(vectors, Tensor) else vectors
    whole = tuple(_from_all(part[:n_own], share.counts, of_parts)[share.back] for part in parts)
    if isinstance(vectors, Tensor):
        return cast(Vectors, whole[0])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, whole)  # type: ignore[redundant-cast]  # for the other


def _from_all(rows: Tensor, counts: Sequence[int], of_parts: bool) -> Tensor:
    """The rows of all processes, padded to the widest; only the own rows have a graph."""
    if rows.dim() > 1:
        width = distributed.all_reduce_max(rows.shape[1])
        rows = F.pad(rows, (*[0, 0] * (rows.dim() - 2), 0, width - rows.shape[1]))
    return cast(Tensor, _Gathered.apply(rows, counts, of_parts))  # type: ignore[no-untyped-call]  # untyped in torch


class _Gathered(torch.autograd.Function):
    """The rows of all processes. Their gradients are complete if each computes the whole loss, else summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], of_parts: bool) -> Tensor:
        ctx.of_parts = of_parts
        start = sum(counts[: distributed.rank()])
        ctx.own = slice(start, start + len(rows))
        return distributed.all_gather_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0]
        if ctx.of_parts:
            gradient = gradient.clone(memory_format=torch.contiguous_format)
            distributed.all_reduce_sum(gradient)
        return gradient[ctx.own], None, None


def add_gradients(model: nn.Module) -> None:
    """Replace each gradient by its sum over all processes, in one message; a weight without gradients stays so."""
    if distributed.world_size() == 1:
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    there = torch.tensor([weight.grad is not None for weight in weights]).to(weights[0])
    parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    flat = torch.cat([there, *(part.reshape(-1) for part in parts)])
    distributed.all_reduce_sum(flat)
    n_with, *sums = flat.split_with_sizes([len(weights), *(weight.numel() for weight in weights)])
    for weight, is_there, total in zip(weights, n_with.tolist(), sums, strict=True):
        weight.grad = total.view_as(weight) if is_there else None
