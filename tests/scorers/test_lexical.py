"""BM25 and TF-IDF: equal to their formulas, and equal on lists and pools."""

import math

import numpy as np
import pytest

from polyrank.data.same_words import echoes, same_words
from polyrank.records import Candidate, Context
from polyrank.scorers.lexical import BM25, TfIdf, words
from polyrank.scorers.open import load

POOL = [Candidate(str(i), text) for i, text in enumerate(["wifi down", "restart it", "bill high", "thanks", "restart"])]
CORPUS = ["my wifi is down", "restart the router", "thanks", "the bill is too high high", "wifi wifi router", ""]
QUERIES = [Context(("my wifi router is is down",)), Context(("bill",), ("the wifi",)), Context(("",))]


def test_bm25_equals_its_formula() -> None:
    mean = sum(max(len(words(t)), 1) for t in CORPUS) / len(CORPUS)
    for query, got in zip(QUERIES, BM25().fit(CORPUS).score(QUERIES, [CORPUS] * 3), strict=True):
        for text, score in zip(CORPUS, got, strict=True):
            expected = 0.0
            for word in [w for t in (*query.background, *query.turns) for w in words(t)]:
                df = sum(word in words(t) for t in CORPUS)
                tf = words(text).count(word)
                idf = math.log(1 + (len(CORPUS) - df + 0.5) / (df + 0.5))
                expected += idf * tf / (tf + 1.5 * (0.25 + 0.75 * len(words(text)) / mean))
            assert score == pytest.approx(expected, abs=1e-5)


def test_vowel_signs_are_parts_of_words() -> None:
    yes, is_, no = BM25().score(["है"], [["हाँ", "है", "नहीं है"]])[0]
    assert yes == 0
    assert is_ > no > 0
    assert not echoes(["है"])("हाँ")
    assert same_words("ไม่") != same_words("ไม้")
    assert same_words("1️⃣ ok ❤️") == same_words("1⃣ ok ❤")


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_lists_and_pools_agree(kind: type[BM25] | type[TfIdf]) -> None:
    fitted = kind().fit(CORPUS)
    np.testing.assert_allclose(
        fitted.score_pool(QUERIES, CORPUS), np.stack(fitted.score(QUERIES, [CORPUS] * 3)), atol=1e-5
    )
    other = [*CORPUS, "quite another reply", "wifi"]
    np.testing.assert_allclose(
        fitted.score_pool(QUERIES, other), np.stack(fitted.score(QUERIES, [other] * 3)), atol=1e-5
    )
    unfitted = kind()
    np.testing.assert_allclose(
        unfitted.score_pool(QUERIES, CORPUS), np.stack(unfitted.score(QUERIES, [CORPUS] * 3)), atol=1e-5
    )


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_a_list_does_not_depend_on_the_others(kind: type[BM25] | type[TfIdf]) -> None:
    contexts, lists = ["my wifi", "my bill"], [["wifi", "my bill"], ["my bill", "my bill is high", "wifi"]]
    alone = [kind().score([context], [own])[0].tolist() for context, own in zip(contexts, lists, strict=True)]
    assert [row.tolist() for row in kind().score(contexts, lists)] == alone


def test_tfidf_is_a_cosine() -> None:
    values = TfIdf().fit(CORPUS).score([Context(("my wifi is down",))], [CORPUS])[0]
    assert values[0] == pytest.approx(1)
    assert values[2] == 0
    n = len(CORPUS)

    def idf(df: int) -> float:
        return 1 + math.log((1 + n) / (1 + df))

    query = {"wifi": idf(2), "my": idf(1), "is": idf(2), "down": idf(1)}
    text = {"wifi": 2 * idf(2), "router": idf(2)}
    norm = math.sqrt(sum(v * v for v in query.values())) * math.sqrt(sum(v * v for v in text.values()))
    assert values[4] == pytest.approx(query["wifi"] * text["wifi"] / norm, abs=1e-6)


