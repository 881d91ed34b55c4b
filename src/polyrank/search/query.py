"""The types that the parts of a search share: the machine, a way of scanning, a context prepared for it, a sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.index.protocol import Block
from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.blocks import as_tensor, derive, norms_of
from polyrank.search.profile import Profile
from polyrank.search.subspace import Subspace
from polyrank.storage.quantized import AnyVectors

SAMPLE_SIZE = 256


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and loops that a scan may use.

    Args:
        compiled: whether the compiled loops are installed and enabled.
        bf16: whether the processor has instructions for bf16.
    """

    compiled: bool
    bf16: bool

    @property
    def amx(self) -> bool:
        """Whether the compiled loops use AMX."""
        return self.compiled and kernels.has_amx()


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a search for one context.

    Args:
        n_rows: candidates.
        n_vectors: of the context.
        dimension: of a vector.
        few_columns: whether the context's vectors may lie close to a few columns.
    """

    n_rows: int
    n_vectors: int
    dimension: int
    few_columns: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Evenly spaced candidates of a block, on which a way of scanning is tried before it is chosen.

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
        return torch.from_numpy(kernels.quantized_of(self.whole).row_errors[self.positions])


def sample_of(vectors: AnyVectors) -> Sample:
    """The sample of a block's vectors."""
    positions, rows, norms = derive("sample", vectors, _take)
    return Sample(vectors, positions, rows, norms)


def _take(vectors: AnyVectors) -> tuple[NDArray[np.intp], Tensor, Tensor]:
    positions = np.linspace(0, len(vectors) - 1, min(SAMPLE_SIZE, len(vectors))).astype(np.intp)
    return positions, as_tensor(vectors[positions]), torch.from_numpy(norms_of(vectors)[positions])


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bounds that a way of scanning gives a sample of the candidates.

    Args:
        coarse: the upper bounds ``[n]`` that all candidates get.
        fine: computes the finer bounds of candidates whose coarse bound reaches the best; ``None``: there are none.
    """

    coarse: Tensor
    fine: Callable[[], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A way of scanning. All are exact: each offers every candidate whose upper bound reaches the k-th best score.

    Args:
        name: in results and in the ``ways`` of ``search``.
        bits: of a candidate's numbers in the copy that is read.
        usable: whether this machine supports it for vectors of a dimension.
        cost: the least cost of a search, in the profile's unit; infinite if another way is always better.
        prepare: prepares a context.
        scan: offers the candidates of a block to contexts that were prepared for this function.
        estimate: bounds of a sample, from its products ``[n, M]``; ``None``: every candidate is scored in fp32, the
            bounds are as close as fp32 allows, and ``cost`` is the whole cost.
        n_columns: columns in place of the context's vectors; 0: the vectors themselves.
    """

    name: str
    bits: kernels.Bits
    usable: Callable[[int, Machine], bool]
    cost: Callable[[Size, Machine, Profile], float]
    prepare: Callable[["Way", Best], "Query"]
    scan: Callable[[Sequence["Query"], Block, Machine], None]
    estimate: Callable[["Query", Sample, Tensor, Machine], Estimate] | None = None
    n_columns: int = 0

    def query(self, best: Best) -> "Query":
        """A context, prepared for this way."""
        return self.prepare(self, best)


@dataclass(frozen=True, slots=True)
class Query:
    """One context in a scan.

    Args:
        best: collects its results.
        way: of scanning.
        columns: ``[q, D]`` in fp32: the context's vectors, or the columns of their subspace.
        subspace: how the vectors are mixed from the columns; ``None``: the vectors are the columns.
        int16: the columns in int16, for candidates in int8.
        bf16: the columns in bf16, for candidates in bf16.
        context_error: without a subspace, the largest norm of a context vector's rounding error in int16 or bf16.
    """

    best: Best
    way: Way
    columns: Tensor
    subspace: Subspace | None = None
    int16: kernels.Int16Columns | None = None
    bf16: Tensor | None = None
    context_error: float = 0.0

    @property
    def n_columns(self) -> int:
        return len(self.columns)
