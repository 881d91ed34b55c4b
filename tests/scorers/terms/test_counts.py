"""The term of counts: its formula, in an index of every precision, in a ranker's folder, and counts of files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from polyrank import Example, Replies, build_index, explain
from polyrank.errors import DataError
from polyrank.index import open_index
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts, catalogue_counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.protocol import Offer
from polyrank.storage.quantized import Precision
from word_models import WordEncoder

REPLIES = {"yes": 7, "no": 3, "try again": 1, "restart the router": 2}
CONTEXTS = ["is it on", ["hello", "my wifi is down"]]


@given(st.dictionaries(st.text(), st.integers(1, 2**40), min_size=1), st.lists(st.text()))
def test_a_score_is_the_logarithm_of_the_count(counts: dict[str, int], others: list[str]) -> None:
    texts = [*counts, *others]
    for row in Counts.of(counts).score(CONTEXTS, [texts, texts[:1]]):
        np.testing.assert_allclose(row[:, 0], np.log1p([counts.get(text, 0) for text in texts])[: len(row)], rtol=1e-6)


def test_the_order_of_the_counts_changes_nothing() -> None:
    assert Counts.of(REPLIES).fingerprint == Counts.of(dict(reversed(REPLIES.items()))).fingerprint
    assert Counts.of(REPLIES).fingerprint != Counts.of({**REPLIES, "no": 4}).fingerprint


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", 2**62])
def test_invalid_counts_are_refused(count: object) -> None:
    with pytest.raises(DataError, match="whole number above 0"):
        Counts.of({"yes": count})  # type: ignore[dict-item]  # possible in a file's metadata
    with pytest.raises(DataError, match="0 replies to count"):
        Counts.of({})


def test_right_answers_of_the_dialogues_are_counted() -> None:
    dialogues = [
        Example(("hi",), ("hello", "bye"), (0,)),
        Example(("hey",), ("hello",), (0,)),
        Example(("x",), ("no",)),
        Example(("who",), ("nobody", "no", "me", "hello"), (1, 3)),  # both are right
    ]
    (term,) = Counts.offered(Offer((), (), dialogues))
    assert term.of_texts(["hello", "bye", "no", "nobody", "hello"]).tolist() == [3, 0, 1, 0, 3]
    assert list(Counts.offered(Offer((), ()))) == []


def test_a_folder_holds_no_text(tmp_path: Path) -> None:
    Ranker([(Counts.of(REPLIES), (1.0,))]).save(tmp_path / "ranker")
    whole = b"".join(file.read_bytes() for file in (tmp_path / "ranker").iterdir())
    assert not [text for text in REPLIES if text.encode() in whole]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_index_ranks_by_score_and_count(several: bool, precision: Precision, tmp_path: Path) -> None:
    """An exact search returns the best by ``score + w log(1 + count)``, also for an encoder with several vectors."""
    encoder, counts = WordEncoder("encoder", 1, several=several), Counts.of(REPLIES)
    ranker, texts = Ranker([(EncoderTerm(encoder), (1.0,)), (counts, (0.5,))]), [*REPLIES, "never said", "nor this"]
    build_index(tmp_path / "index", ranker, texts, name="ranker", precision=precision)
    expected = encoder.score_pool(CONTEXTS, texts) + 0.5 * counts.numbers(texts)[:, 0]
    with Replies(ranker, open_index(tmp_path / "index")) as replies:
        for row, answer in zip(expected, replies.answer_all(CONTEXTS, len(texts)), strict=True):
            assert answer.exact
            found = {reply.text: reply.score for reply in answer.ranked}
            np.testing.assert_allclose([found[text] for text in texts], row, atol=1e-4 if precision == "fp32" else 0.05)


def test_an_explanation_has_a_separate_share_for_the_count() -> None:
    ranker = Ranker([(EncoderTerm(WordEncoder("encoder", 1)), (1.0,)), (Counts.of(REPLIES), (0.5,))])
    *_, share = explain(ranker, CONTEXTS[1], "no").parts.values()
    assert (share.weight, share.rest) == (0.5, share.score)
    assert share.score == pytest.approx(np.log(4))
    assert [turn.share for turn in share.turns] == [0.0, 0.0]


def test_counts_of_a_catalogue(tmp_path: Path) -> None:
    (tmp_path / "replies.csv").write_text("text,count\nhello,3\nbye,4\n", "utf-8")
    assert catalogue_counts(tmp_path / "replies.csv") == {"hello": 3, "bye": 4}
    (tmp_path / "twice.csv").write_text("id,text,count\na,hello,3\nb,bye,4\nc,hello,5\n", "utf-8")
    assert catalogue_counts(tmp_path / "twice.csv") == {"hello": 8, "bye": 4}
    (tmp_path / "replies.jsonl").write_text('{"text": "hello"}\n', "utf-8")
    for default in (1, 0):
        assert catalogue_counts(tmp_path / "replies.jsonl", default=default) == {"hello": default}
    with pytest.raises(DataError, match="no field `count`; add a count to each reply"):
        catalogue_counts(tmp_path / "replies.jsonl")
    for count in ('"many"', "-1", "1.5", "true", '"²"', '"1' + "0" * 18 + '"'):
        (tmp_path / "replies.jsonl").write_text(f'{{"text": "hello", "metadata": {{"count": {count}}}}}\n', "utf-8")
        with pytest.raises(DataError, match="give a number above 0"):
            catalogue_counts(tmp_path / "replies.jsonl")
    (tmp_path / "replies.jsonl").write_text('{"text": "hello", "count": 3.0}\n{"text": "bye", "count": 0}\n', "utf-8")
    assert catalogue_counts(tmp_path / "replies.jsonl") == {"hello": 3, "bye": 0}  # as pandas writes whole numbers
    (tmp_path / "replies.csv").write_text("text,count\nhello,3\nbye,\n", "utf-8")
    assert catalogue_counts(tmp_path / "replies.csv", default=1) == {"hello": 3, "bye": 1}
    with pytest.raises(DataError, match="has no field `count`; add a count to each reply"):
        catalogue_counts(tmp_path / "replies.csv")
