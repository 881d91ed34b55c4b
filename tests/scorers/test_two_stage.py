"""Two stages as in the papers, how they combine scores, and abstention."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from polyrank.errors import DataError, UsageError
from polyrank.ranking.abstention import MEASURES, Abstention, area, calibrate, confidence, coverage_curve
from polyrank.records import Candidate, Context
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.two_stage import Combine, shortlist_of

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from papers.combining import as_printed, by_z_score, reranker_alone
from papers.two_stage import TwoStageScorer

TEXTS = ["wifi is down", "restart the router", "the bill is high", "thanks", "thanks", "router light is red", "wifi"]
POOL = [Candidate(str(i), text) for i, text in enumerate(TEXTS)]
COMBINATIONS = {"alone": reranker_alone, "sum": np.add, "as printed": as_printed, "z-scores": by_z_score}
CONTEXTS = [Context(("my wifi router is down",)), Context(("hello",)), Context(("the bill", "is the router red?"))]


class Letters(Scorer):
    """A small real re-ranker that counts the letter e."""

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [np.array([text.count("e") for text in texts], np.float32) for texts in candidates]


def test_a_shortlist_of_all_equals_the_reranker_alone() -> None:
    both = TwoStageScorer(BM25(), Letters(), n_retrieved=len(TEXTS), combine=reranker_alone)
    for got, want in zip(both.score(CONTEXTS, [TEXTS] * 3), Letters().score(CONTEXTS, [TEXTS] * 3), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [1, 2, 4, 100])
@pytest.mark.parametrize("combine", COMBINATIONS.values(), ids=COMBINATIONS)
def test_replies_outside_the_shortlist_follow_in_the_retrievers_order(n: int, combine: Combine) -> None:
    first = BM25().fit(TEXTS)
    both = TwoStageScorer(first, Letters(), n_retrieved=n, combine=combine)
    for context, retrieved, total in zip(
        CONTEXTS, first.score(CONTEXTS, [TEXTS] * 3), both.score(CONTEXTS, [TEXTS] * 3), strict=True
    ):
        was = dict(zip(TEXTS, retrieved, strict=True))
        order = sorted(was, key=lambda text: (-was[text], text))
        inside, outside = order[:n], order[n:]
        at = dict(zip(TEXTS, total, strict=True))
        if outside:
            assert min(at[text] for text in inside) > max(at[text] for text in outside)
        for a, b in pairwise(outside):
            assert np.sign(at[a] - at[b]) == np.sign(was[a] - was[b])
        np.testing.assert_allclose(both.score_pool([context], TEXTS)[0], total, rtol=1e-5, atol=1e-6)
        assert total[3] == total[4]  # copies have equal scores


class Fixed(Letters):
    """Scores by text."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return [np.array([self.scores[text] for text in texts], np.float32) for texts in candidates]


@pytest.mark.parametrize(("n", "reason"), [(0, "is 0; give 1 or more"), (2.5, "= 2.5 is float")])
def test_the_length_of_a_shortlist_is_a_positive_whole_number(n: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=f"n_retrieved {reason}"):
        TwoStageScorer(BM25(), Letters(), n_retrieved=n, combine=reranker_alone)


@pytest.mark.parametrize("worst", [-12.0, -1e9])
def test_close_scores_outside_the_shortlist_do_not_become_ties(worst: float) -> None:
    first = Fixed(a=0.9, b=0.8, c=0.5000002, d=0.5000001, e=0.5)
    both = TwoStageScorer(first, Fixed(a=worst, b=3.0), n_retrieved=2, combine=reranker_alone)  # type: ignore[arg-type]
    (scores,) = both.score(CONTEXTS[:1], [list("edcab")])
    assert (np.diff(scores) > 0).all()


def test_the_order_of_candidates_does_not_matter() -> None:
    both = TwoStageScorer(TfIdf().fit(TEXTS), Letters(), n_retrieved=3, combine=reranker_alone)
    order = np.random.default_rng(1).permutation(len(TEXTS))
    whole = both.score(CONTEXTS, [TEXTS] * 3)
    moved = both.score(CONTEXTS, [[TEXTS[i] for i in order]] * 3)
    for a, b in zip(whole, moved, strict=True):
        np.testing.assert_array_equal(a[order], b)


