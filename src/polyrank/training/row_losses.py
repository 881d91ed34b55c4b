"""The loss of contexts that share candidates, in chunks of contexts: their scores never are in memory all at once.

Shapes: B contexts of the batch, n of them in this process, K candidates, M vectors per context.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from polyrank.devices import distributed
from polyrank.devices.choice import full_precision

MOST_SCORES = 2**26
"""Dot products ``n K M`` per chunk: 256 MB, and about four times as much with what the gradient needs."""


def mean_loss(
    loss: Callable[..., Tensor], *parts: Tensor, candidates: Tensor, n_contexts: int, n_vectors: int = 1
) -> Tensor:
    """The mean loss over all contexts of a batch, of which this process has some.

    Args:
        loss: the mean loss of some contexts, from their rows of ``parts`` and all candidates.
        parts: what the loss needs of each context, ``[n, ...]``; only the last part has gradients.
        candidates: ``[K, D]``; processes without contexts take part in summing their gradients.
        n_contexts: of all processes; above 0.
        n_vectors: M.

    >>> scores = torch.tensor([1.0, 2.0, 6.0])
    >>> mean_loss(lambda rows, _: rows.mean(), scores, candidates=torch.ones(2, 1), n_contexts=3)
    tensor(3.)
    """
    n = len(parts[0])
    size = max(1, MOST_SCORES // (max(len(candidates), 1) * n_vectors))
    if n == 0:
        return _sum_of_parts(parts[-1].sum() + candidates[:0].sum())
    if n <= size:
        return _sum_of_parts(loss(*parts, candidates), n / n_contexts)
    return _sum_of_parts(cast(Tensor, _Chunked.apply(loss, size, n_contexts, candidates, *parts)))  # type: ignore[no-untyped-call]  # untyped in torch


def _sum_of_parts(loss: Tensor, weight: float = 1.0) -> Tensor:
    """The sum over processes of ``weight * loss``, added in fp64; the gradient is that of the own part."""
    if distributed.world_size() == 1:
        return loss if weight == 1.0 else weight * loss
    return cast(Tensor, _Summed.apply(loss, weight))  # type: ignore[no-untyped-call]  # untyped in torch


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        total = weight * loss.double()
        distributed.all_reduce_sum(total)
        return total.to(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.weight * gradients[0], None


class _Chunked(torch.autograd.Function):
    """The sum over chunks, whose gradients are computed with the loss: a scalar's only have to be multiplied later."""

    @staticmethod
    def forward(
        ctx: Any, loss: Callable[..., Tensor], size: int, n_contexts: int, candidates: Tensor, *parts: Tensor
    ) -> Tensor:
        shared = candidates.detach().requires_grad_()
        total, of_candidates, of_rows = candidates.new_zeros(()), torch.zeros_like(shared), []
        for at in range(0, len(parts[0]), size):
            *others, rows = (part[at : at + size] for part in parts)
            rows = rows.detach().requires_grad_()
            with torch.enable_grad():
                part = loss(*others, rows, shared) * (len(rows) / n_contexts)
            with full_precision(shared):
                gradient, more = torch.autograd.grad(part, (rows, shared))
            total, of_candidates = total + part.detach(), of_candidates.add_(more)
            of_rows.append(gradient)
        ctx.save_for_backward(of_candidates, torch.cat(of_rows))
        ctx.n_others = len(parts) - 1
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_candidates, of_rows = ctx.saved_tensors
        factor = gradients[0]
        return None, None, None, factor * of_candidates, *[None] * ctx.n_others, factor * of_rows
