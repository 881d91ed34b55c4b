"""The threshold of a ranker: the precision it reaches on its lists, on others, and what it hides."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import polyrank
from polyrank import Example
from polyrank.errors import DataError
from polyrank.ranking.abstention import Abstention
from polyrank.scorers.ranker import Ranker, as_ranker
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.tuning.threshold import choose_threshold, outcomes
from word_models import WordEncoder

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from abstention import try_threshold

BI = WordEncoder("bi", 1)
POOL = tuple(f"w{n} w{n + 1}" for n in range(12))


def asked(seed: int) -> list[Example]:
    """Contexts whose right reply, of one small catalogue, the encoder usually ranks first."""
    generator, lists = np.random.default_rng(seed), []
    for number in range(80):
        turns = (" ".join(generator.choice([f"w{n}" for n in range(20, 60)], 6)),)
        scores = 4 * BI.score([turns], [POOL])[0] + generator.gumbel(size=len(POOL))
        lists.append(Example(turns, POOL, (int(scores.argmax()),), str(number)))
    return lists


SHARP, OTHERS = asked(11), asked(12)


@pytest.mark.parametrize("no_answer", [0.0, 0.3])
def test_a_threshold_reaches_its_precision_on_its_lists(no_answer: float) -> None:
    ranker = as_ranker(BI)
    rule, figures = choose_threshold(ranker, SHARP, precision=0.5, no_answer=no_answer)
    chosen = figures["chosen"]
    assert chosen["precision"] >= 0.5
    assert figures["no_answer"] == pytest.approx(no_answer, abs=0.01)
    assert figures["n_examples"] == 80
    assert chosen["coverage"] == max(p["coverage"] for p in figures["curve"] if p["precision"] >= 0.5)
    assert all(np.isfinite(p["threshold"]) for p in figures["curve"])  # JSON has no infinity
    if no_answer:
        few = [choose_threshold(ranker, SHARP[:7], precision=0.1, no_answer=0.3, seed=seed)[1] for seed in range(3)]
        assert {point["no_answer"] for point in few} == {2 / 7}
        assert few[0]["curve"] != few[1]["curve"] or few[1]["curve"] != few[2]["curve"]
    # the same lists and hidden answers give the same point, others are judged with the same threshold
    with_rule = Ranker([(EncoderTerm(BI), (1.0,))], abstention=rule)
    again, _ = try_threshold(with_rule, SHARP, no_answer=no_answer)
    assert (again["coverage"], again["precision"]) == (chosen["coverage"], chosen["precision"])
    fresh, curve = try_threshold(with_rule, OTHERS, no_answer=no_answer)
    scores, right = outcomes(with_rule, OTHERS, np.zeros(80, np.bool_))
    if not no_answer:
        answered = [not rule.abstains(row) for row in scores]
        assert fresh["coverage"] == np.mean(answered)
        assert fresh["precision"] == pytest.approx(np.mean([r for r, a in zip(right, answered, strict=True) if a]))
        assert fresh["answered_without"] == 0
    assert 0 < fresh["area"] <= 1
    assert len(curve) > 1


def test_a_threshold_is_chosen_on_the_first_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.tuning.threshold.MAX_CONTEXTS", 20)
    found = [choose_threshold(as_ranker(BI), lists, precision=0.1) for lists in (SHARP, SHARP[:20])]
    assert found[0] == found[1]
    assert (found[0][1]["n_examples"], found[0][1]["no_answer"]) == (20, 0.2)


def test_hidden_answers_are_never_right() -> None:
    _, right = outcomes(as_ranker(BI), SHARP, np.ones(80, np.bool_))
    assert not any(right)
    for hidden in (np.arange(80) % 2 == 0, np.arange(80) < 20, np.arange(80) >= 60):  # in other batches, too
        _, some = outcomes(as_ranker(BI), SHARP, hidden)
        assert not any(np.array(some)[hidden])
        assert np.mean(np.array(some)[~hidden]) > 0.2


def test_each_of_several_right_answers_is_right() -> None:
    for first in range(3):
        example = Example(("w9",), ("w1", "w2", "w3"), (first, *({*range(3)} - {first})), "a")
        assert outcomes(as_ranker(BI), [example], np.zeros(1, np.bool_))[1] == [True]
        scores, right = outcomes(as_ranker(BI), [example], np.ones(1, np.bool_))
        assert (scores, right) == ([[]], [False])


def test_a_reply_that_repeats_the_context_is_no_answer() -> None:
    example = Example(("w1 w2",), ("w1 w2", "w3"), (1,), "a")
    other = replace(example, context=("w9",), id="b")
    scores, right = outcomes(as_ranker(BI), [example, other], np.zeros(2, np.bool_))
    assert [len(row) for row in scores] == [1, 2]
    assert right[0]
    earlier = replace(example, context=("w1 w2", "w9"))  # any turn
    assert [len(row) for row in outcomes(as_ranker(BI), [earlier], np.zeros(1, np.bool_))[0]] == [1]


def test_an_answer_comes_from_the_candidates_of_all_lists() -> None:
    scores, _ = outcomes(as_ranker(BI), SHARP[:20], np.zeros(20, np.bool_))
    pool = list(dict.fromkeys(text for example in SHARP[:20] for text in example.candidates))
    assert {len(row) for row in scores} == {10}  # as in an answer
    values = BI.score_pool([SHARP[0].query], pool)[0]
    np.testing.assert_allclose(scores[0], -np.sort(-values)[: len(scores[0])], rtol=1e-5, atol=1e-6)


def test_tune_stores_the_threshold_in_the_ranker() -> None:
    n_lists: list[int] = []

    def count(name: str, batches: list[range]) -> list[range]:
        n_lists.extend(len(batch) for batch in batches if name == "threshold")
        return batches

    lists = [replace(SHARP[0], relevant=(), id="none"), *SHARP, *OTHERS]
    options = {"without": ["words", "hubs"], "precision": 0.5, "max_lists": len(SHARP)}
    tuning = polyrank.tune([BI], lists, **options, progress=count)  # type: ignore[arg-type]
    assert sum(n_lists) == tuning.n_lists == len(SHARP)  # the first that have a right answer
    rule = tuning.ranker.abstention
    assert isinstance(rule, Abstention)
    assert tuning.ranker.figures["threshold"]["chosen"]["precision"] >= 0.5
    figures, _ = try_threshold(tuning.ranker, SHARP)
    assert figures["precision"] == tuning.ranker.figures["threshold"]["chosen"]["precision"]
    with pytest.raises(DataError, match=r"no threshold reaches a precision of 100\.0%"):
        polyrank.tune([WordEncoder("noise", 5)], SHARP, without=["words", "hubs"], precision=1.0)
