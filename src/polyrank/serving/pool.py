"""The server's view of its model processes: start them, feed them batches, restart them when they die.

This module knows nothing of HTTP. A batch goes to one process and its results come back. If the process dies meanwhile,
the next process computes each of its jobs alone, so that a job that kills its process fails alone.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from polyrank.errors import PolyrankError
from polyrank.serving.jobs import Job, JobQueue
from polyrank.serving.log import log
from polyrank.serving.tasks import ServedInfo, Started, Task, TaskOutcome
from polyrank.serving.worker import Setup, run_worker

R = TypeVar("R")


ATTEMPTS = 3  # of a job whose process dies
MAX_PAUSE_S = 30.0  # before a process that keeps dying is started again
LATE_S = 2.0  # after ``timeout_s`` from its start nobody waits for a batch; its process is ended
ANSWERS_S = 5.0  # for a batch or a check; after that, the server is not ready


class StartupError(PolyrankError):
    """A process could not open the models; carries the exit code of the original error.

    Args:
        message: of the original error.
        code: its exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class RefusedError(Exception):
    """A job raised an error.

    Args:
        kind: class name of the error.
        message: its message.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WorkerDiedError(Exception):
    """The process died each time that it computed this job."""


@dataclass(frozen=True, slots=True)
class Computed(Generic[R]):
    """The result of one request.

    Args:
        values: the results of its parts.
        waiting_ms, computing_ms: in the queue, and from the start of its first batch to the end of its last.
    """

    values: list[R]
    waiting_ms: float
    computing_ms: float


@dataclass(slots=True, eq=False)
class Worker:
    """One process and the server's end of its pipe.

    Args:
        process, connection: of it.
        since: when its present batch or check was sent.
        asked: whether it is to show that it answers, once it has no work.
    """

    process: BaseProcess
    connection: Connection
    since: float = inf
    asked: bool = False

    @classmethod
    def start(cls, setup: Setup) -> "Worker":
        """Start a process; ``wait_started`` waits until it is ready."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        name = f"polyrank-worker-{setup.number}"
        process = context.Process(target=run_worker, args=(there, setup), name=name, daemon=True)
        process.start()
        there.close()
        return cls(process, here)

    def wait_started(self) -> Started:
        """Wait until the process has opened the models, or failed to. Blocks.

        Raises:
            EOFError, OSError: the process died.
        """
        return self.connection.recv()  # type: ignore[no-any-return]

    def compute(self, batch: Sequence[Job]) -> list[TaskOutcome]:
        """Compute jobs of one kind and return their outcomes; without jobs, it only shows that it answers. Blocks.

        Raises:
            EOFError, OSError: the process died.
        """
        self.connection.send((batch[0].name if batch else "", [job.task for job in batch]))
        return self.connection.recv()  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the process now; it holds no state to lose. Blocks."""
        self.process.kill()
        self.process.join()
        self.connection.close()  # last, so that a thread that is reading from it gets the end of file


class Pool:
    """Model processes and the queue of jobs for them.

    Args:
        setup: what each process opens.
        n: number of processes.
        max_waiting: number of jobs that may wait.
        timeout_s: for each request.
        wait_s: see ``polyrank.serving.jobs.JobQueue``.
        on_batch: called with each batch and the seconds that it took, and with None when a process has died.
        started: a process that is already started.
    """

    def __init__(
        self,
        setup: Setup,
        n: int = 1,
        *,
        max_waiting: int = 512,
        timeout_s: float = 30.0,
        wait_s: float = 1.0,
        on_batch: Callable[[Sequence[Job] | None, float], None] = lambda batch, seconds: None,
        started: Worker | None = None,
    ) -> None:
        self.setup, self.n, self.timeout_s, self._on_batch = setup, n, timeout_s, on_batch
        self.waiting = JobQueue(max_waiting, wait_s=wait_s)
        self.info: dict[str, ServedInfo] = {}
        self.failure: StartupError | None = None
        self.n_ready = 0
        self._wanted = asyncio.Event()
        self._first_ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: dict[int, Worker] = {}
        self._started = started
        self._alive: set[Worker] = set() if started is None else {started}
        self._threads = ThreadPoolExecutor(n + 1, "polyrank-pool")
        self._closing = False

    def start(self) -> None:
        """Start the processes; call this in the event loop."""
        self._tasks = [asyncio.create_task(self._keep_alive(number)) for number in range(self.n)]

    async def until_ready(self) -> None:
        """Wait until one process is ready.

        Raises:
            StartupError: the models cannot be opened.
        """
        await self._first_ready.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def ready(self) -> bool:
        """Whether a process is ready to compute, and has not left a batch or a check unanswered for ANSWERS_S."""
        latest = max((worker.since for worker in self._workers.values()), default=-inf)
        return latest > time.monotonic() - ANSWERS_S

    def ask(self) -> None:
        """Check whether idle processes answer; ``ready`` reports it."""
        for worker in self._workers.values():
            worker.asked = True
        self._wanted.set()

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.process.pid or 0 for worker in self._workers.values()]

    @property
    def n_computing(self) -> int:
        """Number of processes that share the work, at least 1."""
        return max(1, self.n_ready)

    def check_capacity(self) -> None:
        """Refuse a request that would wait too long, before its body is read.

        Raises:
            OverloadedError: too much work waits.
        """
        self.waiting.check_capacity(self.n_computing, self.timeout_s)

    async def compute(self, name: str, tasks: Sequence[Task[R]], tokens: Sequence[int]) -> Computed[R]:
        """Compute the parts of one request; the results are in their order.

        Args:
            name: of the model, ranker or index.
            tasks: the parts.
            tokens: estimated number of tokens of each part.

        Raises:
            OverloadedError: too much work waits.
            TimeoutError: the results were not ready in time.
            RefusedError: a task raised an error.
            WorkerDiedError: the process died while it computed a part.
        """
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self.timeout_s
        jobs = [
            Job(name, task, max(n, 16), deadline, loop.create_future()) for task, n in zip(tasks, tokens, strict=True)
        ]
        self.waiting.add(jobs, self.n_computing)
        self._wanted.set()
        try:
            async with asyncio.timeout_at(loop.time() + deadline - time.monotonic()):
                values = await asyncio.gather(*(job.result for job in jobs))
            started = min((job.started for job in jobs), default=0.0)
            accepted = min((job.accepted for job in jobs), default=0.0)
            return Computed(values, (started - accepted) * 1000, (time.monotonic() - started) * 1000)
        finally:
            for job in jobs:
                job.result.cancel()

    async def close(self) -> None:
        """Stop. Waiting jobs fail with TimeoutError."""
        self._closing = True
        self.waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, list(self._alive)))
        self._threads.shutdown(wait=False)

    async def _start_worker(self, number: int) -> tuple[Worker | None, Started]:
        """The process of a number, and the result of its start; number 0 is the first that is requested."""
        worker, self._started = self._started, None
        try:
            # one or two milliseconds; opening the models takes longer
            worker = worker or Worker.start(replace(self.setup, number=number))
            self._alive.add(worker)
            return worker, await asyncio.get_running_loop().run_in_executor(self._threads, worker.wait_started)
        except EOFError:
            return worker, Started(exit_code=1, error="the process died while it opened the models")
        except Exception as error:  # the machine lacks a resource, or the process sent something unreadable
            code = 5 if isinstance(error, OSError) else 1
            return worker, Started(exit_code=code, error=f"the process could not be started: {error}")

    async def _end(self, worker: Worker | None) -> None:
        if worker is not None:
            self._alive.discard(worker)
            await asyncio.get_running_loop().run_in_executor(None, worker.kill)

    async def _keep_alive(self, number: int) -> None:
        """Run one worker after another until the pool closes."""
        pause = 0.0
        while not self._closing:
            if pause:
                await asyncio.sleep(pause)
            worker, started = await self._start_worker(number)
            if worker is not None and not started.exit_code:
                self._workers[number] = worker
                self.info, self.failure, pause = started.info, None, 0.0
                self.n_ready += 1
                self._first_ready.set()
                try:
                    await self._feed(worker)
                finally:
                    self.n_ready -= 1
                del self._workers[number]
            else:
                first = not self._first_ready.is_set()
                self.failure = StartupError(started.error, started.exit_code)
                self._first_ready.set()
                if first:
                    return
                log.error("a process could not be started: %s", started.error)
                pause = min(2 * pause or 0.1, MAX_PAUSE_S)
            try:
                self._on_batch(None, 0.0)
                await self._end(worker)
            except Exception as error:  # the next process is started anyway
                log.error("after the end of a process: %s", type(error).__name__)

    async def _feed(self, worker: Worker) -> None:
        """Send batches to one worker until it dies."""
        loop = asyncio.get_running_loop()
        loop.add_reader(worker.process.sentinel, self._wanted.set)  # readable once the process has died
        try:
            await self._feed_while_alive(worker, loop)
        finally:
            loop.remove_reader(worker.process.sentinel)

    async def _feed_while_alive(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            if not worker.process.is_alive():
                log.error("process %s died", worker.process.pid)
                return
            batch = self.waiting.next_batch()
            if not (batch or worker.asked):
                self._wanted.clear()
                await self._wanted.wait()
                continue
            worker.asked = False
            if len(self.waiting):
                self._wanted.set()  # wakes the other workers
            started = worker.since = time.monotonic()
            for job in batch:
                job.started, job.attempts = started, job.attempts + 1
            try:
                async with asyncio.timeout(self.timeout_s + LATE_S):
                    outcomes = await loop.run_in_executor(self._threads, worker.compute, batch)
                worker.since = inf
                if not batch:
                    continue
                if (opened_again := outcomes[0].info) is not None:
                    path = self.setup.models[batch[0].name]
                    shared = [name for name, other in self.setup.models.items() if other == path]
                    self.info = self.info | dict.fromkeys(shared, opened_again)
                for job, outcome in zip(batch, outcomes, strict=True):
                    _settle(job, outcome)
                seconds = time.monotonic() - started
                self.waiting.record_cost(batch, seconds)
                self._on_batch(batch, seconds)
            except Exception as error:  # the process died or hangs, or it sent something unreadable
                what = type(error).__name__
                kind = batch[0].kind if batch else "a check"
                log.error("abandoning process %s: %s at %s of %d", worker.process.pid, what, kind, len(batch))
                self._retry(batch)
                return
            except asyncio.CancelledError:
                self._retry(batch)
                raise

    def _retry(self, batch: Sequence[Job]) -> None:
        for job in batch:
            if job.attempts >= ATTEMPTS and not job.result.done():
                job.result.set_exception(WorkerDiedError())
        self.waiting.put_back([job for job in batch if not job.result.done()])
        self._wanted.set()


def _settle(job: Job, outcome: TaskOutcome) -> None:
    if job.result.done():  # the client has left
        return
    if outcome.error:
        job.result.set_exception(RefusedError(outcome.error, outcome.message))
    else:
        job.result.set_result(outcome.result)
