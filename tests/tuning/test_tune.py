"""``polyrank.tune``: what it chooses from simulated answers, its bounds and options, its cache, and users' objects."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrank
from polyrank import Example, Replies, build_index
from polyrank.config.models import CrossConfig, TextPolicy
from polyrank.errors import DataError, UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.evaluation.tables import mean_with_interval
from polyrank.index import open_index
from polyrank.loading.models import resolve_model
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.relevance import calibration_error, fit_relevance
from polyrank.ranking.weights import fit_weights
from polyrank.records import Context
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Offer, Term
from polyrank.scorers.terms.words import WordCounts, Words
from polyrank.tuning.choice import N_RERANKED, Choice
from polyrank.tuning.durations import milliseconds
from polyrank.tuning.scored import ScoredLists, Shortlists
from polyrank.tuning.tune import _fixed, _opened, _terms
from word_models import PairScorer, WordEncoder

SAID = [f"w{n}" for n in range(30)]
WITHOUT = ["words", "counts", "hubs"]


def simulated(n: int, true: Scorer, seed: int = 1, k: int = 6, noise: float = 1.0) -> list[Example]:
    """Random lists, two of each dialogue, whose right reply is drawn from the softmax of a model's scores."""
    generator, lists = np.random.default_rng(seed), []

    def text() -> str:
        return " ".join(generator.choice(SAID, generator.integers(1, 4)))

    for number in range(n):
        turns, texts = tuple(text() for _ in range(2)), list(dict.fromkeys(text() for _ in range(k)))
        scores = true.score([turns], [texts])[0].astype(np.float64) + noise * generator.gumbel(size=len(texts))
        lists.append(Example(turns, tuple(texts), (int(scores.argmax()),), f"d{number // 2}#{number}"))
    return lists


def truth(*parts: tuple[Term, Sequence[float]]) -> Ranker:
    return Ranker(parts)


BI, OTHER = WordEncoder("bi", 1), WordEncoder("other", 2)
COUNTS = Counts.of({text: 1 + n**2 for n, text in enumerate(SAID)})
EXAMPLE_LISTS = simulated(80, truth((EncoderTerm(BI), (3.0,))))


def kinds_of(tuning: polyrank.Tuning) -> list[str]:
    return [each.term.kind for each in tuning.ranker.terms]


def test_the_terms_that_made_the_answers_are_chosen_with_their_weights() -> None:
    true = truth((EncoderTerm(BI), (2.0,)), (EncoderTerm(OTHER), (1.0,)))
    tuning = polyrank.tune([BI, OTHER, WordEncoder("noise", 8)], simulated(300, true), without=WITHOUT)
    assert tuning.is_better
    assert tuning.alone == "bi"
    assert {each.term.name: each.weights for each in tuning.ranker.terms} == {
        "bi": (1.0,), "other": (pytest.approx(0.5, abs=0.2),),
    }  # fmt: skip
    assert tuning.ranker.scale == pytest.approx(2.0, rel=0.25)
    rows = {row["name"]: row for row in tuning.rows}
    assert rows["noise"]["weights"] == {}
    assert rows["other"]["with"]["MRR"]["low"] > 0 > rows["other"]["without"]["MRR"]["high"]
    assert rows["bi"]["without"]["MRR"]["high"] < 0
    assert tuning.gain["log_likelihood"]["low"] > 0
    assert [point["terms"] for point in tuning.curve] == [["bi"], ["bi", "other"]]
    assert tuning.curve[1]["R@1"]["mean"] - tuning.curve[0]["R@1"]["mean"] == pytest.approx(tuning.gain["R@1"]["mean"])
    assert tuning.ranker.figures["n_lists"] == tuning.n_lists == 300
    lists = simulated(200, true, seed=2)
    values = np.concatenate(tuning.ranker.score([e.query for e in lists], [e.candidates for e in lists]))
    right = np.concatenate([np.arange(len(e.candidates)) == e.relevant[0] for e in lists])
    assert tuning.ranker.relevance is not None
    assert tuning.ranker.relevance.error < 0.05
    assert calibration_error(tuning.ranker.relevance.of(values), right) < 0.05


@pytest.mark.deep
def test_counts_and_words_of_the_dialogues_are_chosen_if_they_help() -> None:
    said = ["w1", "w1", "w1", "w1 w2", "w2", "w3"] * 40
    dialogues = [Example(("hi",), (text,), (0,), f"t{n}") for n, text in enumerate(said)]
    counts = Counts.of({"w1": 120, "w1 w2": 40, "w2": 40, "w3": 40})
    generator = np.random.default_rng(3)
    lists = []
    for n in range(120):
        texts = tuple(generator.permutation(["w1", "w1 w2", "w2", "w4", "w5", "w6 w7"]).tolist())
        scores = counts.score(["hi"], [texts])[0][:, 0] + BI.score([f"w{n % 30}"], [texts])[0]
        lists.append(Example((f"w{n % 30}",), texts, (int((scores + generator.gumbel(size=6)).argmax()),), str(n)))
    tuning = polyrank.tune([BI], lists, dialogues=dialogues)
    assert "counts" in kinds_of(tuning)
    assert "counts" not in [row["kind"] for row in polyrank.tune([BI], lists).rows]  # without dialogues
    echoes = truth((EncoderTerm(BI), (1.0,)), (Words(WordCounts.of(SAID)), (1.0, 0.0, 0.0, 0.0)))
    assert "words" in kinds_of(polyrank.tune([BI], simulated(100, echoes)))


