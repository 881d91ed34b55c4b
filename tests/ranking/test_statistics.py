"""Statistical tests of statistics: intervals, p values and promised precisions are right at their stated rates.

Each is simulated with known truth, and compared with scipy.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from polyrank.errors import DataError, UsageError
from polyrank.evaluation import Evaluation, Record, breakdown, paired_test, summarise
from polyrank.ranking.abstention import Point, calibrate, coverage_curve, describe_curve
from polyrank.ranking.frames import data_frame
from polyrank.ranking.metrics import Group, Placement
from polyrank.ranking.statistics import wilson
from polyrank.tuning.intents import fit_threshold

stats = pytest.importorskip("scipy.stats")

N_CANDIDATES = 10
PLACES = [Placement(N_CANDIDATES, (Group(rank - 1, 1, 1),)) for rank in range(1, N_CANDIDATES + 1)]


def ranked(ranks: np.ndarray, n_turns: int = 1) -> Evaluation:
    """Outcomes of a scorer with these ranks, from 1, for the right one of ten candidates."""
    records = [Record(str(i), n_turns, (0,), None, PLACES[rank - 1]) for i, rank in enumerate(ranks.tolist())]
    return Evaluation(tuple(records), "lists")


def better(draws: np.ndarray) -> np.ndarray:
    """Ranks from uniform random numbers: low ranks are more likely."""
    return 1 + (N_CANDIDATES * draws**2).astype(int)


CHANCES = np.diff(np.sqrt(np.arange(11) / 10))  # the probability of each rank
TRUTH = float(CHANCES @ (1 / np.arange(1, 11)))  # the mean reciprocal rank


# intervals


@pytest.mark.deep
@pytest.mark.parametrize("n", [8, 80])
def test_95_percent_intervals_contain_the_truth_95_times_of_100(n: int) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    held = []
    for seed in range(200):
        found = summarise(ranked(better(generator.random(n))), ks=(1,), n_bootstrap=400, seed=seed)
        low, high = found["intervals"]["MRR"]
        held.append(low <= TRUTH <= high)
    assert 0.92 <= np.mean(held) <= 0.98  # two standard deviations of 200 draws: 2 * sqrt(0.95 * 0.05 / 200) = 0.03


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """scipy's percentile interval of the mean."""
    found = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0))
    return found.confidence_interval


def test_intervals_equal_scipys() -> None:
    ranks = better(np.random.Generator(np.random.PCG64(3)).random(150))
    want = bootstrap(1 / ranks)
    room = 0.04 * (want[1] - want[0])  # at either end; a 90% interval is 8% shorter there
    by_length = Evaluation((*ranked(ranks, 1).records, *ranked(np.array([1, 2]), 5).records), "lists")
    for got in (
        summarise(ranked(ranks), n_bootstrap=20_000)["intervals"]["MRR"],
        summarise(ranked(ranks))["intervals"]["MRR"],
        breakdown(by_length)[0]["intervals"]["MRR"],
        [1 + end for end in paired_test(ranked(ranks), ranked(np.ones(150, int)), metric="MRR")["interval"]],
    ):
        assert got == pytest.approx(want, abs=room)


def test_an_interval_shrinks_with_the_root_of_the_number_of_examples() -> None:
    ranks = better(np.random.Generator(np.random.PCG64(4)).random(100))
    low, high = summarise(ranked(ranks))["intervals"]["MRR"]
    many_low, many_high = summarise(ranked(np.tile(ranks, 16)))["intervals"]["MRR"]
    assert (high - low) / (many_high - many_low) == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("hits", "n"), [(0, 69), (10, 10), (3, 4), (50, 60), (97, 100), (0, 1), (700, 1000), (1000, 1000)]
)
def test_the_lower_end_of_a_precision_equals_wilsons(hits: int, n: int) -> None:
    (point,) = coverage_curve(np.zeros(n), np.arange(n) < hits)
    want = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson").low
    assert point.low == pytest.approx(want, rel=1e-6, abs=1e-12)
    assert {0: 0.0, n: 1.0}.get(hits) in (None, wilson(hits, n)[hits > 0])  # both ends are exact
    first, last = coverage_curve([1.0] * n + [0.0] * 3, [*(np.arange(n) < hits), True, False, True])
    assert first == replace(point, threshold=1.0, coverage=n / (n + 3))  # of the answers, not of the contexts
    more = stats.binomtest(hits + 2, n + 3).proportion_ci(0.95, method="wilson").low
    assert last.low == pytest.approx(more, rel=1e-6, abs=1e-12)


