"""Metrics equal the average over all ways to break ties; constant and perfect scorers get the right values."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from polyrank.ranking.metrics import (
    average_precision,
    hit_at,
    metric_values,
    ndcg_at,
    placement_of,
    recall_at,
    reciprocal_rank,
    with_duplicates,
)


def brute_force(scores: list[int], relevant: set[int], k: int) -> tuple[float, float, float, float]:
    """Means over all orders of the candidates by score."""
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
def test_closed_forms_equal_all_tie_breakings(scores: list[int], data: st.DataObject) -> None:
    relevant = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    k = data.draw(st.integers(1, len(scores)))
    p = placement_of(scores, relevant)
    got = (hit_at(p, k), recall_at(p, k), reciprocal_rank(p), average_precision(p))
    assert got == pytest.approx(brute_force(scores, relevant, k), abs=1e-12)


@pytest.mark.parametrize("n", [2, 20, 100, 10_001])
def test_a_constant_scorer_gets_chance_and_a_perfect_one_1(n: int) -> None:
    constant = placement_of(np.full(n, 0.3), [n // 2])
    assert hit_at(constant, 1) == 1 / n
    assert recall_at(constant, 2) == 2 / n
    knowing = placement_of(np.arange(n), [n - 1])
    assert hit_at(knowing, 1) == recall_at(knowing, 1) == reciprocal_rank(knowing) == average_precision(knowing) == 1


@given(st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=30), st.randoms())
def test_order_does_not_matter(scores: list[float], random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert placement_of(scores, [0]) == placement_of([scores[i] for i in order], [order.index(0)])


def test_nan_is_refused_and_infinity_is_not() -> None:
    with pytest.raises(ValueError, match="candidate 1 is NaN"):
        placement_of([1.0, float("nan")], [0])
    assert hit_at(placement_of([1.0, float("-inf")], [0]), 1) == 1


def test_no_right_answer_scores_nothing() -> None:
    p = placement_of([1.0, 2.0], [])
    assert (hit_at(p, 1), recall_at(p, 1), reciprocal_rank(p), average_precision(p)) == (0, 0, 0, 0)


def test_names_and_sizes_of_metrics() -> None:
    values = metric_values([placement_of([3, 2, 1], [0]), placement_of([3, 2, 1], [2])], (1, 2, 5))
    assert set(values) == {"R@1", "R@2", "MRR", "MAP"}
    assert values["R@1"].tolist() == [1, 0]
    assert "recall@1" in metric_values([placement_of([3, 2, 1], [0, 1])], (1,))


@pytest.mark.parametrize("n_right", [1, 2, 3])
def test_a_perfect_scorer_gets_1_with_any_number_of_right_answers(n_right: int) -> None:
    """R@1 selects the best model and is the main figure, so copies of the right text must not limit it."""
    texts = ["yes"] * n_right + ["no", "nope"]
    right = with_duplicates(texts, [0])
    values = metric_values([placement_of([float(text == "yes") for text in texts], right)], (1, 2, 3))
    assert {name: row.tolist() for name, row in values.items() if not name.startswith("recall")} == {
        **{f"R@{k}": [1.0] for k in (1, 2, 3) if k < len(texts)},
        "MRR": [1.0],
        "MAP": [1.0],
    }


def test_without_ties_metrics_equal_scikit_learns() -> None:
    """Average precision is its label ranking average precision; with one right answer, so is the reciprocal rank."""
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.Generator(np.random.PCG64(1))
    scores = generator.normal(size=(60, 12))
    for n_right in (1, 4):
        right = [generator.permutation(12)[:n_right].tolist() for _ in scores]
        truth = np.array([[i in chosen for i in range(12)] for chosen in right])
        placements = [placement_of(row, chosen) for row, chosen in zip(scores, right, strict=True)]
        values = metric_values(placements, (1, 3, 11, 12))
        ranked = metrics.label_ranking_average_precision_score(truth, scores)
        assert values["MAP"].mean() == pytest.approx(ranked)
        if n_right == 1:
            assert values["MRR"].mean() == pytest.approx(ranked)
            for k in (1, 3, 11):
                want = metrics.top_k_accuracy_score(truth.argmax(1), scores, k=k, labels=range(12))
                assert values[f"R@{k}"].mean() == pytest.approx(want)
        else:
            order = np.argsort(-scores, axis=1)
            for k in (1, 3):
                found = np.take_along_axis(truth, order[:, :k], 1).sum(1)
                np.testing.assert_allclose(values[f"recall@{k}"], found / 4)
                np.testing.assert_allclose(values[f"R@{k}"], found > 0)
        assert "R@12" not in values  # R@12 of 12 candidates is always 1


def test_available_metrics() -> None:
    """k below the shortest list, and always 1; recall if an example has several right answers."""
    four, three, lone = placement_of([4, 3, 2, 1], [1]), placement_of([3, 2, 1], [0, 1]), placement_of([1], [0])
    assert set(metric_values([four], (1, 3, 4, 5))) == {"R@1", "R@3", "MRR", "MAP"}
    assert set(metric_values([four, three], (1, 2, 3))) == {"R@1", "recall@1", "R@2", "recall@2", "MRR", "MAP"}
    assert set(metric_values([lone], (1, 2))) == {"R@1", "MRR", "MAP"}
    assert set(metric_values([], (1, 2))) == {"R@1", "MRR", "MAP"}
    values = metric_values([four, three, placement_of([1.0, 2.0, 3.0], [0])], (2,))
    assert {name: row.tolist() for name, row in values.items()} == {
        "R@2": [1, 1, 0],
        "recall@2": [1, 1, 0],
        "MRR": [1 / 2, 1, 1 / 3],
        "MAP": [1 / 2, 1, 1 / 3],
    }


def test_ranks_by_hand() -> None:
    found = placement_of([5.0, 7.0, 5.0, 1.0, 7.0, 5.0], [2, 3, 0, 2])
    assert (found.n_candidates, found.n_relevant) == (6, 3)
    assert [(g.n_above, g.n_tied, g.n_relevant) for g in found.groups] == [(2, 3, 2), (5, 1, 1)]
    # two of three that tie for ranks 3 to 5 are right: the first right one is third in 2 of 3 orders, else fourth
    assert reciprocal_rank(found) == pytest.approx((2 / 3) / 3 + (1 / 3) / 4)
    assert hit_at(found, 3) == pytest.approx(2 / 3)
    assert recall_at(found, 4) == pytest.approx((4 / 3) / 3)
    assert recall_at(found, 6) == hit_at(found, 4) == 1


@pytest.mark.parametrize("scores", [[], [[1.0, 2.0]], 1.0])
def test_scores_of_no_list_are_refused(scores: object) -> None:
    with pytest.raises(ValueError, match="give one score for each candidate"):
        placement_of(scores, [0])  # type: ignore[arg-type]


def test_a_copy_of_the_right_answer_is_also_right() -> None:
    assert with_duplicates(("a", "b", "a", "c", "b"), (1,)) == (1, 4)
    assert with_duplicates(("a", "b", "a"), (0, 1)) == (0, 1, 2)
    assert with_duplicates(("a", "b"), ()) == ()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=30).filter(
        lambda rows: any(grade for _, grade in rows)
    )
)
def test_ndcg_equals_scikit_learns(rows: list[tuple[int, int]]) -> None:
    from sklearn.metrics import ndcg_score

    scores, grades = zip(*rows, strict=True)
    right = {i: grade for i, grade in enumerate(grades) if grade}
    found = ndcg_at(placement_of(scores, right, right), 10)
    assert found == pytest.approx(ndcg_score([grades], [scores], k=10))
    plain = placement_of(scores, right)
    assert ndcg_at(plain, 10) == pytest.approx(ndcg_score([[min(grade, 1) for grade in grades]], [scores], k=10))
