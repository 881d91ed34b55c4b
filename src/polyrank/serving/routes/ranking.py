"""Lists to be put in order: our own route, and those of Cohere, Jina and text-embeddings-inference."""

import math
from collections.abc import Sequence

from fastapi import APIRouter, Request

from polyrank.serving.context import Here, Server, parts
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ScoreTask
from polyrank.serving.wire import (
    CohereRerankAnswer,
    CohereRerankRequest,
    CohereResult,
    ScoreAnswer,
    ScoreRequest,
    TeiRerankRequest,
    TeiResult,
)

router = APIRouter(route_class=StrictRoute, tags=["ranking"])


async def scores_of(
    server: Server, name: str, context: str | Sequence[str], background: Sequence[str], texts: list[str], param: str
) -> tuple[list[float], int]:
    """Raw scores of texts, and how many tokens were read."""
    checked = server.context(context, background)
    server.check_texts(texts, param)
    if not texts:
        return [], 0
    n_context = server.tokens(name, [*checked.turns, *checked.background], "context")
    tokens = [server.tokens(name, [text], "candidate") + n_context for text in texts]
    cut = parts(texts, tokens)
    tasks = [ScoreTask(checked, texts[part]) for part in cut]
    values = (await server.compute(name, tasks, [sum(tokens[part]) for part in cut])).values
    return [score for value in values for score in value.scores], sum(value.n_tokens for value in values)


@router.post("/v1/score", summary="Raw scores, in the order of the candidates")
async def score(asked: ScoreRequest, server: Here) -> ScoreAnswer:
    """Higher is better; what a score means is the model's own."""
    name = server.name_of(asked.model)
    scores, n_tokens = await scores_of(server, name, asked.context, asked.background, asked.candidates, "candidates")
    return ScoreAnswer(model=name, scores=scores, usage=_usage(n_tokens))


@router.post("/v1/rerank", summary="Documents, best first, as Cohere's and Jina's")
@router.post("/v2/rerank", summary="Documents, best first, as Cohere's second version")
async def rerank(asked: CohereRerankRequest, request: Request, server: Here) -> CohereRerankAnswer:
    """Scores are between 0 and 1, the sigmoid of the model's, unless raw ones are asked for."""
    name = server.name_of(asked.model)
    texts = [document if isinstance(document, str) else document.text for document in asked.documents]
    scores, n_tokens = await scores_of(server, name, asked.query, (), texts, "documents")
    if not asked.raw_scores:
        scores = [sigmoid(score) for score in scores]
    order = sorted(range(len(texts)), key=lambda row: -scores[row])[: asked.top_n]
    return CohereRerankAnswer(
        id=request.scope["state"]["request_id"],
        model=name,
        results=[
            CohereResult(
                index=row,
                relevance_score=scores[row],
                document={"text": texts[row]} if asked.return_documents else None,
            )
            for row in order
        ],
        meta={"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        usage=_usage(n_tokens),
    )


@router.post("/rerank", summary="Texts, best first, as text-embeddings-inference's; documents, as Cohere's")
async def rerank_any(
    asked: TeiRerankRequest | CohereRerankRequest, request: Request, server: Here
) -> list[TeiResult] | CohereRerankAnswer:
    """Told apart by the field ``texts``."""
    if isinstance(asked, CohereRerankRequest):
        return await rerank(asked, request, server)
    name = server.name_of(None)
    scores, _ = await scores_of(server, name, asked.query, (), asked.texts, "texts")
    if not asked.raw_scores:
        scores = [sigmoid(score) for score in scores]
    order = sorted(range(len(scores)), key=lambda row: -scores[row])
    return [
        TeiResult(index=row, score=scores[row], text=asked.texts[row] if asked.return_text else None) for row in order
    ]


def sigmoid(score: float) -> float:
    """A raw score as a number between 0 and 1.

    >>> sigmoid(0.0), sigmoid(-1000.0), sigmoid(1000.0)
    (0.5, 0.0, 1.0)
    """
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    small = math.exp(score)
    return small / (1 + small)


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