def test_excluded_rows_leave_their_places_to_others() -> None:
    values, texts = np.array([5, 4, 3, 3, 1], np.float32), ["a", "b", "no", "no", "c"]
    for excluded, rows in (((), [0, 1]), ((0,), [1, 3]), ((0, 3), [1, 2]), ((1, 2, 3), [0, 4]), (range(5), [])):
        assert shortlist_of(values, texts, 2, excluded) == rows


def test_no_candidates_and_no_shortlist() -> None:
    both = TwoStageScorer(BM25().fit(TEXTS), Letters(), combine=reranker_alone)
    assert [len(row) for row in both.score(CONTEXTS, [[], ["a"], []])] == [
        0,
        1,
        0,
    ]


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=8),
    st.sampled_from([*COMBINATIONS.values()]),
    st.integers(0, 99),
)
def test_a_combination_keeps_the_order_that_both_agree_on(values: list[float], combine: Combine, seed: int) -> None:
    first = np.array(values, np.float32)
    second = first * np.float32(0.5) + np.float32(3)  # another scale, but the same order
    total = combine(first, second)
    for i in range(len(first)):
        for j in range(len(first)):
            if first[i] > first[j]:
                assert total[i] >= total[j]
    order = np.random.default_rng(seed).permutation(len(first))
    np.testing.assert_allclose(combine(first[order], second[order]), total[order], rtol=1e-6, atol=1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.3, 0.5, 0.9]),
)
@settings(max_examples=60)
def test_the_curve_is_right_and_calibration_reaches_its_precision(rows: list[tuple[int, bool]], wanted: float) -> None:
    values, right = [float(v) for v, _ in rows], [r for _, r in rows]
    for point in coverage_curve(values, right):
        answered = [r for v, r in zip(values, right, strict=True) if v >= point.threshold]
        assert point.coverage == pytest.approx(len(answered) / len(rows))
        assert point.precision == pytest.approx(sum(answered) / len(answered))
        assert 0 <= point.low <= point.precision + 1e-12
    scores = [[v] for v in values]
    if max(p.precision for p in coverage_curve(values, right)) < wanted:
        with pytest.raises(DataError, match="no threshold reaches"):
            calibrate(scores, right, precision=wanted, measure="score")
        return
    chosen, curve = calibrate(scores, right, precision=wanted, measure="score")
    answered = [r for v, r in zip(values, right, strict=True) if not chosen.abstains([v])]
    assert sum(answered) / len(answered) >= wanted
    assert len(answered) / len(rows) == max(p.coverage for p in curve if p.precision >= wanted)


def test_the_measure_that_separates_right_from_wrong_is_chosen() -> None:
    generator = np.random.default_rng(2)
    right = generator.random(400) < 0.5
    level = generator.normal(size=400) * 10  # only the lead is informative, not the score
    lead = np.where(right, 2.0, 0.2) + generator.random(400)
    scores = [[a, a - b, a - b - 1] for a, b in zip(level, lead, strict=True)]
    chosen, _ = calibrate(scores, right, precision=0.95)
    assert chosen.measure in ("margin", "softmax")
    assert not chosen.abstains([0.0, -3.0, -4.0])
    assert chosen.abstains([100.0, 99.9, 99.0])


@pytest.mark.parametrize("measure", MEASURES)
def test_without_replies_there_is_no_answer(measure: str) -> None:
    assert Abstention(measure, -1e30).abstains([])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="needs examples"):
        calibrate([], [], precision=0.5)


@pytest.mark.parametrize("how", ["as printed", "z-scores"])
def test_combinations_equal_the_published_formulas(how: str) -> None:
    special, stats = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")
    scales = {"as printed": (np.array, special.expit), "z-scores": (stats.zscore,) * 2}[how]
    combine = COMBINATIONS[how]
    generator = np.random.Generator(np.random.PCG64(1))
    for n in (1, 2, 9):
        first, second = generator.normal(size=(2, n)) * [[30], [2]]
        with np.errstate(all="ignore"):
            want = np.nan_to_num(scales[0](first)) + np.nan_to_num(scales[1](second))
        got = combine(first.astype(np.float32), second.astype(np.float32))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert got.dtype == np.float32
    huge = np.array([1e5, -1e5, 0.0], np.float32)
    assert np.isfinite(combine(huge, huge)).all()


