"""Lists to be put in order: polyrank's own route, and those of Cohere, Jina and text-embeddings-inference."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from polyrank.serving.context import Here, Server, parts
from polyrank.serving.dialects import (
    CohereRerankAnswer,
    CohereRerankRequest,
    Reranks,
    TeiRerankRequest,
    TeiResult,
)
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ScoreTask
from polyrank.serving.wire import ScoreAnswer, ScoreRequest
from polyrank.serving.written import json_response

ModelName = Annotated[str | None, Query(description="Of what is served, for requests with texts; left out: the first.")]

router = APIRouter(route_class=StrictRoute, tags=["ranking"])


async def scores_of(
    server: Server, name: str, context: str | Sequence[str], background: Sequence[str], texts: list[str], param: str,
    *, whole: bool = False,
) -> tuple[list[float], int]:  # fmt: skip
    """Raw scores of texts, and how many tokens were read. ``whole``: texts that do not fit are refused, not cut."""
    checked = server.context(context, background)
    server.check_texts(texts, param)
    if not texts:
        return [], 0
    n_context = server.tokens(name, [*checked.turns, *checked.background], "context")
    tokens = [server.tokens(name, [text], "candidate") + n_context for text in texts]
    cut = parts(texts, tokens)
    tasks = [ScoreTask(checked, texts[part]) for part in cut]
    values = (await server.compute(name, tasks, [sum(tokens[part]) for part in cut])).values
    if whole:
        server.check_whole(name, values, param)
    return [score for value in values for score in value.scores], sum(value.n_tokens for value in values)


@router.post("/v1/score", summary="Raw scores, in the order of the candidates")
async def score(asked: ScoreRequest, server: Here) -> ScoreAnswer:
    """Higher is better; what a score means is the model's own."""
    name = server.name_of(asked.model)
    scores, n_tokens = await scores_of(server, name, asked.context, asked.background, asked.candidates, "candidates")
    return ScoreAnswer(model=name, scores=scores, usage=_usage(n_tokens))


@router.post("/v1/rerank", summary="Documents, best first, as Cohere's and Jina's", response_model=CohereRerankAnswer)
@router.post("/v2/rerank", summary="Documents, best first, as Cohere's v2", response_model=CohereRerankAnswer)
async def rerank(asked: CohereRerankRequest, request: Request, server: Here) -> Response:
    """Documents are ranked by the model's scores; ``relevance_score`` is between 0 and 1 and keeps their order."""
    name = server.name_of(asked.model)
    texts = [document if isinstance(document, str) else document.text for document in asked.documents]
    server.check_cut(name, texts, "candidate", asked.max_tokens_per_doc, "max_tokens_per_doc")
    scores, n_tokens = await scores_of(server, name, asked.query, (), texts, "documents")
    shares = scores if asked.raw_scores else _relevance(server, name, scores)
    results = [
        {
            "index": row,
            "relevance_score": shares[row],
            "document": {"text": texts[row]} if asked.return_documents else None,
        }
        for row in _order(scores)[: asked.top_n]
    ]
    return await json_response(
        server,
        {
            "id": request.scope["state"]["request_id"],
            "model": name,
            "results": results,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
            "usage": _usage(n_tokens),
        },
    )


@router.post(
    "/rerank",
    summary="Texts, best first, as text-embeddings-inference's; documents, as Cohere's",
    response_model=list[TeiResult] | CohereRerankAnswer,
)
async def rerank_any(asked: Reranks, request: Request, server: Here, model: ModelName = None) -> Response:
    """Told apart by the field ``documents``."""
    if not isinstance(asked, TeiRerankRequest):
        return await rerank(asked, request, server)
    name = server.name_of(model)
    texts = asked.texts
    whole = asked.truncate is False or asked.truncation_direction in ("left", "Left")
    scores, _ = await scores_of(server, name, asked.query, (), texts, "texts", whole=whole)
    shares = scores if asked.raw_scores else _relevance(server, name, scores)
    return await json_response(
        server,
        [
            {"index": row, "score": shares[row], "text": texts[row] if asked.return_text else None}
            for row in _order(scores)
        ],
    )


def relevance(score: float, threshold: float = 0.0) -> float:
    """A raw score as a number between 0 and 1: 1/2 + x / (2 + 2|x|), with x = score - threshold.

    It orders as the scores do, however large they are: a sigmoid is exactly 1.0 above 37, where this is 0.987.

    >>> relevance(0.0), relevance(1.0), relevance(-3.0), relevance(1e6) < relevance(1e6 + 1)
    (0.5, 0.75, 0.125, True)
    """
    x = score - threshold
    return 0.5 + 0.5 * x / (1 + abs(x))


def _relevance(server: Server, name: str, scores: Sequence[float]) -> list[float]:
    threshold = server.pool.info[name].threshold or 0.0
    return [relevance(score, threshold) for score in scores]


def _order(scores: Sequence[float]) -> list[int]:
    """Positions, best score first; of equal ones the first."""
    return sorted(range(len(scores)), key=lambda row: -scores[row])


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
