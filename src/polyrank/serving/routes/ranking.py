"""Ranks lists of texts: polyrank's own route, and those of other services, see ``polyrank.serving.dialects``."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from polyrank.ranking.top import blank_last
from polyrank.records import as_tuple
from polyrank.serving.context import CurrentServer, Server
from polyrank.serving.dialects import ranking as dialects
from polyrank.serving.dialects.fields import text_of
from polyrank.serving.errors import RERANKS, HttpError
from polyrank.serving.responses import check_fields, json_response, meta_of, warn
from polyrank.serving.strict import StrictRoute
from polyrank.serving.tasks import ScoredTexts, ScoreTask
from polyrank.serving.wire import ScoreAnswer

ModelName = Annotated[
    str | None, Query(description="Name of a model, for requests with texts; omitted: the first that re-ranks.")
]

NAME_IN_PATH = {"name": "name", "in": "path", "required": True, "description": "A model.", "schema": {"type": "string"}}
NAMED = {"parameters": [NAME_IN_PATH]}
router = APIRouter(route_class=StrictRoute, tags=["ranking"])


async def scores_of(
    request: Request, name: str, context: str | Sequence[str], texts: list[str], param: str,
    *, background: Sequence[str] = (), whole: bool = False, limits: Sequence[int | None] = (),
) -> tuple[list[float], int]:  # fmt: skip
    """Raw scores, and the number of tokens; if a text was not read to its end, the client is warned.

    ``whole``: refuse such texts instead. ``limits``: chunks and tokens of each text that are read.
    """
    server: Server = request.app.state.server
    checked = server.context(context, background)
    if not texts:
        return [], 0
    n_context = server.tokens(name, [*checked.turns, *checked.background], "context")
    tokens = [server.tokens(name, [text], "document") + n_context for text in texts]
    values = await server.compute_texts(name, texts, tokens, lambda part: ScoreTask(checked, part, *limits))
    _check_read(request, name, values, param, limits[1:] if whole else None)
    return [score for value in values for score in value.scores], sum(value.n_tokens for value in values)


def _check_read(
    request: Request, name: str, values: Sequence[ScoredTexts], param: str, whole: Sequence[int | None] | None
) -> None:
    """Warn the client of a text that was not read to its end, or, with the request's limit if it has one, refuse it."""
    if whole is not None:
        request.app.state.server.check_whole(name, values, param, *whole)
    if any(value.cut for value in values):
        warn(request, f"{name} did not read all of the query, or all chunks of a document; send shorter texts")


@router.post("/v1/score", summary="Raw scores, in the order of the candidates", response_model=ScoreAnswer)
@router.post("/score", summary="Scores of pairs, as vLLM does", response_model=dict[str, Any])
async def score(payload: dialects.Scores, request: Request, server: CurrentServer) -> Response:
    """Higher is better; the scale depends on the model. With ``text_1`` and ``text_2``: in vLLM's format."""
    name = server.resolve_name(payload.model, "scores")
    if isinstance(payload, dialects.VllmScore):
        return await _vllm_scores(payload, name, request, server)
    scores, n_tokens = await scores_of(
        request, name, payload.context, payload.candidates, "candidates", background=payload.background
    )
    return json_response({"model": name, "scores": scores, "usage": usage_of(n_tokens)})


async def _vllm_scores(payload: dialects.VllmScore, name: str, request: Request, server: Server) -> Response:
    """A score for each text of ``text_2``, in their order: for the only text of ``text_1``, or for that of its pair."""
    check_fields(request, payload)
    contexts, texts = list(as_tuple(payload.first, "text_1")), list(as_tuple(payload.second, "text_2"))
    if not texts or len(contexts) not in (1, len(texts)):
        message = f"text_1 has {len(contexts):,} texts and text_2 {len(texts):,}; send one text_1, or one per text_2"
        raise HttpError(422, message, param="text_1")
    whole, limits = payload.whole("END"), (None, payload.max_tokens)
    if len(contexts) == 1:
        scores, n_tokens = await scores_of(request, name, contexts[0], texts, "text_2", whole=whole, limits=limits)
    else:  # parts of one request, which do not count as many in the queue
        pairs = list(zip(contexts, texts, strict=True))
        tokens = [server.tokens(name, [a], "context") + server.tokens(name, [b], "document") for a, b in pairs]
        tasks = [ScoreTask(server.context(context, ()), [text], *limits) for context, text in pairs]
        values = (await server.compute(name, tasks, tokens)).values
        _check_read(request, name, values, "text_2", limits[1:] if whole else None)
        scores, n_tokens = [value.scores[0] for value in values], sum(value.n_tokens for value in values)
    if payload.activation:
        scores = _relevance(server, name, np.array(scores)).tolist()
    rows = [{"index": row, "object": "score", "score": value} for row, value in enumerate(scores)]
    return json_response({"object": "list", "created": server.started, "data": rows, **_rest(request, name, n_tokens)})


