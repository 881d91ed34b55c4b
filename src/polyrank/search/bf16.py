"""Candidates and columns in bf16, for processors that multiply such numbers several times faster than fp32 ones.

``y = h + r`` with ``h`` in bf16; the norm of the rest, ``|r|``, is kept for each candidate, so that bounds account for
it. The processor sums products in fp32 and returns them in bf16.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyrank.search.blocks import ROUNDING, ROWS_AT_A_TIME, Floats, as_tensor, derive, norms_of
from polyrank.search.blocks import SMALLEST as SMALLEST_NORM
from polyrank.storage.quantized import AnyVectors, PackedVectors

ROUNDING_OF_RESULT = 2.0**-8  # of a number rounded to bf16, relative
SMALLEST = 1e-30  # these processors treat denormal numbers as zeros


@dataclass(frozen=True, slots=True)
class Bf16Vectors:
    """A block in bf16.

    Args:
        values: ``[n, D]``
        row_errors: ``[n]``, norms of vectors less values, never too small.
    """

    values: Tensor
    row_errors: Floats

    def __getitem__(self, part: slice) -> Tensor:
        return self.values[part]


def bf16_of(vectors: AnyVectors) -> Bf16Vectors:
    """A block's vectors in bf16: as stored, or a copy that is made once."""
    return derive("bf16", vectors, _to_bf16)


def _to_bf16(vectors: AnyVectors) -> Bf16Vectors:
    if isinstance(vectors, PackedVectors) and vectors.scales is None:
        return Bf16Vectors(as_tensor(vectors.values.view("<i2")).view(torch.bfloat16), 0.0 * norms_of(vectors))
    values = torch.empty(vectors.shape, dtype=torch.bfloat16)
    row_errors = torch.empty(len(vectors))
    for start in range(0, len(vectors), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        values[part], row_errors[part] = to_bf16(as_tensor(vectors[part]))
    return Bf16Vectors(values, row_errors.numpy())


def to_bf16(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors ``[n, D]`` in bf16, and the norms ``[n]`` of the rounding errors, never too small.

    >>> values, errors = to_bf16(torch.tensor([[1.0, 1.00390625]]))
    >>> values.tolist(), bool(errors[0] >= 0.00390625)
    ([[1.0, 1.0]], True)
    """
    values = vectors.bfloat16()
    errors = torch.linalg.vector_norm(vectors - values.float(), dim=1)
    errors = errors * (1.0 + 1e-4) + torch.linalg.vector_norm(vectors, dim=1) * (4.0 * ROUNDING)
    return values, errors + SMALLEST_NORM
