"""Selection among the best candidates: every way of answering skips replies that repeat a turn of the context."""

import json
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from polyrank.answering.conditions import Conditions, search_until_kept
from polyrank.answering.diversity import choose_diverse, near_copy_key, vector_similarity, word_similarity
from polyrank.answering.replies import Replies
from polyrank.data import read_examples
from polyrank.data.same_words import same_words
from polyrank.errors import UsageError
from polyrank.evaluation import evaluate, summarise
from polyrank.index import open_index, write_index
from polyrank.negatives.hard import HardNegatives
from polyrank.negatives.mine import from_pool, mine
from polyrank.negatives.random import RandomNegatives
from polyrank.records import Candidate, Context, ContextLike, Example, Ranked
from polyrank.scorers.lexical import BM25
from polyrank.scorers.protocols import Encoder, Floats
from processes import run


class Fixed(Encoder):
    """Every context has one vector."""

    fingerprint = "f"

    def __init__(self, vector: Floats) -> None:
        self.vector, self.dimension = vector, len(vector)

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        return np.tile(self.vector, (len(contexts), 1, 1)), np.ones((len(contexts), 1), np.bool_)


WORDS = st.sampled_from(["wifi", "Wifi!", "bill", "BILL", "my wifi", "the bill", "thanks", "Thanks.", "no"])


@given(st.lists(WORDS, min_size=1, max_size=30), st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 8))
def test_replies_that_repeat_a_turn_are_skipped(texts: Sequence[str], turns: Sequence[str], k: int) -> None:
    pool = [Candidate(str(i), text) for i, text in enumerate(texts)]
    said = {same_words(turn) for turn in turns}
    ranked = BM25().fit(texts).rank(turns, pool)

    def best(k: int, *, allow_echo: bool) -> list[Ranked]:
        keep = partial(Conditions(k, None, allow_echo).of, context=Context(tuple(turns)), distinct=True)
        return search_until_kept(lambda n: (ranked[:n], None), keep, k)[0]

    every = best(len(pool), allow_echo=True)
    assert [reply.text for reply in every] == list(dict.fromkeys(reply.text for reply in ranked))
    assert best(k, allow_echo=False) == [reply for reply in every if same_words(reply.text) not in said][:k]
    # unless each text is requested once, all candidates are kept
    kept = [reply for reply in ranked if same_words(reply.text) not in said]
    assert Conditions(k).of(ranked, Context(tuple(turns))) == kept


def test_evaluation_measures_the_scorer_which_may_repeat_a_turn() -> None:
    pool = [Candidate("a", "My wifi is down."), Candidate("b", "restart the wifi"), Candidate("c", "thanks")]
    example = Example(("my wifi is down",), relevant_ids=("b",))
    scorer = BM25().fit([candidate.text for candidate in pool])
    assert summarise(evaluate(scorer, [example], pool=pool), n_bootstrap=1)["metrics"]["MRR"] == 1 / 2


def test_a_turn_of_the_context_is_not_a_negative() -> None:
    pool = ["my wifi is down", "wifi is slow", "thanks"]
    example = Example(("My wifi is down!", "thanks"), ("restart it",), (0,))
    (mined,) = mine([example], from_pool(BM25(), pool), HardNegatives(n_negatives=3)).examples
    assert mined.candidates == ("restart it", "wifi is slow")
    assert set(RandomNegatives(pool, 3, seed=0)(0, example, 0)) == {"my wifi is down", "wifi is slow"}


def test_a_right_answer_of_a_row_beyond_the_limit_is_not_a_negative(tmp_path: Path) -> None:
    rows = [{"context": ["is the wifi down?"], "response": text} for text in ("wifi is slow", "wifi is down")]
    data, pool, lists = tmp_path / "data.jsonl", tmp_path / "pool.txt", tmp_path / "lists.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    pool.write_text("wifi is down\nwifi wifi\nthanks", "utf-8")
    done = run("mine", data, "--from", "bm25", "--pool", pool, "-n", "2", "--limit", "1", "-o", lists)
    assert done.returncode == 0, done.stderr
    (mined,) = read_examples(lists).examples
    assert mined.candidates == ("wifi is slow", "wifi wifi", "thanks")


