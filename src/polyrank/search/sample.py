"""Some candidates of a block, evenly spaced, on which a way of scanning is tried before it is chosen."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.search.blocks import as_tensor, derive, norms_of
from polyrank.search.kernels import quantized_of
from polyrank.storage.quantized import AnyVectors

SIZE = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """Evenly spaced candidates.

    Args:
        whole: the vectors of their block.
        positions: their positions in it.
        vectors: ``[n, D]``
        norms: ``[n]``, never too small.
    """

    whole: AnyVectors
    positions: NDArray[np.intp]
    vectors: Tensor
    norms: Tensor

    @property
    def int8_errors(self) -> Tensor:
        """Norms ``[n]`` of the rounding errors in int8; makes the block's copy in int8."""
        return torch.from_numpy(quantized_of(self.whole).row_errors[self.positions])


def sample_of(vectors: AnyVectors) -> Sample:
    """The sample of a block's vectors."""
    positions, rows, norms = derive("sample", vectors, _take)
    return Sample(vectors, positions, rows, norms)


def _take(vectors: AnyVectors) -> tuple[NDArray[np.intp], Tensor, Tensor]:
    positions = np.linspace(0, len(vectors) - 1, min(SIZE, len(vectors))).astype(np.intp)
    return positions, as_tensor(vectors[positions]), torch.from_numpy(norms_of(vectors)[positions])
