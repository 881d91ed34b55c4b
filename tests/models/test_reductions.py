"""Reductions of token outputs to vectors: padding never counts, special tokens do, short texts have fewer vectors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from polyrank.config.models import Reduction
from polyrank.models.poly_encoder import attend
from polyrank.models.reductions import first_outputs, last_outputs, pool, reduce

REDUCTIONS: list[Reduction] = ["first", "mean", "mean_of_first", "sqrt_n"]
ALL: list[Reduction] = [*REDUCTIONS, "last", "max", "weighted_mean", "mean_but_first"]


def batch(lengths: Sequence[int], dimension: int = 3, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Random outputs and their mask; padding holds huge numbers, so that any use of it is detected."""
    width = max(lengths) if width is None else width
    outputs = torch.randn(len(lengths), width, dimension, generator=torch.Generator().manual_seed(sum(lengths)))
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
    return outputs.masked_fill(~mask[:, :, None], 1e6), mask


def test_by_hand() -> None:
    """Outputs 1, 3, 8 and 100 of padding; the boundary tokens at both ends are outputs like others."""
    outputs, mask = torch.tensor([[[1.0], [3.0], [8.0], [100.0]]]), torch.tensor([[True, True, True, False]])
    assert reduce(outputs, mask, "first", 2).item() == 1
    assert reduce(outputs, mask, "mean", 2).item() == 4
    assert reduce(outputs, mask, "sqrt_n", 2).item() == pytest.approx(12 / 3**0.5)
    wanted = {1: 1.0, 2: 2.0, 3: 4.0, 4: 4.0, 9: 4.0}  # of fewer tokens than m, the mean of those there are
    assert {m: reduce(outputs, mask, "mean_of_first", m).item() for m in wanted} == wanted


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("m", [1, 4, 16])
def test_each_row_is_reduced_as_if_it_were_alone(reduction: Reduction, m: int) -> None:
    outputs, mask = batch([2, 7, 1, 4, 5], width=9)
    together = reduce(outputs, mask, reduction, m)
    assert together.shape == (5, 3)
    for row, found in zip(range(5), together, strict=True):
        real = [output.numpy() for output, counts in zip(outputs[row], mask[row], strict=True) if counts]
        kept = real[:1] if reduction == "first" else real[:m] if reduction == "mean_of_first" else real
        divisor = len(kept) ** 0.5 if reduction == "sqrt_n" else len(kept)
        np.testing.assert_allclose(found, sum(kept) / divisor, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["last", "max", "weighted_mean", "mean_but_first"])
def test_other_reductions_of_a_row_do_not_depend_on_the_batch(reduction: Reduction) -> None:
    lengths = [1, 4, 2, 6]
    outputs, mask = batch(lengths)
    together = reduce(outputs, mask, reduction, 3)
    for row, length in enumerate(lengths):
        alone = reduce(outputs[row : row + 1, :length], mask[row : row + 1, :length], reduction, 3)[0]
        torch.testing.assert_close(together[row], alone)
    torch.testing.assert_close(together[0], outputs[0, 0])  # of a single token


def test_the_tokens_of_a_prompt_are_not_pooled() -> None:
    lengths, ways = [4, 6, 3], ["first", "last", "max", "mean", "sqrt_n"]
    outputs, mask = batch(lengths)
    for row, vectors in enumerate(pool(outputs, mask, ways, skipped=2)):  # type: ignore[arg-type]  # names
        rest = outputs[row : row + 1, 2 : lengths[row]]
        alone = pool(rest, torch.ones(rest.shape[:2], dtype=torch.bool), ways)[0]  # type: ignore[arg-type]  # names
        torch.testing.assert_close(vectors, alone)
    (short,) = pool(outputs[2:, :3], mask[2:, :3], ["last"], skipped=3)  # of nothing else, the last token of all
    torch.testing.assert_close(short, outputs[2, 2])


def test_the_mean_of_the_first_divides_by_the_real_ones_among_them() -> None:
    """Rows of ones have the mean one, however much shorter than m they are."""
    outputs, mask = batch([1, 2, 3, 8])
    ones = torch.ones_like(outputs)
    for m in (1, 2, 3, 7, 8, 20):
        assert torch.equal(reduce(ones, mask, "mean_of_first", m), torch.ones(4, 3))


def test_the_mean_of_all_first_ones_is_the_mean() -> None:
    outputs, mask = batch([2, 6, 3])
    assert torch.equal(reduce(outputs, mask, "mean_of_first", 6), reduce(outputs, mask, "mean", 1))
    assert not torch.equal(reduce(outputs, mask, "mean_of_first", 5), reduce(outputs, mask, "mean", 1))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_first_and_last_outputs_are_slices_of_each_row(
    lengths: list[int], m: int, padding: int, with_first: bool
) -> None:
    outputs, mask = batch(lengths, width=max(lengths) + padding)
    first, counts = first_outputs(outputs, mask, m)
    assert first.shape[1] == counts.shape[1] == min(m, max(lengths) + padding)
    last, real = last_outputs(outputs, mask, m, with_first)
    assert last.shape[1] == real.shape[1] == min(m, max(lengths) + padding) + with_first
    for row, length in enumerate(lengths):
        text = outputs[row, :length]
        assert counts[row].sum() == min(m, length)
        assert torch.equal(first[row][counts[row]], text[:m])
        before = [text[:1]] if with_first and length > m else []
        assert torch.equal(last[row][real[row]], torch.cat([*before, text[-m:]]))


@pytest.mark.parametrize(
    ("length", "with_first", "wanted"),
    [
        (5, False, [2, 3, 4]),
        (4, False, [1, 2, 3]),
        (3, False, [0, 1, 2]),
        (2, False, [0, 1]),
        (5, True, [0, 2, 3, 4]),
        (4, True, [0, 1, 2, 3]),
        (3, True, [0, 1, 2]),  # the first output is among the last three already
        (2, True, [0, 1]),
        (1, True, [0]),
    ],
)
def test_the_last_three_outputs_in_a_batch_with_a_longer_text(length: int, with_first: bool, wanted: list[int]) -> None:
    outputs = torch.arange(12.0).reshape(2, 6, 1) % 6
    mask = torch.arange(6)[None, :] < torch.tensor([[6], [length]])
    found, real = last_outputs(outputs, mask, 3, with_first)
    assert real.dtype == torch.bool
    assert found[1, :, 0][real[1]].tolist() == wanted
    assert found[0, :, 0][real[0]].tolist() == [0, 3, 4, 5][not with_first :]


def test_codes_weigh_real_outputs_only() -> None:
    outputs, mask = batch([1, 4, 2], dimension=5)
    codes = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    found = attend(codes, outputs, mask)
    assert found.shape == (3, 6, 5)
    for row in range(3):
        h = outputs[row][mask[row]].double().numpy()
        for number, code in enumerate(codes.double().numpy()):
            powers = [np.exp(sum(code * output)) for output in h]  # plain products: no scale
            wanted = sum(power / sum(powers) * output for power, output in zip(powers, h, strict=True))
            np.testing.assert_allclose(found[row, number], wanted, rtol=1e-4, atol=1e-5)


def test_codes_attend_in_full_precision() -> None:
    """bf16 outputs of a transformer are weighted in fp32."""
    outputs, mask = batch([3, 5])
    codes = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found: Any = attend(codes, outputs.clamp(max=2), mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, attend(codes, outputs.clamp(max=2), mask), atol=0, rtol=0)