def test_noise_is_no_ranker_of_several_terms() -> None:
    """Random models next to a useful one: nearly always the useful one alone is best."""
    better = 0
    for seed in range(6):  # of these, 0 and 1 add a random model
        noise = [WordEncoder(f"noise {n}", 50 + 3 * seed + n) for n in range(2)]
        lists = simulated(40, truth((EncoderTerm(BI), (3.0,))), seed)
        tuning = polyrank.tune([BI, *noise], lists, without=WITHOUT, seed=seed)
        used = tuning.curve[-1 if tuning.is_better else 0]
        assert tuning.held_out.reciprocal_rank.mean() == pytest.approx(used["MRR"]["mean"])
        assert tuning.held_out.hit.mean() == pytest.approx(used["R@1"]["mean"])
        lows = [tuning.gain[name]["low"] for name in ("log_likelihood", "MRR")]
        assert tuning.is_better == (len(tuning.curve) > 1 and max(lows) > 0)
        if len(tuning.curve) > 1 and not tuning.is_better:
            alone = polyrank.tune([BI], lists, without=WITHOUT, seed=seed)
            np.testing.assert_array_equal(tuning.held_out.log_likelihood, alone.held_out.log_likelihood)
        better += tuning.is_better
        if not tuning.is_better:
            assert repr(tuning.ranker) == "Ranker(1 bi)"
    assert better <= 1


@pytest.mark.deep
def test_a_reranker_without_a_sure_gain_leaves_no_trace() -> None:
    """Random scores of pairs; in some cases they are added, and their gain has an interval with 0 in it."""
    n_added = 0
    for seed in (4, 5, 6):
        lists = simulated(30, truth((EncoderTerm(BI), (3.0,))), seed)
        tuning = polyrank.tune([BI, PairScorer()], lists, without=WITHOUT, seed=seed)
        if len(tuning.curve) > 1 and not tuning.is_better:
            alone = polyrank.tune([BI], lists, without=WITHOUT, seed=seed)
            assert tuning.ranker.n_retrieved == alone.ranker.n_retrieved
            assert tuning.ranker.relevance == alone.ranker.relevance
            np.testing.assert_array_equal(tuning.held_out.log_likelihood, alone.held_out.log_likelihood)
            n_added += 1
    assert n_added


@pytest.mark.deep
def test_the_choice_depends_only_on_the_lists_and_the_seed() -> None:
    one, same = (polyrank.tune([BI, OTHER], EXAMPLE_LISTS, seed=5) for _ in range(2))
    assert one.gain == same.gain
    assert one.ranker.fingerprint == same.ranker.fingerprint
    more = [*EXAMPLE_LISTS, *simulated(30, BI, 9)]
    assert polyrank.tune([BI, OTHER], more, seed=5, max_lists=80).gain == one.gain
    silent = [Example(("hi",), ("a", "b"), ()), Example(("hi",), ("a", "a"), (0,))]  # they tell nothing
    assert polyrank.tune([BI, OTHER], [*silent, *EXAMPLE_LISTS], seed=5).gain == one.gain


# re-rankers


def test_an_offer_has_the_rerankers_of_the_user_and_those_that_ship() -> None:
    named, installed = [BI, PairScorer("one"), OTHER, PairScorer("two")], [PairScorer("three"), WordEncoder("four", 4)]
    offer = Offer(tuple(named), EXAMPLE_LISTS, installed=tuple(installed))
    assert [encoder.name for encoder in offer.encoders] == ["bi", "other"]
    assert [scorer.name for scorer in offer.rerankers] == ["one", "two", "three"]
    assert [term.name for term in CrossTerm.offered(offer)] == ["one", "two", "three"]
    assert [term.name for term in EncoderTerm.offered(offer)] == ["bi", "other"]


def cross_choice(
    lists: Sequence[Example],
    terms: Sequence[Term],
    ms: float | None = None,
    fixed: Mapping[Term, float] | None = None,
    **times: float,
) -> Choice:
    durations = {term: times.get(term.kind, 1.0) for term in terms}
    return Choice(terms, ScoredLists(lists, None, lambda _, batches: batches), fixed or {}, durations, ms, 0)


def test_a_reranker_is_tried_on_shortlists_which_equal_whole_lists_if_they_hold_all() -> None:
    terms: list[Term] = [EncoderTerm(BI), CrossTerm(PairScorer())]
    lists = simulated(100, truth((terms[0], (1.0,)), (terms[1], (2.0,))))
    searched = cross_choice(lists, terms[:1])
    searched.start()
    both = searched.with_rerankers(terms[1:])
    whole = cross_choice(lists, terms).held_out(terms)
    assert both.order == terms
    for name in ("log_likelihood", "reciprocal_rank", "hit"):
        np.testing.assert_allclose(getattr(both.steps[-1], name), getattr(whole, name), atol=1e-6)
    first, second = both.ranker(both.order).terms
    (wanted,) = (w for t, w in cross_choice(lists, terms).weights(terms).items() if t is terms[1])
    assert second.weights[0] / first.weights[0] == pytest.approx(2.0, rel=0.4)
    scale = both.ranker(both.order).scale
    assert second.weights[0] * scale == pytest.approx(wanted[0], rel=1e-2)
    exact = both.weights(both.order)
    assert scale == float(f"{exact[terms[0]][0]:.4g}")  # users can give the same weights again
    assert second.weights[0] == float(f"{exact[terms[1]][0] / exact[terms[0]][0]:.4g}")


def test_a_reranker_of_long_lists_scores_only_their_best() -> None:
    pairs = PairScorer()
    lists = simulated(30, truth((EncoderTerm(BI), (1.0,)), (CrossTerm(pairs), (3.0,))), k=40)
    n_before = pairs.n_scored
    searched = cross_choice(lists, [EncoderTerm(BI)])
    searched.start()
    both = searched.with_rerankers([CrossTerm(pairs)])
    assert pairs.n_scored - n_before == 25 * 30
    assert searched.ranker(searched.order).n_retrieved == 100  # without a re-ranker, for the second stage of a search
    assert len(both.order) == 2
    assert both.ranker(both.order).n_retrieved == 25
    assert np.isfinite(both.steps[-1].log_likelihood).all()
    before = both.held_out(searched.order)  # on the same candidates
    assert both.steps[-2] == before
    assert not np.allclose(before.log_likelihood, searched.steps[-1].log_likelihood)


