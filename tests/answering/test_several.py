"""Several contexts, parts, pages and candidates of one text: each gets what it would get alone."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrank
from polyrank.answering import build
from polyrank.answering.build import add_to_index, update_counts
from polyrank.answering.diversity import N_BEST, choose_diverse, word_similarity
from polyrank.answering.replies import Replies
from polyrank.errors import ArtifactError, LockedError, UsageError
from polyrank.index import open_index, open_writer, read_filter
from polyrank.ranking.abstention import Abstention
from polyrank.records import Candidate, Context
from polyrank.scorers.lexical import BM25
from polyrank.scorers.protocols import Floats
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm, ScorerTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from word_models import PairScorer, WordEncoder

WORDS = [f"w{n}" for n in range(30)]


def texts_of(n: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [f"{n} " + " ".join(generator.choice(WORDS, 3)) for n in range(n)]


def candidates(path: Path) -> dict[str, Candidate]:
    with open_index(path) as index:
        return {candidate.id: candidate for _, candidate in index.iter_candidates()}


def test_contexts_answered_together_are_answered_as_alone(tmp_path: Path) -> None:
    """Each text is there many times, so every answer searches again, for more candidates."""
    model, texts = WordEncoder("words", several=True), texts_of(6)
    pool = [Candidate(f"{text}/{n}", text) for text in texts for n in range(12)]
    polyrank.build_index(tmp_path / "i", model, pool)
    contexts = [["w1"], ["w2", "w3 w4", "w5"], texts[:2], ["w6", "w7"]]
    with Replies(model, open_index(tmp_path / "i")) as replies:
        together = replies.respond(contexts, 4)
        for context, found in zip(contexts, together, strict=True):
            (scores,) = model.score([context], [texts])
            best = sorted(zip(scores.tolist(), texts, strict=True), reverse=True)
            assert [(one.score, one.text) for one in found] == [
                (pytest.approx(score, abs=1e-5), text) for score, text in best if text not in context
            ][:4]
            assert replies.respond([context], 4)[0] == found
    with polyrank.open(tmp_path / "i", model=model, distinct=False, wait_s=0.25) as replies:
        assert len({one.text for one in replies.answer("w1", 4).ranked}) == 1  # of which there are twelve
        assert replies.wait_s == 0.25


def test_only_answers_without_replies_have_notes_about_the_filter(tmp_path: Path) -> None:
    model = WordEncoder("words")
    polyrank.build_index(tmp_path / "i", model, [Candidate("a", "see Ann", {"lang": "en"}), Candidate("b", "ask Bo")])
    with Replies(model, open_index(tmp_path / "i")) as replies:
        echo, other = replies.answer_all(["See Ann!", "hm"], filter='lang = "en" or team = 1 or size = 2')
    assert ([one.id for one in other.ranked], other.notes) == (["a"], ())
    assert ([one.id for one in echo.ranked], len(echo.notes)) == ([], 2)
    for field, note in zip(("team", "size"), echo.notes, strict=True):
        assert f"no candidate has the field {field} of" in note


@pytest.mark.parametrize("measure", ["score", "margin", "softmax"])
def test_the_confidence_is_of_the_best_ten_however_few_are_returned(tmp_path: Path, measure: str) -> None:
    model = WordEncoder("words")
    polyrank.build_index(tmp_path / "i", model, texts_of(30))
    with Replies(model, open_index(tmp_path / "i")) as replies:
        contexts = ["w1 w2", "w3", "w4 w5 w6"]
        scores = [np.array([one.score for one in ranked]) for ranked in replies.respond(contexts, 12)]
    sure = [{"score": s[0], "margin": s[0] - s[1], "softmax": 1 / np.exp(s[:10] - s[0]).sum()}[measure] for s in scores]
    ranker = Ranker([(EncoderTerm(model), (1.0,))], abstention=Abstention(measure, sorted(sure)[1] + 1e-4))  # type: ignore[arg-type]
    with Replies(ranker, open_index(tmp_path / "i")) as replies:
        for k in (1, 2, 12):
            answers = replies.answer_all(contexts, k)
            assert [one.confidence for one in answers] == pytest.approx(sure, abs=1e-5)
            assert [one.abstained for one in answers] == [one < max(sure) for one in sure]
            assert [len(one.ranked) for one in answers] == [k] * 3


@pytest.mark.parametrize("k", [1, 3, 4, 12])
def test_a_shortlist_is_reranked_and_all_others_follow(tmp_path: Path, k: int) -> None:
    model, texts = WordEncoder("words"), texts_of(12)
    pool, words = [Candidate(text, text) for text in texts], BM25().fit(texts)
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (LexicalTerm(words), (2.0,))], n_retrieved=4)
    ranker.name = "ranker"
    polyrank.build_index(tmp_path / "i", ranker, pool)
    contexts = [texts[3] + " w1", "w2 w3 w4", "w5"]
    with Replies(ranker, open_index(tmp_path / "i")) as replies:
        for context, found in zip(contexts, replies.respond(contexts, k), strict=True):
            assert len(found) == k
            first = dict(zip(texts, model.score([context], [texts])[0].tolist(), strict=True))
            second = dict(zip(texts, words.score([context], [texts])[0].tolist(), strict=True))
            by_search = sorted(texts, key=lambda text: -first[text])
            total = {text: first[text] + 2.0 * second[text] for text in by_search[:4]}
            order = [*sorted(total, key=lambda text: -total[text]), *by_search[4:]]
            assert [reply.text for reply in found] == order[:k]
            for reply in found[:4]:
                assert reply.score == pytest.approx(total[reply.text], abs=1e-4)
                assert reply.stages == {
                    "retriever": pytest.approx(first[reply.text], abs=1e-4),
                    "reranker": pytest.approx(2.0 * second[reply.text], abs=1e-4),
                }
            assert all(one.score > other.score for one, other in pairwise(found))
            ranked = {one.id: one.score for one in ranker.rank(context, pool)}
            assert [reply.score for reply in found] == pytest.approx([ranked[reply.id] for reply in found], abs=1e-4)


class Broken(PairScorer):
    """Its weights are damaged: it gives one candidate no number."""

    def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        rows = super().score(contexts, candidates)
        rows[-1][-1] = np.nan
        return rows


def test_a_reranker_that_gives_no_number_is_damaged(tmp_path: Path) -> None:
    model = WordEncoder("words")
    polyrank.build_index(tmp_path / "i", model, texts_of(6))
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (ScorerTerm(Broken()), (1.0,))], n_retrieved=3)
    with Replies(ranker, open_index(tmp_path / "i")) as replies:
        assert (replies.n_stages, Replies(model, replies.index).n_stages) == (2, 1)
        with pytest.raises(ArtifactError, match="a score is not finite; the model's weights are damaged"):
            replies.answer_all(["w1", "w2"], 2)


def test_a_diverse_answer_may_have_more_replies_than_it_is_usually_chosen_from(tmp_path: Path) -> None:
    model, n = WordEncoder("words"), N_BEST + 20
    polyrank.build_index(tmp_path / "i", model, [f"{WORDS[i % 30]} {'x' * i}" for i in range(n)])
    with Replies(model, open_index(tmp_path / "i")) as replies:
        for k in (3, n - 1):
            assert len(replies.answer("w1", k, diverse=True).ranked) == k


class Meanwhile(PairScorer):
    """Another process changes the index between the search and the choice of replies that differ."""

    def __init__(self, change: Callable[[], Any]) -> None:
        super().__init__()
        self.change = change

    def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        self.change()
        return super().score(contexts, candidates)


@pytest.mark.parametrize("n_removed", [0, 1, 12])
def test_replies_that_were_removed_meanwhile_are_compared_by_their_words(tmp_path: Path, n_removed: int) -> None:
    model, texts = WordEncoder("words"), [f"{' '.join(WORDS[i : i + 5])} {'x' * i}" for i in range(12)]
    polyrank.build_index(tmp_path / "i", model, [Candidate(text, text) for text in texts])

    def remove() -> None:
        with open_writer(tmp_path / "i") as writer:
            writer.remove(texts[:n_removed])

    ranker = Ranker([(EncoderTerm(model), (1.0,)), (ScorerTerm(Meanwhile(remove)), (1.0,))], n_retrieved=12)
    ranker.name = "ranker"
    with Replies(ranker, open_index(tmp_path / "i")) as replies:
        found = replies.answer("w1 w9", 4, diverse=True).ranked
    ranked = ranker.rank("w1 w9", texts)
    words = choose_diverse(ranked, 4, word_similarity([one.text for one in ranked]), small_talk=False)
    assert ([one.text for one in found] == [one.text for one in words]) == (n_removed > 0)
    assert len(found) == 4


def test_the_first_call_after_another_index_took_the_place_of_the_first_sees_it(tmp_path: Path) -> None:
    model = WordEncoder("words")
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (Counts.of({"x": 1}), (0.5,))])
    ranker.name = "ranker"
    calls: list[tuple[Callable[[Replies], Any], Any]] = [
        (lambda replies: replies.candidate("b").text, "new"),
        (lambda replies: replies.count("new"), 9),
        (lambda replies: replies.explain("hi", "new").parts["2 counts"].score, pytest.approx(np.log1p(9))),
        (lambda replies: replies.explain("hi", candidate_id="b").candidate.text, "new"),
        (lambda replies: len(replies.answer("hi").ranked), 2),
        (lambda replies: len(Replies(model, replies.index).answer("hi", any_language=True).ranked), 2),
        (len, 2),
        (lambda replies: (replies.add(["other"]), len(replies))[1], 3),
        (lambda replies: (replies.remove(["b"]), len(replies)), (1, 2)),
    ]
    polyrank.build_index(tmp_path / "i", ranker, [Candidate("a", "new", {"count": 3})])
    opened = [Replies(ranker, open_index(tmp_path / "i")) for _ in calls]
    pool = [Candidate("b", "new", {"count": 9}), Candidate("c", "old", {"count": 7})]
    polyrank.build_index(tmp_path / "other", ranker, pool)
    shutil.rmtree(tmp_path / "i")
    (tmp_path / "other").rename(tmp_path / "i")
    for replies, (call, expected) in zip(opened, calls, strict=True):
        with replies:
            assert call(replies) == expected


def test_the_last_turn_decides_whether_the_customer_makes_small_talk(tmp_path: Path) -> None:
    model = WordEncoder("words")
    greetings = [Candidate(text, text, {"kind": "greeting"}) for text in ("hello you", "good day", "hi there")]
    polyrank.build_index(tmp_path / "i", model, [*greetings, Candidate("x", "it is late")])
    with Replies(model, open_index(tmp_path / "i")) as replies:
        for turns, n in ((["Hello!", "where is it"], 1), (["where is it", "Hello!"], 3)):
            found = replies.answer(turns, 9, diverse=True).ranked
            assert sum("kind" in reply.metadata for reply in found) == n
        (found,) = replies.respond([Context((), ("Hello!",))], 9, diverse=True)  # without a turn
        assert sum("kind" in reply.metadata for reply in found) == 1


def test_a_context_is_answered_in_any_language_if_no_reply_in_its_own_passes(tmp_path: Path) -> None:
    model, contexts = WordEncoder("words"), ["Wo ist denn mein Paket geblieben?", "ok", "Where is my parcel?"]
    rows = [("a", "de"), ("b", "en"), ("b", "en"), ("a", "de")]
    pool = [Candidate(f"{n}", f"w{n}", {"team": team, "language": code}) for n, (team, code) in enumerate(rows)]
    polyrank.build_index(tmp_path / "i", model, pool)
    with Replies(model, open_index(tmp_path / "i")) as replies:
        for filter, found in (
            (None, ["03", "0123", "12"]),
            ('team = "a"', ["03"] * 3),
            ('team = "b"', ["12"] * 3),
            ('team = "c"', [""] * 3),
        ):
            ids = ["".join(sorted(one.id for one in few)) for few in replies.respond(contexts, 9, filter=filter)]
            assert ids == found


def test_only_texts_are_languages(tmp_path: Path) -> None:
    """Other values of the field are of a user."""
    model = WordEncoder("words")
    for number, values in enumerate((["de"], [["en"], 3, "de", None])):
        pool = [Candidate(str(n), f"w{n}", {"language": value}) for n, value in enumerate(values)]
        polyrank.build_index(tmp_path / f"{number}", model, [*pool, Candidate("x", "w9")])
        with Replies(model, open_index(tmp_path / f"{number}")) as replies:
            assert len(replies.answer("Where is my parcel?").ranked) == len(values) + 1


def test_the_best_reply_is_explained_as_a_template_and_by_a_filter_in_any_form(tmp_path: Path) -> None:
    model = WordEncoder("words")
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (Counts.of({"x": 1}), (0.5,))])
    ranker.name = "ranker"
    pool = [
        Candidate("a", "{order} is on its way", {"count": 9, "team": "a"}),
        Candidate("b", "{order} is on its way", {"count": 2, "team": "b"}),
    ]
    polyrank.build_index(tmp_path / "i", ranker, pool)
    with Replies(ranker, open_index(tmp_path / "i")) as replies:
        for team, count in (("a", 9), ("b", 2)):
            for given in (f'team = "{team}"', read_filter(f'team = "{team}"')):
                (best,) = replies.answer("Where is AR-12345", 1, filter=given).ranked
                why = replies.explain("Where is AR-12345", filter=given)
                assert (best.text, why.candidate.text) == ("AR-12345 is on its way", pool[0].text)
                assert why.score == pytest.approx(best.score, abs=1e-5)
                same = polyrank.explain(replies, "Where is AR-12345", pool[0].text, filter=given)
                assert same.parts["2 counts"].score == pytest.approx(np.log1p(count))
        for n in (1, 3):
            short = replies.explain("Where is it", "it is here", max_words=n).parts["1 words"]
            assert (len(short.candidate.tokens), len(short.turns[0].tokens)) == (n, n)


def test_a_count_is_the_largest_of_all_pages(tmp_path: Path) -> None:
    model = WordEncoder("words")
    pool = [Candidate(str(n), "ok", {"count": 5000 if n == 3 else n}) for n in range(2100)]
    polyrank.build_index(tmp_path / "i", model, [Candidate("longer", "ok then", {"count": 9000}), *pool])
    with Replies(model, open_index(tmp_path / "i")) as replies:
        assert replies.count("ok") == 5000
        assert replies.count("ok", read_filter("count < 2000")) == 1999
        assert replies.count("ko") == 0
    polyrank.build_index(tmp_path / "long", model, [Candidate("a", "ok " * 3500, {"count": 3})])
    with Replies(model, open_index(tmp_path / "long")) as replies:
        assert (replies.count("ok " * 3500), replies.count("ok " * 3499)) == (3, 0)


def test_counts_are_sums_of_what_was_said_and_what_was_sent_however_many_change_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ROWS_AT_A_TIME", 2)
    model, path = WordEncoder("words"), tmp_path / "i"
    pool = [Candidate(name, text, {"of": name}) for name, text in zip("abcdefg", "abbdefg", strict=True)]
    pool[5] = replace(pool[5], metadata={"of": "f", "count": 6})
    polyrank.build_index(path, model, pool)
    vectors = open_index(path).vectors([*"abcdefg"])
    said, taken = {"a": 3, "b": 5, "e": 0, "f": 6}, {"b": 2, "d": 4, "nobody": 7}
    assert update_counts(path, said, taken) == 5  # f has its count already
    found = candidates(path)
    wanted = {"a": 3, "b": 7, "c": 5, "d": 4, "e": 0, "f": 6, "g": None}
    assert {name: one.metadata.get("count") for name, one in found.items()} == wanted
    assert [(one.text, one.metadata["of"]) for one in map(found.get, "abcdefg") if one] == [
        (c.text, c.id) for c in pool
    ]
    assert update_counts(path, said, taken) == 0
    now = open_index(path).vectors([*"abcdefg"])
    assert all(np.array_equal(now[name], vectors[name]) for name in "abcdefg")
    started = time.monotonic()
    with open_writer(path), pytest.raises(LockedError):
        update_counts(path, {"a": 9}, wait_s=0.05)
    assert time.monotonic() - started >= 0.05


def test_a_build_reports_each_part_that_has_new_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TEXTS_AT_A_TIME", 2)
    texts, reported = ["a", "b", "a", "b", "c", "a", "b", "c"], list[tuple[int, int]]()
    pool = [Candidate(str(n), text) for n, text in enumerate(texts)]
    polyrank.build_index(tmp_path / "i", WordEncoder("words"), pool, progress=lambda *done: reported.append(done))
    assert reported == [(2, 3), (3, 3)]
    with pytest.raises(UsageError, match="was not loaded by a name, so the index could not load it again; give name="):
        polyrank.build_index(tmp_path / "none", WordEncoder(""), pool)
    polyrank.build_index(tmp_path / "named", WordEncoder("words"), pool, name="other", ann="flat")
    assert [open_index(tmp_path / name).model for name in ("i", "named")] == ["words", "other"]
    for mode, ways in (("exact", "plain"), ("approximate", "shortlist"), (None, "plain")):
        with polyrank.open(tmp_path / "named", model=WordEncoder("words"), mode=mode) as replies:  # type: ignore[arg-type]
            assert replies.answer("a").ways == (ways,)


def test_replaced_candidates_keep_the_count_and_the_vector_of_the_same_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TEXTS_AT_A_TIME", 2)
    model, path = WordEncoder("words"), tmp_path / "i"
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (Counts.of({"w1": 3, "w2": 8}), (0.5,))])
    ranker.name = "ranker"
    pool = [Candidate("same", "w1", {"count": 70}), Candidate("other", "w1", {"count": 71}), Candidate("none", "w3")]
    polyrank.build_index(path, ranker, pool)
    new = [
        Candidate("same", "w1", {"tag": 1}),
        Candidate("other", "w2", {"tag": 2}),
        Candidate("none", "w3", {"tag": 3}),
        *(Candidate(f"new{n}", f"w{n}") for n in range(2, 8)),
    ]
    encoded, reported = list[str](), list[tuple[int, int]]()
    encode = model.encode_candidates
    monkeypatch.setattr(model, "encode_candidates", lambda texts: (encoded.extend(texts), encode(texts))[1])
    with open_writer(path) as writer:
        n = add_to_index(writer, ranker, new, replace=True, progress=lambda *done: reported.append(done))
    assert n == len(new)
    found = candidates(path)
    assert {name: found[name].metadata.get("count") for name in ("same", "other", "none", "new2", "new4")} == {
        "same": 70, "other": 8, "none": None, "new2": 8, "new4": None,
    }  # fmt: skip
    assert encoded == ["w2", "w4", "w5", "w6", "w7"]
    assert reported == [(2, 5), (4, 5), (5, 5)]
    with open_index(path) as index:
        stored = index.vectors([*found])
    for name, candidate in found.items():
        np.testing.assert_array_equal(stored[name], encode([candidate.text])[0])


def test_an_index_is_not_opened_by_a_runtime_that_its_model_lacks(tmp_path: Path) -> None:
    polyrank.build_index(tmp_path / "i", "shipped:convert", ["yes", "no"])
    with pytest.raises(UsageError, match="has no onnx export"):
        polyrank.open(tmp_path / "i", backend="onnx")