@given(st.lists(st.tuples(WORDS, st.integers(0, 3)), min_size=1, max_size=12), st.integers(1, 12))
def test_diverse_replies_are_a_subset_of_the_best_in_order(scored: list[tuple[str, int]], k: int) -> None:
    texts, scores = zip(*sorted(scored, key=lambda pair: -pair[1]), strict=True)
    ranked = [Ranked(str(i), text, score) for i, (text, score) in enumerate(zip(texts, scores, strict=True))]
    found = choose_diverse(ranked, k, word_similarity(texts))
    keys = [near_copy_key(reply.text) for reply in found]
    assert found[0] == ranked[0]
    assert [reply for reply in ranked if reply in found] == found
    assert len(set(keys)) == len(keys) == min(k, len({*map(near_copy_key, texts)}))
    assert [reply.id for reply in choose_diverse(ranked, k, word_similarity(texts), 1.0)] == [
        str(row) for row in sorted({near_copy_key(text): i for i, text in reversed([*enumerate(texts)])}.values())[:k]
    ]


@given(st.integers(0, 9999), st.integers(1, 7), st.floats(0, 1))
def test_each_diverse_reply_is_the_best_of_the_formula(seed: int, k: int, relevance: float) -> None:
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice([*"abcdefgh"], generator.integers(1, 6))) for _ in range(9)]
    vectors = generator.normal(size=(9, 3)).astype(np.float32)
    scores = np.sort(generator.normal(5.0, 3.0, 9))[::-1]
    ranked = [Ranked(str(i), f"reply {'x' * i}", score) for i, score in enumerate(scores.tolist())]
    unit = [vector / np.linalg.norm(vector) for vector in vectors.astype(np.float64)]
    words = [set(text.split()) for text in texts]
    for similarity, alike in (
        (vector_similarity(vectors), lambda a, b: float(unit[a] @ unit[b])),
        (word_similarity(texts), lambda a, b: len(words[a] & words[b]) / len(words[a] | words[b])),
    ):
        scaled = (scores - scores.min()) / (scores.max() - scores.min())
        chosen: list[int] = []
        while len(chosen) < k:
            values = {
                row: relevance * scaled[row]
                - (1 - relevance) * max((alike(row, other) for other in chosen), default=0.0)
                for row in range(9)
                if row not in chosen
            }
            best, *rest = sorted(values.values(), reverse=True)
            if rest and best - rest[0] < 1e-5:  # rounding may choose the other
                return
            chosen.append(max(values, key=values.__getitem__))
        found = choose_diverse(ranked, k, similarity, relevance)
        assert [int(reply.id) for reply in found] == sorted(chosen)


def test_vectors_of_zeros_are_like_no_other() -> None:
    ranked = [Ranked(text, text, score) for text, score in (("hello", 2.0), ("tea", 1.0), ("coffee", 0.0))]
    similarity = vector_similarity(np.eye(3, 4, 1, np.float32) * np.array([[0], [1], [1]], np.float32))
    assert similarity(0).tolist() == [0.0] * 3
    assert [reply.text for reply in choose_diverse(ranked, 2, similarity)] == ["hello", "tea"]


def test_capitals_are_names_only_in_a_text_that_is_not_in_capitals() -> None:
    texts = ["I HAVE SENT IT TODAY", "I HAVE LOST MY KEY", "we asked Ann and Bo", "we asked Al and Zoe", "We asked Al"]
    assert [[*map(near_copy_key, texts)].index(near_copy_key(text)) for text in texts] == [0, 1, 2, 2, 4]


