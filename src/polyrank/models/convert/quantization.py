"""Weights that are rounded where they are used, so training computes with the numbers that the file will hold.

The parameters stay 32-bit ("shadows"): the forward pass rounds them, and the gradient passes straight through the
rounding. Embeddings are rounded to 8 bits within a range that grows with them, other weights to a 16-bit type.
Rounding twice changes nothing, so weights from a file are not rounded again.

Source: Henderson et al., ConveRT (2020), section 2.1 ("Quantization"); Micikevicius et al., Mixed precision training.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_STEPS = 255  # between the 256 values of 8 bits
MARGIN, LEAST_MARGIN = 0.1, 0.01


def grid(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest value and step of the 8-bit range: the range so far, with a margin of 10% or at least 0.01 on both sides.

    Args:
        seen: ``[2]``, the smallest and the largest value so far.

    >>> low, step = grid(torch.tensor([0.0, 2.125]))  # margin 0.2125, so -0.2125 to 2.3375 in 255 steps
    >>> round(low.item(), 4), round(step.item(), 4)
    (-0.2125, 0.01)
    """
    margin = ((seen[1] - seen[0]) * MARGIN).clamp(min=LEAST_MARGIN)
    low = seen[0] - margin
    return low, (seen[1] + margin - low) / N_STEPS


def to_eight_bits(values: Tensor, seen: Tensor) -> Tensor:
    """The number of the nearest step, minus 128, as int8; values outside the range are clamped."""
    low, step = grid(seen)
    return (((values - low) / step).round().clamp(0, N_STEPS) - 128).to(torch.int8)


def from_eight_bits(codes: Tensor, seen: Tensor) -> Tensor:
    """The inverse of ``to_eight_bits``.

    >>> seen = torch.tensor([-1.0, 1.0])
    >>> values = from_eight_bits(to_eight_bits(torch.tensor([0.5, 7.0]), seen), seen)
    >>> [round(value, 2) for value in values.tolist()]  # within half a step of 0.5; the end of the range for 7
    [0.5, 1.2]
    """
    low, step = grid(seen)
    return (codes.float() + 128) * step + low


class _StraightThrough(torch.autograd.Function):
    """Rounds values; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        return rounded(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Rounding(nn.Module):
    """A module that rounds its parameters whenever it uses them.

    Args:
        dtype: the 16-bit type, or None for no rounding.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.on_grid = False
        """Whether the parameters are rounded already, as after reading a file."""

    def train(self, mode: bool = True) -> "Rounding":
        """Set the mode; in training mode parameters change, so they are rounded again."""
        self.on_grid = self.on_grid and not mode
        return super().train(mode)

    def rounded(self, parameter: Tensor) -> Tensor:
        """The parameter as the file will hold it, in fp32; the gradient passes straight through."""
        if self.dtype is None or self.on_grid:
            return parameter
        dtype = self.dtype
        return _StraightThrough.apply(parameter, lambda values: values.to(dtype).float())  # type: ignore[no-any-return, no-untyped-call]  # untyped in torch


class Linear(Rounding):
    """A linear map with rounded weights."""

    def __init__(self, n_inputs: int, n_outputs: int, dtype: torch.dtype | None, *, bias: bool = True) -> None:
        super().__init__(dtype)
        self.weight = nn.Parameter(torch.empty(n_outputs, n_inputs))
        self.bias = nn.Parameter(torch.empty(n_outputs)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., n_inputs]`` to ``[..., n_outputs]``."""
        return F.linear(inputs, self.rounded(self.weight), None if self.bias is None else self.rounded(self.bias))


class Norm(Rounding):
    """Layer normalization with rounded weights; computed in fp32."""

    def __init__(self, dimension: int, dtype: torch.dtype | None) -> None:
        super().__init__(dtype)
        self.weight, self.bias = nn.Parameter(torch.empty(dimension)), nn.Parameter(torch.empty(dimension))

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., D]`` to the same."""
        return F.layer_norm(inputs.float(), self.weight.shape, self.rounded(self.weight), self.rounded(self.bias))


class Table(Rounding):
    """Rows to look up, such as positions, rounded to 16 bits."""

    def __init__(self, n_rows: int, dimension: int, dtype: torch.dtype | None) -> None:
        super().__init__(dtype)
        self.n_rows = n_rows
        self.weight = nn.Parameter(torch.empty(n_rows, dimension))

    def forward(self, positions: Tensor) -> Tensor:
        """``[N]`` positions to ``[N, D]``; positions wrap around after the last row."""
        return self.rounded(F.embedding(positions % self.n_rows, self.weight))


class SubwordEmbedding(Rounding):
    """Subword embeddings, rounded to 8 bits; only the rows that are looked up are rounded.

    Args:
        n_rows, dimension: of the table.
        dtype: None: no rounding; any other type means 8 bits.
    """

    seen: Tensor

    def __init__(self, n_rows: int, dimension: int, dtype: torch.dtype | None) -> None:
        super().__init__(dtype)
        self.weight = nn.Parameter(torch.empty(n_rows, dimension))
        if dtype is not None:
            self.register_buffer("seen", torch.zeros(2))

    @torch.no_grad()
    def update_range(self) -> None:
        """Extend the range to the current values."""
        if self.dtype is not None:
            low, high = torch.aminmax(self.weight.detach())
            self.seen[0], self.seen[1] = torch.minimum(self.seen[0], low), torch.maximum(self.seen[1], high)

    def forward(self, ids: Tensor) -> Tensor:
        """``[N]`` ids to ``[N, D]``."""
        rows = F.embedding(ids, self.weight)
        if self.dtype is None or self.on_grid:
            return rows
        rounded = lambda values: from_eight_bits(to_eight_bits(values, self.seen), self.seen)  # noqa: E731
        return _StraightThrough.apply(rows, rounded)  # type: ignore[no-any-return, no-untyped-call]  # untyped in torch
