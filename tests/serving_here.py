"""Real servers in this process: their own sockets, protocol, app and log, with a thread that computes.

A process takes five seconds of a core until it answers. Tests of processes, of signals and of the command use
``servers``; all others need none.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from polyrank.cli.serving import read_options
from polyrank.config.serving import check_reach
from polyrank.serving.app import create_app
from polyrank.serving.log import _JsonFormatter
from polyrank.serving.pool import Worker
from polyrank.serving.protocol import PatientProtocol
from polyrank.serving.run import _bind
from polyrank.serving.worker import Setup, run_worker
from servers import Running


class Thread:
    """Replaces a worker process for the pool, which cannot end it; it ends when its pipe closes."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sentinel, self._other = os.pipe()  # never becomes ready

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        os.close(self._other)

    def join(self) -> None:
        os.close(self.sentinel)


@contextmanager
def in_thread(setup: Setup) -> Iterator[Worker]:
    """A worker that is a thread, which has opened the models or failed to; the user must end it."""
    own, theirs = Pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)  # only the main thread may set handlers
        thread = threading.Thread(target=run_worker, args=(theirs, setup))
        thread.start()
        own.poll(300)  # it is open
    yield Worker(cast(Any, Thread()), own)
    thread.join(300)
    assert not thread.is_alive()


class _Lines(logging.Handler):
    """Keeps lines of the log as the command prints them."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self.running = running
        self.setFormatter(_JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        with self.running.more:
            self.running.lines.append(self.format(record))
            self.running.more.notify_all()


@contextmanager
def _logged(running: Running) -> Iterator[None]:
    """Inside, the server's log is also in ``running.lines``."""
    logger, lines = logging.getLogger("polyrank"), _Lines(running)
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)


@contextmanager
def serving_here(*paths: str | Path, config: Path | None = None, **options: Any) -> Iterator[Running]:
    """Start a server at a free port, and stop it at the end of the block.

    Args:
        paths, config, options: as of ``polyrank serve``.
    """
    models, settings = read_options(config, list(map(str, paths)), port=0, **options)
    check_reach(settings)
    running = Running(cast(Any, None))
    opened = in_thread(Setup.of(models, settings))
    with pytest.MonkeyPatch.context() as patch, _logged(running), opened as worker:
        patch.setattr(PatientProtocol, "head_s", settings.limits.body_timeout_s, raising=False)
        patch.setattr(PatientProtocol, "max_connections", settings.limits.connections, raising=False)
        app, server = create_app(models, settings, worker)
        bound = _bind(settings.host, settings.port)
        running.key, running.url = server.keys.secret, f"http://127.0.0.1:{bound.getsockname()[1]}"
        uvicorn_ = uvicorn.Server(
            uvicorn.Config(
                app, http=PatientProtocol, ws="none", lifespan="on", log_config=None, access_log=False,
                server_header=False, timeout_keep_alive=30, timeout_graceful_shutdown=30,
            )
        )  # fmt: skip
        thread = threading.Thread(target=asyncio.run, args=(uvicorn_.serve([bound]),))
        thread.start()
        try:
            end = time.monotonic() + 60
            while not uvicorn_.started or httpx.get(running.url + "/ready").status_code != 200:
                assert time.monotonic() < end
                assert thread.is_alive()
            yield running
        finally:
            uvicorn_.should_exit = True
            thread.join(300)
            assert not thread.is_alive()
