"""The best of a row of scores, compared with a full sort."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from polyrank.ranking.top import blank_last, top_rows, top_rows_with_ties


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 14))
def test_the_best_rows_equal_those_of_a_full_sort(scores: list[int], k: int) -> None:
    values = np.array(scores, np.float32)
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))
    assert top_rows(values, k) == order[:k]
    least = scores[order[min(k, len(scores)) - 1]]
    assert top_rows_with_ties(values, k).tolist() == [row for row, score in enumerate(scores) if score >= least]


def test_nan_is_not_hidden() -> None:
    values = np.array([1.0, np.nan, 3.0, 2.0], np.float32)
    assert 1 in top_rows_with_ties(values, 2).tolist()


@pytest.mark.parametrize("k", [1, 3, 10, 400, 999])
def test_a_few_of_many_are_the_best(k: int) -> None:
    """With more rows than the partitioning sorts anyway."""
    values = np.random.default_rng(k).permutation(1000).astype(np.float32)
    assert sorted(values[top_rows_with_ties(values, k)].tolist()) == list(range(1000 - k, 1000))
    assert values[top_rows(values, k)].tolist() == list(range(999, 999 - k, -1))


def test_blank_texts_come_last_and_the_given_scores_stay() -> None:
    scores = np.array([3, 0, 2, 5], np.float32)
    found = blank_last(scores, ["\u3000\n", "no", "", "yes"])
    assert (found[1], found[3]) == (0, 5)
    assert max(found[0], found[2]) < 0
    assert scores.tolist() == [3, 0, 2, 5]
