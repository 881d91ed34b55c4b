"""Vectors in fewer bits: rounded to the nearest once, and never again."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    to_rows,
)

WIDTHS = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)
VECTORS = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=WIDTHS)
PACKED = pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])


@PACKED
@given(vectors=VECTORS)
def test_what_was_rounded_stays_as_it_is(precision: Precision, vectors: NDArray[np.float32]) -> None:
    once = pack(vectors, precision)[:]
    assert once.dtype == np.float32
    assert np.isfinite(once).all()
    np.testing.assert_array_equal(pack(once, precision)[:], once)
    rows = to_rows(vectors, precision)
    assert {len(row) for row in rows} == {bytes_per_vector(vectors.shape[1], precision)}
    np.testing.assert_array_equal(from_rows(rows, precision), once)
    assert to_rows(once, precision) == rows


@given(vectors=VECTORS)
def test_bf16_rounds_as_torch_does(vectors: NDArray[np.float32]) -> None:
    want = torch.from_numpy(vectors).bfloat16().float().numpy()
    largest = torch.finfo(torch.bfloat16).max
    np.testing.assert_array_equal(pack(vectors, "bf16")[:], np.clip(want, -largest, largest))


@given(vectors=VECTORS)
def test_int8_is_half_a_step_off_at_most(vectors: NDArray[np.float32]) -> None:
    largest = np.abs(vectors).max(1).astype(np.float64)
    step = np.maximum(largest / 127.0, 2.0**-120) * (1 + 2.0**-8)
    off = np.abs(pack(vectors, "int8")[:].astype(np.float64) - vectors).max(1)
    assert (off <= 0.51 * step + 2.0**-9 * largest).all()


@PACKED
def test_some_are_taken_as_from_an_array(precision: Precision) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    packed = pack(vectors, precision)
    whole = packed[:]
    assert (packed.shape, len(packed)) == ((20, 6), 20)
    for places in (slice(3, 9), np.array([4, 4, 0]), np.array([], np.intp)):
        np.testing.assert_array_equal(packed[places], whole[places])
    assert isinstance(packed, PackedVectors) == (precision != "fp32")


def test_precisions_have_names() -> None:
    assert read_precision("int8") == "int8"
    with pytest.raises(UsageError, match="'fp16' is no precision of stored vectors; choose fp32, bf16 or int8"):
        read_precision("fp16")
