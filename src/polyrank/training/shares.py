"""A batch in shares: each process encodes its own texts, and all have the vectors of all of them.

So every process computes the loss of the whole batch, with the same columns, masks and queue as one process alone, and
gives back to its own texts the gradients that the loss has with respect to their vectors. Sums over processes are then
the gradients of the batch, exactly. Knows no loss and no network.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.devices import processes
from polyrank.text import Tokens
from polyrank.training.cached import in_chunks
from polyrank.training.grouped import Vectors


def in_shares(encode: Callable[[Tokens], Vectors], tokens: Tokens, size: int | None) -> Vectors:
    """``in_chunks(encode, tokens, size)``, computed by all processes together; the result is the same in each.

    Texts are dealt by length, so that all have about as much to do. Gradients reach the weights of the process that
    encoded a text; ``add_gradients`` adds them up.

    Args:
        encode, tokens: as for ``in_chunks``, the same in all processes.
        size: texts of a chunk, of those that one process has.
    """
    n = processes.count()
    if n == 1:
        return in_chunks(encode, tokens, size)
    order = tokens.mask.sum(1).argsort(descending=True, stable=True)
    shares = [order[first::n] for first in range(n)]
    own, counts = shares[processes.number()], [len(share) for share in shares]
    # who has nothing to do encodes a text for nobody, so that the shape of vectors is known and the graph has an end
    vectors = in_chunks(encode, tokens.part(own if len(own) else order[:1]), size)
    back = torch.cat(shares).argsort()
    parts = (vectors,) if isinstance(vectors, Tensor) else vectors
    whole = tuple(_from_all(part[: len(own)], counts)[back] for part in parts)
    if isinstance(vectors, Tensor):
        return cast(Vectors, whole[0])  # type: ignore[redundant-cast]  # for one of the two kinds
    return cast(Vectors, whole)  # type: ignore[redundant-cast]  # for the other


def _from_all(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """All processes' rows, as wide as the widest; those of others have no graph."""
    if rows.dim() > 1:
        width = processes.most(rows.shape[1])
        rows = F.pad(rows, (*[0, 0] * (rows.dim() - 2), 0, width - rows.shape[1]))
    return cast(Tensor, _Gathered.apply(rows, counts))  # type: ignore[no-untyped-call]  # untyped in torch


class _Gathered(torch.autograd.Function):
    """Rows of all processes. Each of them computes the whole loss, so a row's gradient is complete where it is."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int]) -> Tensor:
        start = sum(counts[: processes.number()])
        ctx.own = slice(start, start + len(rows))
        return processes.gathered_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own], None


def add_gradients(model: nn.Module) -> None:
    """Put the sum over all processes in the place of each gradient; a weight that no process has one of stays without.

    One message for all weights: a step waits for it once.
    """
    if processes.count() == 1:
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    there = torch.tensor([weight.grad is not None for weight in weights]).to(weights[0])
    parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    flat = torch.cat([there, *(part.reshape(-1) for part in parts)])
    processes.add_up(flat)
    n_with, *sums = flat.split_with_sizes([len(weights), *(weight.numel() for weight in weights)])
    for weight, is_there, total in zip(weights, n_with.tolist(), sums, strict=True):
        weight.grad = total.view_as(weight) if is_there else None
