"""Inside LangChain and Haystack: every field of the results, and every optional argument."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polyrank
from polyrank.ranking.relevance import Relevance
from polyrank.scorers.ranker import as_ranker

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own warnings
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before its import

TEXTS = [f"please restart the {what}" for what in ("router", "light", "wifi", "bill", "red", "green", "my", "it")]
QUERY = "my wifi is down"


@pytest.fixture(scope="module")
def scorer(tiny_backbone: Path) -> polyrank.Scorer:
    return polyrank.load(f"untuned:{tiny_backbone}")


@pytest.fixture(scope="module")
def replies(scorer: polyrank.Scorer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[polyrank.Replies]:
    folder = tmp_path_factory.mktemp("frameworks") / "index"
    candidates = [polyrank.Candidate(f"c{i}", text, {"even": i % 2 == 0}) for i, text in enumerate(TEXTS)]
    polyrank.build_index(folder, scorer, candidates)
    with polyrank.open(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def scores(scorer: polyrank.Scorer) -> list[float]:
    return [float(score) for score in scorer.score([QUERY], [TEXTS])[0]]


@pytest.fixture(scope="module")
def order(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda row: -scores[row])


def test_langchain_retrieves(replies: polyrank.Replies, scores: list[float], order: list[int]) -> None:
    pytest.importorskip("langchain_core")
    from polyrank.integrations.langchain import PolyrankRetriever

    found = PolyrankRetriever(replies=replies).invoke(QUERY)
    assert [(d.page_content, d.id) for d in found] == [(TEXTS[row], f"c{row}") for row in order[:5]]
    for document, row in zip(found, order, strict=False):
        assert document.metadata == {"even": row % 2 == 0, "score": pytest.approx(scores[row], abs=1e-5)}
    few = PolyrankRetriever(replies=replies, k=3, filter="even = true").invoke(QUERY)
    assert [d.id for d in few] == [f"c{row}" for row in order if row % 2 == 0][:3]
    try:
        replies.add([{"id": "own", "text": "a reply with its own score", "metadata": {"score": "mine", "other": 1}}])
        (own,) = PolyrankRetriever(replies=replies, filter="other = 1").invoke(QUERY)
        (reply,) = replies.answer(QUERY, 1, filter="other = 1").ranked
        assert own.metadata == {"other": 1, "score": reply.score}
    finally:
        replies.remove(["own"])


def test_langchain_ranks(scorer: polyrank.Scorer, scores: list[float], order: list[int]) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from polyrank.integrations.langchain import PolyrankReranker

    documents = [Document(text, id=f"d{row}", metadata={"row": row}) for row, text in enumerate(TEXTS)]
    for top_n in (None, 3):
        kept = PolyrankReranker(scorer=scorer, top_n=top_n).compress_documents(documents, QUERY)
        assert [(d.id, d.page_content, d.metadata["row"]) for d in kept] == [
            (f"d{row}", TEXTS[row], row) for row in order[:top_n]
        ]
        found = [d.metadata["relevance_score"] for d in kept]
        assert found == pytest.approx([scores[row] for row in order[:top_n]], abs=1e-5)
    assert all(d.metadata == {"row": row} for row, d in enumerate(documents))
    assert list(PolyrankReranker(scorer=scorer).compress_documents([], QUERY)) == []
    (best,) = PolyrankReranker(scorer=scorer, top_n=1).compress_documents([Document(" "), *documents], QUERY)
    assert best.id == f"d{order[0]}"
    ranker = as_ranker(scorer)
    ranker.relevance = Relevance(2.0, -1.0, 0.0)
    for document in PolyrankReranker(scorer=ranker).compress_documents(documents, QUERY):
        found = document.metadata
        assert found["score"] == pytest.approx(scores[found["row"]], abs=1e-5)
        assert found["relevance_score"] == pytest.approx(1 / (1 + np.exp(1 - 2 * found["score"])), abs=1e-6)


def test_haystack_retrieves(replies: polyrank.Replies, scores: list[float], order: list[int]) -> None:
    pytest.importorskip("haystack")
    from polyrank.integrations.haystack import PolyrankRetriever

    found = PolyrankRetriever(replies).run(QUERY)["documents"]
    assert [(d.content, d.id, d.meta) for d in found] == [
        (TEXTS[row], f"c{row}", {"even": row % 2 == 0}) for row in order[:5]
    ]
    np.testing.assert_allclose([d.score for d in found], [scores[row] for row in order[:5]], atol=1e-5)
    retriever = PolyrankRetriever(replies, top_k=2, filter="even = false")
    odd = [f"c{row}" for row in order if row % 2]
    assert [d.id for d in retriever.run(QUERY)["documents"]] == odd[:2]
    assert [d.id for d in retriever.run(QUERY, top_k=3)["documents"]] == odd[:3]
    with pytest.raises(polyrank.UsageError, match="k is 0; request at least one reply"):
        retriever.run(QUERY, top_k=0)


def test_haystack_ranks(scorer: polyrank.Scorer, scores: list[float], order: list[int]) -> None:
    pytest.importorskip("haystack")
    from haystack import Document

    from polyrank.integrations.haystack import PolyrankRanker

    documents = [Document(id=f"d{row}", content=text, meta={"row": row}) for row, text in enumerate(TEXTS)]
    for ranker, top_k, n in (
        (PolyrankRanker(scorer), None, 8),
        (PolyrankRanker(scorer), 2, 2),
        (PolyrankRanker(scorer, top_k=3), None, 3),
        (PolyrankRanker(scorer, top_k=3), 4, 4),
    ):
        ranked = ranker.run(QUERY, documents, top_k)["documents"]
        assert [(d.id, d.content, d.meta) for d in ranked] == [
            (f"d{row}", TEXTS[row], {"row": row}) for row in order[:n]
        ]
        np.testing.assert_allclose([d.score for d in ranked], [scores[row] for row in order[:n]], atol=1e-5)
    assert all(document.score is None for document in documents)
    with pytest.raises(polyrank.UsageError, match="k = 0"):
        PolyrankRanker(scorer, top_k=3).run(QUERY, documents, top_k=0)
    scanned = [Document(id="e", content=None), *documents]  # a document without a text is never the best
    assert [d.id for d in PolyrankRanker(scorer).run(QUERY, scanned)["documents"]] == [*(f"d{n}" for n in order), "e"]
    (empty,) = PolyrankRanker(scorer).run(QUERY, scanned[:1])["documents"]
    assert empty.id == "e"
