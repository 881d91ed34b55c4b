"""BM25 and TF-IDF: equal to their formulas, the same on lists and pools."""

import math

import numpy as np
import pytest

from polyrank.records import Candidate, Context
from polyrank.retrieval.retrievers import LexicalRetriever
from polyrank.scorers.lexical import BM25, TfIdf, words

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


def test_a_lexical_retriever_finds_the_obvious() -> None:
    found = LexicalRetriever(BM25().fit([c.text for c in POOL]), POOL).respond([Context(("my bill is high",))], 2)[0]
    assert found[0].text == "bill high"
    assert len(found) == 2
