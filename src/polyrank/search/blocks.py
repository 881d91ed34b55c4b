"""Blocks of candidate vectors, and what is derived from one once and kept for as long as its array lives.

The derived data are a norm per candidate and, for the compiled kernel, a copy in int8: one reading of the block, then
4 + D bytes for each candidate instead of 4 D for each search. They are kept in memory rather than in files, so that no
file of theirs can be stale; who opens an index for a few searches pays for one reading. A block's vectors must not
change while it lives.
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


class Block(Protocol):
    """Some candidates (``polyrank.index.Block`` is one).

    Args:
        vectors: ``[n, D]``: an array, a read-only memory map, or either of them packed in fewer bits.
        rows: ``[n]``, ascending; the numbers by which answers name candidates.
        alive: ``[n]``, false where a candidate was removed; ``None``: all are alive.
    """

    @property
    def vectors(self) -> AnyVectors: ...

    @property
    def rows(self) -> Rows: ...

    @property
    def alive(self) -> NDArray[np.bool_] | None: ...


def n_alive(block: Block) -> int:
    """How many candidates of a block are alive."""
    return len(block.rows) if block.alive is None else int(np.count_nonzero(block.alive))


_derived: dict[tuple[str, int], Any] = {}


def derive(name: str, array: AnyVectors, make: Callable[[AnyVectors], T]) -> T:
    """What ``make`` gives for this very array, made once and dropped with it.

    >>> row = np.ones((1, 2), np.float32)
    >>> derive("shape", row, np.shape) is derive("shape", row, np.shape)
    True
    """
    key = (name, id(array))
    value = _derived.get(key)
    if value is None:
        value = make(array)
        if key not in _derived:  # the finaliser belongs to the one that is kept
            weakref.finalize(array, _derived.pop, key, None)
        _derived[key] = value
    return cast(T, value)


class _Shared:
    """An array's memory, said to be writable because torch wants that; nobody writes to it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        pointer = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, of a read-only memory map too. It must only be read."""
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
