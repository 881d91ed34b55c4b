"""Which of the best candidates are given: no turn of the context again, wherever replies are chosen."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.answering.retrievers import LexicalRetriever
from polyrank.answering.two_stage import TwoStage
from polyrank.data.same_words import same_words
from polyrank.errors import UsageError
from polyrank.evaluation import evaluate, read_task, summarise
from polyrank.negatives.hard import HardNegatives
from polyrank.negatives.mine import from_pool, mine
from polyrank.negatives.random import RandomNegatives
from polyrank.records import Candidate, Example
from polyrank.scorers.lexical import BM25

WORDS = st.sampled_from(["wifi", "Wifi!", "bill", "BILL", "my wifi", "the bill", "thanks", "Thanks.", "no"])


@given(st.lists(WORDS, min_size=1, max_size=30), st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 8))
def test_the_best_replies_are_the_best_of_those_that_say_nothing_again(
    texts: Sequence[str], turns: Sequence[str], k: int
) -> None:
    pool = [Candidate(str(i), text) for i, text in enumerate(texts)]
    said = {same_words(turn) for turn in turns}
    retriever = LexicalRetriever(BM25().fit(texts), pool)
    (every,) = retriever.respond([turns], len(pool), allow_echo=True)
    want = [reply for reply in every if same_words(reply.text) not in said][:k]
    answer = retriever.answer(turns, k)
    assert list(answer.ranked) == want
    assert answer.abstained == (not want)
    two_stages = TwoStage(retriever, BM25().fit(texts), n_retrieved=k)
    assert [reply.id for reply in two_stages.answer(turns, k).ranked] == [reply.id for reply in want]


def test_a_pool_is_ranked_as_it_is_answered_from() -> None:
    pool = [Candidate("a", "My wifi is down."), Candidate("b", "restart the wifi"), Candidate("c", "thanks")]
    example = Example(("my wifi is down",), relevant_ids=("b",))
    scorer = BM25().fit([candidate.text for candidate in pool])
    for allow_echo, rank in ((False, 1), (True, 2)):
        found = summarise(evaluate(scorer, [example], pool=pool, allow_echo=allow_echo), n_bootstrap=1)
        assert found["metrics"]["MRR"] == 1 / rank
    with pytest.raises(UsageError, match="is of a pool"):
        read_task([{"context": "a", "candidates": ["b", "c"], "relevant": [0]}], allow_echo=True)


def test_a_turn_of_the_context_is_no_negative() -> None:
    pool = ["my wifi is down", "wifi is slow", "thanks"]
    example = Example(("My wifi is down!", "thanks"), ("restart it",), (0,))
    (mined,) = mine([example], from_pool(BM25(), pool), HardNegatives(n_negatives=3)).examples
    assert mined.candidates == ("restart it", "wifi is slow")
    assert set(RandomNegatives(pool, 3, seed=0)(0, example, 0)) == {"my wifi is down", "wifi is slow"}