def test_equal_words_rank_first() -> None:
    best = BM25().fit([c.text for c in POOL]).rank(Context(("my bill is high",)), POOL, 2)
    assert best[0].text == "bill high"
    assert len(best) == 2


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 0.0), (1.2, 1.0), (0.0, 0.5)])
@pytest.mark.parametrize("fitted", [True, False])
def test_bm25_of_a_pool_equals_its_formula_for_any_constants(k1: float, b: float, fitted: bool) -> None:
    """Statistics come from the fitted corpus, or from the pool's distinct texts: a duplicate counts once."""
    pool = ["wifi down", "restart it now please", "bill", "", "wifi down", "the the bill", "neverseen wifi"]
    corpus = CORPUS if fitted else list(dict.fromkeys(pool))
    mean = sum(max(len(text.split()), 1) for text in corpus) / len(corpus)
    scorer = BM25(k1=k1, b=b).fit(CORPUS) if fitted else BM25(k1=k1, b=b)
    queries = [*QUERIES, Context(("wifi bill",)), Context(("neverseen the please",))]
    wanted = np.zeros((len(queries), len(pool)))
    for row, query in enumerate(queries):
        for word in " ".join((*query.background, *query.turns)).split():
            df = sum(word in text.split() for text in corpus)
            for column, text in enumerate(pool):
                tf = text.split().count(word)
                if df and tf:
                    idf = math.log(1 + (len(corpus) - df + 0.5) / (df + 0.5))
                    wanted[row, column] += idf * tf / (tf + k1 * (1 - b + b * len(text.split()) / mean))
    assert wanted.max() > 0.2
    np.testing.assert_allclose(scorer.score_pool(queries, pool), wanted, atol=1e-5)
    if fitted:
        np.testing.assert_allclose(np.stack(scorer.score(queries, [pool] * len(queries))), wanted, atol=1e-5)


@pytest.mark.parametrize("fitted", [True, False])
def test_tfidf_equals_its_formula_written_with_arrays(fitted: bool) -> None:
    pool = ["wifi down", "restart it now", "bill bill wifi", "", "wifi down", "neverseen"]
    corpus = CORPUS if fitted else list(dict.fromkeys(pool))
    terms = sorted({word for text in [*CORPUS, *pool] for word in text.split()})
    idf = np.array([1 + math.log((1 + len(corpus)) / (1 + sum(t in x.split() for x in corpus))) for t in terms])

    def unit(text: str) -> np.ndarray:
        counts = np.array([text.split().count(term) for term in terms]) * idf
        return counts / (np.linalg.norm(counts) or 1)

    asked = [" ".join((*query.background, *query.turns)) for query in QUERIES]
    wanted = np.stack([unit(text) for text in asked]) @ np.stack([unit(text) for text in pool]).T
    assert wanted.max() > 0.3
    scorer = TfIdf().fit(CORPUS) if fitted else TfIdf()
    np.testing.assert_allclose(scorer.score_pool(QUERIES, pool), wanted, atol=1e-6)
    np.testing.assert_allclose(np.stack(scorer.score(QUERIES, [pool] * 3)), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_cached_statistics_belong_to_one_pool(kind: type[BM25] | type[TfIdf]) -> None:
    """With another pool, order or corpus, scores equal a new scorer's; with the same pool they do not change."""
    scorer = kind()
    pools = [CORPUS, CORPUS[::-1], CORPUS[:3], CORPUS]
    for pool in [*pools, pools[-1]]:
        np.testing.assert_array_equal(scorer.score_pool(QUERIES, pool), kind().score_pool(QUERIES, pool))
    before = scorer.score_pool(QUERIES, CORPUS)
    scorer.fit(CORPUS[:2])
    np.testing.assert_array_equal(
        scorer.score_pool(QUERIES, CORPUS), kind().fit(CORPUS[:2]).score_pool(QUERIES, CORPUS)
    )
    assert not np.allclose(before, scorer.score_pool(QUERIES, CORPUS))
    scorer.statistics = kind().fit(CORPUS).statistics
    np.testing.assert_array_equal(scorer.score_pool(QUERIES, CORPUS), kind().fit(CORPUS).score_pool(QUERIES, CORPUS))
    assert scorer.score_pool(QUERIES, []).shape == (3, 0)
    assert scorer.score_pool([], CORPUS).shape == (0, len(CORPUS))
    assert [len(row) for row in scorer.score(QUERIES, [[], CORPUS, ["x"]])] == [0, len(CORPUS), 1]
    assert scorer.score_pool(QUERIES, ["", ""]).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("name", ["bm25", "tfidf"])
def test_a_text_that_a_corpus_repeats_counts_once(name: str) -> None:
    texts = ["restart the router", "pay the bill", "the router is red", "hello"]
    one, other, another = (load(name, corpus=corpus) for corpus in (texts, texts[:1] * 5 + texts * 2, texts[1:]))
    found, same, changed = (scorer.score(["the red router"], [texts])[0] for scorer in (one, other, another))
    assert np.array_equal(found, same)
    assert not np.array_equal(found, changed)