def _rest(request: Request, name: str, n_tokens: int, meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of answers that do not depend on the format."""
    id_ = request.scope["state"]["request_id"]
    return {"id": id_, "model": name, "usage": usage_of(n_tokens), **meta_of(request, meta)}


async def rerank(
    payload: dialects.Reranks, request: Request, server: CurrentServer, model: ModelName = None
) -> Response:
    """Texts, best first; the fields of the request select the format.

    ``relevance_score`` is between 0 and 1 and keeps the order of the scores.
    """
    name = server.resolve_name(check_fields(request, payload, model), "scores")
    texts = list(map(text_of, payload.documents))
    scores, n_tokens = await scores_of(
        request, name, text_of(payload.query), texts, payload.sent("documents"),
        whole=payload.whole("END"), limits=(payload.max_chunks_per_doc, payload.max_tokens),
    )  # fmt: skip
    version = "1" if request.url.path == "/v1/rerank" else "2"
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    ranked = _ranked(server, name, scores, texts, raw=payload.raw)
    return json_response(payload.answer(ranked, _rest(request, name, n_tokens, meta)))


for _path in ("/rerank", *RERANKS):
    router.add_api_route(
        _path,
        rerank,
        methods=["POST"],
        summary="Texts, best first, in the formats of Cohere, Jina, text-embeddings-inference, vLLM and others",
        response_model=dialects.CohereRerankAnswer | list[dialects.TeiResult] | dict[str, Any],
        openapi_extra=NAMED if "{" in _path else None,
    )


@router.post("/infinity/rerank", summary="As /rerank, in the format of Infinity", response_model=dict[str, Any])
@router.post("/api/rerank", summary="As /infinity/rerank, for clients of Ollama", response_model=dict[str, Any])
async def infinity_rerank(payload: dialects.InfinityRerank, request: Request, server: CurrentServer) -> Response:
    """Texts, best first; ``document`` is a string. LiteLLM sends other services the same body and reads an object."""
    return await rerank(payload, request, server)


@router.post("/similarity", summary="Similarities of texts, as text-embeddings-inference does")
async def similarity(
    payload: dialects.TeiSimilarity, request: Request, server: CurrentServer, model: ModelName = None
) -> list[float]:
    """Relevance from 0 to 1, in the order of the sentences."""
    name = server.resolve_name(check_fields(request, payload, model), "scores")
    asked = payload.inputs
    scores, _ = await scores_of(request, name, asked.source_sentence, asked.sentences, "inputs.sentences")
    return [*_relevance(server, name, np.array(scores)).tolist()]


def uncalibrated(scores: NDArray[np.floating], threshold: float = 0.0) -> NDArray[np.float64]:
    """Raw scores of a model without ``Relevance`` as numbers from 0 to 1: 1/2 + x / (2 + 2|x|), x = score - threshold.

    It keeps the order of scores, however large: a sigmoid is exactly 1.0 above 37, where this is 0.987.

    >>> uncalibrated(np.array([0.0, 1.0, -3.0])).tolist(), bool(np.diff(uncalibrated(np.array([1e6, 1e6 + 1])))[0] > 0)
    ([0.5, 0.75, 0.125], True)
    """
    x = scores.astype(np.float64) - threshold
    result: NDArray[np.float64] = 0.5 + 0.5 * x / (1 + np.abs(x))
    return result


def _relevance(server: Server, name: str, scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Raw scores as numbers from 0 to 1."""
    info = server.pool.info[name]
    return info.relevance.of(scores) if info.relevance else uncalibrated(scores, info.threshold or 0.0)


def _ranked(
    server: Server, name: str, values: Sequence[float], texts: Sequence[str], *, raw: bool
) -> list[tuple[int, float]]:
    """Positions, each with its score or relevance, best first; ties in the original order, blank texts last."""
    scores = blank_last(np.array(values), texts)
    order = np.argsort(-scores, kind="stable").tolist()
    shown: NDArray[np.floating] = scores if raw else _relevance(server, name, scores)
    return [(row, float(shown[row])) for row in order]


def usage_of(n_tokens: int) -> dict[str, int]:
    """The field ``usage`` of an answer."""
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
