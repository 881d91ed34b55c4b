"""The ASGI app: routes inside a guard, errors in the shapes that clients expect, and startup and shutdown."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from polyrank._version import __version__
from polyrank.config.serving import ServingSettings
from polyrank.errors import PolyrankError
from polyrank.serving.context import Server
from polyrank.serving.dialects.errors import CohereError, NvidiaError, OllamaError, TeiError
from polyrank.serving.errors import COHERE, NVIDIA, OLLAMA, TEI, HttpError, http_error, of_validation
from polyrank.serving.feedback_log import FeedbackLog
from polyrank.serving.guard import OPEN, Guard
from polyrank.serving.jobs import OverloadedError
from polyrank.serving.keys import Keys, file_stamp
from polyrank.serving.log import log
from polyrank.serving.metrics import Metrics
from polyrank.serving.page import router as page_router
from polyrank.serving.pool import Pool, RefusedError, Worker, WorkerDiedError
from polyrank.serving.routes import answering, candidates, embedding, feedback, health, hooks, ranking
from polyrank.serving.wire import ErrorAnswer
from polyrank.serving.worker import Setup

CHECK_S = 1.0  # between checks of the locks
KEYS_S = 0.25  # between checks of the file of keys


def _paths(router: APIRouter) -> frozenset[str]:
    return frozenset(route.path for route in router.routes if isinstance(route, APIRoute))


ROUTERS = (answering.router, candidates.router, ranking.router, embedding.router, health.router)
COMPUTING = _paths(answering.router) | _paths(ranking.router) | _paths(embedding.router) | {"/v1/candidates"}
FEEDBACK_PATHS = _paths(feedback.router)
STATUSES = (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 500, 503, 504, 507)


def create_app(
    models: Mapping[str, str], settings: ServingSettings, started: Worker | None = None
) -> tuple[ASGIApp, Server]:
    """Create the app and its server; the model processes start with the app's lifespan.

    Args:
        models: paths by name.
        settings: of the server.
        started: a process that is already opening the models.

    Raises:
        UsageError: the file of API keys is invalid.
    """
    stamp = file_stamp(settings.api_key_file)
    keys = Keys.read(Path(settings.api_key_file)) if settings.api_key_file else Keys()
    metrics = Metrics()
    pool = Pool(
        Setup.of(models, settings),
        settings.workers,
        max_waiting=settings.limits.queue,
        timeout_s=settings.limits.timeout_s,
        wait_s=settings.limits.wait_s,
        on_batch=metrics.computed,
        started=started,
    )
    server = Server(settings, dict(models), pool, metrics, int(time.time()), keys, keys_stamp=stamp)
    if settings.feedback.file is not None:
        kept = server.feedback = FeedbackLog(settings.feedback)
        metrics.gauge("feedback_waiting", "Lists of shown replies that wait for the disk.", lambda: len(kept))
        metrics.gauge("feedback_lost", "Lists of shown replies that were lost: too many waited.", lambda: kept.n_lost)
    metrics.gauge("waiting_requests", "Requests that wait for a model.", lambda: len(pool.waiting))
    metrics.gauge("workers_ready", "Model processes that are ready.", lambda: pool.n_ready)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pool.start()
        checks = [asyncio.create_task(check(server)) for check in (_release_idle_locks, _watch_keys)]
        try:
            yield
        finally:
            for check in checks:
                check.cancel()
            await pool.close()
            if server.feedback is not None:  # first, because the rest may wait long for a disk or a server
                server.feedback.close()
            for threads in (server.threads, server.searching):
                threads.shutdown(cancel_futures=True)
            for catalogue in server.catalogues.values():
                catalogue.close()
            server.parsing.shutdown()

    app = FastAPI(
        title="polyrank",
        version=__version__,
        description="Ranks replies: conversations in, the best candidates out.",
        docs_url=None,  # that page loads scripts from other sites
        redoc_url=None,
        redirect_slashes=False,  # behind a TLS proxy the redirect would go to plain HTTP
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    app.state.server = server
    for router in ROUTERS:
        app.include_router(router)
    if server.feedback is not None:
        app.include_router(feedback.router)
    if settings.hook.kind:
        app.include_router(hooks.hook_router(settings.hook))
    if settings.page:
        app.include_router(page_router)
    for kind in (HttpError, RefusedError, OverloadedError, WorkerDiedError, TimeoutError, PolyrankError, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)
    _describe(app)
    guard: ASGIApp = Guard(
        app,
        keys=keys,
        limits=settings.limits,
        check_capacity=pool.check_capacity,
        on_answer=metrics.answered,
        computing=COMPUTING,
        changes=_changes,
        stopping=lambda: server.draining,
        signed=frozenset({f"/hooks/{settings.hook.kind}"} if settings.hook.kind else ()),
        prefix=settings.prefix,
    )
    if settings.cors_origins:  # outside, because preflight requests have no key
        exposed, every = ("x-request-id", "x-warnings", "retry-after"), ("*",)
        guard = CORSMiddleware(guard, settings.cors_origins, every, every, expose_headers=exposed)
    return guard, server


def _changes(method: str, path: str) -> bool:
    """Whether a request may change candidates, which needs a write key."""
    return method not in ("GET", "HEAD", "OPTIONS") and (path + "/").startswith("/v1/candidates/")


async def _release_idle_locks(server: Server) -> None:
    """Release the locks of indexes that nobody changes, every CHECK_S seconds."""
    loop = asyncio.get_running_loop()
    while True:
        for catalogue in list(server.catalogues.values()):
            await loop.run_in_executor(server.threads, catalogue.close_if_idle)
        await asyncio.sleep(CHECK_S)


async def _watch_keys(server: Server) -> None:
    """Read the keys again once their file has changed and is complete: signals that arrive together may be lost."""
    seen = server.keys_stamp
    while server.keys:
        await asyncio.sleep(KEYS_S)
        before, seen = seen, file_stamp(server.settings.api_key_file)
        if before == seen != server.keys_stamp:
            server.read_keys()


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    answer = http_error(error)
    if answer.status in (500, 503, 507) and isinstance(error, (PolyrankError, RefusedError)):
        log.error("request %s: %s", request.scope["state"]["request_id"], error)  # names files, so only in the log
    return _response(request, answer)


async def _answer_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _response(request, of_validation(error.errors()))


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    messages = {
        404: "this route does not exist; /openapi.json lists all routes",
        405: "this route has another method; /openapi.json lists it",
        400: "the body is not JSON; send one JSON object",
    }
    message = messages.get(error.status_code, str(error.detail))
    if error.status_code == 404 and request.url.path in FEEDBACK_PATHS:
        message = "this server records no feedback; start it with --feedback FILE"
    return _response(request, HttpError(error.status_code, message, headers=dict(error.headers or {})))


def _response(request: Request, error: HttpError) -> JSONResponse:
    path = request.url.path
    return JSONResponse(error.body(path), error.status_of(path), headers=error.headers)


def _describe(app: FastAPI) -> None:
    """Add the possible errors and their shapes to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        # a body may fit several formats: the first whose fields it has reads it
        document: dict[str, Any] = json.loads(json.dumps(generate()).replace('"oneOf":', '"anyOf":'))
        shapes = document.setdefault("components", {}).setdefault("schemas", {})
        for model in (ErrorAnswer, CohereError, NvidiaError, OllamaError, TeiError):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            shapes |= schema.pop("$defs", {})
            shapes[model.__name__] = schema
        shapes.pop("HTTPValidationError", None)
        shapes.pop("ValidationError", None)
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, methods in document["paths"].items():
            kinds = {"CohereError": COHERE, "TeiError": TEI, "OllamaError": OLLAMA}
            shape = next((kind for kind, paths in kinds.items() if path in paths), "ErrorAnswer")
            shape = "NvidiaError" if NVIDIA.fullmatch(path) else shape
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
            for operation in methods.values():
                operation["responses"] |= {
                    str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in STATUSES
                }
                if path not in OPEN:
                    operation["security"] = [{"key": []}, {}]
        app.openapi_schema = document
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
