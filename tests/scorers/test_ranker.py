"""Rankers: with every subset of terms, scores are the sum of weighted features, however they are computed."""

import gc
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import polyrank
from polyrank import BM25, Candidate, Context, Example, Ranker, Replies, build_index, explain
from polyrank.answering.build import add_to_index, update_counts
from polyrank.config.models import CrossConfig, TextPolicy
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import open_index, open_writer
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.abstention import Abstention
from polyrank.ranking.relevance import Relevance
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers import terms as kinds_of_terms
from polyrank.scorers.explanation import TokenShare, by_word
from polyrank.scorers.joined import Joined, Scaled
from polyrank.scorers.left_out import reader
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.ranker import as_ranker, corrected, load_ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.cross import CrossTerm
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.hubs import Hubs
from polyrank.scorers.terms.lexical import LexicalTerm
from polyrank.scorers.terms.protocol import ReplyTerm, Term
from polyrank.scorers.terms.words import WordCounts, Words
from polyrank.serving.served import Served
from polyrank.serving.tasks import RespondTask, ScoreTask
from polyrank.text.offsets import Span
from word_models import PairScorer, WordEncoder

SAID = ["wifi", "bill", "light", "router", "red", "down", "the", "my", "restart", "is"]
TEXTS = [" ".join(SAID[(3 * i + j * (i % 4 + 1)) % 10] for j in range(1 + i % 4)) for i in range(24)]
TEXTS = list(dict.fromkeys(TEXTS))
CONTEXTS: list[ContextLike] = ["my wifi is down", ["the light", "is red", "restart the router"], ["bill", "my bill"]]
COUNTS = Counts.of({text: 2 + i**2 for i, text in enumerate(TEXTS) if i % 3})
MODELS: dict[str, Scorer] = {
    "bi": WordEncoder("bi", 1), "other": WordEncoder("other", 2), "poly": WordEncoder("poly", 3, several=True),
    "pairs": PairScorer(),
}  # fmt: skip


def part(name: str) -> tuple[Term, tuple[float, ...]]:
    """A term and weights for its features, of more digits than a table shows."""
    bi, other, poly = (MODELS[each] for each in ("bi", "other", "poly"))
    match name:
        case "bi":
            return EncoderTerm(bi), (1.0,)
        case "other":
            return EncoderTerm(other), (3 / 7,)
        case "poly":
            return EncoderTerm(poly), (1.0,)
        case "counts":
            return COUNTS, (2 / 7,)
        case "hubs":
            contexts = [Context((text,)) for text in TEXTS[:5]]
            return Hubs.encoded(bi, contexts, scale=11 / 7), (4 / 7,)  # type: ignore[arg-type]  # a WordEncoder
        case "words":
            return Words(WordCounts.of(TEXTS)), (1 / 7, -0.1, 5 / 7, -1.0)
        case "lexical":
            return LexicalTerm(BM25(k1=10 / 7, b=5 / 7).fit(TEXTS[:7])), (0.5,)
        case _:
            return CrossTerm(MODELS["pairs"]), (6 / 7,)


NAMES = ["bi", "other", "poly", "counts", "hubs", "words", "lexical", "cross"]
SUBSETS = st.sets(st.sampled_from(NAMES)).filter(lambda names: names & {"bi", "other", "poly"}).map(sorted)


def ranker_of(names: Sequence[str], **changes: Any) -> Ranker:
    return Ranker([part(name) for name in names], **changes)


def expected(names: Sequence[str], contexts: Sequence[ContextLike], lists: Sequence[Sequence[str]]) -> list[Any]:
    """``sum_t weights_t . features_t`` in fp64."""
    totals: list[Any] = [np.zeros(len(texts)) for texts in lists]
    for term, weights in map(part, names):
        for row, features in enumerate(term.score(contexts, lists)):
            totals[row] = totals[row] + features.astype(np.float64) @ np.array(weights)
    return totals


def scores_of(answer: polyrank.Answer) -> dict[str, float]:
    return {reply.text: reply.score for reply in answer.ranked}


