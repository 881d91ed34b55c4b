"""Distributed batches: each process encodes a share of the texts, and all processes gather the vectors of the batch.

Every process then computes the loss of the whole batch, with the same candidates, masks and queue as a single process,
and propagates the gradients of the vectors that it encoded. The sum over processes is exactly the batch's gradient.
This works with any loss and network.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.devices import distributed
from polyrank.text import Tokens
from polyrank.training.cached import encode_in_chunks
from polyrank.training.grouped import Vectors


def encode_in_shares(encode: Callable[[Tokens], Vectors], tokens: Tokens, size: int | None) -> Vectors:
    """``encode_in_chunks(encode, tokens, size)``, shared by all processes, with the same result in each.

    Texts are dealt by length, so all processes have about the same work. Gradients reach the weights of the process
    that encoded the text; ``add_gradients`` sums them.

    Args:
        encode, tokens: as for ``encode_in_chunks``; the same in all processes.
        size: texts per chunk, within a process's share.
    """
    n = distributed.world_size()
    if n == 1:
        return encode_in_chunks(encode, tokens, size)
    order = tokens.mask.sum(1).argsort(descending=True, stable=True)
    shares = [order[first::n] for first in range(n)]
    own, counts = shares[distributed.rank()], [len(share) for share in shares]
    # a process without texts encodes one that is not used, so it knows the shape of vectors and has a graph
    vectors = encode_in_chunks(encode, tokens.part(own if len(own) else order[:1]), size)
    back = torch.cat(shares).argsort()
    parts = (vectors,) if isinstance(vectors, Tensor) else vectors
    whole = tuple(_from_all(part[: len(own)], counts)[back] for part in parts)
    if isinstance(vectors, Tensor):
        return cast(Vectors, whole[0])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, whole)  # type: ignore[redundant-cast]  # for the other


def _from_all(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The rows of all processes, padded to the widest; only the own rows have a graph."""
    if rows.dim() > 1:
        width = distributed.all_reduce_max(rows.shape[1])
        rows = F.pad(rows, (*[0, 0] * (rows.dim() - 2), 0, width - rows.shape[1]))
    return cast(Tensor, _Gathered.apply(rows, counts))  # type: ignore[no-untyped-call]  # untyped in torch


class _Gathered(torch.autograd.Function):
    """The rows of all processes. Each process computes the whole loss, so the gradients of its rows are complete."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int]) -> Tensor:
        start = sum(counts[: distributed.rank()])
        ctx.own = slice(start, start + len(rows))
        return distributed.all_gather_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own], None


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
