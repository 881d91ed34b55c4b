"""What waits for the model, and which of it is computed together.

A job is a part of one request. Jobs that ask the same of the same model go together, as many as one batch of tokens
holds. What could not be done within its time is refused at the door, so that everything that is let in is worth
computing. Knows nothing of HTTP, processes or models.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyrank.serving.tasks import Task

SMOOTHING = 0.2  # weight of the newest batch in what a token costs
FIRST_COST = 2e-5  # seconds for one token, until it is measured
IN_TIME = 0.8  # share of the time until a deadline that may be spent on waiting, as estimated
TOKENS_TOGETHER = 4_096  # in one batch, unless a single job has more
SHORT_LINE = 16  # requests that may wait however long they take, if that is in time
LINE_S = 1.0  # seconds of work in a longer line: what was too much is forgotten soon after


@dataclass(slots=True, eq=False)
class Job:
    """One thing to compute.

    Args:
        name: of which model.
        task: what.
        n_tokens: about how many tokens will be read.
        deadline: when it is no longer wanted, by ``time.monotonic``.
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
        """Jobs of one kind may be computed together."""
        return self.task.operation, self.name


class OverloadedError(Exception):
    """Too much waits already; the caller may come again.

    Args:
        retry_after: seconds.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests wait already; try again in {math.ceil(retry_after)} s")
        self.retry_after = retry_after


class JobQueue:
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
        self._tokens: Counter[tuple[str, str]] = Counter()  # that wait, by kind
        self._cost: dict[tuple[str, str], float] = {}  # seconds for a token, by kind

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def wait_s(self) -> float:
        """About how many seconds of work wait, for one process."""
        return sum(n * self._cost.get(kind, FIRST_COST) for kind, n in self._tokens.items())

    def seconds(self, job: Job) -> float:
        """About how long a job takes."""
        return job.n_tokens * self._cost.get(job.kind, FIRST_COST)

    def check_room(self, n_processes: int = 1, timeout_s: float = math.inf) -> None:
        """Refuse what is asked now if it would wait for too long, whatever it is.

        Raises:
            OverloadedError: so many requests wait, or so much work, that nothing more would be done in time.
        """
        self._check_line(0.0, IN_TIME * timeout_s, n_processes)

    def add(self, jobs: Sequence[Job], n_processes: int = 1) -> None:
        """Let a request wait. What waits alone is taken, however long it may take.

        Raises:
            OverloadedError: it would not be done by its deadline, or the line is too long.
        """
        if not jobs:
            return
        if self._requests:
            self._check_line(sum(map(self.seconds, jobs)), IN_TIME * (jobs[0].deadline - self._clock()), n_processes)
        self._requests.append(deque(jobs))
        self._enter(jobs)

    def _check_line(self, own_s: float, room_s: float, n_processes: int) -> None:
        line = self.wait_s / n_processes
        too_late = line + own_s / n_processes > room_s
        if len(self) >= self.most or too_late or (len(self) >= SHORT_LINE and line > LINE_S):
            raise OverloadedError(max(line / 2, 1.0))

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Jobs whose process died, before all others, each to be computed alone."""
        for job in reversed(jobs):
            job.alone = True
            self._requests.appendleft(deque([job]))
        self._enter(jobs)

    def next_batch(self) -> list[Job]:
        """The next jobs to compute together; empty if none is wanted. What is late is dropped."""
        batch: list[Job] = []
        n_tokens = 0
        while True:  # a further turn for those who have more, while there is room
            taken, passed = [], []
            for jobs in self._requests:
                self._drop_late(jobs)
                if jobs and (not batch or self._fits(jobs[0], batch, n_tokens)):
                    batch.append(self._leave(jobs))
                    n_tokens += batch[-1].n_tokens
                    taken.append(jobs)
                elif jobs:
                    passed.append(jobs)
            self._requests = deque([*passed, *filter(None, taken)])  # who had a turn stands behind who had none
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
            _give_up(self._leave(jobs))

    def measured(self, batch: Sequence[Job], seconds: float) -> None:
        """Learn from what a batch took."""
        kind, cost = batch[0].kind, seconds / max(1, sum(job.n_tokens for job in batch))
        before = self._cost.get(kind, cost)
        self._cost[kind] = before + SMOOTHING * (cost - before)

    def clear(self) -> None:
        """Give up on everything that waits."""
        for jobs in self._requests:
            while jobs:
                _give_up(self._leave(jobs))
        self._requests.clear()

    def _enter(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._tokens[job.kind] += job.n_tokens

    def _leave(self, jobs: deque[Job]) -> Job:
        job = jobs.popleft()
        self._tokens[job.kind] -= job.n_tokens
        return job


def _give_up(job: Job) -> None:
    if not job.result.done():
        job.result.set_exception(TimeoutError())
