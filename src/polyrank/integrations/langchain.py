"""LangChain components: an index as a retriever, a model as a document compressor."""

from collections.abc import Sequence
from typing import Any

from polyrank.answering.replies import Replies
from polyrank.errors import needs
from polyrank.scorers.protocols import Scorer

with needs("langchain-core", "langchain"):
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever


class PolyrankRetriever(BaseRetriever):
    """Retrieves the best candidates for a query, as documents with id, score and metadata.

    Args:
        replies: returned by ``polyrank.open``.
        k: number of documents.
        filter: on metadata, see ``polyrank.read_filter``; None: all.
    """

    replies: Replies
    k: int = 5
    filter: str | None = None
    model_config = {"arbitrary_types_allowed": True}  # noqa: RUF012  # as pydantic wants it

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        answer = self.replies.answer(query, self.k, filter=self.filter)
        return [
            Document(page_content=reply.text, id=reply.id, metadata={**reply.metadata, "score": reply.score})
            for reply in answer.ranked
        ]


class PolyrankReranker(BaseDocumentCompressor):
    """Ranks documents by a model's scores.

    Args:
        scorer: returned by ``polyrank.load``.
        top_n: number of documents to keep; None: all.
    """

    scorer: Scorer
    top_n: int | None = None
    model_config = {"arbitrary_types_allowed": True}  # noqa: RUF012  # as pydantic wants it

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents, best first; metadata has the raw ``score`` and, if the scorer knows it, its relevance."""
        ranked = self.scorer.rank(query, [document.page_content for document in documents], self.top_n)
        scores, relevance = [reply.score for reply in ranked], self.scorer.relevance
        shown = scores if relevance is None else relevance.of(scores).tolist()
        return [
            Document(
                page_content=reply.text,
                id=documents[int(reply.id)].id,
                metadata={**documents[int(reply.id)].metadata, "score": reply.score, "relevance_score": value},
            )
            for reply, value in zip(ranked, shown, strict=True)
        ]
