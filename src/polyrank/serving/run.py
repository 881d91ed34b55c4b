"""A server from its start to its end: a socket, uvicorn, signals, and a stop that loses nothing."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polyrank.config.serving import ServingSettings, is_loopback
from polyrank.errors import UsageError
from polyrank.serving.app import create_app
from polyrank.serving.context import Server

STOPPING_S = 30  # for requests that were taken, after the signal

log = logging.getLogger("polyrank.serving")


class PatientProtocol(HttpToolsProtocol):
    """HTTP that waits for a request's headers only so long."""

    headers_s = 10.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection, from which nothing has come yet."""
        super().connection_made(transport)  # type: ignore[arg-type]  # TCP
        self._late = self.loop.call_later(self.headers_s, self._leave)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._forget()
        self._late = self.loop.call_later(self.headers_s, self._leave)

    def on_headers_complete(self) -> None:
        """All headers are there; who sends the body too slowly is told so."""
        self._forget()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _leave(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us."""

    def capture_signals(self) -> Any:
        return nullcontext()


def serve(
    models: Mapping[str, str],
    settings: ServingSettings,
    *,
    listening: Callable[[str], None] = lambda address: None,
    ready: Callable[[Server], None] = lambda server: None,
) -> None:
    """Serve until a signal comes: SIGTERM or SIGINT to stop, SIGHUP to open everything anew.

    Args:
        models: paths by name.
        settings: how.
        listening: called with the address, once ``/live`` answers.
        ready: called once the models are open.

    Raises:
        UsageError: the address is not to be had, or others can reach it and there are no keys.
        PolyrankError: what is served cannot be opened.
    """
    if not is_loopback(settings.host) and not settings.api_key_file:
        raise UsageError(
            f"{settings.host} can be reached by other machines; name a file of keys with --api-key-file, or listen at"
            " 127.0.0.1"
        )
    bound = _bound(settings.host, settings.port)
    app, server = create_app(models, settings)
    PatientProtocol.headers_s = settings.limits.body_timeout_s
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=STOPPING_S,
        backlog=2048,
    )
    host, port = bound.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    loop_factory = config.get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_until_stopped(_Uvicorn(config), server, bound, lambda: listening(address), lambda: ready(server)))


async def _until_stopped(
    uvicorn_: _Uvicorn, server: Server, bound: socket.socket, listening: Callable[[], None], ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(server.pool.reload()))
    serving = asyncio.create_task(uvicorn_.serve([bound]))
    failed: BaseException | None = None
    try:
        while not uvicorn_.started and not serving.done():
            await asyncio.sleep(0.005)
        listening()
        opening = asyncio.create_task(server.pool.until_ready())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({opening, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            failed = opening.exception()
            if failed is None:
                ready()
        else:
            opening.cancel()
        if failed is None:
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        server.draining = True
        if failed is None and server.settings.drain_s:
            await asyncio.sleep(server.settings.drain_s)
    finally:
        stop.set()
        uvicorn_.should_exit = True
        await serving
    if failed is not None:
        raise failed


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port} ({error.strerror or error}); choose another --host or --port"
        ) from error


def log_to_stderr() -> None:
    """One line of JSON for each request, and for what goes wrong. Texts of users are in none of them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    for name in ("polyrank", "polyrank.access", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING if name == "uvicorn.error" else logging.INFO)
        logger.handlers[:] = [handler]
        logger.propagate = False


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON; those of requests are that already."""
        message = record.getMessage()
        if record.name == "polyrank.access" and record.levelno == logging.INFO:
            return message
        row = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "message": message,
        }
        if record.exc_info and record.exc_info[0] is not None:
            row["error"] = record.exc_info[0].__name__  # what it says may be what a user wrote
        return json.dumps(row)
