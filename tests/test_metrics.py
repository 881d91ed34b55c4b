"""Metrics equal the average over all ways to break ties, and constant or knowing scorers get what they must."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.ranking.metrics import average_precision, hit_at, metric_values, place, recall_at, reciprocal_rank


def brute_force(scores: list[int], relevant: set[int], k: int) -> tuple[float, float, float, float]:
    """Means over every order of the candidates that sorts by score."""
    rows = []
    for order in permutations(range(len(scores))):
        if any(scores[a] < scores[b] for a, b in pairwise(order)):
            continue
        ranks = sorted(order.index(i) + 1 for i in relevant)
        rows.append(
            (
                float(ranks[0] <= k),
                sum(rank <= k for rank in ranks) / len(ranks),
                1 / ranks[0],
                sum((i + 1) / rank for i, rank in enumerate(ranks)) / len(ranks),
            )
        )
    return tuple(np.mean(rows, axis=0))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.data())
@settings(max_examples=80, deadline=None)
def test_closed_forms_equal_all_tie_breakings(scores: list[int], data: st.DataObject) -> None:
    relevant = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    k = data.draw(st.integers(1, len(scores)))
    p = place(scores, relevant)
    got = (hit_at(p, k), recall_at(p, k), reciprocal_rank(p), average_precision(p))
    assert got == pytest.approx(brute_force(scores, relevant, k), abs=1e-12)


@pytest.mark.parametrize("n", [2, 20, 100, 10_001])
def test_a_constant_scorer_gets_chance_and_a_knowing_one_all(n: int) -> None:
    constant = place(np.full(n, 0.3), [n // 2])
    assert hit_at(constant, 1) == 1 / n
    assert recall_at(constant, 2) == 2 / n
    knowing = place(np.arange(n), [n - 1])
    assert hit_at(knowing, 1) == recall_at(knowing, 1) == reciprocal_rank(knowing) == average_precision(knowing) == 1


@given(st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=30), st.randoms())
@settings(max_examples=50, deadline=None)
def test_order_changes_nothing_at_all(scores: list[float], random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert place(scores, [0]) == place([scores[i] for i in order], [order.index(0)])


def test_nan_is_refused_and_infinity_is_not() -> None:
    with pytest.raises(ValueError, match="candidate 1 is NaN"):
        place([1.0, float("nan")], [0])
    assert hit_at(place([1.0, float("-inf")], [0]), 1) == 1


def test_no_right_answer_scores_nothing() -> None:
    p = place([1.0, 2.0], [])
    assert (hit_at(p, 1), recall_at(p, 1), reciprocal_rank(p), average_precision(p)) == (0, 0, 0, 0)


def test_names_and_sizes_of_metrics() -> None:
    values = metric_values([place([3, 2, 1], [0]), place([3, 2, 1], [2])], (1, 2, 5))
    assert set(values) == {"R@1", "R@2", "MRR", "MAP"}
    assert values["R@1"].tolist() == [1, 0]
    assert "hits@1" in metric_values([place([3, 2, 1], [0, 1])], (1,))
