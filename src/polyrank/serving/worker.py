"""A model process: it opens the models and computes batches of jobs until the server closes the pipe.

Only the server and this process have the pipe. The process first sends a ``Started``. It then receives the name of a
model and tasks for it, and sends a list of ``TaskOutcome``, one per task; see ``polyrank.serving.tasks``.
"""

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from polyrank.config.names import Backend
from polyrank.config.serving import ServingSettings
from polyrank.devices.memory import keep_freed_memory
from polyrank.errors import ArtifactError, PolyrankError, UsageError, is_out_of_memory
from polyrank.serving.log import log, name_of
from polyrank.serving.tasks import Started, Task, TaskOutcome
from polyrank.storage.time_limit import TimeLimit, limit_searches

if TYPE_CHECKING:  # imports torch, which the server process must not
    from polyrank.serving.served import Served


@dataclass(frozen=True, slots=True)
class Setup:
    """The models that a process opens, and its settings.

    Args:
        models: paths by name.
        device, backend: see ``polyrank.load``.
        threads: for computation; None: the number of free cores.
        filter_timeout_s: limit on the time that one filter may take.
        number: of the process; processes take turns on the GPUs.
    """

    models: Mapping[str, str]
    device: str
    backend: Backend
    threads: int | None
    filter_timeout_s: float = inf
    number: int = 0

    @classmethod
    def of(cls, models: Mapping[str, str], settings: ServingSettings) -> "Setup":
        """Convert a server's settings."""
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = settings.threads or (max(1, usable // settings.workers) if settings.workers > 1 else None)
        return cls(dict(models), settings.device, settings.backend, threads, settings.limits.filter_timeout_s)


def run_worker(connection: Connection, setup: Setup) -> None:
    """The process's main function; it returns when the server closes the pipe or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # terminals and service managers send them to both processes
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()
    try:
        served = _open_models(setup)
        started = Started({name: one.info() for name, one in served.items()})
    except PolyrankError as error:
        started = Started(exit_code=error.exit_code, error=str(error))
    except Exception as error:  # from libraries; only the user who started the server gets this message
        if isinstance(error, OSError) or is_out_of_memory(error):
            message = f"cannot open the models: {error}; free some memory or disk, or repair the file"
            started = Started(exit_code=5, error=message)
        else:
            started = Started(exit_code=1, error=f"cannot open the models: {type(error).__name__}: {error}")
    with suppress(EOFError, ConnectionError):  # the server has closed the pipe or ended, maybe during the start
        connection.send(started)
        while not started.exit_code:
            name, tasks = connection.recv()
            if not tasks:  # the server asks whether this process answers
                connection.send([])
                continue
            before = served[name]
            with limit_searches(TimeLimit(setup.filter_timeout_s)):
                outcomes = _outcomes(served, name, tasks)
            if (now := served[name]) is not before:
                outcomes[0] = replace(outcomes[0], info=now.info())
            connection.send(outcomes)


def _open_models(setup: Setup) -> "dict[str, Served]":
    from polyrank.devices.choice import set_threads, turn_of
    from polyrank.serving.served import Served

    if setup.threads is not None:
        set_threads(setup.threads)
    device = turn_of(setup.number, setup.device) if setup.backend == "torch" else setup.device
    names = {path: name for name, path in setup.models.items()}
    opened = {path: Served(name, path, device, setup.backend) for path, name in names.items()}
    return {name: opened[path] for name, path in setup.models.items()}


def _outcomes(served: "dict[str, Served]", name: str, tasks: Sequence[Task[Any]]) -> list[TaskOutcome]:
    """Outcomes of all tasks together; if that fails, of each task alone, so that a bad request fails alone."""
    try:
        return [TaskOutcome(result) for result in _compute(served, name, tasks)]
    except Exception as error:
        if len(tasks) == 1:
            return [_refusal(error)]
    return [outcome for task in tasks for outcome in _outcomes(served, name, [task])]


def _compute(served: "dict[str, Served]", name: str, tasks: Sequence[Task[Any]]) -> Sequence[Any]:
    _reopen_if_replaced(served, name)
    try:
        return served[name].compute(tasks)
    except ArtifactError:
        if not _reopen_if_replaced(served, name):
            raise
    return served[name].compute(tasks)


def _reopen_if_replaced(served: "dict[str, Served]", name: str) -> bool:
    """Open a model or an index again if it was replaced on disk; returns whether it was. If it fails, keep the old."""
    try:
        reopened = served[name].reopened()
    except Exception as error:
        log.error("keeping the old %s: %s", name, error)
        return False
    if reopened is not None:
        served |= {other: reopened for other, one in served.items() if one is served[name]}
    return reopened is not None


def _refusal(error: Exception) -> TaskOutcome:
    if isinstance(error, PolyrankError):
        return TaskOutcome(error=type(error).__name__, message=str(error))
    if isinstance(error, TypeError | ValueError) and "surrogate" in str(error):
        message = "a text contains a lone surrogate; send valid UTF-8"
        return TaskOutcome(error=UsageError.__name__, message=message)
    # log the place and the name, because the message may contain a user's text
    frames = "; ".join(f"{frame.name} {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:])
    log.error("internal error: %s in %s", name_of(error), frames)
    return TaskOutcome(error=type(error).__name__, message="internal error")
