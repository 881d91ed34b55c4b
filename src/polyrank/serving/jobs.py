"""The queue of jobs for the models, and which of them are computed together.

A job is a part of one request. Jobs of the same operation and model form a batch, up to a number of tokens. A request
that cannot finish in time is refused on arrival, so that every accepted job is worth computing. This module knows
nothing of HTTP, processes or models.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from polyrank.serving.tasks import Task

T = TypeVar("T")
SMOOTHING = 0.2  # weight of the newest batch in the cost per token
FIRST_COST = 2e-5  # seconds per token, until it is measured
IN_TIME = 0.8  # share of the time until a deadline that the estimated wait may take
TOKENS_TOGETHER = 4_096  # per batch, unless a single job has more
SHORT_QUEUE = 16  # requests that may wait regardless of ``wait_s``, if they finish in time


@dataclass(slots=True, eq=False)
class Job:
    """A part of a request.

    Args:
        name: of the model, ranker or index.
        task: the task.
        n_tokens: estimated number of tokens.
        deadline: time after which the result is useless, by ``time.monotonic``.
        result: set once it is computed.
    """

    name: str
    task: Task[Any]
    n_tokens: int
    deadline: float
    result: "asyncio.Future[Any]"
    attempts: int = 0
    alone: bool = False
    started: float = 0.0
    accepted: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> tuple[str, str]:
        """Jobs of one kind can be computed together."""
        return self.task.operation, self.name


class OverloadedError(Exception):
    """Too much work waits already; the client may retry.

    Args:
        retry_after: seconds.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {math.ceil(retry_after)} s")
        self.retry_after = retry_after


class WaitingThreads(ThreadPoolExecutor):
    """Threads for calls that block, each with a client that waits for it.

    Args:
        n: threads.
        name: of the threads, with a number.
        most: calls that may wait.
    """

    def __init__(self, n: int, name: str, most: int) -> None:
        super().__init__(n, name)
        self.most, self.n_waiting = most, 0

    def call(self, work: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Start a call, in the event loop.

        Raises:
            OverloadedError: too many calls wait already.
        """
        if self.n_waiting >= self.most:
            raise OverloadedError(1.0)
        self.n_waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self, work, *arguments)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self.n_waiting -= 1
        future.cancelled() or future.exception()  # marks the error as seen: the client may have left


class JobQueue:
    """The waiting requests, each with its jobs. For one event loop.

    Requests take turns, job by job, so that a long request does not block short ones behind it.

    Args:
        max_requests: number of requests that may wait.
        wait_s: seconds of work in a queue of more than SHORT_QUEUE requests.
        tokens_together: limit per batch.
        clock: returns seconds.
    """

    def __init__(
        self,
        max_requests: int,
        tokens_together: int = TOKENS_TOGETHER,
        clock: Callable[[], float] = time.monotonic,
        wait_s: float = 1.0,
    ) -> None:
        self.max_requests, self.tokens_together, self._clock, self.max_wait_s = (
            max_requests, tokens_together, clock, wait_s
        )  # fmt: skip
        self._requests: deque[deque[Job]] = deque()
        self._cost: dict[tuple[str, str], float] = {}  # seconds per token, by kind

    def __len__(self) -> int:
        return len(self._requests)

    def wait_s(self, n_jobs: int | None = None) -> float:
        """Estimated seconds of waiting work, for one process, before the last of ``n_jobs`` of a new request.

        Meanwhile each waiting request has at most as many turns; None: all that waits.
        """
        return sum(self.seconds(job) for jobs in self._requests for job in islice(jobs, n_jobs))

    def seconds(self, job: Job) -> float:
        """Estimated duration of a job."""
        return job.n_tokens * self._cost.get(job.kind, FIRST_COST)

    def check_capacity(self, n_processes: int = 1, timeout_s: float = math.inf) -> None:
        """Refuse any request that arrives now if it would wait too long.

        Raises:
            OverloadedError: so much work waits that another request could not finish in time.
        """
        self._check_queue(1, 0.0, IN_TIME * timeout_s, n_processes)

    def add(self, jobs: Sequence[Job], n_processes: int = 1) -> None:
        """Add a request. If nothing else waits, it is accepted however long it takes.

        Raises:
            OverloadedError: it would not finish before its deadline, or the queue is too long.
        """
        if not jobs:
            return
        if self._requests:
            limit_s = IN_TIME * (jobs[0].deadline - self._clock())
            self._check_queue(len(jobs), sum(map(self.seconds, jobs)), limit_s, n_processes)
        self._requests.append(deque(jobs))

    def _check_queue(self, n_jobs: int, own_s: float, limit_s: float, n_processes: int) -> None:
        queue_s = self.wait_s(n_jobs) / n_processes
        too_late = queue_s + own_s / n_processes > limit_s
        if len(self) >= self.max_requests or too_late or (len(self) >= SHORT_QUEUE and queue_s > self.max_wait_s):
            raise OverloadedError(max(queue_s / 2, 1.0))

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Put jobs whose process died before all others; each is computed alone."""
        for job in reversed(jobs):
            job.alone = True
            self._requests.appendleft(deque([job]))

    def next_batch(self) -> list[Job]:
        """The next jobs to compute together; empty if none waits. Late jobs are dropped."""
        batch: list[Job] = []
        n_tokens = 0
        while True:  # requests with more jobs get another turn while the batch has capacity
            taken, passed = [], []
            for jobs in self._requests:
                self._drop_late(jobs)
                if jobs and (not batch or self._fits(jobs[0], batch, n_tokens)):
                    batch.append(jobs.popleft())
                    n_tokens += batch[-1].n_tokens
                    taken.append(jobs)
                elif jobs:
                    passed.append(jobs)
            self._requests = deque([*passed, *filter(None, taken)])  # least recently served first
            if not taken or n_tokens >= self.tokens_together:
                return batch

    def _fits(self, job: Job, batch: Sequence[Job], n_tokens: int) -> bool:
        return (
            job.kind == batch[0].kind
            and not (job.alone or batch[0].alone)
            and n_tokens + job.n_tokens <= self.tokens_together
        )

    def _drop_late(self, jobs: deque[Job]) -> None:
        while jobs and (jobs[0].result.done() or self._clock() > jobs[0].deadline):
            _give_up(jobs.popleft())

    def record_cost(self, batch: Sequence[Job], seconds: float) -> None:
        """Update the cost per token with the duration of a batch."""
        kind, cost = batch[0].kind, seconds / max(1, sum(job.n_tokens for job in batch))
        before = self._cost.get(kind, FIRST_COST)  # the first batch is slow
        self._cost[kind] = before + SMOOTHING * (cost - before)

    def clear(self) -> None:
        """Fail everything that waits."""
        for jobs in self._requests:
            while jobs:
                _give_up(jobs.popleft())
        self._requests.clear()


def _give_up(job: Job) -> None:
    if not job.result.done():
        job.result.set_exception(TimeoutError())
