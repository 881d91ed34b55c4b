"""The compiled loops, where the package ``polyrank-kernels`` is installed, and the int8 copies that they read.

A candidate ``y`` becomes ``scale * codes`` with codes in -127..127; what that loses is kept as a norm per candidate, so
that bounds can account for it. Products of codes are sums of integers, exact in any order.
"""

import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.packing import AnyVectors, PackedVectors
from polyrank.search.blocks import ROUNDING, ROWS_AT_A_TIME, Floats, as_tensor, derive, norms_of

LANES = 32  # numbers that the loops take at a time: rows are padded with zeros to a multiple
WIDEST = 8192  # dimensions that they take
FEWEST_ROWS = 512  # worth a thread


@dataclass(frozen=True, slots=True)
class Codes:
    """A block in int8.

    Args:
        values: ``[n, D']``, D' the padded D.
        scales: ``[n]``
        lost: ``[n]``, norms of vectors less scaled values, never too small.
    """

    values: NDArray[np.int8]
    scales: Floats
    lost: Floats


@dataclass(frozen=True, slots=True)
class Packed:
    """Columns in int16: ``scales[:, None] * values``, exactly.

    Args:
        values: ``[q, D']``
        scales: ``[q]``
    """

    values: NDArray[np.int16]
    scales: Floats

    def columns(self, dimension: int) -> Tensor:
        """As fp64, ``[q, D]``."""
        return torch.from_numpy(self.values[:, :dimension] * self.scales[:, None].astype(np.float64))


@cache
def library() -> Any:
    """The compiled functions, or ``None``."""
    try:
        return importlib.import_module("polyrank_kernels").library
    except ImportError:
        return None


def codes_of(vectors: AnyVectors) -> Codes:
    """A block's vectors in int8: as they are stored, or a copy that is made once."""
    return derive("codes", vectors, _encode)


def _encode(vectors: AnyVectors) -> Codes:
    n, dimension = vectors.shape
    if isinstance(vectors, PackedVectors) and vectors.scales is not None and dimension % LANES == 0:
        return Codes(vectors.values.view(np.int8), vectors.scales, norms_of(vectors) * np.float32(4.0 * ROUNDING))
    values = np.zeros((n, -(-dimension // LANES) * LANES), np.int8)
    scales, lost = np.empty(n, np.float32), np.empty(n, np.float32)
    for start in range(0, n, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        rows = as_tensor(vectors[part])
        scale = (rows.abs().amax(1) / 127.0).clamp_(min=1e-30)
        codes = (rows / scale[:, None]).round_().clamp_(-127.0, 127.0)
        values[part, :dimension] = codes.nan_to_num().to(torch.int8).numpy()
        scales[part] = scale.numpy()
        lost[part] = torch.linalg.vector_norm(rows - codes * scale[:, None], dim=1).numpy()
    return Codes(values, scales, lost * np.float32(1.0 + 1e-4) + norms_of(vectors) * np.float32(4.0 * ROUNDING))


def pack(columns: Tensor) -> Packed:
    """Columns ``[q, D]`` in int16, as fine as sums in int32 allow.

    >>> pack(torch.tensor([[0.5, -1.0]])).columns(2)
    tensor([[ 0.5000, -1.0000]], dtype=torch.float64)
    """
    n_columns, dimension = columns.shape
    finest = min(32766, (2**31 - 1) // (127 * dimension) // 2 * 2)
    scales = (columns.abs().amax(1).double() / finest).float().clamp_(min=1e-30)
    values = np.zeros((n_columns, -(-dimension // LANES) * LANES), np.int16)
    values[:, :dimension] = (columns.double() / scales[:, None].double()).round_().clamp_(-finest, finest).numpy()
    return Packed(values, scales.numpy())


def products(codes: Codes, part: slice, packed: Packed, out: Tensor, form: int = 0) -> None:
    """Products of the coded candidates of ``part`` with packed columns, into ``out`` ``[n, q]``.

    Args:
        codes: of the block.
        part: its rows, start and stop.
        packed: the columns.
        out: contiguous.
        form: 0 for the best that the machine has.
    """
    values, scales = codes.values[part], codes.scales[part]
    n_columns, width = packed.values.shape
    call = library().polyrank_products

    def run(start: int, stop: int) -> None:
        rows = (values[start:].ctypes.data, packed.values.ctypes.data, scales[start:].ctypes.data)
        into = out.data_ptr() + 4 * start * n_columns
        done = call(*rows, packed.scales.ctypes.data, into, stop - start, n_columns, width, form)
        if done < 0:
            raise RuntimeError(f"no form {form} of the products for {width} dimensions")

    _spread(run, len(values))


def means(products: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax-weighted means and maxima, ``[n]`` each, of products ``[n, M]`` with contiguous rows, untouched."""
    n, n_vectors = products.shape
    mean, best = torch.empty(n), torch.empty(n)
    stride, call = products.stride(0), library().polyrank_means

    def run(start: int, stop: int) -> None:
        first = products.data_ptr() + 4 * start * stride
        call(first, stride, stop - start, n_vectors, mean.data_ptr() + 4 * start, best.data_ptr() + 4 * start)

    _spread(run, n)
    return mean, best


def _spread(run: Callable[[int, int], None], n: int) -> None:
    """Run over ranges of rows, one for each of torch's threads. The calls let go of the interpreter."""
    n_threads = min(torch.get_num_threads(), max(n // FEWEST_ROWS, 1))
    if n_threads == 1:
        return run(0, n)
    edges = [n * i // n_threads for i in range(n_threads + 1)]
    futures = [_threads(os.getpid()).submit(run, *pair) for pair in pairwise(edges[:-1])]
    run(edges[-2], n)
    for future in futures:
        future.result()
    return None


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork."""
    return ThreadPoolExecutor(max(torch.get_num_threads() - 1, 1), "polyrank-search")
