"""Runs a server: socket, uvicorn, signals, and a stop that completes accepted requests."""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.config.serving import UNIX, ServingSettings, check_reach
from polyrank.errors import UsageError
from polyrank.serving.pool import Worker
from polyrank.serving.worker import Setup

if TYPE_CHECKING:  # imported while the models are being opened
    import uvicorn

    from polyrank.serving.context import Server

STOPPING_S = 30  # for accepted requests, after the signal
OWN_FILES = 64  # that the server has open besides its connections, at least


def serve(
    models: Mapping[str, str],
    settings: ServingSettings,
    *,
    listening: Callable[[str, str], None] = lambda address, secret: None,
    ready: Callable[["Server"], None] = lambda server: None,
) -> None:
    """Serve until a signal: SIGTERM or SIGINT to stop, a second one to stop at once, SIGHUP to read the keys.

    Args:
        models: paths by name.
        settings: of the server.
        listening: called with the URL and the secret for changes (empty if there are keys) once ``/live`` answers.
        ready: called once the models are open.

    Raises:
        UsageError: the address is not available, or reachable from other machines without API keys.
        PolyrankError: a model, ranker or index cannot be opened.
    """
    check_reach(settings)
    bound = _bind(settings.host, settings.port)
    most_files = _raise_file_limit()
    started = Worker.start(Setup.of(models, settings))
    try:
        # imports the web framework while the model process imports torch
        import uvicorn

        from polyrank.serving.app import create_app
        from polyrank.serving.protocol import PatientProtocol

        app, server = create_app(models, settings, started)
        PatientProtocol.head_s = settings.limits.body_timeout_s
        PatientProtocol.max_connections = max(1, min(settings.limits.connections, most_files - OWN_FILES))
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=STOPPING_S,
            backlog=2048,
        )
        uvicorn_ = uvicorn.Server(config)
        uvicorn_.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # polyrank handles signals
        host, port = settings.host, 0
        if not host.startswith(UNIX):
            host, port = bound.getsockname()[:2]
        address = host if not port else f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        report = partial(listening, address, server.keys.secret)
        work = _until_stopped(uvicorn_, server, bound, report, lambda: ready(server))
        runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    except BaseException:
        started.kill()
        raise
    with runner:
        runner.run(work)


async def _until_stopped(
    uvicorn_: "uvicorn.Server",
    server: "Server",
    bound: socket.socket,
    listening: Callable[[], None],
    ready: Callable[[], None],
) -> None:
    stop = _SignalHandlers(uvicorn_, server)
    serving = asyncio.create_task(uvicorn_.serve([bound]))
    failed: BaseException | None = None
    try:
        while not uvicorn_.started and not serving.done():
            await asyncio.sleep(0.005)
        gc.collect()
        gc.freeze()  # scanning all imported objects again would block every request for a tenth of a second
        gc.set_threshold(10_000)  # not 700: scans while a body of a million lists is parsed took most of its time
        listening()
        opening = asyncio.create_task(server.pool.until_ready())
        stopping = asyncio.create_task(stop.requested.wait())
        await asyncio.wait({opening, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            failed = opening.exception()
            if failed is None:
                ready()
        else:
            opening.cancel()
        if failed is None:
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            await stop.drain()
    finally:
        uvicorn_.should_exit = True
        await serving
    if failed is not None:
        raise failed


class _SignalHandlers:
    """Signal handlers: SIGTERM drains first, SIGINT does not, and a second one of either drops open requests."""

    def __init__(self, uvicorn_: "uvicorn.Server", server: "Server") -> None:
        self.requested, self._at_once = asyncio.Event(), asyncio.Event()
        self._uvicorn, self._server = uvicorn_, server
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, server.read_keys)

    async def drain(self) -> None:
        """Keep answering, but report in ``/ready`` that the server is stopping."""
        self._server.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), self._server.settings.drain_s)

    def _stop(self) -> None:
        if self.requested.is_set():
            self._at_once.set()
            self._uvicorn.force_exit = True
        self.requested.set()

    def _interrupt(self) -> None:
        self._at_once.set()
        self._stop()


def _raise_file_limit() -> int:
    """Raise the limit on open files to its maximum and return it: each connection is one, and many have 1,024."""
    highest = 2**30
    with suppress(ImportError, OSError, ValueError):  # unavailable or forbidden: fewer connections are possible
        import resource

        highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    return highest if highest >= 0 else 2**30  # negative: Linux's name for no limit


def _bind(host: str, port: int) -> socket.socket:
    if host.startswith(UNIX):
        return _bind_path(Path(host.removeprefix(UNIX)))
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except (OSError, UnicodeError) as error:  # of a name that is not one of a host
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen at {host}:{port} ({reason}); choose another `host` or `port`") from error


def _bind_path(path: Path) -> socket.socket:
    """A Unix socket for this user and its group, in place of one that no process listens at."""
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) == 0:
                    raise UsageError(f"another process listens at {path}; stop it, or choose another `host`")
            path.unlink()
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
        path.chmod(0o660)
        return bound
    except OSError as error:
        raise UsageError(f"cannot listen at {path} ({error.strerror or error}); choose another `host`") from error