def test_copies_of_a_right_reply_are_right_in_a_shortlist() -> None:
    """A re-ranker can change the ranks only of a list with a right and a wrong reply."""
    lists = [Example(("w1",), ("w2", "w3", "w2"), (0,)), Example(("w1",), ("w2", "w3"), (1,))]
    scored, encoder = ScoredLists(lists, None, lambda _, batches: batches), EncoderTerm(BI)
    for n, active in ((2, [True, True]), (1, [False, False])):
        shortlists = Shortlists.of([(encoder, (1.0,))], scored, n)
        for texts, places, right in zip(shortlists.texts, shortlists.relevant, ("w2", "w3"), strict=True):
            assert [texts[place] for place in places] == [text for text in texts if text == right]
        assert shortlists.active.tolist() == active


def test_the_figures_before_a_reranker_are_of_whole_lists() -> None:
    lists = simulated(20, truth((EncoderTerm(BI), (0.5,))), seed=3)
    ranks, hits = Shortlists.of(
        [(EncoderTerm(BI), (1.0,))], ScoredLists(lists, None, lambda _, batches: batches), 2
    ).figures
    scores = BI.score([example.query for example in lists], [example.candidates for example in lists])
    above = [int((row > row[example.relevant[0]]).sum()) for row, example in zip(scores, lists, strict=True)]
    np.testing.assert_array_equal(hits, [n == 0 for n in above])
    np.testing.assert_allclose(ranks, [1 / (1 + n) for n in above])
    assert max(above) > 2  # some right replies are in no shortlist


def test_each_term_has_its_own_prior_and_columns() -> None:
    terms: list[Term] = [EncoderTerm(BI), Words(WordCounts.of(SAID)), EncoderTerm(OTHER)]
    chosen = cross_choice(EXAMPLE_LISTS, terms).selection.blocks
    assert [(block.prior, block.signed, len(block.columns)) for block in chosen] == [
        (term.deviation, term.signed, len(term.features)) for term in terms
    ]
    assert len({block.prior for block in chosen}) == 2
    assert [column for block in chosen for column in block.columns] == [*range(6)]


def test_weights_are_in_units_of_the_encoder_with_several_vectors() -> None:
    terms: list[Term] = [EncoderTerm(BI), EncoderTerm(WordEncoder("several", 3, several=True))]
    choice = cross_choice(simulated(80, truth((terms[0], (2.0,)), (terms[1], (1.0,)))), terms)
    first, second = choice.ranker(terms).terms
    assert (first.term, first.weights, second.term) == (terms[1], (1.0,), terms[0])
    assert second.weights[0] > 0


