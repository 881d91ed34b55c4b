"""The compiled loops, where the package ``polyrank-kernels`` is installed, and the int8 copies that they read.

A candidate ``y`` becomes ``scale * codes`` with codes in -127..127; what that loses is kept as a norm per candidate, so
that bounds can account for it. Products of codes are sums of integers, exact in any order. Where the processor has AMX,
whose instructions multiply tiles of 1 KB, columns are laid into tiles first, and products in fp32 are had from it too.
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

from polyrank.errors import ConfigError
from polyrank.packing import AnyVectors, PackedVectors
from polyrank.search.blocks import ROUNDING, ROWS_AT_A_TIME, SMALLEST, Floats, as_tensor, derive, norms_of

API = 3  # of polyrank-kernels
LANES = 64  # numbers that the loops take at a time: rows are padded with zeros to a multiple
WIDEST = 8192  # dimensions that they take
FEWEST_ROWS = 512  # worth a thread
FEWEST_COLUMNS = 8  # worth splitting rows into bf16
ROUNDING_OF_TILES = 2.0**-15  # of a product of split rows, relative to both norms, besides that of summing in fp32

Bits = Literal[8, 16, 32]


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

    def __getitem__(self, part: slice) -> "Codes":
        return Codes(self.values[part], self.scales[part], self.lost[part])


@dataclass(frozen=True, slots=True)
class Packed:
    """Columns in int16: ``scales[:, None] * values``, exactly.

    Args:
        values: ``[q, D']``
        scales: ``[q]``
        tiles: the same as AMX reads them; ``None``: not wanted, or no AMX.
    """

    values: NDArray[np.int16]
    scales: Floats
    tiles: NDArray[np.uint8] | None = None

    def columns(self, dimension: int) -> Tensor:
        """As fp64, ``[q, D]``."""
        return torch.from_numpy(self.values[:, :dimension] * self.scales[:, None].astype(np.float64))


@cache
def package() -> Any:
    """``polyrank_kernels``, or ``None``.

    Raises:
        ConfigError: it is of another version, and would misread its arguments.
    """
    try:
        found = importlib.import_module("polyrank_kernels")
    except ImportError:
        return None
    if getattr(found, "API", 1) != API:
        raise ConfigError(
            f"polyrank-kernels has version {getattr(found, 'API', 1)} of its functions, this needs {API}; install the"
            " one that came with this polyrank, or none"
        )
    return found


@cache
def longest_for_tiles() -> int:
    """The longest rows that AMX multiplies here; 0 without it, or without the package."""
    return 0 if package() is None else int(package().library.polyrank_longest_for_tiles())


def in_tiles(bits: Bits, dimension: int) -> bool:
    """Whether AMX multiplies rows of so many numbers of so many bits here; those of 8 bits are padded."""
    return dimension <= longest_for_tiles() and (bits != 16 or dimension % 32 == 0)


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
        lost[part] = torch.linalg.vector_norm(rows - codes * scale[:, None], dim=1).numpy() + SMALLEST
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


def join(packs: Sequence[Packed]) -> Packed:
    """Columns of several contexts for one product, laid into tiles where the processor has AMX."""
    values, scales = np.concatenate([p.values for p in packs]), np.concatenate([p.scales for p in packs])
    return Packed(
        values, scales, _lay(package().library.polyrank_lay_codes, values, 1) if longest_for_tiles() else None
    )


@dataclass(frozen=True, slots=True)
class Laid:
    """Vectors of several contexts as AMX multiplies them.

    Args:
        bits: of a number of the rows that they meet: 8 (they are packed then), 16 or 32.
        tiles: the vectors.
        scales: ``[q]``, of packed ones.
        edges: ``[C + 1]``, where the vectors of each context begin, and q.
    """

    bits: Bits
    tiles: NDArray[np.uint8]
    scales: Floats | None
    edges: NDArray[np.int64]


def lay(vectors: Sequence[Tensor | Packed], bits: Bits) -> Laid:
    """Vectors ``[M, D]`` of each context, for rows of numbers of so many bits; packed ones for 8."""
    edges = np.cumsum([0, *(len(v.scales) if isinstance(v, Packed) else len(v) for v in vectors)], dtype=np.int64)
    packed = [v for v in vectors if isinstance(v, Packed)]
    if packed:
        joined = join(packed)
        assert joined.tiles is not None, "asked for where AMX is"
        return Laid(bits, joined.tiles, joined.scales, edges)
    columns = torch.cat([v for v in vectors if isinstance(v, Tensor)])
    return Laid(bits, _lay(package().library.polyrank_lay_floats, columns.numpy(), 2), None, edges)


def bounds_in_tiles(
    rows: Codes | Tensor, laid: Laid, norms: Floats, lost: Floats | None, limits: Sequence[tuple[float, ...]]
) -> Floats:
    """Upper bounds ``[C, n]`` of scores of rows for several contexts, without keeping a product.

    Args:
        rows: ``[n, D]``; to those in bf16, vectors are rounded to that too, and products of those in fp32 are off by
            ``ROUNDING_OF_TILES``.
        laid: the contexts' vectors.
        norms: ``[n]``, of the candidates, never too small.
        lost: ``[n]``, norms of what their coding loses, where they are coded.
        limits: for each context five numbers: the largest norm of a vector; times a candidate's norm, how far products
            are off for other reasons than its coding; the steepness of the mean; its rounding; that of the result.
    """
    values = as_tensor(rows.values) if isinstance(rows, Codes) else rows.contiguous()
    scales = rows.scales.ctypes.data if isinstance(rows, Codes) else None
    (n, dimension), n_contexts = values.shape, len(limits)
    found, given = np.empty((n_contexts, n), np.float32), np.array(limits, np.float32)
    columns = laid.tiles.ctypes.data, None if laid.scales is None else laid.scales.ctypes.data, laid.edges.ctypes.data
    sizes = n_contexts, n, dimension, norms.ctypes.data, None if lost is None else lost.ctypes.data, found.ctypes.data
    call = package().library.polyrank_bounds_in_tiles
    if call(laid.bits, values.data_ptr(), scales, *columns, given.ctypes.data, *sizes, _n_threads(n)) < 0:
        raise RuntimeError(f"no AMX, or no memory, for {n} rows of {dimension} dimensions")
    return found


def _lay(call: Any, columns: NDArray[Any], width: int) -> NDArray[np.uint8]:
    tiles = np.empty(package().library.polyrank_tiles_size(*columns.shape, width), np.uint8)
    call(columns.ctypes.data, *columns.shape, tiles.ctypes.data)
    return tiles


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
    tiles = None if packed.tiles is None else packed.tiles.ctypes.data
    given = (values.ctypes.data, packed.values.ctypes.data, tiles, scales.ctypes.data, packed.scales.ctypes.data)
    call = package().library.polyrank_products
    if call(*given, out.data_ptr(), len(values), n_columns, width, form, _n_threads(len(values))) < 0:
        raise RuntimeError(f"no form {form} of the products for {width} dimensions")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of a subspace, for ``bounds`` (see ``Subspace.coarse_bounds``).

    Args:
        centre, weights: ``[q]``
        radius, residual, slack, rounding: as there.
    """

    centre: Tensor
    weights: Tensor
    radius: float
    residual: float
    slack: float
    rounding: float


def bounds(products: Tensor, norms: Tensor, lost: Tensor, size: float, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Upper bounds of scores, and errors, ``[n]`` each; see ``Subspace.coarse_bounds`` for the formula.

    Args:
        products: ``[n, q]``, of candidates and a subspace's columns, with contiguous rows.
        norms: ``[n]``, of the candidates, never too small.
        lost: ``[n]``, norms of what their codes lose.
        size: of the largest context vector.
        numbers: of the subspace.
    """
    n, n_columns = products.shape
    found, errors = torch.empty(n), torch.empty(n)
    scales = (numbers.centre.data_ptr(), numbers.weights.data_ptr())
    rest = (numbers.radius, numbers.residual, numbers.slack, numbers.rounding, size)
    given = (products.data_ptr(), products.stride(0), n, n_columns, norms.data_ptr(), lost.data_ptr())
    of_subspace = ctypes.byref(package().Numbers(*scales, *rest))
    package().library.polyrank_bounds(*given, of_subspace, found.data_ptr(), errors.data_ptr(), _n_threads(n))
    return found, errors


def means(products: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax-weighted means and maxima, ``[n]`` each, of products ``[n, M]`` with contiguous rows, untouched."""
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
    package().library.polyrank_means(products.data_ptr(), products.stride(0), n, n_vectors, *into, _n_threads(n))


def _n_threads(n: int) -> int:
    return min(torch.get_num_threads(), max(n // FEWEST_ROWS, 1))
