"""Haystack components: an index as a retriever, a model as a ranker."""

from dataclasses import replace
from typing import Any

from polyrank.answering.replies import Replies
from polyrank.errors import needs
from polyrank.scorers.protocols import Scorer

with needs("haystack-ai", "haystack"):
    from haystack import Document, component


@component
class PolyrankRetriever:
    """Retrieves the best candidates for a query.

    Args:
        replies: returned by ``polyrank.open``.
        top_k: number of documents.
        filter: on metadata, see ``polyrank.read_filter``; None: all.
    """

    def __init__(self, replies: Replies, top_k: int = 5, filter: str | None = None) -> None:
        self.replies, self.top_k, self.filter = replies, top_k, filter

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Documents, best first, with raw scores."""
        answer = self.replies.answer(query, self.top_k if top_k is None else top_k, filter=self.filter)
        return {"documents": [Document(id=r.id, content=r.text, meta=r.metadata, score=r.score) for r in answer.ranked]}


@component
class PolyrankRanker:
    """Ranks documents by a model's scores.

    Args:
        scorer: returned by ``polyrank.load``.
        top_k: number of documents to keep; None: all.
    """

    def __init__(self, scorer: Scorer, top_k: int | None = None) -> None:
        self.scorer, self.top_k = scorer, top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """Documents, best first, with raw scores."""
        kept = self.top_k if top_k is None else top_k
        ranked = self.scorer.rank(query, [document.content or "" for document in documents], kept)
        return {"documents": [replace(documents[int(reply.id)], score=reply.score) for reply in ranked]}