@pytest.mark.parametrize("n_scored", [25, 40])
def test_relevance_is_fitted_on_the_candidates_that_all_terms_score(n_scored: int) -> None:
    """Those of whole lists, or with a re-ranker the best 25; lists of one dialogue are on one side of a fold."""
    pairs, encoder = CrossTerm(PairScorer()), EncoderTerm(BI)
    lists = simulated(24, truth((encoder, (1.0,)), (pairs, (3.0,))), k=40)
    choice = cross_choice(lists, [encoder])
    choice.start()
    choice = choice.with_rerankers([pairs]) if n_scored == 25 else choice
    ranker, scores, relevant = choice.ranker(choice.order), list[np.ndarray](), list[list[int]]()
    assert len(ranker.terms) == 1 + (n_scored == 25)
    for example in lists:
        (first,) = BI.score([example.context], [example.candidates])
        best = np.argsort(-first, kind="stable")[:n_scored]
        (values,) = ranker.score([example.context], [[example.candidates[row] for row in best]])
        scores.append(values)
        relevant.append(np.flatnonzero(best == example.relevant[0]).tolist())
    expected = fit_relevance(scores, relevant, [n // 2 for n in range(len(lists))])
    found = choice.relevance(ranker)
    assert (found.scale, found.offset) == pytest.approx((expected.scale, expected.offset), rel=1e-4)
    assert found.error == pytest.approx(expected.error, abs=2e-4)


def test_no_answer_takes_longer_than_the_bound() -> None:
    terms: list[Term] = [EncoderTerm(BI), EncoderTerm(OTHER), CrossTerm(PairScorer())]
    true = truth(*((term, (1.5,)) for term in terms))
    lists = simulated(80, true)
    for ms, n_searched, n_all in ((None, 2, 3), (60, 2, 3), (50, 2, 2), (19, 1, 1)):
        choice = cross_choice(lists, terms[:2], ms, encoder=10.0)
        choice.durations = {**choice.durations, terms[2]: 40.0}
        choice.start()
        choice.add(terms[:2])
        assert len(choice.order) == n_searched
        both = choice.with_rerankers(terms[2:])
        assert len(both.order) == n_all
        assert both.curve()[-1]["milliseconds"] == sum(choice.durations[term] for term in both.order) <= (ms or 1e9)
        if ms is None:  # what each of three terms adds to those before it
            gain = sum(b.log_likelihood - a.log_likelihood for a, b in pairwise(both.steps))
            np.testing.assert_allclose(both.likelihood, gain + both.steps[0].log_likelihood - both.first.log_likelihood)
            rows = both.rows(both.ranker(both.order), both.order)
            for before, after, row in zip(both.steps, both.steps[1:], rows[1:], strict=False):
                added = after.reciprocal_rank.mean() - before.reciprocal_rank.mean()
                assert row["with"]["MRR"]["mean"] == pytest.approx(added)
            assert ["with" in row for row in rows] == [False, True, True]
    with pytest.raises(UsageError, match=r"no model answers in 9 ms: bi, the fastest, takes 10\.0; permit more"):
        cross_choice(lists, terms[:2], 9, encoder=10.0).start()
    exact = cross_choice(lists, terms[:2], 10, encoder=10.0)
    exact.start()
    assert len(exact.order) == 1


def test_a_second_reranker_is_added_only_within_the_bound() -> None:
    encoder, rerankers = (
        EncoderTerm(BI),
        [CrossTerm(PairScorer()), CrossTerm(polyrank.scorers.own.as_scorer(Overlap()))],
    )
    lists = simulated(40, truth((encoder, (1.0,)), *((term, (4.0,)) for term in rerankers)))
    for ms, n in ((None, 3), (25, 3), (24, 2), (14, 1)):
        choice = cross_choice(lists, [encoder], ms, encoder=5.0)
        choice.durations = {**choice.durations, **dict.fromkeys(rerankers, 10.0)}
        choice.start()
        assert len(choice.with_rerankers(rerankers).order) == n


def test_a_ranker_has_one_encoder_with_several_vectors_of_a_context() -> None:
    models = [BI, *(WordEncoder(f"several {n}", 3 + n, several=True) for n in range(2))]
    terms: list[Term] = [EncoderTerm(model) for model in models]

    class Total(Scorer):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
            parts = (model.score(contexts, candidates) for model in models)
            return [np.sum(rows, axis=0) for rows in zip(*parts, strict=True)]

    choice = cross_choice(simulated(40, Total(), noise=0.25), terms)
    choice.start()
    choice.add(terms)
    assert sorted(model.several for term in choice.order for model in models if term.name == model.name) == [0, 1]


def test_the_seed_draws_the_partitions_of_every_stage() -> None:
    """Of single models, and of the shortlists that a re-ranker sees."""
    lists = simulated(24, truth((EncoderTerm(BI), (1.0,)), (CrossTerm(PairScorer()), (5.0,))))
    for models, n in (([BI], 1), ([BI, PairScorer()], 2)):
        first, other = (polyrank.tune(models, lists, without=WITHOUT, seed=seed) for seed in (1, 2))
        assert len(first.ranker.terms) == len(other.ranker.terms) == n
        assert not np.array_equal(first.held_out.log_likelihood, other.held_out.log_likelihood)


def test_features_are_those_of_the_term_whatever_was_scored_and_dropped_before() -> None:
    """A dropped object's place in memory, and so its id, is soon another's."""
    scored, example = ScoredLists(EXAMPLE_LISTS, None, lambda _, batches: batches), EXAMPLE_LISTS[0]
    encoders = [WordEncoder("one", number) for number in range(20)]
    found = [scored.features(EncoderTerm(encoder))[0][:, 0] for encoder in encoders]
    for encoder, features in zip(encoders, found, strict=True):
        np.testing.assert_allclose(features, encoder.score([example.query], [example.candidates])[0], rtol=1e-6)


def test_terms_of_a_model_do_not_depend_on_the_other_models() -> None:
    lists = simulated(30, truth((EncoderTerm(BI), (3.0,)), (EncoderTerm(OTHER), (0.5,))))
    scored = ScoredLists(lists, None, lambda _, batches: batches)

    def made(*models: Scorer) -> dict[str, float]:
        """The scale of each term that has one."""
        return {term.name: getattr(term, "scale", 0.0) for term in _terms(models, lists, ["words"], scored, "cpu")}

    assert made(BI, OTHER) == pytest.approx(made(BI) | made(OTHER), rel=1e-6)
    assert len(made(BI, OTHER)) == 5  # two encoders, the hubs of each, and counts
    assert len({*made(BI, OTHER).values()}) == 3


def test_times_are_of_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = EXAMPLE_LISTS[:12]
    assert milliseconds(Counts.of({"w1": 1}), lists, None, n_reranked=25) == 0
    assert milliseconds(CrossTerm(PairScorer()), lists, None, n_reranked=25) > 0
    assert milliseconds(EncoderTerm(BI), lists, 10**8, n_reranked=25) > milliseconds(
        EncoderTerm(BI), lists, 10, n_reranked=25
    )
    with pytest.raises(UsageError, match=r"no model answers in 1e-06 ms: bi, the fastest"):
        polyrank.tune([BI], lists, ms=1e-6)
    pairs = PairScorer()
    milliseconds(CrossTerm(pairs), lists, None, n_reranked=3)
    assert pairs.n_scored == 10 * 3  # of one answer each
    sizes: list[int] = []

    class Sized(PairScorer):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
            sizes.extend(map(len, candidates))
            return super().score(contexts, candidates)

    polyrank.tune([BI, Sized()], lists, without=WITHOUT)
    assert max(sizes) == 25  # as many as a re-ranker scores in an answer; the lists are shorter
    with monkeypatch.context() as patch:  # by a clock with which every call takes a second
        patch.setattr("polyrank.tuning.durations.time.perf_counter", count().__next__)
        patch.setattr("polyrank.tuning.durations.MAX_ROWS", 4)
        n_texts = len({text for example in lists for text in example.candidates})
        for catalogue, n in ((None, n_texts), (8, 8), (4, 4), (2, 2)):
            expected = 1000 + 1000 * n / min(n, 4)
            assert milliseconds(EncoderTerm(BI), lists, catalogue, n_reranked=25) == expected
        patch.setattr("polyrank.tuning.durations.MAX_ROWS", n_texts)
        ends = iter([time for number in [0] * 10 + [9, 1] + [2] * 7 for time in (0, number)])
        patch.setattr("polyrank.tuning.durations.time.perf_counter", ends.__next__)
        assert milliseconds(EncoderTerm(BI), lists, None, n_reranked=25) == 2000  # the same of searches
        for seconds, middle in (([9, 1, 5, 2], 2), ([9], 9)):  # the first of several calls is slower
            ends = iter([time for number in seconds for time in (0, number)])
            patch.setattr("polyrank.tuning.durations.time.perf_counter", ends.__next__)
            assert milliseconds(CrossTerm(PairScorer()), lists[: len(seconds)], None, n_reranked=2) == 1000 * middle
    monkeypatch.setattr("polyrank.tuning.durations.MAX_ROWS", 100)  # of more, the time is a multiple
    few, many = (milliseconds(EncoderTerm(BI), lists, n, n_reranked=25) for n in (100, 10**7))
    assert many > 100 * few
    few, many = (polyrank.tune([BI], lists, without=WITHOUT, catalogue=n).rows[0]["milliseconds"] for n in (100, 10**7))
    assert many > 100 * few


def test_the_table_of_a_tuning_has_the_figures_of_each_term() -> None:
    """The first term has nothing before it to compare with, and one that was not chosen has no figures."""

    def figures(mean: float) -> dict[str, dict[str, float]]:
        return {
            name: {"mean": mean + n, "low": mean + n - 0.01, "high": mean + n + 0.01}
            for n, name in enumerate(("R@1", "MRR"))
        }

    chosen = {"kind": "words", "name": "shared", "weights": {"a": 0.25, "b": -2.0}, "milliseconds": 0.5}
    rows: list[dict[str, Any]] = [
        {"kind": "encoder", "name": "bi", "weights": {"score": 1.0}, "milliseconds": 3.25, "without": figures(-0.3)},
        {**chosen, "with": figures(0.02), "without": figures(-0.04)},
        {"kind": "counts", "name": "counts", "weights": {}, "milliseconds": 0},
    ]
    held_out = cross_choice(EXAMPLE_LISTS[:4], [EncoderTerm(BI)]).first
    tuning = polyrank.Tuning(truth((EncoderTerm(BI), (1.0,))), True, "bi", rows, [], figures(0.05), 1_234, held_out)
    assert repr(tuning) == "Tuning(Ranker(1 bi), R@1 +5.0 (+4.0 to +6.0) over bi, 1,234 lists)"
    cells = [re.findall("<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in tuning._repr_html_().split("</tr>")[:-1]]
    assert cells == [
        ["term", "weight", "R@1 with it", "R@1 without it", "ms"],
        ["bi", "1", "", "-30.0 (-31.0 to -29.0)", "3.2500"],
        ["shared", "0.25, -2", "+2.0 (+1.0 to +3.0)", "-4.0 (-5.0 to -3.0)", "0.5000"],
        ["counts", "", "", "", "0.0000"],
    ]
    pytest.importorskip("pandas")
    frame = tuning.to_pandas()
    assert frame[["kind", "name", "milliseconds"]].values.tolist() == [
        ["encoder", "bi", 3.25], ["words", "shared", 0.5], ["counts", "counts", 0],
    ]  # fmt: skip
    for name, values in (("R@1 with", [None, 0.02, None]), ("R@1 without", [-0.3, -0.04, None]),
                         ("weight of score", [1.0, None, None]), ("weight of b", [None, -2.0, None])):  # fmt: skip
        assert [None if math.isnan(value) else value for value in frame[name]] == values, name


# options


def test_terms_that_are_left_out_are_not_tried() -> None:
    """By the name of a model, which leaves out what is made from it, or by kind: each kind leaves out only itself."""
    models = [BI, OTHER, polyrank.load("bm25"), PairScorer()]
    lists = simulated(40, truth((EncoderTerm(BI), (3.0,)), (EncoderTerm(OTHER), (3.0,))))
    scored = ScoredLists(lists, None, lambda _, batches: batches)

    def tried(*without: str) -> set[tuple[str, str]]:
        return {(term.kind, term.name) for term in _terms(models, lists, without, scored, "cpu")}

    every = tried()
    assert every == {
        ("encoder", "bi"), ("encoder", "other"), ("hubs", "hubs of bi"), ("hubs", "hubs of other"),
        ("lexical", "bm25"), ("cross", "pairs"), ("counts", "counts"), ("words", "words"),
    }  # fmt: skip
    for kind in ("hubs", "lexical", "cross", "counts", "words"):
        assert tried(kind) == {term for term in every if term[0] != kind}
    for name in ("bi", "other", "bm25", "pairs"):
        assert tried(name) == {term for term in every if name not in term[1].split()}
    assert tried("encoder") == tried("bi", "other") == {term for term in every if term[0] not in ("encoder", "hubs")}
    with pytest.raises(UsageError, match="no term is called 'hub'; leave out one of counts, cross, encoder, hubs"):
        polyrank.tune([BI], EXAMPLE_LISTS, without=["hub"])
    with pytest.raises(UsageError, match="no term is left without bi, words; leave one of them in"):
        polyrank.tune([BI], EXAMPLE_LISTS, without=["bi", "words"])


class Network(WordEncoder):
    """An encoder that a re-ranker may correct."""

    precision = "fp32"
    networks: Any = property(lambda self: (self,))


def test_a_reranker_that_ships_for_an_encoder_is_tried_with_it_on_its_device(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
    network = new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=())
    save_model(tmp_path / "second", *network, metadata={"first_stage": BI.fingerprint})
    shipped = str(tmp_path / "second")
    monkeypatch.setattr("polyrank.loading.models.SHIPPED_RERANKERS", (shipped,))
    encoder, scored = Network("own", 1), ScoredLists(EXAMPLE_LISTS[:4], None, lambda _, batches: batches)
    encoder.fingerprint = BI.fingerprint
    for without, n in (((), 1), (("own",), 0), (("other",), 1), (("cross",), 0)):
        found = _terms([encoder, OTHER], (), without, scored, "cpu")
        assert [term.name for term in found if term.kind == "cross"] == [shipped] * n
    with pytest.raises(UsageError, match="device 'nowhere' is unknown"):
        _terms([encoder], (), (), scored, "nowhere")


@pytest.mark.deep
def test_a_reranker_that_ships_for_an_encoder_is_left_out_by_its_name() -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")

    encoder, scored = Network("own", 1), ScoredLists(EXAMPLE_LISTS[:4], None, lambda _, batches: batches)
    encoder.fingerprint = resolve_model("shipped:late").corrects
    late = Network("late", 2)  # given by the user
    late.fingerprint = resolve_model("shipped:late").fingerprint
    for models, without, n in (
        ([encoder], (), 1), ([encoder], ("shipped:late",), 0), ([encoder], ("cross",), 0), ([BI], (), 0),
        ([encoder, late], (), 0),
    ):  # fmt: skip
        found = _terms(models, (), without, scored, "cpu")
        assert [term.name for term in found if term.kind == "cross"] == ["shipped:late"] * n


@pytest.mark.deep
def test_a_fixed_weight_is_kept() -> None:
    for weight in (0.0, 0.25):
        tuning = polyrank.tune([BI, OTHER], EXAMPLE_LISTS, dialogues=EXAMPLE_LISTS, weights={"counts": weight})
        assert tuning.is_better  # the user wants it
        fixed = [each.weights for each in tuning.ranker.terms if each.term.kind == "counts"]
        assert fixed == ([(weight,)] if weight else [])
        assert tuning.ranker.terms[0].weights == (1.0,)
    lists = simulated(50, truth((EncoderTerm(BI), (2.0,)), (EncoderTerm(OTHER), (2.0,))))
    terms = polyrank.tune([BI, OTHER], lists, dialogues=lists, without=["words"], weights={"hubs": 0.25}).ranker.terms
    assert [each.weights for each in terms if each.term.kind == "hubs"] == [(0.25,)] * 2  # all of a kind
    for weights, reason in (
        ({"count": 1.0}, "no term is called 'count'; fix the weight of one of bi, "),
        ({"words": 1.0}, "words has 4 weights, so 1 cannot be fixed"),
        ({"bi": 2.0}, "bi is the unit of the weights, so 2 cannot be fixed"),
    ):
        with pytest.raises(UsageError, match=reason):
            polyrank.tune([BI, OTHER], EXAMPLE_LISTS, weights=weights)


def test_a_weight_is_fixed_by_the_name_or_the_kind_of_terms() -> None:
    pairs = [CrossTerm(PairScorer(name)) for name in ("one", "two")]
    bi, other, words = EncoderTerm(BI), EncoderTerm(OTHER), Words(WordCounts.of(SAID))
    terms: list[Term] = [bi, other, words, COUNTS, *pairs]
    assert _fixed(terms, {"counts": 0.0, "other": -1.5}) == {COUNTS: 0.0, other: -1.5}
    assert _fixed(terms, {"cross": 0.5}) == dict.fromkeys(pairs, 0.5)
    assert _fixed(terms, {"two": 0.25}) == {pairs[1]: 0.25}
    names = "bi, other, words, counts, one, two"
    for name, reason in (
        ("count", f"no term is called 'count'; fix the weight of one of {names}"),
        ("words", "words has 4 weights, so 2 cannot be fixed; leave it out"),
        ("bi", "bi is the unit of the weights, so 2 cannot be fixed; leave it out"),
        ("encoder", "bi is the unit of the weights, so 2 cannot be fixed; leave it out"),
    ):
        with pytest.raises(UsageError, match=f"^{reason}$"):
            _fixed(terms, {"counts": 1.0, name: 2.0})


def test_fixed_weights_are_compared_with_the_model_without_them() -> None:
    """The answers depend on counts, so that their weight has a gain, and the weight 0 has none."""
    settings = {"dialogues": EXAMPLE_LISTS, "without": ["hubs", "words"]}
    none, some = (polyrank.tune([BI], EXAMPLE_LISTS, **settings, weights={"counts": weight}) for weight in (0, 1))
    assert none.gain["log_likelihood"]["mean"] == 0.0
    assert some.gain["log_likelihood"]["low"] > 0.0


@pytest.mark.deep
def test_the_steps_of_fixed_weights_start_at_the_unit_and_compare_with_the_best_model_alone() -> None:
    """The second model is the best alone; with the fixed weight of counts, the first one may be."""
    terms: list[Term] = [EncoderTerm(BI), EncoderTerm(OTHER), Words(WordCounts.of(SAID))]
    counts: Term = Counts.of({word: 3**n for n, word in enumerate(SAID)})
    lists = simulated(60, truth((terms[0], (0.5,)), (terms[1], (1.0,)), (counts, (0.5,))))
    plain = cross_choice(lists, terms)
    plain.start()
    for weight, best in ((0.0, 1), (1.0, 0)):
        durations = dict.fromkeys((*terms, counts), 1.0)
        choice = Choice([*terms, counts], plain.scored, {counts: weight}, durations, None, 0)
        values = [choice.held_out([term]).log_likelihood.sum() for term in terms]
        assert int(np.argmax(values)) == best
        choice.start(plain)
        choice.add(terms)
        assert (choice.alone, choice.order[0]) == (terms[1], terms[0])
        assert choice.first == plain.held_out([terms[1]])
        assert len(choice.steps) == len(choice.order) > 1
        for n, step in enumerate(choice.steps, 1):
            assert step == choice.held_out(choice.order[:n])
        gain = choice.steps[-1].log_likelihood - choice.first.log_likelihood
        np.testing.assert_allclose(choice.likelihood, gain, atol=1e-12)


def test_a_ranker_of_words_alone_ranks_as_it_was_measured() -> None:
    """Its first weight, which is the unit of the others, may be negative."""
    generator = np.random.default_rng(3)
    lists = [Example((f"w{n} w{n + 1}",), (f"w{n} w{n + 1}", f"w{n + 9}", f"w{n} w7"), (1,), f"d{n}#1")
             for n in generator.permutation(60)]  # fmt: skip
    for without in ((), ("lexical",)):
        tuning = polyrank.tune(["bm25"], lists, without=without)
        measured = tuning.curve[-1]["R@1"]["mean"] if tuning.is_better else tuning.curve[0]["R@1"]["mean"]
        found = summarise(evaluate(tuning.ranker, lists))["metrics"]["R@1"]
        assert found == pytest.approx(measured, abs=0.05)
        assert found > 0.9
    for gain in (tuning.gain["log_likelihood"], mean_with_interval([2.0, 3.0, 2.5, 2.2], np.arange(4))):
        assert gain["low"] < gain["mean"] < gain["high"]  # which may be above 1
    assert gain["mean"] == pytest.approx(2.425)


def test_terms_are_left_out_or_fixed_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = EXAMPLE_LISTS[:40]
    scored = ScoredLists(lists, None, lambda _, batches: batches)
    every = [term.name for term in _terms([BI, OTHER], lists, (), scored, "cpu")]
    assert "hubs of bi" in every
    left = [term.name for term in _terms([BI, OTHER], lists, ("hubs of bi",), scored, "cpu")]
    assert left == [name for name in every if name != "hubs of bi"]
    with pytest.raises(UsageError, match=r"no term is called .hubs of nobody.; leave out one of .*hubs of bi"):
        _terms([BI, OTHER], lists, ("hubs of nobody",), scored, "cpu")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    there = EncoderTerm(WordEncoder(str(tmp_path / "run"), 1))
    assert _fixed([EncoderTerm(BI), there], {"run": 0.5}) == {there: 0.5}
    for n in (0, -1):
        with pytest.raises((UsageError, ValueError, TypeError), match="max_lists"):
            polyrank.tune([BI], lists, max_lists=n)


def test_a_reranker_without_a_right_reply_in_any_shortlist_is_not_tried() -> None:
    terms: list[Term] = [EncoderTerm(BI), CrossTerm(PairScorer())]
    lists = []
    for example in simulated(12, truth((terms[0], (1.0,))), k=40):
        worst = int(np.argmin(BI.score([example.context], [example.candidates])[0]))
        lists.append(replace(example, relevant=(worst,)))
    assert min(len(example.candidates) for example in lists) > N_RERANKED
    searched = cross_choice(lists, terms[:1])
    searched.start()
    assert searched.with_rerankers(terms[1:]) is searched


def test_fixed_terms_take_their_time_of_an_answer() -> None:
    terms: list[Term] = [EncoderTerm(BI), EncoderTerm(OTHER), Words(WordCounts.of(SAID))]
    counts: Term = Counts.of({word: 3**n for n, word in enumerate(SAID)})
    lists = simulated(60, truth((terms[0], (1.0,)), (terms[1], (1.0,)), (counts, (0.5,))))
    plain = cross_choice(lists, terms)
    plain.start()
    durations = dict(zip((*terms, counts), (4.0, 1.0, 2.0, 0.5), strict=True))

    def choice(ms: float | None) -> Choice:
        made = Choice([*terms, counts], plain.scored, {counts: 0.5}, durations, ms, 0)
        made.start(plain)
        made.add(terms)
        return made

    every = choice(None)
    assert terms[1] in every.order
    spent = [0.5 + sum(durations[term] for term in every.order[: n + 1]) for n in range(len(every.order))]
    assert [point["milliseconds"] for point in every.curve()] == pytest.approx(spent)
    assert choice(spent[-1]).order == every.order
    assert choice(4.5).order == [terms[0]]  # the others take at least 1 ms
    assert choice(5.4).order == [terms[0]]
    for ms in (4.4, 1.5):  # the second model alone would fit into the time, but it is not the unit of the fixed weight
        reason = f"no model answers in {ms:g} ms: bi, the fastest, takes 4.5 with the terms of fixed weights; permit"
        with pytest.raises(UsageError, match=reason):
            choice(ms)


def test_a_model_alone_has_the_scale_of_log_odds() -> None:
    alone = polyrank.tune([BI], EXAMPLE_LISTS, without=["hubs", "words"])
    assert not alone.is_better
    features = [
        scores[:, None] for scores in BI.score([e.query for e in EXAMPLE_LISTS], [e.candidates for e in EXAMPLE_LISTS])
    ]
    (scale,) = fit_weights(features, [example.relevant for example in EXAMPLE_LISTS])
    assert alone.ranker.scale == pytest.approx(scale, rel=1e-3)
    assert [each.weights for each in alone.ranker.terms] == [(1.0,)]


def test_rankers_count_as_their_models() -> None:
    one = polyrank.tune([BI, OTHER], EXAMPLE_LISTS)
    both = Ranker([(EncoderTerm(BI), (1.0,)), (EncoderTerm(OTHER), (3.0,)), (Counts.of({"w1": 1}), (1.0,))])
    assert polyrank.tune([both, OTHER], EXAMPLE_LISTS).gain == one.gain
    assert polyrank.tune([PairScorer()], EXAMPLE_LISTS[:20], without=WITHOUT).alone == "pairs"  # which searches nothing
    words: Term = Words(WordCounts.of(SAID))
    choice = cross_choice(EXAMPLE_LISTS[:9], [words])
    choice.start()
    assert choice.alone is words
    with pytest.raises(UsageError, match="device 'nowhere' is unknown"):
        polyrank.tune(["shipped:convert"], EXAMPLE_LISTS, device="nowhere")
    path = Path(polyrank.__file__).parent / "shipped" / "convert"
    assert [model.name for model in _opened([path, BI, both, BI], "cpu")] == [str(path), "bi", "other"]
    with pytest.raises(UsageError, match="0 models to combine; name at least one"):
        polyrank.tune([], EXAMPLE_LISTS)


@pytest.mark.parametrize("lists", [[], [Example(("hi",), ("a", "b"), ())], [Example(("hi",), ("a", "a"), (1,))]])
def test_lists_that_choose_nothing_are_refused(lists: list[Example]) -> None:
    with pytest.raises(DataError, match="no example has a right answer among candidates; tune on candidate lists"):
        polyrank.tune([BI], lists)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n_sound", [0, 45])
def test_a_score_that_is_not_finite_names_its_term(value: float, n_sound: int) -> None:
    """In the first batch of lists or a later one; of all candidates or one."""

    class Broken:
        n = 0  # lists so far

        def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
            rows = [[0.5 * len(text) for text in texts] for texts in candidates]
            for row in rows[max(n_sound - self.n, 0) :]:
                row[-1] = value
            self.n += len(rows)
            return rows

    with pytest.raises(DataError, match="Broken gives a score that is not finite"):
        polyrank.tune([BI, Broken()], EXAMPLE_LISTS)


def test_a_second_call_scores_nothing_again(tmp_path: Path) -> None:
    scored: list[str] = []

    def progress(name: str, batches: list[range]) -> Iterable[range]:
        scored.append(name)
        return batches

    def call(lists: Sequence[Example] = EXAMPLE_LISTS[:40]) -> polyrank.Tuning:
        scored.clear()
        models = [WordEncoder("bi", 1), PairScorer(), "bm25"]
        return polyrank.tune(models, lists, dialogues=EXAMPLE_LISTS, cache=tmp_path / "cache", progress=progress)

    first = call()
    assert sorted(scored) == ["bi", "bm25", "counts", "hubs of bi", "pairs", "words"]
    second = call()
    assert scored == []
    assert second.gain == first.gain
    call(EXAMPLE_LISTS[:20])  # other lists
    assert len(scored) == 6


def test_lists_are_known_again_by_all_their_texts() -> None:
    first, *others = EXAMPLE_LISTS[:3]
    changes = [
        {}, {"context": ("w1",)}, {"context": first.context[::-1]}, {"background": ("w1",)},
        {"candidates": first.candidates[::-1]}, {"candidates": (*first.candidates[:-1], "w1")},
    ]  # fmt: skip
    lists = [[replace(first, **change), *others] for change in changes] + [[*others, first], others]
    assert len({ScoredLists(each, None, lambda _, batches: batches).digest for each in lists}) == len(lists)


def test_a_candidate_is_scored_once_whatever_its_shortlists() -> None:
    """Overlapping shortlists, then the whole lists: each pair enters once, and values are those of whole lists."""
    counted: Counter[tuple[str, str]] = Counter()

    class Counting(PairScorer):
        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Any]:
            for context, texts in zip(contexts, candidates, strict=True):
                counted.update((str(context), text) for text in texts)
            return super().score(contexts, candidates)

    lists = EXAMPLE_LISTS[:40]
    term, scored = CrossTerm(Counting()), ScoredLists(lists, None, lambda _, batches: batches)
    whole = CrossTerm(PairScorer()).score([e.query for e in lists], [e.candidates for e in lists])
    for encoder, n in ((BI, 2), (OTHER, 2), (BI, 3), (OTHER, 1)):
        shortlists = Shortlists.of([(EncoderTerm(encoder), (1.0,))], scored, n)
        for values, right, rows in zip(scored.features(term, shortlists), whole, shortlists.rows, strict=True):
            np.testing.assert_array_equal(values, right[rows])
    for values, right in zip(scored.features(term), whole, strict=True):
        np.testing.assert_array_equal(values, right)
    assert set(counted.values()) == {1}
    assert counted.total() == sum(len(e.candidates) for e in lists)


def test_kinds_of_terms_do_not_share_stored_features(tmp_path: Path) -> None:
    class Doubled(CrossTerm):
        kind = "doubled"

        def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Any]:
            return [2 * values for values in super().score(contexts, candidates)]

    def features(term: CrossTerm) -> Any:
        assert term.fingerprint
        return np.concatenate(ScoredLists(EXAMPLE_LISTS[:3], tmp_path, lambda _, batches: batches).features(term))

    for n in (1.0, 2.0):  # an object without a fingerprint may be another one in the next call

        class Own:
            def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]], n: float = n) -> list[Any]:
                return [[n] * len(texts) for texts in candidates]

        term = CrossTerm(polyrank.scorers.own.as_scorer(Own()))
        found = ScoredLists(EXAMPLE_LISTS[:3], tmp_path, lambda _, batches: batches).features(term)
        assert (np.concatenate(found) == n).all()
    assert not [*tmp_path.iterdir()]
    single = features(CrossTerm(PairScorer()))
    for _ in range(2):
        np.testing.assert_array_equal(features(Doubled(PairScorer())), 2 * single)
        np.testing.assert_array_equal(features(CrossTerm(PairScorer())), single)