def test_confidence_by_hand() -> None:
    scores = [3.0, 2.0, 2.0, *[-50.0] * 7, 3.0, 3.0]  # more than the ten that count
    assert confidence(scores, "score") == 3
    assert confidence(scores, "margin") == 1
    assert confidence(scores, "softmax") == pytest.approx(np.e / (np.e + 2))
    assert confidence([0.0] * 10, "softmax") == confidence([0.0] * 30, "softmax") == pytest.approx(0.1)
    assert confidence([-1.0], "score") == -1
    assert confidence([-1.0], "margin") == confidence([-1.0], "softmax") == -np.inf  # nothing to compare it with
    assert confidence([], "margin") == -np.inf
    # a confidence equal to the threshold is answered
    assert [Abstention("score", t).abstains([2.0, 1.0]) for t in (1.99, 2.0, 2.01)] == [False, False, True]
    assert [Abstention("margin", t).abstains([2.0, 1.5]) for t in (0.5, 0.51)] == [False, True]


def test_the_area_is_the_mean_precision_over_coverages() -> None:
    curve = coverage_curve([4.0, 3.0, 2.0, 1.0], [True, False, True, True])
    assert [(p.threshold, p.coverage) for p in curve] == [(4, 0.25), (3, 0.5), (2, 0.75), (1, 1)]
    assert [p.precision for p in curve] == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4])
    assert area(curve) == pytest.approx((1 + 1 / 2 + 2 / 3 + 3 / 4) / 4)
    assert coverage_curve([], []) == []
    shuffled = coverage_curve([2.0, 4.0, 1.0, 3.0], [True, True, True, False])
    assert shuffled == curve


def test_a_threshold_is_slightly_below_its_examples_confidence() -> None:
    """By at most 2^-6 of itself, and never so far that it reaches the next example."""
    right = [True, True, False, False]
    for scores, want in (
        ([8.0, 4.0, 1.0, 0.5], 4 * (1 - 2.0**-6)),
        ([8.0, 4.0, 3.99, 0.5], 3.995),
        ([-1.0, -4.0, -8.0, -9.0], -4 * (1 + 2.0**-6)),
        ([8.0, 0.0, -1.0, -2.0], 0.0),
    ):
        found, curve = calibrate([[score] for score in scores], right, precision=1.0, measure="score")
        assert (found.measure, found.threshold) == ("score", pytest.approx(want))
        assert len(curve) == 4
    # the precise enough threshold that answers most often
    found, _ = calibrate([[8.0], [6.0], [4.0], [2.0]], [True, False, True, True], precision=0.7, measure="score")
    assert found.threshold < 2
    found, _ = calibrate([[8.0], [6.0], [4.0], [2.0]], [True, True, False, True], precision=0.75, measure="score")
    assert found.threshold < 2  # exactly as precise as requested
    with pytest.raises(DataError, match=r"no threshold reaches a precision of 90.0%, the best is 50.0% on 2 examples"):
        calibrate([[2.0], [1.0]], [False, True], precision=0.9, measure="score")
    nearly = [True] * 2849 + [False] * 151  # 94.97%
    with pytest.raises(DataError, match=r"reaches a precision of 95.0%, the best is 94.9% on 3,000 examples"):
        calibrate([[1.0]] * 3000, nearly, precision=0.95, measure="score")


def test_the_error_names_the_best_threshold_that_a_user_can_set() -> None:
    """A single reply has no margin, so no threshold answers it; 99.8% is not rounded to 100%."""
    with pytest.raises(DataError, match=r"the best is 0\.0% on 2 examples \(0% right if 50% of the contexts"):
        calibrate([[5.0], [3.0, 1.0]], [True, False], precision=0.9, measure="margin")
    with pytest.raises(DataError, match=r"a precision of 99\.9%, the best is 99\.8% on 1,000"):
        calibrate([[3.0, 1.0]] * 1000, [True] * 998 + [False] * 2, precision=0.999, measure="score")


def test_both_stages_are_fitted() -> None:
    both = TwoStageScorer(BM25(), TfIdf(), n_retrieved=2, combine=np.add)
    distinct = list(dict.fromkeys(TEXTS))
    fitted = TwoStageScorer(BM25().fit(distinct), TfIdf().fit(distinct), n_retrieved=2, combine=np.add)
    lists = [TEXTS[:3]] * len(CONTEXTS)
    for got, want in zip(
        both.fitted_to(lambda: TEXTS).score(CONTEXTS, lists), fitted.score(CONTEXTS, lists), strict=True
    ):
        np.testing.assert_array_equal(got, want)
