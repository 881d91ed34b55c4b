"""The choice of terms by held-out likelihood: no dialogue has a part in its own figures, and noise is not chosen."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank
from polyrank.ranking.weights import PRIOR_DEVIATION, fit_weights
from polyrank.tuning.selection import Selection, TermColumns, standard_error

Array = NDArray[np.float64]


def drawn(seed: int, n: int, weights: list[float], k: int = 6) -> tuple[list[Array], list[tuple[int]]]:
    """Lists of ``k`` whose right candidate is drawn with these weights of random features."""
    generator = np.random.default_rng(seed)
    features = [generator.normal(size=(k, len(weights))) for _ in range(n)]
    right = [(int((x @ np.array(weights) + generator.gumbel(size=k)).argmax()),) for x in features]
    return features, right


def blocks(n: int) -> list[TermColumns]:
    return [TermColumns((column,), PRIOR_DEVIATION, False) for column in range(n)]


def test_the_figures_of_a_dialogue_do_not_depend_on_its_own_answers() -> None:
    """With two candidates, the probabilities of both answers add up to 1 if the weights are of other dialogues."""
    features, right = drawn(1, 24, [1.0, 0.5], k=2)
    dialogues = np.repeat(np.arange(8), 3)
    plain = Selection(features, right, dialogues, blocks(2)).held_out([0, 1]).log_likelihood
    for dialogue in range(8):
        inside = np.flatnonzero(dialogues == dialogue)
        other = [(1 - r,) if n in inside else (r,) for n, (r,) in enumerate(right)]
        flipped = Selection(features, other, dialogues, blocks(2)).held_out([0, 1]).log_likelihood
        np.testing.assert_allclose(np.exp(plain[inside]) + np.exp(flipped[inside]), 1.0, atol=1e-5)


def test_held_out_figures_equal_those_of_fits_without_each_dialogue() -> None:
    """Of six dialogues, each is a fold, in every partition."""
    features, right = drawn(2, 18, [1.2, 0.4, 0.0])
    dialogues = np.arange(18) % 6
    held = Selection(features, right, dialogues, blocks(3)).held_out([0, 2])
    deviations = np.sqrt(np.mean([((x - x.mean(0)) ** 2).mean(0) for x in features], axis=0))
    for n, (x, answer) in enumerate(zip(features, right, strict=True)):
        others = np.flatnonzero(dialogues != dialogues[n])
        standard = [(features[m] / deviations)[:, [0, 2]] for m in others]
        w = np.array(fit_weights(standard, [right[m] for m in others]))
        values = (x / deviations)[:, [0, 2]] @ w
        likelihood = values[answer[0]] - np.log(np.exp(values).sum())
        assert held.log_likelihood[n] == pytest.approx(likelihood, abs=2e-3)  # the penalty is of another deviation
        placement = placement_of(values, answer)
        assert held.reciprocal_rank[n] == pytest.approx(reciprocal_rank(placement))
        assert held.hit[n] == pytest.approx(hit_at(placement, 1))


def test_useful_terms_are_chosen_in_the_order_of_their_gain_and_noise_is_not() -> None:
    features, right = drawn(3, 300, [0.5, 1.5, 0.0, 0.9])
    selection = Selection(features, right, np.arange(300), blocks(4))
    order: list[int] = []
    while (best := selection.best(order or [1], [b for b in range(4) if b not in (*order, 1)])) is not None:
        order = [*(order or [1]), best]
    assert order == [1, 3, 0]
    weights = selection.weights(order)
    np.testing.assert_allclose([weights[b][0] for b in (0, 1, 3)], [0.5, 1.5, 0.9], atol=0.3)


@pytest.mark.parametrize("seed", [7, 17])
def test_copies_of_lists_in_their_dialogues_make_no_term_surer(seed: int) -> None:
    """Each gain is between the standard errors of independent lists and of dialogues with four copies of a list."""
    features, right = drawn(seed, 30, [1.0, 0.35])
    dialogues = np.tile(np.arange(30), 4)
    selection = Selection(features * 4, right * 4, dialogues, blocks(2))
    gain = selection.held_out([0, 1]).log_likelihood - selection.held_out([0]).log_likelihood
    assert gain.std() / np.sqrt(120) < gain.mean() < gain.std() / np.sqrt(30)
    assert selection.best([0], [1]) is None


@pytest.mark.deep
def test_random_terms_are_rarely_chosen() -> None:
    chosen = 0
    for seed in range(10):
        features, right = drawn(10 + seed, 40, [1.0, 0.0, 0.0, 0.0])
        selection = Selection(features, right, np.arange(40) // 2, blocks(4), seed=seed)
        chosen += selection.best([0], [1, 2, 3]) is not None
    assert chosen <= 2


def test_inactive_lists_keep_their_figures() -> None:
    features, right = drawn(4, 30, [1.0, 1.0])
    active = np.arange(30) % 5 != 0
    shortened = [r if on else () for r, on in zip(right, active, strict=True)]
    held, other = (
        Selection(features, shortened, np.arange(30), blocks(2), active=active, figures=figures).held_out([0, 1])
        for figures in ((np.full(30, 0.25), np.full(30, 0.5)), (np.zeros(30), np.zeros(30)))
    )
    assert (held.reciprocal_rank[~active] == 0.25).all()
    assert (held.log_likelihood[~active] == 0).all()
    assert (held.hit[~active] == 0.5).all()
    assert held.hit[active].mean() > 0.3
    for name in ("reciprocal_rank", "hit"):  # earlier figures of active lists do not count
        np.testing.assert_array_equal(getattr(held, name)[active], getattr(other, name)[active])
    dialogues = np.arange(30) // 3
    whole = Selection(features, shortened, dialogues, blocks(2), active=active).held_out([0, 1])
    lists = np.flatnonzero(active).tolist()  # which stay in the fold of their dialogue
    alone = Selection([features[n] for n in lists], [right[n] for n in lists], dialogues[lists], blocks(2))
    np.testing.assert_array_equal(whole.log_likelihood[active], alone.held_out([0, 1]).log_likelihood)


def test_a_seed_gives_the_same_partitions_and_another_seed_others() -> None:
    features, right = drawn(5, 40, [1.0])
    one, same, other = (Selection(features, right, np.arange(40), blocks(1), seed=s).held_out([0]) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.log_likelihood, same.log_likelihood)
    assert not np.array_equal(one.log_likelihood, other.log_likelihood)


def test_each_term_keeps_its_prior_in_any_order_of_the_terms() -> None:
    features, right = drawn(7, 60, [1.0, -1.0])
    terms = [TermColumns((0,), 0.01, False), TermColumns((1,), PRIOR_DEVIATION, True)]
    weights = [Selection(features, right, np.arange(60), terms).weights(order) for order in ([0, 1], [1, 0])]
    assert weights[0] == weights[1]
    assert 0 <= weights[0][0][0] < 0.2 < -weights[0][1][0]


def test_the_figures_of_a_choice_are_the_same_whatever_was_measured_before() -> None:
    features, right = drawn(8, 12, [1.0, -0.5, 0.3, 0.8])
    choices = [chosen for n in range(1, 5) for chosen in combinations(range(4), n)]
    asked = Selection(features, right, np.arange(12) % 4, blocks(4))
    before = {chosen: asked.held_out(chosen[::-1]) for chosen in choices}
    for chosen in choices:
        alone = Selection(features, right, np.arange(12) % 4, blocks(4)).held_out(chosen)
        for name in ("log_likelihood", "reciprocal_rank", "hit"):
            for found in (before[chosen], asked.held_out(chosen)):
                np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    assert len({found.log_likelihood.tobytes() for found in before.values()}) == len(choices)


def test_one_dialogue_is_fitted_on_itself() -> None:
    features, right = drawn(6, 4, [1.0])
    assert np.isfinite(Selection(features, right, np.zeros(4, np.int64), blocks(1)).held_out([0]).log_likelihood).all()


def test_a_standard_error_is_of_the_sums_of_dialogues() -> None:
    values = np.random.default_rng(0).normal(size=200)
    alone = standard_error(values, np.arange(200))
    assert alone == pytest.approx(values.std() / np.sqrt(200))
    twice = np.repeat(values, 2)  # copies in one dialogue add nothing
    assert standard_error(twice, np.repeat(np.arange(200), 2)) == pytest.approx(alone)


def test_single_terms_are_compared_on_the_lists_of_two_dialogues() -> None:
    chosen = []
    for seed in range(50):
        features, right = drawn(seed, 6, [0.0, 3.0])
        selection = Selection(features, right, np.arange(6) % 2, blocks(2))
        chosen.append(max((0, 1), key=lambda term: selection.log_likelihood([term])))
    assert sum(chosen) >= 49
