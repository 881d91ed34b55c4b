"""Blocks of candidate vectors, and data that is derived from a block once and kept as long as its array lives.

The derived data are a norm per candidate and, for the compiled kernel, a copy in int8: the block is read once, and each
search then reads 4 + D bytes per candidate instead of 4 D. They are kept in memory rather than in files, so they cannot
be stale. Opening an index for a few searches costs one such reading. A block's vectors must not change while it lives.

Processors with bf16 instructions multiply such numbers several times faster than fp32 ones: ``y = h + r`` with ``h`` in
bf16; the norm of the rest, ``|r|``, is kept for each candidate, so that bounds account for it. The processor sums
products in fp32 and returns them in bf16.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.index.protocol import Block
from polyrank.storage.quantized import AnyVectors, PackedVectors

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
ROUNDING = 2.0**-24  # of one fp32 operation, relative
SMALLEST = 1e-18
ROWS_AT_A_TIME = 4096  # when something is derived
ROUNDING_OF_RESULT = 2.0**-8  # of a number rounded to bf16, relative
TIMED_ROWS, TIMED_DIMENSION = 2048, 768  # of a product that is timed, to choose how columns lie in memory
LEAST_TIMED = 16_384  # candidates; a scan of fewer takes less time than the timing saves
MOST_COLUMNS = 64  # columns of a timed product; more are alike
REPEATS = 4
T = TypeVar("T")
A = TypeVar("A", NDArray[Any], AnyVectors)


def add_offsets(bounds: Floats, block: Block, at: slice | NDArray[np.intp]) -> Floats:
    """Upper bounds of scores before offsets are added, as upper bounds of scores with them.

    Args:
        bounds: ``[n]``
        block: of the candidates.
        at: their positions in it.
    """
    if block.offsets is None:
        return bounds
    total = bounds + block.offsets[at]
    total += 4.0 * ROUNDING * np.abs(total)  # the sum is rounded, and so is the score's
    return total


def n_alive(block: Block) -> int:
    """How many candidates of a block are alive."""
    return len(block.rows) if block.alive is None else int(np.count_nonzero(block.alive))


_derived: dict[tuple[str, int], Any] = {}


def derive(name: str, array: A, make: Callable[[A], T]) -> T:
    """The result of ``make`` for this very array, computed once and dropped with it.

    >>> row = np.ones((1, 2), np.float32)
    >>> derive("shape", row, np.shape) is derive("shape", row, np.shape)
    True
    """
    key = (name, id(array))
    value = _derived.get(key)
    if value is None:
        value = make(array)
        if key not in _derived:  # another thread may have been faster
            weakref.finalize(array, _derived.pop, key, None)
        _derived[key] = value
    return cast(T, value)


class _Shared:
    """An array's memory, declared writable because torch requires it; polyrank does not write to it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        pointer = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, which may be a read-only memory map. Do not write to it."""
    if array.flags.writeable or array.size == 0:
        return torch.from_numpy(np.array(array) if not array.flags.writeable else array)
    return torch.from_numpy(np.asarray(_Shared(array)))


def norms_of(vectors: AnyVectors) -> Floats:
    """Euclidean norms ``[n]``, never below the true ones, nor below 1e-18, so that their squares do not underflow.

    >>> bool(norms_of(np.array([[3.0, 4.0]], np.float32))[0] >= 5.0)
    True
    """
    return derive("norms", vectors, _norms)


def _norms(vectors: AnyVectors) -> Floats:
    result = np.empty(len(vectors), np.float32)
    up = 1.0 + 2.0 * (vectors.shape[1] + 8) * ROUNDING
    for start in range(0, len(vectors), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        result[part] = torch.linalg.vector_norm(as_tensor(vectors[part]), dim=1).numpy() * up + SMALLEST
    return result


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
    return values, errors + SMALLEST


def lay_out(columns: Tensor, n_rows: int) -> Tensor:
    """Columns ``[q, D]`` as ``[D, q]``, in memory as a product with candidates reads them fastest.

    The two ways differ up to fourfold, depending on the processor, its matrix library and the number of columns.
    The first call for about as many columns times both ways, which takes up to 30 milliseconds. The products differ in
    rounding only.

    Args:
        columns: in fp32 or bf16.
        n_rows: how many candidates will be multiplied with them.

    >>> lay_out(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 10)
    tensor([[1., 4.],
            [2., 5.],
            [3., 6.]])
    """
    about = min(1 << (len(columns) - 1).bit_length(), MOST_COLUMNS)
    if n_rows >= LEAST_TIMED and _is_faster_as_rows(about, columns.dtype, torch.get_num_threads()):
        return columns.contiguous().T
    return columns.T.contiguous()


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, except the first, which allocates memory."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return min(seconds[1:])


@cache
def _is_faster_as_rows(n_columns: int, dtype: torch.dtype, _: int) -> bool:
    """Whether a product is faster if each column's numbers lie together; the last argument is the number of threads."""
    rows, columns = (torch.ones(n, TIMED_DIMENSION, dtype=dtype) for n in (TIMED_ROWS, n_columns))
    products, apart = torch.empty(TIMED_ROWS, n_columns, dtype=dtype), columns.T.contiguous()
    together = shortest(lambda: torch.mm(rows, columns.T, out=products))
    return together < shortest(lambda: torch.mm(rows, apart, out=products))
