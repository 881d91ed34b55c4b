"""Candidates and columns in bf16, for processors that multiply such numbers several times faster than fp32 ones.

``y = h + r`` with ``h`` in bf16; what is lost, ``|r|``, is kept for each candidate, so that bounds account for it. Sums
of products are taken in fp32 by the processor and given in bf16.
"""

from dataclasses import dataclass
from functools import cache
from time import perf_counter

import torch
from torch import Tensor

from polyrank.devices import cpu_has_bf16
from polyrank.packing import AnyVectors, PackedVectors
from polyrank.search.blocks import ROUNDING, ROWS_AT_A_TIME, Floats, as_tensor, derive, norms_of
from polyrank.search.blocks import SMALLEST as SMALLEST_NORM

ROUNDING_OF_RESULT = 2.0**-8  # of a number rounded to bf16, relative
SMALLEST = 1e-30  # these processors take denormal numbers for zeros


@dataclass(frozen=True, slots=True)
class Halves:
    """A block in bf16.

    Args:
        values: ``[n, D]``
        lost: ``[n]``, norms of vectors less values, never too small.
    """

    values: Tensor
    lost: Floats

    def __getitem__(self, part: slice) -> Tensor:
        return self.values[part]


@cache
def time_of_halves() -> float | None:
    """How long a product in bf16 takes on this processor, as a part of fp32's; ``None`` without instructions for it."""
    if not cpu_has_bf16():
        return None
    rows, columns = torch.ones(2048, 768), torch.ones(768, 64)
    times = []
    for dtype in (torch.bfloat16, torch.float32):
        a, b, best = rows.to(dtype), columns.to(dtype), float("inf")
        for _ in range(4):
            started = perf_counter()
            torch.mm(a, b)
            best = min(best, perf_counter() - started)
        times.append(best)
    return times[0] / times[1]


def halves_of(vectors: AnyVectors) -> Halves:
    """A block's vectors in bf16: as they are stored, or a copy that is made once."""
    return derive("halves", vectors, _halve)


def _halve(vectors: AnyVectors) -> Halves:
    if isinstance(vectors, PackedVectors) and vectors.scales is None:
        return Halves(as_tensor(vectors.values.view("<i2")).view(torch.bfloat16), 0.0 * norms_of(vectors))
    values = torch.empty(vectors.shape, dtype=torch.bfloat16)
    lost = torch.empty(len(vectors))
    for start in range(0, len(vectors), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        values[part], lost[part] = halve(as_tensor(vectors[part]))
    return Halves(values, lost.numpy())


def halve(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors ``[n, D]`` in bf16, and the norms ``[n]`` of what that loses, never too small.

    >>> values, lost = halve(torch.tensor([[1.0, 1.00390625]]))
    >>> values.tolist(), bool(lost[0] >= 0.00390625)
    ([[1.0, 1.0]], True)
    """
    values = vectors.bfloat16()
    lost = torch.linalg.vector_norm(vectors - values.float(), dim=1)
    lost = lost * (1.0 + 1e-4) + torch.linalg.vector_norm(vectors, dim=1) * (4.0 * ROUNDING)
    return values, lost + SMALLEST_NORM
