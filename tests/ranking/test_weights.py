"""The fit of weights: the minimum that a general optimizer finds, signs, priors, and lists without right answers."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from polyrank.ranking.weights import PRIOR_DEVIATION, Design, fit_weights

Array = NDArray[np.float64]


def drawn_lists(
    seed: int, n: int, weights: Sequence[float], scales: Sequence[float]
) -> tuple[list[Array], list[tuple[int]]]:
    """Random features of lists of different lengths, whose right candidate is drawn with these weights."""
    generator = np.random.default_rng(seed)
    features = [generator.normal(size=(generator.integers(2, 7), len(weights))) * scales for _ in range(n)]
    right = [(int((x @ np.array(weights) + generator.gumbel(size=len(x))).argmax()),) for x in features]
    return features, right


def loss_of(features: Sequence[Array], relevant: Sequence[Sequence[int]], priors: Sequence[float], w: Array) -> float:
    """The penalized cross-entropy, in plain numpy."""
    within = np.sqrt(np.mean([((x - x.mean(0)) ** 2).mean(0) for x in features], axis=0))
    total = 0.0
    for x, right in zip(features, relevant, strict=True):
        values = x @ w
        total -= values[list(right)].mean() - values.max() - np.log(np.exp(values - values.max()).sum())
    return float(total / len(features) + ((w * within / np.array(priors)) ** 2).sum() / 2 / len(features))


@pytest.mark.deep
@given(st.integers(0, 10**6), st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([0.2, 1.0, 10.0]))
@settings(max_examples=12)
def test_weights_are_the_minimum_that_a_general_optimizer_finds(seed: int, signed: list[bool], prior: float) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    features, drawn = drawn_lists(seed, 30, [0.8, -0.5, 0.0], [1.0, 30.0, 0.01])
    # most lists have two right candidates
    right = [sorted({*one, n % len(x)}) for n, (one, x) in enumerate(zip(drawn, features, strict=True))]
    priors = [prior, PRIOR_DEVIATION, 2 * prior]
    found = np.array(fit_weights(features, right, priors=priors, signed=signed))
    scales = np.array([1.0, 30.0, 0.01])  # so that all have about one size for the optimizer
    bounds = [(None if free else 0.0, None) for free in signed]
    best = optimize.minimize(
        lambda v: loss_of(features, right, priors, v / scales), np.ones(3), method="L-BFGS-B", bounds=bounds,
        options={"ftol": 1e-14, "gtol": 1e-10},
    )  # fmt: skip
    assert all(w >= 0 or free for w, free in zip(found, signed, strict=True))
    assert loss_of(features, right, priors, found) <= best.fun + 1e-8
    np.testing.assert_allclose(found * scales, best.x, atol=2e-3)


def test_the_weights_that_made_the_answers_are_found() -> None:
    features, right = drawn_lists(1, 4000, [1.5, -0.7, 0.0], [1.0, 1.0, 1.0])
    np.testing.assert_allclose(fit_weights(features, right, signed=[True] * 3), [1.5, -0.7, 0.0], atol=0.1)
    assert fit_weights(features, right)[1] == 0  # no weight is below 0 unless it may be


def test_a_scale_or_shift_of_a_feature_changes_only_its_weight() -> None:
    features, right = drawn_lists(2, 50, [1.0, 0.5], [1.0, 1.0])
    plain = fit_weights(features, right)
    generator = np.random.default_rng(0)
    moved = [x * [100.0, 0.01] + generator.normal(size=2) for x in features]
    np.testing.assert_allclose(np.array(fit_weights(moved, right)) * [100.0, 0.01], plain, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 5])
def test_lists_that_are_ranked_without_error_give_finite_weights(n: int) -> None:
    features = [np.array([[1.0, 0.0], [0.0, 0.0]])] * n
    first, second = fit_weights(features, [(0,)] * n)
    assert 0 < first < 100
    assert second == pytest.approx(0.0)  # a constant feature
    assert fit_weights(features, [(0,)] * n, priors=[0.1, 0.1])[0] < first


def test_lists_without_right_answers_are_ignored() -> None:
    features, right = drawn_lists(3, 20, [1.0, 1.0], [1.0, 1.0])
    silent, _ = drawn_lists(4, 5, [1.0, 1.0], [1.0, 1.0])
    assert fit_weights([*features, *silent], [*right, *[()] * 5]) == fit_weights(features, right)
    assert fit_weights(silent, [()] * 5) == (0.0, 0.0)
    assert fit_weights([], []) == ()


def test_a_design_of_some_lists_and_features_keeps_their_scale() -> None:
    features, right = drawn_lists(5, 12, [1.0, 0.5, 0.2], [1.0, 2.0, 3.0])
    design = Design.of(features, right)
    some = design.some(np.array([1, 4, 9]), [0, 2])
    w = np.array([0.3, 0.7])
    whole = design.log_likelihood(np.array([0.3, 0.0, 0.7]))
    np.testing.assert_allclose(some.log_likelihood(w), whole[[1, 4, 9]])
    np.testing.assert_array_equal(some.deviations, design.deviations[[0, 2]])
    values = [x / design.deviations @ np.array([0.3, 0.0, 0.7]) for x in features]
    wanted = [v[r[0]] - np.log(np.exp(v).sum()) for v, r in zip(values, right, strict=True)]
    np.testing.assert_allclose(whole, wanted, rtol=1e-9)
