"""Candidate vectors in fewer bits: kept in bf16 or int8, read as fp32. Knows nothing of files; no torch.

Packing rounds once. What was packed and read again packs to the same bits, so that an index that is compacted or built
again from its own vectors never drifts.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError

Floats = NDArray[np.float32]
Rows = slice | NDArray[np.intp]
Precision = Literal["fp32", "bf16", "int8"]

LARGEST = np.uint32(0x7F7F0000)  # bf16, as fp32's bits
SMALLEST_SCALE = np.float32(2.0**-120)


class AnyVectors(Protocol):
    """Vectors ``[n, D]`` that give fp32 when some of them are taken: an array, a memory map, or ``PackedVectors``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Rows, /) -> Any: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PackedVectors:
    """Vectors in fewer bits.

    Args:
        values: ``[n, D]``, bf16 numbers, the upper 16 bits of fp32 ones, as uint16; or int8.
        scales: ``[n]``, what an int8 value of one is worth; ``None`` for bf16.

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
    """Some of the vectors, copied, in the same precision.

    >>> take(pack(np.eye(2, dtype=np.float32), "bf16"), np.array([1])).values.dtype
    dtype('uint16')
    """
    if isinstance(vectors, PackedVectors):
        return PackedVectors(vectors.values[rows], None if vectors.scales is None else vectors.scales[rows])
    copied: Floats = np.array(vectors[rows])
    return copied


def read_precision(name: str) -> Precision:
    """A precision by its name.

    Raises:
        UsageError: there is none of that name.
    """
    for precision in get_args(Precision):
        if name == precision:
            return precision  # type: ignore[no-any-return]  # what the Literal lists
    raise UsageError(f"{name!r} is no precision of stored vectors; choose fp32, bf16 or int8")


def pack(vectors: Floats, precision: Precision) -> Floats | PackedVectors:
    """Vectors ``[n, D]``, finite, in a precision; fp32 ones as they are.

    bf16 keeps 8 significant bits of each number. int8 keeps ``round(y / scale)`` with one scale for each vector, its
    largest absolute number over 127; the scale itself is rounded to 8 bits, which makes all products with them exact.
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
    """How long each of ``to_rows`` is.

    >>> [bytes_per_vector(384, precision) for precision in ("fp32", "bf16", "int8")]
    [1536, 768, 388]
    """
    return {"fp32": 4 * dimension, "bf16": 2 * dimension, "int8": dimension + 4}[precision]


def to_rows(vectors: Floats, precision: Precision) -> list[bytes]:
    """Each vector as bytes: its numbers, little-endian; int8 values follow their scale."""
    packed = pack(vectors, precision)
    if isinstance(packed, np.ndarray):
        return [row.tobytes() for row in packed.astype("<f4", copy=False)]
    if packed.scales is None:
        return [row.tobytes() for row in packed.values]
    scales = packed.scales.astype("<f4", copy=False)
    return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, packed.values, strict=True)]


def from_rows(rows: list[bytes], precision: Precision) -> Floats:
    """The vectors ``[n, D]`` of ``to_rows``, rounded as they were.

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
    """To the nearest, ties to even, never to infinity."""
    bits = numbers.view("<u4")
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    size = np.minimum(size + (np.uint32(0x7FFF) + ((size >> np.uint32(16)) & np.uint32(1))), LARGEST)
    return ((sign | size) >> np.uint32(16)).astype("<u2")


def _as_floats(values: NDArray[np.uint16]) -> Floats:
    return (values.astype("<u4") << np.uint32(16)).view("<f4")
