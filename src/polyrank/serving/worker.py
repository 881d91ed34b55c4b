"""The process that computes: it opens what is served, and answers batches of jobs until nobody asks any more.

Messages go through a pipe that only the server and this process hold. First comes what became of the start:
``("ready", {name: info})`` or ``("failed", exit code, message)``. Then for each ``(operation, name, payloads)`` a list
of outcomes, ``("done", result)`` or ``("refused", error's name, message)``, one for each payload.
"""

import logging
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from polyrank.config.serving import ServingSettings
from polyrank.errors import ArtifactError, PolyrankError, UsageError

if TYPE_CHECKING:  # torch, which the server's own process does without
    from polyrank.serving.served import Served

log = logging.getLogger("polyrank.serving")

Outcome = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process opens, and how.

    Args:
        models: paths by name.
        device, backend: see ``polyrank.load``.
        threads: to compute on; None: as many as there are free cores.
    """

    models: Mapping[str, str]
    device: str
    backend: str
    threads: int | None

    @classmethod
    def of(cls, models: Mapping[str, str], settings: ServingSettings) -> "Setup":
        """What a server's settings say."""
        threads = settings.threads
        if threads is None and settings.workers > 1:
            threads = max(1, (os.cpu_count() or 1) // settings.workers)
        return cls(dict(models), settings.device, settings.backend, threads)


def work(connection: Connection, setup: Setup) -> None:
    """The whole life of the process; it ends when the server closes its end of the pipe, or ends itself."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which a terminal and a service manager send to both of us
        signal.signal(number, signal.SIG_IGN)
    try:
        served = _opened(setup)
        connection.send(("ready", {name: one.info() for name, one in served.items()}))
    except PolyrankError as error:
        connection.send(("failed", error.exit_code, str(error)))
        return
    except (OSError, MemoryError) as error:
        connection.send(("failed", 5, f"cannot open what is served: {error}; free some memory or disk, or mend it"))
        return
    except Exception as error:  # of libraries; whoever started the server sees it, and nobody else
        connection.send(("failed", 1, f"cannot open what is served: {type(error).__name__}: {error}"))
        return
    try:
        while True:
            operation, name, payloads = connection.recv()
            connection.send(_outcomes(served, name, operation, payloads))
    except (EOFError, BrokenPipeError, ConnectionError):
        return


def _opened(setup: Setup) -> "dict[str, Served]":
    from polyrank.devices.choice import set_threads
    from polyrank.loading.models import Backend, read_backend
    from polyrank.serving.served import Served

    if setup.threads is not None:
        set_threads(setup.threads)
    backend: Backend | Literal["auto"] = "auto" if setup.backend == "auto" else read_backend(setup.backend)
    return {name: Served(name, path, setup.device, backend) for name, path in setup.models.items()}


def _outcomes(served: "dict[str, Served]", name: str, operation: str, payloads: Sequence[Any]) -> list[Outcome]:
    """Of all together; where that fails, of each alone, so that one bad request fails by itself."""
    try:
        return [("done", result, None) for result in _computed(served, name, operation, payloads)]
    except Exception as error:
        if len(payloads) == 1:
            return [_refusal(error)]
    return [outcome for payload in payloads for outcome in _outcomes(served, name, operation, [payload])]


def _computed(served: "dict[str, Served]", name: str, operation: str, payloads: Sequence[Any]) -> list[Any]:
    try:
        return served[name].compute(operation, payloads)
    except ArtifactError:
        try:
            now = served[name].current()
        except PolyrankError as error:  # whatever it is, who asks is not to blame, and sees no path
            raise ArtifactError(str(error)) from error
        if now is served[name]:
            raise
    log.info("%s was replaced, and opened anew", name)
    served[name] = now
    return now.compute(operation, payloads)


def _refusal(error: Exception) -> Outcome:
    if isinstance(error, PolyrankError):
        return ("refused", type(error).__name__, str(error))
    if isinstance(error, TypeError | ValueError) and "surrogate" in str(error):
        return ("refused", UsageError.__name__, "a text holds a lone surrogate, which no model reads; send UTF-8")
    # where it happened, but not what it says, which may be what a user wrote
    frames = "; ".join(f"{frame.name} {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:])
    log.error("internal error: %s in %s", type(error).__name__, frames)
    return ("refused", type(error).__name__, "internal error")
