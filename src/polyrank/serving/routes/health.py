"""Liveness, readiness, the served models, and metrics."""

import pathlib
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse

from polyrank._version import __version__
from polyrank.errors import PolyrankError
from polyrank.serving.context import CurrentServer, Server, filter_of
from polyrank.serving.errors import HttpError
from polyrank.serving.strict import StrictRoute
from polyrank.serving.wire import ModelRow, ModelsAnswer, Status

SHOWN = (
    *("kind", "backend", "precision", "scorer", "fingerprint", "dimension"),
    *("max_context_tokens", "max_candidate_tokens", "relevance"),
)

TEXT_BYTES = 8_192  # of a long text, for the number of texts that clients send at once

router = APIRouter(route_class=StrictRoute, tags=["server"])


@router.get("/live", summary="Whether the process answers")
async def live() -> Status:
    """Answers whenever the process runs."""
    return Status(status="live")


@router.get("/ready", summary="Whether requests should be sent here")
async def ready(server: CurrentServer) -> Status:
    """Fails before the models are open, while no model process answers, and once the server is stopping."""
    if server.draining:
        raise HttpError(503, "the server is stopping; use another one", code="stopping")
    server.pool.ask()
    if not server.pool.ready:
        what = "no model process answers" if server.pool.n_ready else "the models are being opened"
        raise HttpError(503, f"{what}; try again in a moment", code="starting", retry_after=1)
    return Status(status="ready")


@router.get("/health", summary="/ready, in text-embeddings-inference's format", response_class=Response)
async def health(server: CurrentServer) -> Response:
    """Returns an empty answer if the server is ready."""
    await ready(server)
    return Response()


async def _empty() -> Response:
    return Response(headers={"allow": "GET, HEAD, OPTIONS"})


async def _head(request: Request, server: CurrentServer) -> Response:
    if request.url.path != "/live":
        await ready(server)
    return Response()


for _path in ("/live", "/ready", "/health"):
    router.add_api_route(_path, _head, methods=["HEAD"], include_in_schema=False)
    router.add_api_route(_path, _empty, methods=["OPTIONS"], include_in_schema=False)


@router.get("/info", summary="A model, in text-embeddings-inference's format")
async def info(
    server: CurrentServer,
    model: Annotated[str | None, Query(description="Its name; omitted: the first that re-ranks, or the first.")] = None,
) -> dict[str, Any]:
    """Its limits, under the names that clients of text-embeddings-inference use."""
    name = server.resolve_name(model, "scores")
    info = server.pool.info[name]
    one_label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {
        "model_id": name,
        "model_sha": info.fingerprint,
        "model_dtype": "float32",
        "model_type": {"reranker": one_label} if info.reranks else {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": server.limits.queue,
        "max_input_length": info.max_candidate_tokens,
        "max_batch_tokens": server.limits.tokens,
        "max_client_batch_size": max(1, min(server.limits.items, server.limits.body_bytes // TEXT_BYTES)),
        "auto_truncate": True,
        "tokenization_workers": server.settings.workers,
        "version": __version__,
    }


@router.get("/v1/cluster/auth", include_in_schema=False)
async def cluster_auth(server: CurrentServer) -> dict[str, bool]:
    """Whether requests need a key: Xinference's clients send theirs only then."""
    return {"auth": bool(server.keys)}


@router.get("/api/tags", summary="All names, in Ollama's format", response_model=dict[str, Any])
async def tags(server: CurrentServer) -> dict[str, Any]:
    """For Ollama's clients, which check that a model is there before they send texts."""
    return {"models": [{"name": name, "model": name} for name in server.models]}


@router.get("/models", summary="As /v1/models")
@router.get("/infinity/models", summary="As /v1/models")
@router.get("/v1/models", summary="All models, rankers and indexes")
async def models(server: CurrentServer) -> ModelsAnswer:
    """Their names and properties."""
    return ModelsAnswer(data=[await _row(server, name) for name in server.models])


@router.get("/v1/models/{name:path}/report", summary="The report of polyrank fit", response_class=Response)
async def report(
    request: Request, name: Annotated[str, Path(description="Its name.")], server: CurrentServer
) -> Response:
    """``report.json`` of the folder; null without one, and for keys with a filter, because it quotes conversations."""
    server.check_name(name)
    file = pathlib.Path(server.models[name], "report.json")
    if filter_of(request) is not None or not file.is_file():
        return Response("null", media_type="application/json")
    return FileResponse(file, media_type="application/json")


@router.get("/v1/models/{name:path}", summary="One model, ranker or index")
async def model(name: Annotated[str, Path(description="Its name.")], server: CurrentServer) -> ModelRow:
    """Its name and properties."""
    name = name.removesuffix(":query").removesuffix(":candidate")
    server.check_name(name)
    return await _row(server, name)


async def _row(server: Server, name: str) -> ModelRow:
    if (info := server.pool.info.get(name)) is None:  # still being opened
        return ModelRow(id=name, created=server.started)
    row = {key: getattr(info, key) for key in SHOWN}
    row["model_type"] = "rerank" if info.reranks else "embedding"  # Xinference's clients use only these tasks
    if info.index is not None:
        row["stages"] = info.stages
        row["n_candidates"] = None
        with suppress(PolyrankError):  # if one index cannot be read, the others are still listed
            row["n_candidates"] = await server.run_blocking(server.catalogue(name).read, len)
    return ModelRow(id=name, created=server.started, **row)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def metrics(server: CurrentServer) -> Response:
    """Requests, batches and queues."""
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
