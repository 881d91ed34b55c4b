"""Whether the server lives, whether it can be asked, what it serves, and its figures."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from polyrank._version import __version__
from polyrank.errors import PolyrankError
from polyrank.serving.context import Here, Server
from polyrank.serving.dialects import TeiInfo
from polyrank.serving.errors import HttpError
from polyrank.serving.wire import ModelRow, ModelsAnswer, Status

SHOWN = ("kind", "backend", "scorer", "fingerprint", "dimension", "max_context_tokens", "max_candidate_tokens")

router = APIRouter(tags=["server"])


@router.get("/live", summary="Whether the process answers")
async def live() -> Status:
    """It does."""
    return Status(status="live")


@router.get("/ready", summary="Whether requests should be sent here")
async def ready(server: Here) -> Status:
    """Not before the models are open, and not once the server was told to stop."""
    if server.draining:
        raise HttpError(503, "the server is stopping; ask another one", code="stopping")
    if not server.pool.ready:
        raise HttpError(503, "the models are being opened; try again in a moment", code="starting", retry_after=1)
    return Status(status="ready")


@router.get("/health", summary="/ready, as text-embeddings-inference's", response_class=Response)
async def health(server: Here) -> Response:
    """An empty answer."""
    await ready(server)
    return Response()


async def _empty() -> Response:
    return Response(headers={"allow": "GET, HEAD, OPTIONS"})


async def _head(request: Request, server: Here) -> Response:
    if request.url.path != "/live":
        await ready(server)
    return Response()


for _path in ("/live", "/ready", "/health"):
    router.add_api_route(_path, _head, methods=["HEAD"], include_in_schema=False)
    router.add_api_route(_path, _empty, methods=["OPTIONS"], include_in_schema=False)


@router.get("/info", summary="As text-embeddings-inference's, of the first that is served")
async def info(server: Here) -> TeiInfo:
    """Its limits, by the names that clients of that server read."""
    name = server.name_of(None)
    model = server.pool.info[name]
    vectors = model.dimension is not None
    return TeiInfo(
        model_id=name,
        model_sha=model.fingerprint,
        model_dtype="float32",
        model_type={"embedding": {"pooling": "mean"}} if vectors else {"reranker": {}},
        max_concurrent_requests=server.limits.queue,
        max_input_length=model.max_candidate_tokens,
        max_batch_tokens=server.limits.tokens,
        max_client_batch_size=server.limits.items,
        auto_truncate=True,
        version=__version__,
    )


@router.get("/v1/models", summary="What is served")
async def models(server: Here) -> ModelsAnswer:
    """Names, and what each is and can be asked."""
    return ModelsAnswer(data=[await _row(server, name) for name in server.models])


@router.get("/v1/models/{name}", summary="One of those")
async def model(name: Annotated[str, Path(description="Of what is served.")], server: Here) -> ModelRow:
    """What it is and can be asked."""
    name = name.removesuffix(":query").removesuffix(":candidate")
    server.check_name(name)
    return await _row(server, name)


async def _row(server: Server, name: str) -> ModelRow:
    if (info := server.pool.info.get(name)) is None:  # it is being opened
        return ModelRow(id=name, created=server.started)
    row = {key: getattr(info, key) for key in SHOWN}
    if info.index is not None:
        row["stages"] = info.stages
        row["n_candidates"] = None
        with suppress(PolyrankError):  # an index that cannot be read does not hide the others
            row["n_candidates"] = await server.blocking(server.catalogue(name).read, len)
    return ModelRow(id=name, created=server.started, **row)


@router.get("/metrics", summary="Figures for Prometheus", response_class=Response)
async def metrics(server: Here) -> Response:
    """Requests, batches, what waits."""
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