def test_an_opposite_reply_is_preferred_to_an_unrelated_one() -> None:
    cosines = np.array([[1, -0.8, 0], [-0.8, 1, 0], [0, 0, 1]])
    ranked = [Ranked(text, text, score) for text, score in (("go left", 1.0), ("go right", 0.5), ("have tea", 0.5))]
    ranked.append(Ranked("wait", "wait", 0.0))
    similarity = np.pad(cosines, (0, 1), constant_values=1).astype(np.float32)
    found = choose_diverse(ranked, 2, lambda row: similarity[row], 0.5)
    assert [reply.text for reply in found] == ["go left", "go right"]


def test_an_index_compares_replies_by_their_vectors(tmp_path: Path) -> None:
    vectors = np.array([[1, 0], [0.99, 0.1], [0.6, -0.8], [1, 0]], np.float32)
    pool = [Candidate(*pair) for pair in (("a", "see Ann"), ("b", "ask a doctor"), ("c", "drink tea"), ("d", "see Bo"))]
    for precision in ("fp32", "int8"):
        write_index(tmp_path / precision, pool, vectors, fingerprint="f", model="m", precision=precision)
        with open_index(tmp_path / precision) as index:
            stored = index.vectors(["d", "nosuch", "b"])
            assert sorted(stored) == ["b", "d"]
            np.testing.assert_allclose(stored["b"], vectors[1], atol=0.01)
            (best,) = Replies(Fixed(vectors[0]), index).respond(["hm"], 2, diverse=True)
            assert len(best) == 2
            assert len({reply.id for reply in best} & {"a", "d"}) < 2  # they differ only in a name


def test_an_empty_filter_is_refused_by_every_method(tmp_path: Path) -> None:
    """It passes no candidate, and all of them would be a surprise."""
    write_index(tmp_path / "i", [Candidate("a", "see Ann")], np.eye(1, dtype=np.float32), fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        replies = Replies(Fixed(np.ones(1, np.float32)), index)
        for call in (
            lambda: replies.answer("hm", filter=""),
            lambda: replies.answer_all(["hm"], filter=""),
            lambda: replies.respond(["hm"], filter=""),
            lambda: replies.explain("hm", filter=""),
            lambda: replies.explain("hm", "see Ann", filter=""),
            lambda: index.page(filter=""),
        ):
            with pytest.raises(UsageError, match="filter, character 1: expected a name"):
                call()


def test_replies_are_compared_by_words_unless_all_have_vectors(tmp_path: Path) -> None:
    """One may have been removed since it was found."""
    texts, vectors = ["go left", "go right", "have tea"], np.eye(3, dtype=np.float32)[[0, 1, 0]]
    write_index(tmp_path / "i", [*map(Candidate, "abc", texts)], vectors, fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        replies = Replies(Fixed(np.ones(3, np.float32)), index)
        for removed in product([False, True], repeat=3):
            ids = [name.upper() if gone else name for name, gone in zip("abc", removed, strict=True)]
            similarity = replies._similarity([Ranked(id_, text, 0.0) for id_, text in zip(ids, texts, strict=True)])
            expected = word_similarity(texts) if any(removed) else vector_similarity(vectors)
            for row in range(3):
                np.testing.assert_array_equal(similarity(row), expected(row))
        replies._similarity([])


def test_a_filter_on_a_missing_field_is_reported(tmp_path: Path) -> None:
    pool = [Candidate("a", "see Ann", {"lang": "en"}), Candidate("b", "ask Bo", {"lang": "de"})]
    write_index(tmp_path / "i", pool, np.eye(2, dtype=np.float32), fingerprint="f", model="m")
    with open_index(tmp_path / "i") as index:
        replies = Replies(Fixed(np.ones(2, np.float32)), index)
        for asked, notes in (
            ('lang = "en"', ()),
            ('lang = "fr"', ()),
            ('lang = "en" and team = 1', ("no candidate has the field team of the filter",)),
        ):
            assert replies.answer("hm", filter=asked).notes == notes