def test_a_curve_in_words_names_the_best_precision_of_each_coverage() -> None:
    points = [(0.04, 0.7), (0.05, 0.8), (0.1, 0.8), (0.25, 0.6), (0.5, 0.4), (0.8, 0.5), (1.0, 0.3)]
    curve = [Point(1 - coverage, coverage, precision, 0.0) for coverage, precision in points]
    assert describe_curve(curve) == (
        "80% right if 10% of the contexts get an answer, 60% if 25%, 50% if 80%, 30% if 100%"
    )
    assert describe_curve(curve[:3]) == "80% right if 10% of the contexts get an answer"


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_the_lower_end_of_a_precision_is_below_the_truth_in_975_of_1000(share: float) -> None:
    n = 400
    lows = [coverage_curve(np.zeros(n), np.arange(n) < hits)[0].low for hits in range(n + 1)]
    below = stats.binom.pmf(np.arange(n + 1), n, share) @ (np.array(lows) <= share)
    assert below == pytest.approx(0.975, abs=0.009)


def dialogues(generator: np.random.Generator, n: int, shared: float = 0.7) -> Evaluation:
    """Outcomes of ``n`` dialogues of one to eight correlated examples: most share their dialogue's random rank."""
    ids, ranks = [], []
    for dialogue in range(n):
        size = int(generator.integers(1, 9))
        own, draws = generator.random(size) > shared, better(generator.random(size + 1))
        ids += [f"d{dialogue}#{2 * i + 1}" for i in range(size)]
        ranks += np.where(own, draws[1:], draws[0]).tolist()
    records = [Record(name, 1, (0,), None, PLACES[rank - 1]) for name, rank in zip(ids, ranks, strict=True)]
    return Evaluation(tuple(records), "lists")


def apart(evaluation: Evaluation) -> Evaluation:
    """The same outcomes, each of another dialogue."""
    return replace(evaluation, records=tuple(replace(one, id=f"e{i}") for i, one in enumerate(evaluation.records)))


@pytest.mark.deep
@pytest.mark.parametrize("n", [10, 60])
def test_intervals_over_dialogues_contain_the_truth_at_their_level(n: int) -> None:
    generator = np.random.Generator(np.random.PCG64(n))
    held: dict[str, list[bool]] = {"dialogues": [], "examples": []}
    for seed in range(250):
        found = dialogues(generator, n)
        for unit, each in held.items():
            summary = summarise(found if unit == "dialogues" else apart(found), ks=(1,), n_bootstrap=300, seed=seed)
            low, high = summary["intervals"]["MRR"]
            each.append(low <= TRUTH <= high)
            assert summary.get("n_dialogues") == (n if unit == "dialogues" else None)
    assert 0.91 <= np.mean(held["dialogues"]) <= 0.985
    assert np.mean(held["examples"]) < 0.85


@pytest.mark.deep
def test_permutations_of_dialogues_keep_their_error_rate() -> None:
    generator = np.random.Generator(np.random.PCG64(12))
    found: dict[str, list[float]] = {"dialogues": [], "examples": []}
    for seed in range(200):
        a = dialogues(generator, 30)
        sizes = np.unique([record.id.partition("#")[0] for record in a.records], return_inverse=True)[1]
        other = better(generator.random(30))[sizes]  # one rank per dialogue, independent of the first scorer's
        b = Evaluation(
            tuple(
                replace(one, placement=PLACES[rank - 1]) for one, rank in zip(a.records, other.tolist(), strict=True)
            ),
            "lists",
        )
        for unit, each in found.items():
            sides = (a, b) if unit == "dialogues" else (apart(a), apart(b))
            each.append(paired_test(*sides, metric="MRR", n_permutations=199, seed=seed)["p"])
    assert np.mean(np.array(found["dialogues"]) <= 0.05) <= 0.09
    assert np.mean(np.array(found["examples"]) <= 0.05) > 0.15