@given(SUBSETS, st.integers(0, 99))
@settings(max_examples=30)
def test_a_score_is_the_sum_of_weighted_features_however_it_is_computed(names: list[str], seed: int) -> None:
    ranker, generator = ranker_of(names), np.random.default_rng(seed)
    lists = [generator.permutation(TEXTS)[: 5 + row].tolist() for row in range(3)]
    lists[0].append(lists[0][0])  # a copy
    scores = ranker.score(CONTEXTS, lists)
    for context, texts, values in zip(CONTEXTS, lists, scores, strict=True):
        np.testing.assert_allclose(values, expected(names, [context], [texts])[0], rtol=1e-4, atol=1e-5)
        # neither the batch nor the order of the candidates changes a score
        np.testing.assert_allclose(ranker.score([context], [texts[::-1]])[0][::-1], values, rtol=1e-5, atol=1e-6)
        ranked = ranker.rank(context, texts)
        np.testing.assert_allclose([reply.score for reply in ranked], -np.sort(-values), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ranker.score_pool([context], texts)[0], values, rtol=1e-5, atol=1e-5)
    assert scores[0][-1] == scores[0][0]
    examples = [Example(Context.of(c).turns, tuple(t), (1,)) for c, t in zip(CONTEXTS, lists, strict=True)]
    for record, row in zip(polyrank.evaluate(ranker, examples).records, scores, strict=True):
        assert record.scores is not None
        np.testing.assert_allclose(record.scores, row, rtol=1e-5, atol=1e-6)


@given(SUBSETS, st.integers(1, 30))
@settings(max_examples=15)
def test_an_index_returns_the_best_of_all_candidates_with_the_same_scores(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], n_retrieved: int
) -> None:
    path = tmp_path_factory.mktemp("ranked") / "index"
    ranker = ranker_of(names, n_retrieved=n_retrieved)
    build_index(path, ranker, TEXTS, name="ranker")
    with Replies(ranker, open_index(path)) as replies:
        answers = replies.answer_all(CONTEXTS, len(TEXTS), allow_echo=True)
        (first, *_) = replies.answer_all(CONTEXTS, 3, allow_echo=True)
    for context, answer in zip(CONTEXTS, answers, strict=True):
        assert answer.exact
        ranked = ranker.rank(context, TEXTS)
        assert [reply.text for reply in answer.ranked] == [reply.text for reply in ranked]
        found, wanted = [reply.score for reply in answer.ranked], [reply.score for reply in ranked]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        if not ranker.rerankers or n_retrieved >= len(TEXTS):
            np.testing.assert_allclose(
                [scores_of(answer)[text] for text in TEXTS], expected(names, [context], [TEXTS])[0], atol=1e-4
            )
    assert [reply.text for reply in first.ranked] == [reply.text for reply in answers[0].ranked[:3]]


