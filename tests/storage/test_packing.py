"""Vectors in fewer bits: rounded to the nearest, exactly once."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.storage.quantized import (
    PackedVectors,
    Precision,
    bytes_per_vector,
    from_rows,
    pack,
    read_precision,
    take,
    to_rows,
)

WIDTHS = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)
VECTORS = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=WIDTHS)
PACKED = pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])


@PACKED
@given(vectors=VECTORS)
def test_rounded_vectors_are_not_rounded_again(precision: Precision, vectors: NDArray[np.float32]) -> None:
    once = pack(vectors, precision)[:]
    assert once.dtype == np.float32
    assert np.isfinite(once).all()
    np.testing.assert_array_equal(pack(once, precision)[:], once)
    rows = to_rows(vectors, precision)
    assert {len(row) for row in rows} == {bytes_per_vector(vectors.shape[1], precision)}
    np.testing.assert_array_equal(from_rows(rows, precision), once)
    assert to_rows(once, precision) == rows


@given(vectors=VECTORS)
def test_bf16_rounds_like_torch(vectors: NDArray[np.float32]) -> None:
    want = torch.from_numpy(vectors).bfloat16().float().numpy()
    largest = torch.finfo(torch.bfloat16).max
    np.testing.assert_array_equal(pack(vectors, "bf16")[:], np.clip(want, -largest, largest))


@given(vectors=VECTORS)
def test_the_error_of_int8_is_at_most_half_a_step(vectors: NDArray[np.float32]) -> None:
    largest = np.abs(vectors).max(1).astype(np.float64)
    step = np.maximum(largest / 127.0, 2.0**-120) * (1 + 2.0**-8)
    off = np.abs(pack(vectors, "int8")[:].astype(np.float64) - vectors).max(1)
    assert (off <= 0.51 * step + 2.0**-9 * largest).all()


@PACKED
def test_packed_vectors_are_indexed_like_an_array(precision: Precision) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    packed = pack(vectors, precision)
    whole = packed[:]
    assert (packed.shape, len(packed)) == ((20, 6), 20)
    for places in (slice(3, 9), np.array([4, 4, 0]), np.array([], np.intp)):
        np.testing.assert_array_equal(packed[places], whole[places])
        np.testing.assert_array_equal(take(packed, places)[:], whole[places])
    assert isinstance(packed, PackedVectors) == (precision != "fp32")


def test_precisions_have_names() -> None:
    assert read_precision("int8") == "int8"
    for other in ("fp16", "BF16"):
        with pytest.raises(UsageError, match=f"'{other}' is not a precision of stored vectors; choose fp32, bf16 or"):
            read_precision(other)


# the same, by hand


def nearest_bf16(value: float) -> float:
    """The nearer neighbour with 8 significant bits; for a tie the one whose last bit is zero."""
    if value == 0:
        return 0.0
    unit = 2.0 ** (math.frexp(value)[1] - 8)  # the value of the last of eight bits
    whole = math.floor(value / unit)
    off = value / unit - whole
    return (whole + (off > 0.5 or (off == 0.5 and whole % 2 == 1))) * unit


@given(vectors=VECTORS)
def test_bf16_is_the_nearest_number_of_eight_bits(vectors: NDArray[np.float32]) -> None:
    wanted = [[nearest_bf16(float(value)) for value in row] for row in vectors]
    np.testing.assert_array_equal(pack(vectors, "bf16")[:], np.array(wanted, np.float32))


@given(vectors=VECTORS)
def test_int8_is_the_nearest_multiple_of_a_127th_of_the_largest(vectors: NDArray[np.float32]) -> None:
    packed = pack(vectors, "int8")
    assert isinstance(packed, PackedVectors)
    assert packed.scales is not None
    for row, codes, scale in zip(vectors, packed.values.tolist(), packed.scales.tolist(), strict=True):
        largest = np.float32(max(abs(value) for value in row.tolist()))
        assert scale == nearest_bf16(max(float(largest / np.float32(127)), 2.0**-120))
        assert codes == [round(float(value / np.float32(scale))) for value in row]  # ties to even


def test_bf16_by_hand() -> None:
    unit = 2.0**-7  # the last bit after a one
    values = [1 + 0.49 * unit, 1 + 0.5 * unit, 1 + 0.51 * unit, 1 + 1.5 * unit, -1 - 1.5 * unit, -1 - 0.5 * unit]
    found = pack(np.array([values], np.float32), "bf16")
    assert isinstance(found, PackedVectors)
    assert found[:].tolist() == [[1, 1, 1 + unit, 1 + 2 * unit, -1 - 2 * unit, -1]]
    assert found.values.tolist() == [[0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF82, 0xBF80]]
    assert found.scales is None


def test_the_largest_numbers_stay_finite() -> None:
    largest = float(np.finfo(np.float32).max)
    found = pack(np.array([[largest, -largest, 0.0, -0.0]], np.float32), "bf16")
    assert isinstance(found, PackedVectors)
    assert found.values.tolist() == [[0x7F7F, 0xFF7F, 0, 0x8000]]
    codes = pack(np.array([[largest, -largest, 0.0]], np.float32), "int8")
    assert isinstance(codes, PackedVectors)
    assert codes.values.tolist() == [[127, -127, 0]]
    assert np.isfinite(codes[:]).all()


def test_int8_by_hand() -> None:
    rows = [
        [127.0, -63.5, 62.5, 1.0, 0.5, 0.0],  # step 1; ties to even
        [-254.0, 254.0, 3.0, 2.0, 1.0, -5.0],  # step 2
        [127 * 1.004, 0.0, 0.0, 0.0, 0.0, 1.0],  # step 1.004, which eight bits round to 1 + 1/128
        [0.0] * 6,
        [127 * 2.0**-121, 2.0**-120, 0.0, 0.0, 0.0, 0.0],  # never less than 2**-120
    ]
    found = pack(np.array(rows, np.float32), "int8")
    assert isinstance(found, PackedVectors)
    assert found.scales is not None
    assert found.scales.tolist() == [1.0, 2.0, 1 + 2.0**-7, 2.0**-120, 2.0**-120]
    assert found.values.tolist() == [
        [127, -64, 62, 1, 0, 0],
        [-127, 127, 2, 1, 0, -2],
        [127, 0, 0, 0, 0, 1],
        [0] * 6,
        [64, 1, 0, 0, 0, 0],
    ]
    assert found[1:2].tolist() == [[-254, 254, 4, 2, 0, -4]]


def test_rows_of_bytes_by_hand() -> None:
    """Little-endian numbers; int8 codes follow their scale."""
    vectors = np.array([[1.5, -2.0], [0.0, 254.0]], np.float32)
    plain = [struct.pack("<2f", 1.5, -2.0), struct.pack("<2f", 0.0, 254.0)]
    assert to_rows(vectors, "fp32") == plain
    halves = [struct.pack("<2H", 0x3FC0, 0xC000), struct.pack("<2H", 0, 0x437E)]
    assert to_rows(vectors, "bf16") == halves
    codes = [struct.pack("<f2b", nearest_bf16(2 / 127), 95, -127), struct.pack("<f2b", 2.0, 0, 127)]
    assert to_rows(vectors, "int8") == codes
    np.testing.assert_array_equal(from_rows(plain, "fp32"), vectors)
    np.testing.assert_array_equal(from_rows(halves, "bf16"), vectors)
    found = from_rows([struct.pack("<f3b", 0.5, 3, -4, 127), struct.pack("<f3b", 2.0, -127, 0, 1)], "int8")
    assert found.tolist() == [[1.5, -2.0, 63.5], [-254.0, 0.0, 2.0]]
    assert found.dtype == np.float32
    assert [bytes_per_vector(2, precision) for precision in ("fp32", "bf16", "int8")] == [8, 4, 6]
