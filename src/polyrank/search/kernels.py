"""The compiled loops, where the package ``polyrank-kernels`` is installed, and the int8 copies that they read.

A candidate ``y`` becomes ``scale * values`` with values in -127..127. The norm of the rounding error is kept for each
candidate, so that bounds can account for it. Products of these are sums of integers, exact in any order.

The loops have a form for each instruction set, and this module chooses among those that the processor supports. Many
columns are first laid out in tiles of 16: as AMX multiplies them, or so that the sums of a few rows with 16 columns
stay in registers. Products become bounds before they leave the cache.
"""

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.devices.choice import INSTRUCTIONS, allowed_instructions
from polyrank.errors import ConfigError
from polyrank.search.blocks import ROUNDING, ROWS_AT_A_TIME, SMALLEST, Floats, as_tensor, derive, norms_of
from polyrank.storage.quantized import AnyVectors, PackedVectors

API = 4  # of polyrank-kernels
FORMS = INSTRUCTIONS  # form n of the loops is the n-th, from 1
AVX512_VNNI, AMX = (FORMS.index(name) + 1 for name in ("avx512-vnni", "amx"))
LANES = 64  # numbers that the loops process at a time: rows are padded with zeros to a multiple
WIDEST = 8192  # dimensions that they support
FEWEST_ROWS = 512  # worth a thread
COLUMNS = 16  # that a tile holds, some of them zeros
FEWEST_COLUMNS = 8  # worth a tile in fp32
LONGEST_FOR_AMX = 2048  # dimensions
ROUNDING_OF_TILES = 2.0**-15  # of a product of split rows, relative to both norms, in addition to that of fp32 sums

Bits = Literal[8, 16, 32]


@dataclass(frozen=True, slots=True)
class Quantized:
    """A block in int8.

    Args:
        values: ``[n, D']``, D' the padded D.
        scales: ``[n]``
        row_errors: ``[n]``, norms of vectors less scaled values, never too small.
    """

    values: NDArray[np.int8]
    scales: Floats
    row_errors: Floats

    def __getitem__(self, part: slice) -> "Quantized":
        return Quantized(self.values[part], self.scales[part], self.row_errors[part])


@dataclass(frozen=True, slots=True)
class Int16Columns:
    """Columns in int16: ``scales[:, None] * values``, exactly.

    Args:
        values: ``[q, D']``
        scales: ``[q]``
        tiles: the same in AMX's layout; ``None``: AMX is not used.
    """

    values: NDArray[np.int16]
    scales: Floats
    tiles: NDArray[np.uint8] | None = None

    def as_doubles(self, dimension: int) -> Tensor:
        """As fp64, ``[q, D]``."""
        return torch.from_numpy(self.values[:, :dimension] * self.scales[:, None].astype(np.float64))


@cache
def package() -> Any:
    """``polyrank_kernels``, or ``None``.

    Raises:
        ConfigError: its version is another, which would misread the arguments.
    """
    try:
        module = importlib.import_module("polyrank_kernels")
    except ImportError:
        return None
    if getattr(module, "API", 1) != API:
        raise ConfigError(
            f"polyrank-kernels has version {getattr(module, 'API', 1)} of its functions, this polyrank needs {API};"
            " install the polyrank-kernels released with it, or uninstall it"
        )
    return module


@cache
def best_form() -> int:
    """The number of the best form of the loops on this machine; 0 without the package.

    ``POLYRANK_INSTRUCTIONS`` sets an upper limit.

    Raises:
        UsageError: ``POLYRANK_INSTRUCTIONS`` names no known instruction set.
    """
    most = allowed_instructions()
    if package() is None:
        return 0
    has = package().library.polyrank_has
    return max(n for n, name in enumerate(FORMS, 1) if has(n) and FORMS.index(name) <= FORMS.index(most))


def has_amx() -> bool:
    """Whether the best form is AMX's."""
    return best_form() == AMX


def in_tiles(bits: Bits, dimension: int) -> bool:
    """Whether this machine bounds rows of ``dimension`` numbers of ``bits`` bits in tiles; 8-bit rows are padded."""
    if bits == 16:
        return has_amx() and dimension <= LONGEST_FOR_AMX and dimension % 32 == 0
    return best_form() > 0 and dimension <= WIDEST


def form_of_tiles(dimension: int) -> int:
    """The form of the loops that bounds rows of ``dimension`` numbers in tiles: AMX has a limit on their length."""
    return AVX512_VNNI if has_amx() and dimension > LONGEST_FOR_AMX else best_form()


def quantized_of(vectors: AnyVectors) -> Quantized:
    """A block's vectors in int8: as stored, or a copy that is made once."""
    return derive("int8", vectors, _quantize)