# paired tests


def p_values(n_trials: int, n: int, shift: float, seed: int) -> np.ndarray:
    """p values of two correlated scorers over ``n`` examples; the second one's random numbers are ``shift`` higher."""
    generator = np.random.Generator(np.random.PCG64(seed))
    found = []
    for trial in range(n_trials):
        shared, own, other = generator.random((3, n))
        first, second = 0.5 * (shared + own), 0.5 * (shared + np.minimum(other + shift, 1))
        a, b = (ranked(1 + (N_CANDIDATES * np.minimum(draws, 0.999)).astype(int)) for draws in (first, second))
        found.append(paired_test(a, b, metric="MRR", n_permutations=199, seed=trial)["p"])
    return np.array(found)


@pytest.mark.deep
def test_p_is_uniform_without_a_difference() -> None:
    found = p_values(n := 200, 40, 0.0, seed=1)
    assert stats.kstest(found, "uniform").pvalue > 0.02
    for level in (0.05, 0.1, 0.5):
        assert np.mean(found <= level) == pytest.approx(level, abs=2.5 * np.sqrt(level * (1 - level) / n))


@pytest.mark.deep
def test_power_grows_with_the_number_of_examples() -> None:
    noticed = [np.mean(p_values(40, n, 0.2, seed=2) <= 0.05) for n in (10, 40, 160)]
    assert noticed[0] < noticed[1] - 0.1
    assert noticed[1] < noticed[2] - 0.1
    assert noticed[2] > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_scorers_only_changes_the_sign(seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    a, b = ranked(better(generator.random(30))), ranked(1 + generator.integers(10, size=30))
    there, back = (paired_test(x, y, metric="MRR", n_permutations=500) for x, y in ((a, b), (b, a)))
    assert there["p"] == back["p"]
    assert there["difference"] == -back["difference"] > 0  # the first one is better
    assert there["interval"] == pytest.approx([-end for end in back["interval"][::-1]])


def _mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(np.mean(x - y, axis=axis))


@pytest.mark.parametrize("seed", range(6))
def test_p_equals_that_of_scipys_exact_test(seed: int) -> None:
    """Eleven pairs can be swapped in 2,048 ways, and scipy tries all."""
    generator = np.random.Generator(np.random.PCG64(seed))
    first, second = better(generator.random(11)), 1 + generator.integers(10, size=11)
    want = stats.permutation_test(
        (1 / first, 1 / second), _mean_difference, permutation_type="samples", vectorized=True, n_resamples=5000
    ).pvalue
    got = paired_test(ranked(first), ranked(second), metric="MRR", n_permutations=20_000)["p"]
    assert got == pytest.approx(want, abs=4 * np.sqrt(want * (1 - want) / 20_000) + 1e-4)


def test_p_of_many_pairs_approximates_the_t_test() -> None:
    generator = np.random.Generator(np.random.PCG64(8))
    for shift in (0.0, 0.03, 0.06):
        draws, own = generator.random((2, 600))
        first, second = (1 + (N_CANDIDATES * values).astype(int) for values in (draws * (1 - shift), (draws + own) / 2))
        want = stats.ttest_rel(1 / first, 1 / second).pvalue
        got = paired_test(ranked(first), ranked(second), metric="MRR", n_permutations=4000)["p"]
        assert got == pytest.approx(want, abs=0.02)


def test_p_has_the_resolution_of_its_permutations() -> None:
    good, bad = ranked(np.ones(50, int)), ranked(np.full(50, 7))
    assert paired_test(good, bad, n_permutations=99)["p"] == 0.01
    assert paired_test(good, bad)["p"] == 1 / 10_001
    one = paired_test(ranked(np.array([1])), ranked(np.array([2])), n_permutations=99)
    assert one["p"] == 1  # the difference is as large after a swap


# promised precisions


def test_a_threshold_keeps_its_promise_on_fresh_data() -> None:
    """Confidences are uniform, and a reply is right with that probability: (1 + t) / 2 of those above t."""
    generator = np.random.Generator(np.random.PCG64(5))
    for wanted in (0.7, 0.9):
        kept, answered = [], []
        for _ in range(30):
            sure = generator.random(800)
            right = generator.random(800) < sure
            chosen, _ = calibrate([[value] for value in sure], right, precision=wanted, measure="score")
            kept.append((1 + chosen.threshold) / 2)
            answered.append(1 - chosen.threshold)
        assert np.mean(kept) == pytest.approx(wanted, abs=0.012)
        assert np.mean(answered) == pytest.approx(2 * (1 - wanted), abs=0.025)


NORMAL = partial(stats.norm.cdf)


@pytest.mark.deep
@pytest.mark.parametrize("n_outside", [400, 3200])
def test_a_rejecting_threshold_is_near_the_optimum(n_outside: int) -> None:
    generator = np.random.Generator(np.random.PCG64(6))
    found, fresh = [], []
    for _ in range(6):
        values = np.concatenate([generator.normal(2, 1, 400), generator.normal(0, 1, n_outside)])
        scores = np.stack([values, np.full(len(values), -99.0)], 1).astype(np.float32)
        labels = np.repeat([0, -1], [400, n_outside])
        threshold = fit_threshold(scores, labels)
        assert threshold is not None
        found.append(threshold)
        fresh.append((1 - NORMAL(threshold - 2) + NORMAL(threshold)) / 2)
    assert np.mean(found) == pytest.approx(1.0, abs=0.15)
    assert np.mean(fresh) == pytest.approx(NORMAL(1), abs=0.01)


def test_a_threshold_needs_only_one_measure_and_its_error_has_the_best_precision() -> None:
    """Contexts with one reply have a score, and no margin."""
    one_reply = [[0.9], [0.8], [0.7]]
    rule, curve = calibrate(one_reply, [True, True, False], precision=0.9)
    assert (rule.measure, [point.coverage for point in curve]) == ("score", pytest.approx([1 / 3, 2 / 3, 1]))
    assert 0.7 < rule.threshold <= 0.8
    with pytest.raises(DataError, match=r"precision of 90\.0%, the best is 66\.7% on 3 examples"):
        calibrate(one_reply, [False, True, True], precision=0.9)
    with pytest.raises(DataError, match="no example has a reply with a finite confidence"):
        calibrate(one_reply, [True, True, False], precision=0.9, measure="margin")


def test_a_table_has_the_columns_of_all_rows() -> None:
    pytest.importorskip("pandas")
    rows = [{"a": 1}, {"b": 2, "a": 3}]
    assert list(data_frame(rows)) == ["a", "b"]
    assert list(data_frame(rows, ["c", "b"])) == ["c", "b", "a"]
    assert data_frame(rows)["a"].tolist() == [1, 3]


def test_tables_need_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # makes the import fail
    with pytest.raises(UsageError, match="pandas is not installed; install it with: pip install pandas"):
        data_frame([{"a": 1}])


def test_the_measure_that_separates_right_from_wrong_is_chosen() -> None:
    by_margin = [[5.0, 1.0], [5.0, 4.9], [1.0, -3.0], [9.0, 8.95]], [True, False, True, False]
    by_score = [[5.0, 4.9], [4.0, 3.9], [1.0, -3.0], [0.0, -9.0]], [True, True, False, False]
    assert calibrate(*by_margin, precision=0.9)[0].measure != "score"
    assert calibrate(*by_score, precision=0.9)[0].measure == "score"
    few_margins = [[1.0, -9.0], [9.0], [8.0], [7.0]], [True, False, True, True]  # contexts without a margin come last
    assert calibrate(*few_margins, precision=0.9)[0].measure == "margin"
