"""The layout of columns in memory: timed once, and never visible in answers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from polyrank.index import Block
from polyrank.search import blocks, search
from polyrank.search.blocks import lay_out


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    blocks._is_faster_as_rows.cache_clear()
    yield
    blocks._is_faster_as_rows.cache_clear()


def times(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[float]:
    """The seconds that timings measure in turn, instead of the real ones; those that no timing took remain."""
    rest = list(seconds)
    monkeypatch.setattr(blocks, "shortest", lambda run: (run(), rest.pop(0))[1])
    return rest


@pytest.mark.parametrize(("together", "apart"), [(1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("n_columns", [1, 2, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_lie_as_the_faster_product_reads_them(
    together: float, apart: float, n_columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, together, apart)
    columns = torch.randn(n_columns, 24).to(dtype)
    turned = lay_out(columns, blocks.LEAST_TIMED)
    assert torch.equal(turned, columns.T)
    assert turned.dtype == dtype
    assert turned.T.is_contiguous() if together < apart else turned.is_contiguous()


def test_each_number_of_columns_is_timed_once_up_to_the_next_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = times(monkeypatch, *[1.0, 2.0] * 4)
    for n_columns, left in ((3, 6), (4, 6), (5, 4), (8, 4), (9, 2)):
        lay_out(torch.ones(n_columns, 24), blocks.LEAST_TIMED)
        assert len(rest) == left
    lay_out(torch.ones(9, 24, dtype=torch.bfloat16), blocks.LEAST_TIMED)  # another product
    assert not rest


def test_many_columns_are_timed_as_64(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = times(monkeypatch, 1.0, 2.0, 2.0, 1.0)
    assert lay_out(torch.ones(33, 24), blocks.LEAST_TIMED).T.is_contiguous()
    assert lay_out(torch.ones(65, 24), blocks.LEAST_TIMED).T.is_contiguous()
    assert not lay_out(torch.ones(32, 24), blocks.LEAST_TIMED).T.is_contiguous()
    assert not rest


def test_a_short_scan_is_not_worth_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch)  # none
    assert lay_out(torch.ones(4, 24), blocks.LEAST_TIMED - 1).is_contiguous()


def test_the_shortest_of_some_calls_counts_but_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.5, 1.0, 5.0, 5.0, 8.0, 8.0, 10.0, 10.0, 14.0])  # 0.5 s, 4, 3, 2 and 4
    monkeypatch.setattr(blocks, "perf_counter", lambda: next(moments))
    assert blocks.shortest(lambda: None) == 2.0


@pytest.mark.parametrize("n_vectors", [1, 5])
def test_answers_do_not_depend_on_the_layout(n_vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(n_vectors)
    vectors = generator.normal(size=(3000, 24)).astype(np.float32)
    contexts = (1.0 + 0.1 * generator.normal(size=(3, n_vectors, 24))).astype(np.float32)
    monkeypatch.setattr(blocks, "LEAST_TIMED", 1)
    answers = []
    for seconds in (1.0, 2.0), (2.0, 1.0):
        blocks._is_faster_as_rows.cache_clear()
        times(monkeypatch, *seconds * 8)
        found = search(contexts, np.ones((3, n_vectors), np.bool_), [Block(vectors, np.arange(3000))], 10)
        answers.append([(result.rows.tolist(), result.scores.tolist()) for result in found])
    assert answers[0] == answers[1]