def _quantize(vectors: AnyVectors) -> Quantized:
    n, dimension = vectors.shape
    if isinstance(vectors, PackedVectors) and vectors.scales is not None and dimension % LANES == 0:
        return Quantized(vectors.values.view(np.int8), vectors.scales, norms_of(vectors) * np.float32(4.0 * ROUNDING))
    values = np.zeros((n, -(-dimension // LANES) * LANES), np.int8)
    scales, row_errors = np.empty(n, np.float32), np.empty(n, np.float32)
    for start in range(0, n, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        rows = as_tensor(vectors[part])
        scale = (rows.abs().amax(1) / 127.0).clamp_(min=1e-30)
        rounded = (rows / scale[:, None]).round_().clamp_(-127.0, 127.0)
        values[part, :dimension] = rounded.nan_to_num().to(torch.int8).numpy()
        scales[part] = scale.numpy()
        row_errors[part] = torch.linalg.vector_norm(rows - rounded * scale[:, None], dim=1).numpy() + SMALLEST
    return Quantized(
        values, scales, row_errors * np.float32(1.0 + 1e-4) + norms_of(vectors) * np.float32(4.0 * ROUNDING)
    )


def to_int16(columns: Tensor) -> Int16Columns:
    """Columns ``[q, D]`` in int16, as fine as sums in int32 allow, and in two signed bytes.

    >>> to_int16(torch.tensor([[0.5, -1.0]])).as_doubles(2)
    tensor([[ 0.5000, -1.0000]], dtype=torch.float64)
    """
    n_columns, dimension = columns.shape
    finest = min(32638, (2**31 - 1) // (127 * dimension) // 2 * 2)
    scales = (columns.abs().amax(1).double() / finest).float().clamp_(min=1e-30)
    values = np.zeros((n_columns, -(-dimension // LANES) * LANES), np.int16)
    values[:, :dimension] = (columns.double() / scales[:, None].double()).round_().clamp_(-finest, finest).numpy()
    return Int16Columns(values, scales.numpy())


def join(columns: Sequence[Int16Columns]) -> Int16Columns:
    """Columns of several contexts for one product, with their tiles if AMX multiplies them."""
    values, scales = np.concatenate([c.values for c in columns]), np.concatenate([c.scales for c in columns])
    amx = form_of_tiles(values.shape[1]) == AMX
    return Int16Columns(values, scales, _lay(values) if amx else None)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Vectors of several contexts in tiles.

    Args:
        form: of the loops that read them.
        bits: of a number in the candidates' rows: 8 (the vectors are then in int16), 16 or 32.
        data: the vectors.
        scales: ``[q]``, of vectors in int16.
        edges: ``[C + 1]``, where each context's vectors begin, and q.
    """

    form: int
    bits: Bits
    data: NDArray[np.uint8]
    scales: Floats | None
    edges: NDArray[np.int64]


def to_tiles(vectors: Sequence[Tensor | Int16Columns], bits: Bits) -> Tiles:
    """Vectors ``[M, D]`` of each context as tiles, for rows of ``bits`` bits; 8-bit rows need vectors in int16."""
    edges = np.cumsum([0, *(len(v.scales) if isinstance(v, Int16Columns) else len(v) for v in vectors)], dtype=np.int64)
    int16 = [v for v in vectors if isinstance(v, Int16Columns)]
    if int16:
        values, scales = np.concatenate([v.values for v in int16]), np.concatenate([v.scales for v in int16])
        return Tiles(form_of_tiles(values.shape[1]), bits, _lay(values), scales, edges)
    columns = torch.cat([v for v in vectors if isinstance(v, Tensor)]).numpy()
    return Tiles(form_of_tiles(columns.shape[1]), bits, _lay(columns), None, edges)


def bounds_in_tiles(
    rows: Quantized | Tensor,
    tiles: Tiles,
    norms: Floats,
    row_errors: Floats | None,
    limits: Sequence[tuple[float, ...]],
) -> Floats:
    """Upper bounds ``[C, n]`` of scores of rows for several contexts, without keeping a product.

    Args:
        rows: ``[n, D]``. For rows in bf16, vectors are rounded to bf16 too. With AMX, products of rows in fp32 are off
            by ``ROUNDING_OF_TILES``.
        tiles: the contexts' vectors.
        norms: ``[n]``, of the candidates, never too small.
        row_errors: ``[n]``, norms of the rounding errors of int8 or bf16; ``None`` in fp32.
        limits: for each context five numbers: the largest norm of a vector; how far products are off for other
            reasons, relative to a candidate's norm; the steepness of the mean; its rounding; that of the result.
    """
    values = as_tensor(rows.values) if isinstance(rows, Quantized) else rows.contiguous()
    scales = rows.scales.ctypes.data if isinstance(rows, Quantized) else None
    (n, dimension), n_contexts = values.shape, len(limits)
    result, numbers = np.empty((n_contexts, n), np.float32), np.array(limits, np.float32)
    columns = (
        tiles.data.ctypes.data,
        None if tiles.scales is None else tiles.scales.ctypes.data,
        tiles.edges.ctypes.data,
    )
    errors = None if row_errors is None else row_errors.ctypes.data
    sizes = n_contexts, n, dimension, norms.ctypes.data, errors, result.ctypes.data
    call = package().library.polyrank_bounds_in_tiles
    if (
        call(tiles.form, tiles.bits, values.data_ptr(), scales, *columns, numbers.ctypes.data, *sizes, _n_threads(n))
        < 0
    ):
        raise RuntimeError(f"no memory for {n} rows of {dimension} dimensions, or no form {tiles.form} of the loops")
    return result


def _lay(columns: NDArray[Any]) -> NDArray[np.uint8]:
    """Columns in fp32 or int16 as tiles of the form that reads them."""
    in_int16, form = columns.dtype == np.int16, form_of_tiles(columns.shape[1])
    library = package().library
    tiles = np.empty(library.polyrank_tiles_size(form, *columns.shape, 1 if in_int16 else 2), np.uint8)
    lay = library.polyrank_lay_codes if in_int16 else library.polyrank_lay_floats
    lay(form, columns.ctypes.data, *columns.shape, tiles.ctypes.data)
    return tiles


def products(rows: Quantized, part: slice, columns: Int16Columns, out: Tensor, form: int = 0) -> None:
    """Products of the candidates of ``part`` with columns, into ``out`` ``[n, q]``.

    Args:
        rows: of the block.
        part: the range of candidates.
        columns: see ``join``.
        out: contiguous.
        form: of the loops; 0 for the machine's best.
    """
    values, scales = rows.values[part], rows.scales[part]
    n_columns, width = columns.values.shape
    tiles = None if columns.tiles is None else columns.tiles.ctypes.data
    pointers = (values.ctypes.data, columns.values.ctypes.data, tiles, scales.ctypes.data, columns.scales.ctypes.data)
    call, form = package().library.polyrank_products, form or best_form()
    if call(*pointers, out.data_ptr(), len(values), n_columns, width, form, _n_threads(len(values))) < 0:
        raise RuntimeError(f"no form {form} of the products for {width} dimensions")


def bounds(
    products: Tensor, norms: Tensor, row_errors: Tensor, centre: Tensor, weights: Tensor, numbers: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Upper bounds of scores, and errors, ``[n]`` each; see ``Subspace.coarse_bounds`` for the formula.

    Args:
        products: ``[n, q]``, of candidates and a subspace's columns, with contiguous rows.
        norms: ``[n]``, of the candidates, never too small.
        row_errors: ``[n]``, norms of the rounding errors of int8.
        centre, weights: of the subspace, ``[q]``.
        numbers: its radius, residual, slack and rounding, and the size of the largest context vector.
    """
    n, n_columns = products.shape
    result, errors = torch.empty(n), torch.empty(n)
    pointers = (products.data_ptr(), products.stride(0), n, n_columns, norms.data_ptr(), row_errors.data_ptr())
    of_subspace = ctypes.byref(package().Numbers(centre.data_ptr(), weights.data_ptr(), *numbers))
    package().library.polyrank_bounds(
        *pointers, of_subspace, result.data_ptr(), errors.data_ptr(), best_form(), _n_threads(n)
    )
    return result, errors


def means(products: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax-weighted means and maxima, ``[n]`` each, of products ``[n, M]`` with contiguous rows; not in place."""
    mean, best = torch.empty(len(products)), torch.empty(len(products))
    _means(products, mean, best, None)
    return mean, best


def moments(products: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and deviations of the products under their weights, never too small."""
    mean, best, spread = (torch.empty(len(products)) for _ in range(3))
    _means(products, mean, best, spread)
    return mean, best, spread


def _means(products: Tensor, mean: Tensor, best: Tensor, spread: Tensor | None) -> None:
    n, n_vectors = products.shape
    into = (mean.data_ptr(), best.data_ptr(), None if spread is None else spread.data_ptr())
    package().library.polyrank_means(
        products.data_ptr(), products.stride(0), n, n_vectors, *into, best_form(), _n_threads(n)
    )


def _n_threads(n: int) -> int:
    return min(torch.get_num_threads(), max(n // FEWEST_ROWS, 1))
