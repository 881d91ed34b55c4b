"""Whether the server lives, whether it can be asked, what it serves, and its figures."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path, Response

from polyrank.errors import PolyrankError
from polyrank.serving.context import Here, Server
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


@router.get("/v1/models", summary="What is served")
async def models(server: Here) -> ModelsAnswer:
    """Names, and what each is and can be asked."""
    return ModelsAnswer(data=[await _row(server, name) for name in server.models])


@router.get("/v1/models/{name}", summary="One of those")
async def model(name: Annotated[str, Path(description="Of what is served.")], server: Here) -> ModelRow:
    """What it is and can be asked."""
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
