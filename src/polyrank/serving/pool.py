"""The processes that compute, as the server sees them: started, fed with batches, restarted when they die, replaced.

Knows nothing of HTTP. A batch goes to one process and comes back; if the process dies meanwhile, its jobs are computed
again, each alone, by the next one, so that a job which kills its process fails by itself.
"""

import asyncio
import json
import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Generic, TypeVar

from polyrank.errors import PolyrankError
from polyrank.serving.jobs import Job, JobQueue
from polyrank.serving.tasks import Batch, ServedInfo, Started, Task, TaskOutcome
from polyrank.serving.worker import Setup, work

R = TypeVar("R")

log = logging.getLogger("polyrank.serving")

ATTEMPTS = 3  # of a job whose process dies
LONGEST_PAUSE_S = 30.0  # before a process that keeps dying is started again
STALLED_S = 120.0  # for one batch: it hangs


class FailedError(PolyrankError):
    """A process could not open what is served; it exits as the error that it met.

    Args:
        message: what the error said.
        code: its exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class RefusedError(Exception):
    """A job cannot be computed.

    Args:
        kind: name of the error.
        message: what it says.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class DiedError(Exception):
    """The process died, every time that this was computed."""


@dataclass(frozen=True, slots=True)
class Computed(Generic[R]):
    """What became of one request.

    Args:
        values: the results of its parts.
        waiting_ms, computing_ms: in the line, and from its first batch to the end of its last.
    """

    values: list[R]
    waiting_ms: float
    computing_ms: float


@dataclass(slots=True, eq=False)
class Worker:
    """One process and our end of its pipe."""

    process: BaseProcess
    connection: Connection

    @classmethod
    def start(cls, setup: Setup) -> "Worker":
        """Start a process; ``until_started`` waits until it is ready."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, setup), name="polyrank-worker", daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def until_started(self) -> Started:
        """How its start went. Blocks.

        Raises:
            EOFError, OSError: it has died.
        """
        return self.connection.recv()  # type: ignore[no-any-return]

    def compute(self, batch: Sequence[Job]) -> list[TaskOutcome]:
        """The outcomes of jobs of one kind. Blocks.

        Raises:
            EOFError, OSError: it has died.
        """
        self.connection.send(Batch(batch[0].name, [job.task for job in batch]))
        return self.connection.recv()  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End it now; there is nothing that it could lose. Blocks."""
        self.process.kill()
        self.process.join()
        self.connection.close()  # only now: who still reads from it has seen its end


