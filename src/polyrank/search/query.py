"""What the parts of a search hand each other: the machine, one way of scanning, and a context made ready for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrank.search import kernels
from polyrank.search.best import Best
from polyrank.search.blocks import Block
from polyrank.search.profile import Profile
from polyrank.search.sample import Sample
from polyrank.search.subspace import Subspace


@dataclass(frozen=True, slots=True)
class Machine:
    """What a scan may use.

    Args:
        device: where products in fp32 are taken.
        compiled: whether the compiled loops are installed and wanted, and the device is the CPU.
        bf16: whether the device is a CPU with instructions for bf16.
    """

    device: torch.device
    compiled: bool
    bf16: bool

    @property
    def amx(self) -> bool:
        """Whether the compiled loops use AMX."""
        return self.compiled and kernels.has_amx()

    def has_tiles(self, bits: kernels.Bits, dimension: int) -> bool:
        """Whether vectors of so many numbers of so many bits are bounded in tiles."""
        return self.compiled and kernels.in_tiles(bits, dimension)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a search for one context.

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
class Estimate:
    """What a way of scanning would do to a sample of the candidates.

    Args:
        coarse: the upper bounds ``[n]`` that all candidates get.
        fine: computes those of candidates whose coarse bound reaches the best; ``None``: there are no others.
    """

    coarse: Tensor
    fine: Callable[[], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A way of scanning. All are exact: each offers every candidate whose upper bound reaches the k-th best score.

    Args:
        name: in results and in the ``ways`` of ``search``.
        bits: of a candidate's numbers as they are read.
        usable: whether this machine can do it for vectors of some dimension.
        cost: of a search at least, in the unit of the profile; infinite where another way is always better.
        prepare: makes a context ready.
        scan: offers the candidates of a block to contexts that were made ready, all for this function.
        estimate: bounds of a sample, from its products ``[n, M]``; ``None``: every candidate is scored in fp32, the
            bounds are as close as that allows, and the cost is all there is.
        n_columns: columns in the place of the context's vectors; 0: the vectors themselves.
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
        """A context made ready to be scanned for."""
        return self.prepare(self, best)


@dataclass(frozen=True, slots=True)
class Query:
    """One context in a scan.

    Args:
        best: collects its results.
        way: of scanning.
        columns: ``[q, D]`` in fp32: the context's vectors, or the columns of their subspace.
        subspace: says how the vectors are mixed from the columns; ``None``: the vectors are the columns.
        int16: the columns in int16, for candidates in int8.
        bf16: the columns in bf16, for candidates in bf16.
        context_error: without a subspace, the largest norm of what int16 or bf16 loses of a context vector.
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
