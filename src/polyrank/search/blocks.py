"""Blocks of candidate vectors, and data that is derived from a block once and kept as long as its array lives.

The derived data are a norm per candidate and, for the compiled kernel, a copy in int8: the block is read once, and each
search then reads 4 + D bytes per candidate instead of 4 D. They are kept in memory rather than in files, so they cannot
be stale. Opening an index for a few searches costs one such reading. A block's vectors must not change while it lives.
"""

import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.storage.quantized import AnyVectors

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
ROUNDING = 2.0**-24  # of one fp32 operation, relative
SMALLEST = 1e-18
ROWS_AT_A_TIME = 4096  # when something is derived
T = TypeVar("T")
A = TypeVar("A", NDArray[Any], AnyVectors)


class Block(Protocol):
    """Some candidates (``polyrank.index.Block`` is one).

    Args:
        vectors: ``[n, D]``: an array, a read-only memory map, or either of them packed in fewer bits.
        rows: ``[n]``, ascending; answers name candidates by these numbers.
        alive: ``[n]``, false where a candidate was removed; ``None``: all are alive.
    """

    @property
    def vectors(self) -> AnyVectors: ...

    @property
    def rows(self) -> Rows: ...

    @property
    def alive(self) -> NDArray[np.bool_] | None: ...


def offsets_of(block: Block) -> Floats | None:
    """Numbers ``[n]`` to add to the candidates' scores; None: nothing, also for blocks without this field."""
    offsets: Floats | None = getattr(block, "offsets", None)
    return offsets


def add_offsets(bounds: Floats, block: Block, at: slice | NDArray[np.intp]) -> Floats:
    """Upper bounds of scores before offsets are added, as upper bounds of scores with them.

    Args:
        bounds: ``[n]``
        block: of the candidates.
        at: their positions in it.
    """
    if (offsets := offsets_of(block)) is None:
        return bounds
    total = bounds + offsets[at]
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
