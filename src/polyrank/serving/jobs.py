"""What waits for the model, and which of it is computed together.

A job is a part of one request. Jobs that ask the same of the same model go together, as many as one batch of tokens
holds. What could not be done within its time is refused at the door, so that everything that is let in is worth
computing. Knows nothing of HTTP, processes or models.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SMOOTHING = 0.2  # weight of the newest batch in what a token costs
FIRST_COST = 2e-5  # seconds for one token, until it is measured
IN_TIME = 0.8  # share of the time until a deadline that may be spent on waiting, as estimated
TOKENS_TOGETHER = 4_096  # in one batch, unless a single job has more


@dataclass(slots=True, eq=False)
class Job:
    """One thing to compute.

    Args:
        operation: what.
        name: of which model.
        payload: of what.
        n_tokens: about how many tokens will be read.
        deadline: when it is no longer wanted, by ``time.monotonic``.
        result: set once it is computed.
    """

    operation: str
    name: str
    payload: Any
    n_tokens: int
    deadline: float
    result: "asyncio.Future[Any]"
    attempts: int = 0
    alone: bool = False
    started: float = 0.0
    accepted: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> tuple[str, str]:
        """Jobs of one kind may be computed together."""
        return self.operation, self.name


class OverloadedError(Exception):
    """Too much waits already; the caller may come again.

    Args:
        retry_after: seconds.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests wait already; try again in {math.ceil(retry_after)} s")
        self.retry_after = retry_after


class Waiting:
    """The requests that wait, each with its jobs. For one event loop.

    Requests take turns, job by job, so that a long one does not hold up the short ones behind it.

    Args:
        most: requests that may wait.
        tokens_together: in one batch.
        clock: seconds.
    """

    def __init__(
        self, most: int, tokens_together: int = TOKENS_TOGETHER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.tokens_together, self._clock = most, tokens_together, clock
        self._requests: deque[deque[Job]] = deque()
        self._cost: dict[tuple[str, str], float] = {}  # seconds for a token, by kind
        self.wait_s = 0.0
        """About how many seconds of work wait, for one process."""

    def __len__(self) -> int:
        return len(self._requests)

    def seconds(self, job: Job) -> float:
        """About how long a job takes."""
        return job.n_tokens * self._cost.get(job.kind, FIRST_COST)

    def check_room(self, n_processes: int = 1, timeout_s: float = math.inf) -> None:
        """Refuse what is asked now if it would wait for too long, whatever it is.

        Raises:
            OverloadedError: so many requests wait, or so much work, that nothing more would be done in time.
        """
        wait = self.wait_s / n_processes
        if len(self) >= self.most or wait > IN_TIME * timeout_s:
            raise OverloadedError(max(wait / 2, 1.0))

    def add(self, jobs: Sequence[Job], n_processes: int = 1) -> None:
        """Let a request wait. What waits alone is taken, however long it may take.

        Raises:
            OverloadedError: it would not be done by its deadline.
        """
        if not jobs:
            return
        wait = (self.wait_s + sum(map(self.seconds, jobs))) / n_processes
        room = IN_TIME * (jobs[0].deadline - self._clock())
        if self._requests and (len(self) >= self.most or wait > room):
            raise OverloadedError(max(wait - room, 1.0))
        self._requests.append(deque(jobs))
        self._count()

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Jobs whose process died, before all others, each to be computed alone."""
        for job in reversed(jobs):
            job.alone = True
            self._requests.appendleft(deque([job]))
        self._count()

    def next_batch(self) -> list[Job]:
        """The next jobs to compute together; empty if none is wanted. What is late is dropped."""
        batch: list[Job] = []
        n_tokens = 0
        again = True
        while again:  # a second turn for those who have more, while there is room
            again = False
            for _ in range(len(self._requests)):
                jobs = self._requests.popleft()
                self._drop_late(jobs)
                if jobs and (not batch or self._fits(jobs[0], batch, n_tokens)):
                    batch.append(jobs.popleft())
                    n_tokens += batch[-1].n_tokens
                    again = True
                    if jobs:
                        self._requests.append(jobs)
                elif jobs:
                    self._requests.appendleft(jobs)
                    self._requests.rotate(-1)
            again = again and n_tokens < self.tokens_together and not batch[0].alone
        self._count()
        return batch

    def _fits(self, job: Job, batch: Sequence[Job], n_tokens: int) -> bool:
        return (
            job.kind == batch[0].kind
            and not (job.alone or batch[0].alone)
            and n_tokens + job.n_tokens <= self.tokens_together
        )

    def _drop_late(self, jobs: deque[Job]) -> None:
        while jobs and (jobs[0].result.done() or self._clock() > jobs[0].deadline):
            job = jobs.popleft()
            if not job.result.done():
                job.result.set_exception(TimeoutError())

    def measured(self, batch: Sequence[Job], seconds: float) -> None:
        """Learn from what a batch took."""
        kind, cost = batch[0].kind, seconds / max(1, sum(job.n_tokens for job in batch))
        before = self._cost.get(kind, cost)
        self._cost[kind] = before + SMOOTHING * (cost - before)
        self._count()

    def clear(self) -> None:
        """Give up on everything that waits."""
        for job in (job for jobs in self._requests for job in jobs):
            if not job.result.done():
                job.result.set_exception(TimeoutError())
        self._requests.clear()
        self._count()

    def _count(self) -> None:
        self.wait_s = sum(self.seconds(job) for jobs in self._requests for job in jobs)
