"""Relevance: probabilities of raw scores, fitted on lists."""

import numpy as np
import pytest

from polyrank.errors import DataError
from polyrank.ranking.relevance import Relevance, calibration_error, fit_relevance

TRUE = Relevance(1.5, -4.0, 0.0)


def lists_of(n: int, seed: int = 0) -> tuple[list[np.ndarray], list[list[int]]]:
    """Lists of ten, each of whose candidates is right with the probability of its score."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(1.0, 1.5, (n, 10))
    right = generator.random((n, 10)) < TRUE.of(scores)
    return list(scores), [np.flatnonzero(row).tolist() for row in right]


def test_the_scale_that_made_the_answers_is_found_and_held_out_lists_are_calibrated() -> None:
    relevance = fit_relevance(*lists_of(2000))
    assert (relevance.scale, relevance.offset) == (pytest.approx(1.5, abs=0.1), pytest.approx(-4.0, abs=0.2))
    scores, relevant = lists_of(500, seed=1)
    right = [np.isin(np.arange(10), some) for some in relevant]
    held_out = calibration_error(relevance.of(np.concatenate(scores)), np.concatenate(right))
    assert held_out < 0.02
    assert relevance.error < 0.02
    shifted = Relevance(relevance.scale, relevance.offset + 2.0, 0.0)
    assert calibration_error(shifted.of(np.concatenate(scores)), np.concatenate(right)) > 0.1


@pytest.mark.parametrize("scores", [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
def test_scores_that_separate_mislead_or_say_nothing_give_finite_growing_probabilities(scores: list[float]) -> None:
    relevance = fit_relevance([scores] * 20, [(0,)] * 20)
    p = relevance.of([-1.0, 0.0, 1.0])
    assert np.isfinite(p).all()
    assert (np.diff(p) > 0).all()
    if scores == [1.0, 0.0]:  # Platt's targets of 20 right and 20 wrong ones
        np.testing.assert_allclose(p[1:], [1 / 22, 21 / 22], atol=1e-4)
    else:
        np.testing.assert_allclose(p, 0.5, atol=1e-3)


def test_targets_are_inside_0_and_1_by_the_numbers_of_right_and_wrong_candidates() -> None:
    relevance = fit_relevance([[1.0, 0.0, 0.0, 0.0]] * 20, [(0,)] * 20)  # 20 right and 60 wrong ones
    np.testing.assert_allclose(relevance.of([0.0, 1.0]), [1 / 62, 21 / 22], atol=1e-4)
    flat = fit_relevance([[0.5, 0.5, 0.5, 0.5]] * 20, [(0,)] * 20)
    assert flat.of(0.5) == pytest.approx(1 / 4, abs=1e-3)
    backwards = fit_relevance([[0.0, 1.0, 1.0, 1.0]] * 20, [(0,)] * 20)
    assert backwards.of([0.0, 1.0]).tolist() == pytest.approx([1 / 4, 1 / 4], abs=1e-3)


def test_lists_of_one_dialogue_are_fitted_and_tested_apart() -> None:
    scores, relevant = lists_of(100)
    alone = fit_relevance(scores, relevant)
    together = fit_relevance(scores, relevant, ["a", "b"] * 50)
    assert (alone.scale, alone.offset) == (together.scale, together.offset)
    assert alone.error != together.error
    assert fit_relevance(scores, relevant, ["a"] * 100).error < 0.1  # no other dialogue is left to fit on
    for right in ([[0], [0], []], [[], [], [0]]):  # the other dialogues have only right, or only wrong candidates
        assert 0 <= fit_relevance([[1.0], [2.0], [0.5]], right, ["a", "a", "b"]).error < 1


def test_lists_of_any_length_are_the_pairs_of_their_groups() -> None:
    """Lists of one candidate each, in the groups of their lists, have the same relevance and the same error."""
    generator = np.random.default_rng(3)
    scores, relevant = lists_of(60)
    cut = [int(n) for n in generator.integers(1, 11, 60)]
    groups = [f"d{n}" for n in generator.integers(0, 17, 60)]
    lists, right = (
        [row[:n] for row, n in zip(scores, cut, strict=True)],
        [[i for i in some if i < n] for some, n in zip(relevant, cut, strict=True)],
    )
    whole = fit_relevance(lists, right, groups)
    pairs = [
        ([value], [0] if i in some else [])
        for row, some in zip(lists, right, strict=True)
        for i, value in enumerate(row)
    ]
    alone = fit_relevance(*zip(*pairs, strict=True), np.repeat(groups, cut))
    assert alone == whole
    spread = fit_relevance(lists, right)  # each list alone is fitted or tested
    assert spread == fit_relevance(lists, right, range(60)) != whole
    assert round(spread.error, 2) != spread.error == round(spread.error, 4)


def test_the_tested_lists_are_drawn_from_all_places() -> None:
    """Every fifth list has three right candidates: folds by position would test such lists only, and fit on others."""
    generator = np.random.default_rng(0)
    scores = [generator.normal(size=4) for _ in range(200)]
    right = [[0, 1, 2] if i % 5 == 0 else [int(row.argmax())] for i, row in enumerate(scores)]
    assert fit_relevance(scores, right).error < 0.08


def test_an_error_of_bins_by_hand() -> None:
    """1 is in the last bin; the bins weigh by their pairs."""
    assert calibration_error([1.0, 0.95], [0, 1]) == pytest.approx(0.475)
    assert calibration_error([0.05, 0.05, 0.05, 0.45], [0, 0, 1, 0]) == pytest.approx((0.85 + 0.45) / 4)


@pytest.mark.parametrize("relevant", [(), (0, 1)])
def test_lists_without_right_or_wrong_candidates_are_refused(relevant: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=f"{5 * len(relevant)} of 10 candidates are right; give lists with"):
        fit_relevance([[1.0, 0.0]] * 5, [relevant] * 5)