@given(SUBSETS)
@settings(max_examples=15)
def test_a_saved_ranker_has_the_same_bits(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("saved") / "ranker"
    settings: dict[str, Any] = {
        "n_retrieved": 7, "scale": 18 / 7, "abstention": Abstention("margin", 1 / 7),
        "relevance": Relevance(9 / 7, -2 / 7, 1 / 70), "figures": {"n_lists": 3, "share": 3 / 7},
    }  # fmt: skip
    ranker = ranker_of(names, **settings)
    ranker.save(folder)
    loaded = load_ranker(folder, MODELS.__getitem__)
    assert loaded.fingerprint == ranker.fingerprint != ""
    assert {name: getattr(loaded, name) for name in settings} == settings
    assert repr(loaded) == repr(ranker)
    for before, after in zip(*(r.score(CONTEXTS, [TEXTS] * 3) for r in (ranker, loaded)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_saved_ranker_names_folders_from_its_own(tmp_path: Path) -> None:
    """Wherever its figures name them, so that a tree of folders can be moved."""
    one, other = str(tmp_path / "models" / "one"), str(tmp_path / "rankers" / "other")
    figures = {"model": one, "pair": (one, other), "lists": [[one], ({"of": (other, 3, None)},)], "n": 2.5}
    for folder in (one, other):
        Path(folder).mkdir(parents=True)
    ranker_of(["bi"], figures=figures).save(tmp_path / "rankers" / "r")
    assert str(tmp_path) not in (tmp_path / "rankers" / "r" / "ranker.json").read_text("utf-8")
    one, other = "../../models/one", "../other"
    assert load_ranker(tmp_path / "rankers" / "r", MODELS.__getitem__).figures == {
        "model": one, "pair": [one, other], "lists": [[one], [{"of": [other, 3, None]}]], "n": 2.5,
    }  # fmt: skip


@given(SUBSETS)
@settings(max_examples=15)
def test_explanations_add_up_to_the_score(names: list[str]) -> None:
    ranker = ranker_of(names)
    for context in CONTEXTS[:2]:
        why = explain(ranker, context, TEXTS[7], max_words=2)
        assert why.score == pytest.approx(float(ranker.score([context], [TEXTS[7:8]])[0][0]), rel=1e-4, abs=1e-4)
        weighed = [(each.weight or 1.0) * each.score for each in why.parts.values()]
        assert len(weighed) == (0 if names in (["bi"], ["poly"]) else len(names))
        assert sum(weighed) == pytest.approx(why.score if weighed else 0.0, rel=1e-5, abs=1e-5)


def test_fingerprints_differ_with_terms_weights_and_shortlists() -> None:
    rankers = [
        *(ranker_of(["bi", name]) for name in NAMES[1:]),
        ranker_of(["bi"]),
        ranker_of(["bi"], n_retrieved=9),
        Ranker([(part("bi")[0], (1.5,))]),
        *(Ranker([(Words(WordCounts(n, counts)), (1.0,) * 4)]) for n, counts in ((8, {}), (9, {}), (9, {"a": 2}))),
    ]
    assert len({ranker.fingerprint for ranker in rankers}) == len(rankers)
    assert ranker_of(["bi", "words"]).fingerprint == ranker_of(["bi", "words"]).fingerprint
    unknown = WordEncoder("encoder")
    unknown.fingerprint = ""
    assert Joined([WordEncoder("encoder", 1), unknown]).fingerprint == Scaled(unknown, 0.5).fingerprint == ""
    assert Ranker([part("words"), (EncoderTerm(unknown), (1.0,))]).fingerprint == ""


def test_an_index_of_joined_encoders_opens_only_with_the_same_ones_in_their_order_and_with_their_weights(
    tmp_path: Path,
) -> None:
    def made() -> list[Joined]:
        one, other = WordEncoder("one", 1), WordEncoder("other", 2)
        orders = [[one], [other], [one, other], [other, one], [one, one], [one, one, other], [one, other, one]]
        weighted = [[Scaled(one, weight), other] for weight in (0.5, float(np.nextafter(0.5, 1)), 1.0)]
        return [Joined(parts) for parts in (*orders, *weighted, [one, Scaled(other, 0.5)])]

    prints = [joined.fingerprint for joined in made()]
    assert len(set(prints)) == len(prints)
    assert prints == [joined.fingerprint for joined in made()]
    both, swapped = made()[2:4]
    build_index(tmp_path / "index", both, TEXTS, name="both")
    Replies(both, open_index(tmp_path / "index"))
    with pytest.raises(ArtifactError, match="was made by encoder"):
        Replies(swapped, open_index(tmp_path / "index"))


@pytest.mark.parametrize("more", [["counts"], ["words"], ["cross"], ["counts", "words", "lexical", "cross"]])
def test_a_ranker_of_one_encoder_shares_the_encoders_index(tmp_path: Path, more: list[str]) -> None:
    build_index(tmp_path / "index", MODELS["bi"], TEXTS)
    ranker = ranker_of(["bi", *more])
    assert ranker.encoder is MODELS["bi"]
    with Replies(ranker, open_index(tmp_path / "index")) as replies:
        assert len(replies.answer("my wifi", 3).ranked) == 3
    with pytest.raises(ArtifactError, match="was made by encoder"):
        Replies(ranker_of(["bi", "other"]), open_index(tmp_path / "index"))


# counts


def test_an_index_has_the_counts_of_the_ranker_until_it_has_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranker, path = ranker_of(["bi", "counts"]), tmp_path / "index"
    build_index(path, ranker, [*TEXTS[:8], {"text": TEXTS[8], "id": "own", "count": 1000}], name="ranker")

    def of_the_index() -> list[Candidate]:
        with open_index(path) as index:
            return [candidate for _, candidate in index.iter_candidates()]

    def check(context: ContextLike) -> None:
        """An index and ``rank`` agree if they know the same counts."""
        with Replies(ranker, open_index(path)) as replies:
            answer = replies.answer(context, 20, allow_echo=True)
            ranked = ranker.rank(context, of_the_index())
            assert [reply.id for reply in answer.ranked] == [reply.id for reply in ranked]
            np.testing.assert_allclose(
                [reply.score for reply in answer.ranked], [reply.score for reply in ranked], atol=1e-4
            )
            for reply in answer.ranked:
                assert replies.explain(context, reply.text).score == pytest.approx(reply.score, abs=1e-4)

    counts = dict(zip(TEXTS, COUNTS.of_texts(TEXTS).tolist(), strict=True)) | {TEXTS[8]: 1000}
    assert [c.metadata.get("count", 0) for c in of_the_index()] == [counts[text] for text in TEXTS[:9]]
    check("my wifi is down")
    with open_writer(path) as writer:
        new = [Candidate("new", TEXTS[10]), Candidate("given", TEXTS[11], {"count": 3})]
        assert add_to_index(writer, ranker, new) == 2
    assert {c.id: c.metadata["count"] for c in of_the_index()[-2:]} == {"new": counts[TEXTS[10]], "given": 3}
    check("my wifi is down")
    with Replies(ranker, open_index(path)) as replies:
        assert replies.answer("the light", 1).ranked[0].text != TEXTS[5]
        assert update_counts(path, {TEXTS[5]: 10**12}) == 1
        assert replies.answer("the light", 1).ranked[0].text == TEXTS[5]
    check("the light")
    assert not caplog.messages  # some candidates have a count
    build_index(tmp_path / "none", MODELS["bi"], TEXTS)
    Replies(ranker, open_index(tmp_path / "none")).close()
    assert caplog.messages == [
        f"{tmp_path / 'none'} has no counts, which its ranker adds; set them by polyrank index update-counts"
    ]


def test_counts_of_candidates_take_the_place_of_those_of_their_texts() -> None:
    ranker = ranker_of(["bi", "counts", "words"])
    candidates = [Candidate(str(i), text) for i, text in enumerate(TEXTS[:6])]
    plain = {reply.id: reply.score for reply in ranker.rank("my wifi", candidates)}
    counted = [replace(candidates[0], metadata={"count": 50}), *candidates[1:]]
    changed = {reply.id: reply.score for reply in ranker.rank("my wifi", counted)}
    assert [reply.id for reply in ranker.rank("my wifi", counted, 2)] == [*changed][:2]
    was = int(COUNTS.of_texts(TEXTS[:1])[0])
    assert changed["0"] - plain["0"] == pytest.approx(2 / 7 * (np.log1p(50) - np.log1p(was)), abs=1e-5)
    assert {id_: changed[id_] for id_ in "12345"} == pytest.approx({id_: plain[id_] for id_ in "12345"}, abs=1e-5)
    assert Ranker([part("bi"), (COUNTS, (0.5,)), (COUNTS, (0.25,))]).prior == 0.75
    for value, count in (("many", 0), ("50", 50), (-3, 0), (2.5, 2.5)):
        counted = [replace(candidates[0], metadata={"count": value}), *candidates[1:]]
        (score,) = [reply.score for reply in ranker.rank("my wifi", counted) if reply.id == "0"]
        assert score - plain["0"] == pytest.approx(2 / 7 * (np.log1p(count) - np.log1p(was)), abs=1e-5)


def test_two_terms_of_counts_add_up_everywhere() -> None:
    """Also for candidates of which some have a count, and without an encoder."""
    others = Counts.of({text: 1 + i for i, text in enumerate(TEXTS)})
    logs = [np.log1p(counts.of_texts(TEXTS)) for counts in (COUNTS, others)]
    for first in (part("bi"), part("words")):
        ranker, alone = Ranker([first, (COUNTS, (0.5,)), (others, (0.25,))]), Ranker([first])
        wanted = alone.score(["my wifi"], [TEXTS])[0] + 0.5 * logs[0] + 0.25 * logs[1]
        np.testing.assert_allclose(ranker.score(["my wifi"], [TEXTS])[0], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ranker.score_pool(["my wifi", "hi"], TEXTS)[0], wanted, rtol=1e-5, atol=1e-5)
        given = {1: 0, 4: 70}
        candidates = [
            Candidate(str(i), text, {"count": given[i]} if i in given else {}) for i, text in enumerate(TEXTS)
        ]
        plain = alone.score(["my wifi"], [TEXTS])[0]
        for reply in ranker.rank("my wifi", candidates):
            i = int(reply.id)
            count = given.get(i, np.expm1(logs[0][i]))  # others have the count of the first term, as in an index
            assert reply.score == pytest.approx(float(plain[i] + 0.75 * np.log1p(count)), abs=1e-4)


def test_a_ranker_opens_each_model_once_and_reads_weights_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = ranker_of(["bi", "hubs", "words"])
    ranker.save(tmp_path / "r")
    opened: list[str] = []

    def load(name: str) -> Scorer:
        opened.append(name)
        return WordEncoder(name, 1)

    loaded = load_ranker(tmp_path / "r", load)
    assert opened == ["bi"]
    assert len({id(one) for term in loaded.parts for one in term.parts}) == 1
    # a version with one more feature, which has another order
    monkeypatch.setattr(Words, "features", ("echo", "new", "match", "earlier", "overlap"))
    weights = {str(weighed.term.name): weighed.weights for weighed in load_ranker(tmp_path / "r", load).terms}
    assert weights["words"] == (-1.0, 0.0, 1 / 7, -0.1, 5 / 7)


class Lengths(ReplyTerm):  # without a kind, so that no ranker of another test finds it
    features, name, fingerprint = ("words", "letters"), "lengths", "lengths"

    def numbers(self, texts: Sequence[str]) -> Any:
        return np.array([[len(text.split()), len(text)] for text in texts], np.float32).reshape(-1, 2)


def test_a_term_of_the_reply_may_have_several_features() -> None:
    term, lists = Lengths(), [TEXTS[:3], [], TEXTS[4:9]]
    for rows, texts in zip(term.score(CONTEXTS, lists), lists, strict=True):
        np.testing.assert_array_equal(rows, term.numbers(texts))
    searched = term.encoder((2.0, 0.5))
    assert searched is not None
    wanted = term.numbers(TEXTS) @ np.array([2.0, 0.5], np.float32)
    np.testing.assert_allclose(searched.score_pool(CONTEXTS, TEXTS), [wanted] * 3, rtol=1e-5)
    others = [term.encoder(weights) for weights in ((2.0, 0.5), (2.0, 0.25), (1.0, 0.5))]
    assert len({encoder.fingerprint for encoder in others if encoder}) == 3  # an index of one is not another's
    assert searched.fingerprint == others[0].fingerprint  # type: ignore[union-attr]


def test_a_scorer_alone_is_a_ranker_with_its_name_and_its_relevance() -> None:
    stated = Relevance(2.0, -1.0, 0.1)
    for scorer in (WordEncoder("one"), PairScorer("two"), BM25().fit(TEXTS)):
        scorer.relevance, scorer.name = stated, scorer.name or "bm25"
        ranker = as_ranker(scorer)
        assert (ranker.name, ranker.relevance) == (scorer.name, stated)
        assert as_ranker(ranker) is ranker
    assert corrected(WordEncoder("one"), PairScorer("two"), n_retrieved=3).n_retrieved == 3


def test_excluded_rows_of_a_pool_leave_their_places_to_others() -> None:
    ranker, first, second = ranker_of(["bi", "cross"], n_retrieved=3), MODELS["bi"], ranker_of(["cross"])
    excluded = [{1, 4, 7}, set(), {0}]
    rows = ranker.score_pool(CONTEXTS, TEXTS, excluded=excluded)
    for row, context, out in zip(rows, CONTEXTS, excluded, strict=True):
        (found,), (more,) = first.score([context], [TEXTS]), second.score([context], [TEXTS])
        best = [i for i in np.argsort(-found).tolist() if i not in out][:3]
        for i in best:
            assert row[i] == pytest.approx(found[i] + more[i], abs=1e-5)
        assert min(row[i] for i in best) > max(row[i] for i in range(len(TEXTS)) if i not in best)


def test_a_weighted_model_explains_its_weighted_score() -> None:
    term = EncoderTerm(WordEncoder("encoder", 1))
    (context,) = contexts_of(CONTEXTS[:1])
    scores = [term.explain(context, TEXTS[7], (weight,), 2).score for weight in (1.0, 2.0)]
    assert scores[1] == pytest.approx(2 * scores[0])
    for n in (1, 3):  # words are left out up to the limit
        why = part("words")[0].explain(context, "the light is red", (1.0,) * 4, n)
        assert [len(why.candidate.tokens), len(why.turns[-1].tokens)] == [n, n]


# damage and refusals


def test_damaged_bytes_are_detected(tmp_path: Path) -> None:
    ranker_of(["bi", "counts", "hubs", "words"], figures={"note": "a test"}).save(tmp_path / "ranker")
    for name in ("ranker.json", "ranker.safetensors"):
        file = tmp_path / "ranker" / name
        good = file.read_bytes()
        for place in range(0, len(good), max(1, len(good) // 60)):
            file.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
            with pytest.raises(ArtifactError):
                load_ranker(tmp_path / "ranker", MODELS.__getitem__)
        for damaged in (b"", good[:-1], good + b" "):
            file.write_bytes(damaged)
            with pytest.raises(ArtifactError):
                load_ranker(tmp_path / "ranker", MODELS.__getitem__)
        file.write_bytes(good)
    assert load_ranker(tmp_path / "ranker", MODELS.__getitem__).figures == {"note": "a test"}


def test_a_changed_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for names in (["bi"], ["bi", "hubs"], ["bi", "cross"]):
        folder = tmp_path / "-".join(names)
        ranker_of(names).save(folder)
        changed = MODELS | {"bi": WordEncoder("bi", 9)}
        problem = r"was made with .*bi of fingerprint 10101010.*make it again with polyrank tune"
        with pytest.raises(ArtifactError, match=problem):
            load_ranker(folder, changed.__getitem__)


def test_a_missing_model_is_refused_with_the_remedy(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_encoders["bi"], tmp_path / "bi")
    ranker, folder = as_ranker(polyrank.load(tmp_path / "bi")), tmp_path / "ranker"
    ranker.save(folder)
    assert polyrank.load(folder).fingerprint == ranker.fingerprint
    with pytest.raises(UsageError, match="already exists"):
        ranker.save(folder)
    ranker.save(folder, replace=True)
    with pytest.raises(UsageError, match="would be a part of itself; choose another path"):
        ranker.save(tmp_path / "bi", replace=True)
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    shutil.rmtree(tmp_path / "bi")
    assert polyrank.load(tmp_path / "moved" / "ranker").fingerprint == ranker.fingerprint
    with pytest.raises(
        UsageError, match=r"needs the model .*bi, which does not exist; restore it or make it again with polyrank tune"
    ):
        polyrank.load(folder)


def test_models_without_a_name_cannot_be_saved(tmp_path: Path) -> None:
    for name in ("", "bi"):
        encoder = WordEncoder(name, 1)
        encoder.fingerprint = "" if name else encoder.fingerprint
        named = re.escape(f"EncoderTerm({name or 'WordEncoder'!r})")
        with pytest.raises(UsageError, match=f"^{named} was not loaded by a name, so the ranker could not load it"):
            as_ranker(encoder).save(tmp_path / "ranker")
    assert not (tmp_path / "ranker").exists()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Ranker([]), "0 terms; give a ranker at least one"),
        (lambda: Ranker([(part("words")[0], (1.0,))]), "1 weights for the features match, earlier, overlap, echo"),
        (lambda: Ranker([(part("bi")[0], (float("nan"),))]), "weights nan of bi; give finite numbers"),
        (lambda: Ranker([(part("words")[0], (1.0, np.inf, 1.0, 1.0))]), "weights 1,inf,1,1 of words; give finite"),
        (lambda: Ranker([(part("bi")[0], (-1.0,))]), "weight = -1.0 of .*; give a number above 0"),
        (lambda: Ranker([(part("bi")[0], (0.0,))]), "weight = 0.0 of .*; give a number above 0"),
        (lambda: ranker_of(["bi"], n_retrieved=0), "n_retrieved is 0; give 1 or more"),
        (lambda: Ranker([(part("bi")[0], (1.0,)), *[part("poly")] * 2]), "two attentions cannot be one score"),
        (lambda: Joined([WordEncoder("", several=True)] * 2), "^encoder 1 and encoder 2 both give a context several"),
        (lambda: Ranker([(part("poly")[0], (2.0,)), part("bi")]).score(["hi"], [["a"]]), "so its weight is 1"),
        (lambda: LexicalTerm(BM25()), "needs word statistics; call fit"),
        (lambda: Replies(ranker_of(["words"]), None), "has no vectors to index"),  # type: ignore[arg-type]
    ],
)
def test_impossible_rankers_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make()


def test_a_ranker_without_an_encoder_scores_every_candidate() -> None:
    for names in (["words", "cross"], ["counts", "lexical"], ["counts"]):
        ranker = ranker_of(names, n_retrieved=2)
        assert ranker.encoder is None
        for row, wanted in zip(
            ranker.score(CONTEXTS, [TEXTS] * 3), expected(names, CONTEXTS, [TEXTS] * 3), strict=True
        ):
            np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-5)
        counted = [Candidate(str(i), text, {"count": 0}) for i, text in enumerate(TEXTS)]
        others = [name for name in names if name != "counts"]
        scores = {reply.id: reply.score for reply in ranker.rank(CONTEXTS[0], counted)}
        wanted = expected(others, CONTEXTS[:1], [TEXTS])[0] if "counts" in names else wanted
        if "counts" in names:
            np.testing.assert_allclose([scores[str(i)] for i in range(len(TEXTS))], wanted, rtol=1e-4, atol=1e-5)


# with networks, by name


@pytest.mark.deep
def test_networks_give_the_same_scores_everywhere(
    tiny_backbone: Path, tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    policy = TextPolicy(max_context_tokens=32, max_candidate_tokens=16)
    save_model(tmp_path / "cross", *new_model(CrossConfig(backbone=str(tiny_backbone)), policy, seed=1, sample=()))
    bi, poly, cross = (polyrank.load(path) for path in (tiny_encoders["bi"], tiny_encoders["poly"], tmp_path / "cross"))
    hubs = Hubs.encoded(poly, [Context(("hello",)), Context(("the bill is high",))], scale=1.0)  # type: ignore[arg-type]
    terms = [(EncoderTerm(poly), (1.0,)), (EncoderTerm(bi), (0.5,)), (CrossTerm(cross), (0.7,)), (hubs, (0.2,))]
    made = Ranker([*terms, part("words"), part("counts")])
    made.save(tmp_path / "ranker")
    texts = ["restart the router", "the bill is too high", "thanks", "did that", "please restart it"]
    build_index(tmp_path / "index", tmp_path / "ranker", texts)
    loaded = polyrank.load(tmp_path / "ranker")
    assert (loaded.fingerprint, loaded.name) == (made.fingerprint, str(tmp_path / "ranker"))
    assert len(loaded.networks) == 3
    mixed = [load_encoder(tiny_encoders[name], precision=p) for name, p in (("bi", "fp32"), ("poly", "bf16"))]  # type: ignore[arg-type]
    assert Ranker([(EncoderTerm(one), (1.0,)) for one in mixed]).precision == "bf16, fp32"
    for name in (tmp_path / "ranker", tiny_encoders["bi"], f"untuned:{tiny_backbone}"):
        for precision in ("fp32", "bf16"):
            assert polyrank.load(name, precision=precision).precision == precision  # type: ignore[arg-type]  # a name
            assert load_encoder(name, precision=precision).precision == precision  # type: ignore[arg-type]
    context = Context(("hello", "my wifi is down"))
    (wanted,) = made.score([context], [texts])
    np.testing.assert_array_equal(loaded.score([context], [texts])[0], wanted)
    np.testing.assert_allclose(loaded.score([context, "hi"], [texts, texts])[0], wanted, atol=1e-5)
    with polyrank.open(tmp_path / "index") as replies:
        answer = replies.answer(context, 5)
        np.testing.assert_allclose([scores_of(answer)[text] for text in texts], wanted, atol=1e-5)
        assert replies.explain(context, "thanks").score == pytest.approx(float(wanted[2]), abs=1e-5)
    served = Served("m", str(tmp_path / "index"), "cpu")
    (scored,) = served.score([ScoreTask(context, texts)])
    np.testing.assert_allclose(scored.scores, wanted, atol=1e-5)
    (found,) = served.compute([RespondTask(context, 5, None, True, False)])
    assert [text for _, _, text in found.shown] == [reply.text for reply in answer.ranked]


# another kind of term


@pytest.fixture
def length(tmp_path: Path) -> Iterator[None]:
    """The module of CONTRIBUTING.md in the package of terms; gone afterwards."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    (module,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "(ReplyTerm)" in code]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "length.py").write_text(module, "utf-8")
    kinds_of_terms.__path__.append(str(tmp_path / "more"))
    yield
    kinds_of_terms.__path__.remove(str(tmp_path / "more"))
    del sys.modules[f"{kinds_of_terms.__name__}.length"], kinds_of_terms.length  # type: ignore[attr-defined]
    gc.collect()  # classes refer to themselves
    assert "length" not in kinds_of_terms.term_kinds()


@pytest.mark.usefixtures("length")
def test_a_kind_of_term_is_added_by_one_module(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    lists = [
        Example((f"hi {i}",), tuple(" ".join(["yes"] * n) for n in generator.permutation(5) + 1)) for i in range(40)
    ]
    lists = [replace(e, relevant=(e.candidates.index("yes yes yes yes yes"),), id=e.context[0]) for e in lists]
    tuning = polyrank.tune([WordEncoder("bi", 1)], lists)
    assert "length" in [row["kind"] for row in tuning.rows if row["weights"]]
    assert tuning.is_better
    tuning.ranker.save(tmp_path / "ranker")
    loaded = load_ranker(tmp_path / "ranker", {"bi": WordEncoder("bi", 1)}.__getitem__)
    assert loaded.fingerprint == tuning.ranker.fingerprint
    build_index(tmp_path / "index", loaded, ["yes", "yes yes yes"], name="ranker")
    with Replies(loaded, open_index(tmp_path / "index")) as replies:
        assert replies.answer("hi").text == "yes yes yes"


def test_an_unknown_kind_of_term_is_refused() -> None:
    with pytest.raises(ArtifactError, match="a term of kind 'rhyme' is unknown here, only counts, cross, encoder"):
        kinds_of_terms.term_kind("rhyme")


def test_shares_of_words_are_sums_over_tokenizations_that_may_leave_words_out() -> None:
    """Pieces of words, whole words, and a word that only one of them knows; the last word was truncated."""
    text = "wifi is down now"
    pieces = [TokenShare("wi", 0, 2, 0.5), TokenShare("fi", 2, 4, 0.25), TokenShare("down", 8, 12, 2.0),
              TokenShare("now", 13, 16, 0.0, read=False)]  # fmt: skip
    whole = [TokenShare("wifi", 0, 4, 10.0), TokenShare("is", 5, 7, 1.0), TokenShare("now", 13, 16, 0.0, read=False)]

    def shares(*kinds: tuple[list[TokenShare], float, bool]) -> list[tuple[str, float, bool]]:
        return [(word.text, word.share, word.read) for word in by_word(text, kinds)]

    assert shares((pieces, 2.0, True), (whole, 0.5, True)) == [
        ("wifi", 6.5, True), ("is", 0.5, True), ("down", 4.0, True), ("now", 0.0, False),
    ]  # fmt: skip
    last = ("now", 0.0, False)
    assert shares((pieces, 2.0, True)) == [("wifi", 1.5, True), ("is", 0.0, True), ("down", 4.0, True), last]
    assert shares((pieces, 2.0, True), (whole, 0.5, False)) == [("wifi", 6.5, True), ("is", 0.5, True), last]
    assert shares((pieces, 2.0, False), (whole, 0.5, False)) == [("wifi", 6.5, True), ("now", 0.0, False)]
    space = [*pieces, TokenShare(" ", 7, 8, 5.0)]  # ends where a word begins, and belongs to none
    assert shares((space, 2.0, True)) == shares((pieces, 2.0, True))
    for one, other in ((pieces[3:], pieces[:3]), (pieces[:3], pieces[3:])):  # a word that one of two does not have
        assert shares((one, 2.0, True), (other, 0.5, True))[3] == last


def test_a_span_within_another_ends_no_reading() -> None:
    read = reader([Span("turn", 0, 0, 9), Span("turn", 0, 2, 4), Span("turn", 1, 0, 3), None])
    assert [read("turn", 0, start, end) for start, end in ((5, 8), (8, 12), (9, 12))] == [True, True, False]
    assert (read("turn", 1, 2, 5), read("turn", 2, 0, 1)) == (True, False)
    read = reader([Span("turn", 0, 1, 2), Span("turn", 0, 3, 4)])  # between them are letters that touch both
    assert [read("turn", 0, start, start + 1) for start in range(5)] == [False, True, False, True, False]
