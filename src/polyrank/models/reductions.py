"""Reducing token outputs to vectors. Padding is left out; boundary tokens are included."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyrank.config.models import PairReduction, Reduction
from polyrank.devices.choice import full_precision


def reduce(outputs: Tensor, mask: Tensor, reduction: Reduction, n_tokens: int) -> Tensor:
    """Reduce token outputs to one vector per row.

    "first", "last": one output. "max": the maximum of each number. "weighted_mean": the n-th output counts n times.
    "mean": the mean of all. "mean_but_first": of all but the first, if there are others.
    "mean_of_first": the mean of the first ``n_tokens``. "sqrt_n": the sum of all divided by the square root of their
    number.

    Args:
        outputs: ``[B, T, D]``.
        mask: ``[B, T]``, true on real tokens.
        reduction: one of these.
        n_tokens: for "mean_of_first".

    Returns:
        ``[B, D]``.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2 and Table 7.

    >>> h = torch.tensor([[[1.0], [3.0], [99.0]]]); real = torch.tensor([[True, True, False]])
    >>> [reduce(h, real, r, 1).item() for r in ("first", "last", "max", "mean", "mean_of_first", "weighted_mean")]
    [1.0, 3.0, 3.0, 2.0, 1.0, 2.3333332538604736]
    >>> reduce(h, real, "mean_but_first", 1).item()
    3.0
    """
    if reduction == "first":
        return outputs[:, 0]
    if reduction == "last":
        return outputs[torch.arange(len(outputs), device=outputs.device), mask.sum(1) - 1]
    if reduction == "max":
        return outputs.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    if reduction == "weighted_mean":
        mask = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    if reduction == "mean_but_first":
        others = torch.arange(mask.shape[1], device=mask.device) > 0
        mask = mask & (others | (mask.sum(1, keepdim=True) == 1))
    if reduction == "mean_of_first":
        outputs, mask = outputs[:, :n_tokens], mask[:, :n_tokens]
    weights = mask.to(outputs.dtype)[:, :, None]
    count = weights.sum(1)
    return (outputs * weights).sum(1) / (count.sqrt() if reduction == "sqrt_n" else count)


def pool(outputs: Tensor, mask: Tensor, reductions: Sequence[Reduction], skipped: int = 0) -> Tensor:
    """The vectors of several reductions, concatenated: ``[B, n D]``.

    Args:
        outputs, mask: see ``reduce``.
        reductions: n of them, of all tokens.
        skipped: the number of tokens at the start that are left out.
    """
    kept = mask & (torch.arange(mask.shape[1], device=mask.device) >= skipped)

    def vector(reduction: Reduction) -> Tensor:
        if reduction == "first":
            return outputs[:, skipped]
        return reduce(outputs, mask if reduction == "last" else kept, reduction, 0)

    return torch.cat([vector(reduction) for reduction in reductions], -1)


def reduction_weights(mask: Tensor, reduction: Reduction, n_tokens: int) -> Tensor:
    """The weight of each token's output in the reduced vector. ``reduce`` is linear, so unit vectors reveal it.

    Args:
        mask, reduction, n_tokens: see ``reduce``.

    Returns:
        ``[B, T]``.

    >>> reduction_weights(torch.tensor([[True, True, False]]), "mean", 0)
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    return reduce(each_alone(mask), mask, reduction, n_tokens)


def each_alone(mask: Tensor) -> Tensor:
    """Unit vectors as token outputs: ``[B, T, T]``."""
    B, T = mask.shape
    return torch.eye(T, device=mask.device).expand(B, T, T)


def first_outputs(outputs: Tensor, mask: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The first m outputs ``[B, min(m, T), D]`` and their mask ``[B, min(m, T)]``, false in shorter rows."""
    return outputs[:, :m], mask[:, :m]


def last_outputs(outputs: Tensor, mask: Tensor, m: int, with_first: bool) -> tuple[Tensor, Tensor]:
    """The last m real outputs of each row, in order, optionally after the first output.

    In a row with at most m tokens the last m include the first output, which is not repeated.

    Returns:
        ``[B, M, D]`` and its mask ``[B, M]`` with M = min(m, T), plus 1 with the first output.

    >>> h = torch.arange(4.0).reshape(1, 4, 1); real = torch.tensor([[True, True, True, False]])
    >>> last_outputs(h, real, 2, False)[0].flatten().tolist()
    [1.0, 2.0]
    >>> last_outputs(h, real, 2, True)[0].flatten().tolist()
    [0.0, 1.0, 2.0]
    """
    width = min(m, outputs.shape[1])
    lengths = mask.sum(1, keepdim=True)  # [B, 1]
    starts = (lengths - width).clamp(min=0)
    positions = starts + torch.arange(width, device=outputs.device)  # [B, width]
    real = positions < lengths
    positions = positions.clamp(max=outputs.shape[1] - 1)
    chosen = outputs.gather(1, positions[:, :, None].expand(-1, -1, outputs.shape[2]))
    if not with_first:
        return chosen, real
    return torch.cat([outputs[:, :1], chosen], 1), torch.cat([starts > 0, real], 1)


class Pooling(nn.Module):
    """The vector that a Cross-encoder's head reads, from the outputs of a pair.

    The "first" output, the "mean" of all, or their "learnt" mean: weighted by softmax(h_t . q), with q trained.

    q starts at zero, so "learnt" starts as "mean".

    Args:
        reduction: one of the three.
        dimension: D.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.4: a single code.

    >>> pool = Pooling("learnt", 1); h = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> real = torch.tensor([[True, True, False]])
    >>> pool(h, real).item()
    2.0
    >>> _ = pool.code.data.fill_(50.0)  # weights exp(50) and exp(150)
    >>> pool(h, real).item()
    3.0
    """

    def __init__(self, reduction: PairReduction, dimension: int) -> None:
        super().__init__()
        self.reduction = reduction
        self.code = nn.Parameter(torch.zeros(dimension)) if reduction == "learnt" else None

    def forward(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """``[P, D]``, in fp32, from ``outputs`` ``[P, T, D]`` and ``mask`` ``[P, T]``, true on real tokens."""
        if self.code is None:
            assert self.reduction != "learnt", "it has a code"
            return reduce(outputs, mask, self.reduction, 1)
        with full_precision(outputs):
            weights = (outputs @ self.code).masked_fill(~mask, -torch.inf).softmax(1)  # [P, T]
            return (weights[:, None] @ outputs)[:, 0]
