"""Quantized candidate vectors: stored as bf16 or int8, read as fp32. No files and no torch here.

Packing rounds once: unpacked vectors pack to the same bits again, so an index that is compacted or rebuilt from its own
vectors never drifts.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError

Floats = NDArray[np.float32]
Rows = slice | NDArray[np.intp]
Precision = Literal["fp32", "bf16", "int8"]

LARGEST = np.uint32(0x7F7F0000)  # the largest bf16, as the bits of an fp32
SMALLEST_SCALE = np.float32(2.0**-120)


class AnyVectors(Protocol):
    """Vectors ``[n, D]`` whose slices are fp32: an array, a memory map, or ``PackedVectors``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Rows, /) -> Any: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PackedVectors:
    """Quantized vectors.

    Args:
        values: ``[n, D]``: bf16, the upper 16 bits of fp32, as uint16; or int8.
        scales: the scale of each int8 vector ``[n]``; ``None`` for bf16.

    >>> pack(np.array([[1.0, -0.5, 0.004]], np.float32), "int8")[:1]
    array([[ 0.99993896, -0.50390625,  0.00787354]], dtype=float32)
    """

    values: NDArray[np.uint16] | NDArray[np.int8]
    scales: Floats | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Rows, /) -> Floats:
        values = self.values[rows]
        if self.scales is not None:
            return np.multiply(values, self.scales[rows][:, None], dtype=np.float32)
        result = np.zeros(values.shape, "<f4")
        result.view("<u2")[:, 1::2] = values
        return result


def take(vectors: AnyVectors, rows: Rows) -> "Floats | PackedVectors":
    """Copy some of the vectors, in the same precision.

    >>> take(pack(np.eye(2, dtype=np.float32), "bf16"), np.array([1])).values.dtype
    dtype('uint16')
    """
    if isinstance(vectors, PackedVectors):
        return PackedVectors(vectors.values[rows], None if vectors.scales is None else vectors.scales[rows])
    copied: Floats = np.array(vectors[rows])
    return copied


def read_precision(name: str) -> Precision:
    """The precision of this name.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in get_args(Precision):
        raise UsageError(f"{name!r} is not a precision of stored vectors; choose fp32, bf16 or int8")
    return cast(Precision, name)


def pack(vectors: Floats, precision: Precision) -> Floats | PackedVectors:
    """Convert finite vectors ``[n, D]`` to a precision; fp32 returns them unchanged.

    bf16 keeps 8 significant bits of each number. int8 stores ``round(y / scale)`` with one scale for each vector: its
    largest absolute value divided by 127, rounded to 8 bits so that products with the scale are exact.
    """
    if precision == "fp32":
        return vectors
    if precision == "bf16":
        return PackedVectors(_to_bf16(np.ascontiguousarray(vectors, "<f4")))
    largest = np.abs(vectors).max(1, initial=0.0)
    scales = _as_floats(_to_bf16(np.maximum(largest / np.float32(127.0), SMALLEST_SCALE).astype("<f4")))
    rounded = np.rint(vectors / scales[:, None])
    return PackedVectors(np.clip(rounded, -127, 127, out=rounded).astype(np.int8), scales)


def bytes_per_vector(dimension: int, precision: Precision) -> int:
    """Length of each row that ``to_rows`` returns.

    >>> [bytes_per_vector(384, precision) for precision in ("fp32", "bf16", "int8")]
    [1536, 768, 388]
    """
    return {"fp32": 4 * dimension, "bf16": 2 * dimension, "int8": dimension + 4}[precision]


def to_rows(vectors: Floats, precision: Precision) -> list[bytes]:
    """Each vector as bytes: its numbers, little-endian; int8 values come after their scale."""
    packed = pack(vectors, precision)
    if isinstance(packed, np.ndarray):
        return [row.tobytes() for row in packed.astype("<f4", copy=False)]
    if packed.scales is None:
        return [row.tobytes() for row in packed.values]
    scales = packed.scales.astype("<f4", copy=False)
    return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, packed.values, strict=True)]


def from_rows(rows: list[bytes], precision: Precision) -> Floats:
    """The inverse of ``to_rows``: the rounded vectors ``[n, D]``.

    >>> from_rows(to_rows(np.array([[3.0, 0.1]], np.float32), "bf16"), "bf16")
    array([[3.        , 0.10009766]], dtype=float32)
    """
    whole = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    if precision == "fp32":
        return whole.view("<f4")
    if precision == "bf16":
        return PackedVectors(whole.view("<u2"))[:]
    return PackedVectors(whole[:, 4:].view(np.int8), whole[:, :4].copy().view("<f4")[:, 0])[:]


def _to_bf16(numbers: Floats) -> NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even, never to infinity."""
    bits = numbers.view("<u4")
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    size = np.minimum(size + (np.uint32(0x7FFF) + ((size >> np.uint32(16)) & np.uint32(1))), LARGEST)
    return ((sign | size) >> np.uint32(16)).astype("<u2")


def _as_floats(values: NDArray[np.uint16]) -> Floats:
    return (values.astype("<u4") << np.uint32(16)).view("<f4")
