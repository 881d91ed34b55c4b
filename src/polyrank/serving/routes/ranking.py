"""Ranks lists of texts: polyrank's own route, and those of Cohere, Jina and text-embeddings-inference."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from polyrank.ranking.top import blank_last
from polyrank.serving.context import CurrentServer, Server
from polyrank.serving.dialects import CohereRerankAnswer, CohereRerankRequest, Reranks, TeiRerankRequest, TeiResult
from polyrank.serving.errors import HttpError
from polyrank.serving.responses import json_response, meta_of, warn
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ScoreTask
from polyrank.serving.wire import ScoreAnswer, ScoreRequest

ModelName = Annotated[str | None, Query(description="Name of a model, for requests with texts; omitted: the first.")]

router = APIRouter(route_class=StrictRoute, tags=["ranking"])


async def scores_of(
    request: Request, name: str, context: str | Sequence[str], background: Sequence[str], texts: list[str], param: str,
    *, whole: bool = False, max_chunks: int | None = None,
) -> tuple[list[float], int]:  # fmt: skip
    """Raw scores, and the number of tokens; if a text was not read to its end, the client is warned.

    ``whole``: refuse such texts instead. ``max_chunks``: of each text that are read.
    """
    server: Server = request.app.state.server
    checked = server.context(context, background)
    if not texts:
        return [], 0
    n_context = server.tokens(name, [*checked.turns, *checked.background], "context")
    tokens = [server.tokens(name, [text], "document") + n_context for text in texts]
    values = await server.compute_texts(name, texts, tokens, lambda part: ScoreTask(checked, part, max_chunks))
    if whole:
        server.check_whole(name, values, param)
    if any(value.cut for value in values):
        warn(request, f"{name} did not read all of the query, or all chunks of a document; send shorter texts")
    return [score for value in values for score in value.scores], sum(value.n_tokens for value in values)


@router.post("/v1/score", summary="Raw scores, in the order of the candidates")
async def score(payload: ScoreRequest, request: Request, server: CurrentServer) -> ScoreAnswer:
    """Higher is better; the scale depends on the model."""
    name = server.resolve_name(payload.model)
    scores, n_tokens = await scores_of(
        request, name, payload.context, payload.background, payload.candidates, "candidates"
    )
    return ScoreAnswer(model=name, scores=scores, usage=_usage(n_tokens))


@router.post("/v1/rerank", summary="Documents, best first, as Cohere and Jina do", response_model=CohereRerankAnswer)
@router.post("/v2/rerank", summary="Documents, best first, as Cohere's v2 does", response_model=CohereRerankAnswer)
async def rerank(payload: CohereRerankRequest, request: Request, server: CurrentServer) -> Response:
    """Documents are ranked by the model's scores; ``relevance_score`` is between 0 and 1 and keeps their order."""
    name = server.resolve_name(payload.model)
    version = "1" if request.url.path == "/v1/rerank" else "2"
    texts = [document if isinstance(document, str) else document.text for document in payload.documents]
    server.check_token_limit(name, texts, "candidate", payload.max_tokens_per_doc, "max_tokens_per_doc")
    scores, n_tokens = await scores_of(
        request, name, payload.query, (), texts, "documents", max_chunks=payload.max_chunks_per_doc
    )
    results = [
        {"index": row, "relevance_score": relevance_score}
        | ({"document": {"text": texts[row]}} if payload.return_documents else {})
        for row, relevance_score in _ranked(server, name, scores, texts, raw=payload.raw_scores)[: payload.top_n]
    ]
    return await json_response(
        server,
        {
            "id": request.scope["state"]["request_id"],
            "model": name,
            "results": results,
            **meta_of(request, {"api_version": {"version": version}, "billed_units": {"search_units": 1}}),
            "usage": _usage(n_tokens),
        },
    )


@router.post(
    "/rerank",
    summary="Texts, best first, as text-embeddings-inference does; documents, as Cohere does",
    response_model=list[TeiResult] | CohereRerankAnswer,
)
async def rerank_any(payload: Reranks, request: Request, server: CurrentServer, model: ModelName = None) -> Response:
    """The field ``documents`` distinguishes the two formats."""
    if not isinstance(payload, TeiRerankRequest):
        if model is not None and payload.model not in (None, model):
            raise HttpError(422, f"the body names model {payload.model!r} and the address {model!r}", param="model")
        return await rerank(payload.model_copy(update={"model": payload.model or model}), request, server)
    name = server.resolve_name(model)
    texts = payload.texts
    whole = payload.truncate is False or payload.truncation_direction in ("left", "Left")
    scores, _ = await scores_of(request, name, payload.query, (), texts, "texts", whole=whole)
    return await json_response(
        server,
        [
            {"index": row, "score": score} | ({"text": texts[row]} if payload.return_text else {})
            for row, score in _ranked(server, name, scores, texts, raw=payload.raw_scores)
        ],
    )


def uncalibrated(scores: NDArray[np.floating], threshold: float = 0.0) -> NDArray[np.float64]:
    """Raw scores of a model without ``Relevance`` as numbers from 0 to 1: 1/2 + x / (2 + 2|x|), x = score - threshold.

    It keeps the order of scores, however large: a sigmoid is exactly 1.0 above 37, where this is 0.987.

    >>> uncalibrated(np.array([0.0, 1.0, -3.0])).tolist(), np.diff(uncalibrated(np.array([1e6, 1e6 + 1])))[0] > 0
    ([0.5, 0.75, 0.125], True)
    """
    x = scores.astype(np.float64) - threshold
    result: NDArray[np.float64] = 0.5 + 0.5 * x / (1 + np.abs(x))
    return result


def _ranked(
    server: Server, name: str, values: Sequence[float], texts: Sequence[str], *, raw: bool
) -> list[tuple[int, float]]:
    """Positions, each with its score or relevance, best first; ties in the original order, blank texts last."""
    scores, info = blank_last(np.array(values), texts), server.pool.info[name]
    order = np.argsort(-scores, kind="stable").tolist()
    shown: NDArray[np.floating] = scores
    if not raw:
        shown = info.relevance.of(scores) if info.relevance else uncalibrated(scores, info.threshold or 0.0)
    return [(row, float(shown[row])) for row in order]


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