# objects of users


class Overlap:
    """Words in common; a user's class with ``score`` alone."""

    name = "overlap"

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[list[int]]:
        said = [set(" ".join(context.turns).split()) for context in contexts]
        return [[len(own & set(text.split())) for text in texts] for own, texts in zip(said, candidates, strict=True)]


class Vectors:
    """A user's class with vectors of both sides: which words a text has."""

    dimension, fingerprint = len(SAID), "f" * 64

    def encode_contexts(self, contexts: Sequence[Context]) -> np.ndarray:
        return self.encode_candidates([context.turns[-1] for context in contexts])

    def encode_candidates(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[word in text.split() for word in SAID] for text in texts], np.float32)


@pytest.mark.deep
def test_objects_of_users_are_tuned_evaluated_and_indexed(tmp_path: Path) -> None:
    true = truth((EncoderTerm(BI), (1.5,)), (CrossTerm(polyrank.scorers.own.as_scorer(Overlap())), (1.5,)))
    lists = simulated(150, true)
    tuning = polyrank.tune([BI, Overlap()], lists, without=["words", "hubs"])
    assert {each.term.name for each in tuning.ranker.terms} == {"bi", "overlap"}
    rows = polyrank.evaluate_models(
        [Overlap(), Vectors(), tuning.ranker], polyrank.read_task(lists_of_rows(lists))
    ).rows
    assert [row["name"] for row in rows] == ["overlap", "Vectors", "Ranker"]
    assert rows[2]["metrics"]["R@1"] > rows[0]["metrics"]["R@1"]
    mine: Any = Vectors()
    build_index(tmp_path / "index", mine, ["w1 w2", "w3", "w4"], name="mine")
    with polyrank.open(tmp_path / "index", model=mine) as replies:
        assert replies.answer("w3 w9", 1, allow_echo=True).text == "w3"
    searched = polyrank.tune([Vectors(), Overlap()], lists, without=["words", "hubs"]).ranker
    assert searched.encoder is not None
    with Replies(searched, open_index(tmp_path / "index")) as ranked:
        assert ranked.answer("w3 w9", 1, allow_echo=True).text == "w3"
    with pytest.raises(UsageError, match="was not loaded by a name, so the ranker could not load it again"):
        Ranker([(CrossTerm(polyrank.scorers.own.as_scorer(Overlap())), (1.0,))]).save(tmp_path / "ranker")


def lists_of_rows(lists: Sequence[Example]) -> list[dict[str, Any]]:
    return [{"context": [*e.context], "candidates": [*e.candidates], "relevant": [*e.relevant]} for e in lists]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: polyrank.tune([object()], EXAMPLE_LISTS), "give an object with score, or with dimension"),
        (lambda: polyrank.tune(["nosuch"], EXAMPLE_LISTS), "nosuch is not a model folder"),
    ],
)
def test_objects_that_do_not_score_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make()