class Pool:
    """Processes, and the line of jobs before them.

    Args:
        setup: what each of them opens.
        n: how many.
        most_waiting: jobs that may wait.
        timeout_s: for a job that does not say when it must be done.
        watched: called with each batch and the seconds that it took, and with None when a process has died.
        started: a process that was started already.
    """

    def __init__(
        self,
        setup: Setup,
        n: int = 1,
        *,
        most_waiting: int = 512,
        timeout_s: float = 30.0,
        watched: Callable[[Sequence[Job] | None, float], None] = lambda batch, seconds: None,
        started: Worker | None = None,
    ) -> None:
        self.setup, self.n, self.timeout_s, self._watched = setup, n, timeout_s, watched
        self.waiting = JobQueue(most_waiting)
        self.info: dict[str, ServedInfo] = {}
        self.failure: FailedError | None = None
        self.n_ready = 0
        self.n_deaths = 0
        self.n_reloads = 0
        self.n_working = 0
        self._wanted = asyncio.Event()
        self._first_ready = asyncio.Event()
        self._replacements: dict[int, Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: dict[int, Worker] = {}
        self._started = started
        self._alive: set[Worker] = set() if started is None else {started}
        self._threads = ThreadPoolExecutor(2 * n + 2, "polyrank-pool")  # two for a worker that is replaced
        self._ending: set[asyncio.Task[None]] = set()
        self._closing = False
        self._reloading = asyncio.Lock()

    def start(self) -> None:
        """Start the processes. Call it in the event loop."""
        self._tasks = [asyncio.create_task(self._life(number)) for number in range(self.n)]

    async def until_ready(self) -> None:
        """Wait until one of them is ready.

        Raises:
            FailedError: what is served cannot be opened.
        """
        await self._first_ready.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def ready(self) -> bool:
        """Whether something would be computed now."""
        return self.n_ready > 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return [worker.process.pid or 0 for worker in self._workers.values()]

    @property
    def n_computing(self) -> int:
        """Processes that share the work, now or as soon as one is there again."""
        return max(1, self.n_ready)

    def check_room(self) -> None:
        """Refuse what would wait for too long, before anything of it is read.

        Raises:
            OverloadedError: too much waits.
        """
        self.waiting.check_room(self.n_computing, self.timeout_s)

    async def compute(
        self, name: str, tasks: Sequence[Task[R]], tokens: Sequence[int], timeout_s: float | None = None
    ) -> Computed[R]:
        """The results of the parts of one request, in their order.

        Args:
            name: of what is served.
            tasks: the parts.
            tokens: about how many tokens each of them has.
            timeout_s: seconds until it is given up.

        Raises:
            OverloadedError: too much waits.
            TimeoutError: it was not done in time.
            RefusedError: it cannot be computed.
            DiedError: the process died of it, or so it seems.
        """
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
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

    async def reload(self) -> bool:
        """Open everything anew in new processes, which take over one by one once they are ready.

        Returns:
            Whether they did; if they cannot open it, the old ones stay.
        """
        async with self._reloading:
            for number in range(self.n):
                worker, started = await self._opened()
                if started.exit_code:
                    log.error("the old one stays, since the new one cannot be opened: %s", started.error)
                    await self._end(worker)
                    return False
                assert worker is not None, "what is ready was started"
                self._replacements[number] = worker
                self.info = started.info
                self._wanted.set()
            self.n_reloads += 1
            log.info("everything was opened anew")
            return True

    async def close(self) -> None:
        """Stop. What waits is given up."""
        self._closing = True
        self.waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._end, list(self._alive)))
        self._threads.shutdown(wait=False)

    async def _opened(self) -> tuple[Worker | None, Started]:
        """A process, and how its start went."""
        worker, self._started = self._started, None
        try:
            worker = worker or Worker.start(self.setup)  # a millisecond or two, unlike the opening
            self._alive.add(worker)
            return worker, await asyncio.get_running_loop().run_in_executor(self._threads, worker.until_started)
        except EOFError:
            return worker, Started(exit_code=1, error="its process died while it was opened")
        except Exception as error:  # the machine lacks something, or what came is no answer
            code = 5 if isinstance(error, OSError) else 1
            return worker, Started(exit_code=code, error=f"its process could not be started: {error}")

    async def _end(self, worker: Worker | None) -> None:
        if worker is not None:
            self._alive.discard(worker)
            await asyncio.get_running_loop().run_in_executor(None, worker.kill)

    async def _life(self, number: int) -> None:
        """One worker after the other, for ever."""
        pause = 0.0
        while not self._closing:
            if pause:
                await asyncio.sleep(pause)
            worker, started = await self._opened()
            if worker is not None and not started.exit_code:
                self._workers[number] = worker
                self.info, self.failure, pause = started.info, None, 0.0
                self.n_ready += 1
                self._first_ready.set()
                try:
                    await self._feed(number)
                finally:
                    self.n_ready -= 1
                worker = self._workers.pop(number)  # another one, where it was replaced
            else:
                first = not self._first_ready.is_set()
                self.failure = FailedError(started.error, started.exit_code)
                self._first_ready.set()
                if first:
                    return
                log.error("a process could not be started: %s", started.error)
                pause = min(2 * pause or 0.1, LONGEST_PAUSE_S)
            self.n_deaths += 1
            try:
                self._watched(None, 0.0)
                await self._end(worker)
            except Exception as error:  # the next one is started all the same
                log.error("after the end of a process: %s", type(error).__name__)

    async def _feed(self, number: int) -> None:
        """Batches to one worker, until it dies."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._workers[number].process.sentinel, self._wanted.set)  # readable once it has died
        try:
            await self._feed_while_alive(number, loop)
        finally:
            loop.remove_reader(self._workers[number].process.sentinel)

    async def _feed_while_alive(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            if (new := self._replacements.pop(number, None)) is not None:
                old, self._workers[number] = self._workers[number], new
                loop.remove_reader(old.process.sentinel)
                loop.add_reader(new.process.sentinel, self._wanted.set)
                self._ending.add(task := asyncio.create_task(self._end(old)))
                task.add_done_callback(self._ending.discard)
            if not self._workers[number].process.is_alive():
                log.error("process %s died", self._workers[number].process.pid)
                return
            batch = self.waiting.next_batch()
            if not batch:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            if len(self.waiting):
                self._wanted.set()  # for the others
            worker = self._workers[number]
            started = time.monotonic()
            for job in batch:
                job.started, job.attempts = started, job.attempts + 1
            self.n_working += 1
            try:
                async with asyncio.timeout(max(STALLED_S, 4 * self.timeout_s)):
                    outcomes = await loop.run_in_executor(self._threads, worker.compute, batch)
                for job, outcome in zip(batch, outcomes, strict=True):
                    _settle(job, outcome)
                seconds = time.monotonic() - started
                self.waiting.measured(batch, seconds)
                self._watched(batch, seconds)
            except Exception as error:  # it died, or hangs, or what came is no answer
                what = type(error).__name__
                log.error("process %s is given up: %s at %s of %d", worker.process.pid, what, batch[0].kind, len(batch))
                self._again(batch)
                return
            except asyncio.CancelledError:
                self._again(batch)
                raise
            finally:
                self.n_working -= 1

    def _again(self, batch: Sequence[Job]) -> None:
        for job in batch:
            if job.attempts >= ATTEMPTS and not job.result.done():
                job.result.set_exception(DiedError())
        self.waiting.put_back([job for job in batch if not job.result.done()])
        self._wanted.set()


def _settle(job: Job, outcome: TaskOutcome) -> None:
    if job.result.done():  # nobody waits for it any more
        return
    if outcome.error:
        job.result.set_exception(RefusedError(outcome.error, outcome.message))
    else:
        job.result.set_result(outcome.result)


def stamp(paths: Sequence[str]) -> str:
    """What changes when one of these folders is replaced, or a document in it is."""
    seen = []
    for path in paths:
        for part in ("", "config.json", "pipeline.json", "sum.json", "map.json", "remote.json", "candidates.db"):
            try:
                status = (Path(path) / part).stat()
            except OSError:
                continue
            # an index in use changes; only another file in its place is another index
            changing = part in ("", "candidates.db")
            seen.append([path, part, status.st_ino, 0 if changing else status.st_mtime_ns])
    return json.dumps(seen)


def watched_paths(info: Mapping[str, ServedInfo]) -> list[str]:
    """All folders that what is served is made of."""
    return sorted({path for one in info.values() for path in one.watched})
