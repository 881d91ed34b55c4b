"""The queue of jobs: each accepted job is handed out once, in turn, or reported as late."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given, strategies as st

from polyrank.records import Context
from polyrank.serving.jobs import FIRST_COST, IN_TIME, SHORT_QUEUE, SMOOTHING, Job, JobQueue, OverloadedError
from polyrank.serving.tasks import EmbedTask, ScoreTask

TOGETHER = 100
ROOM = 1e9


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


def request(
    loop: asyncio.AbstractEventLoop, *tokens: int, name: str = "a", deadline: float = ROOM, operation: str = "score"
) -> list[Job]:
    task = ScoreTask(Context(("hi",)), []) if operation == "score" else EmbedTask([])
    return [Job(name, task, n, deadline, loop.create_future()) for n in tokens]


def late(job: Job) -> bool:
    return job.result.done() and not job.result.cancelled() and isinstance(job.result.exception(), TimeoutError)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.lists(st.integers(1, 150), min_size=1, max_size=6)),
        st.tuples(st.just("batch"), st.booleans(), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 12), st.just(0)),
    ),
    max_size=40,
)


@given(operations=OPERATIONS)
def test_each_job_is_handed_out_once_or_reported_late(
    loop: asyncio.AbstractEventLoop, operations: list[tuple[str, object, object]]
) -> None:
    clock = Clock()
    waiting = JobQueue(1_000, TOGETHER, clock)
    accepted: list[list[Job]] = []
    handed: Counter[Job] = Counter()
    died: Counter[Job] = Counter()

    def take(dies: bool) -> list[Job]:
        batch = waiting.next_batch()
        assert len({job.kind for job in batch}) <= 1
        assert len(batch) == 1 or sum(job.n_tokens for job in batch) <= TOGETHER
        assert not any(job.result.done() or clock.now > job.deadline for job in batch)
        handed.update(batch)
        if dies:  # its process dies
            assert len(batch) == 1 or not any(job.alone for job in batch)
            died.update(batch)
            waiting.put_back(batch)
        else:
            for job in batch:
                job.result.set_result(None)
        return batch

    for what, first, second in operations:
        if what == "add":
            jobs = request(loop, *second, name=str(first), deadline=clock.now + 10)  # type: ignore[misc]
            waiting.add(jobs)
            accepted.append(jobs)
        elif what == "batch":
            take(bool(first))
        elif what == "leave" and accepted:
            for job in accepted[int(first) % len(accepted)]:  # type: ignore[call-overload]
                job.result.cancel()
        elif what == "wait":
            clock.now += int(first)  # type: ignore[call-overload]
    while take(dies=False):
        pass
    assert len(waiting) == 0
    assert waiting.wait_s() == 0
    for job in (job for jobs in accepted for job in jobs):
        assert job.result.done()
        assert late(job) == (not job.result.cancelled() and handed[job] == died[job])
        assert handed[job] - died[job] <= 1


@given(sizes=st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=8), min_size=1, max_size=8), data=st.data())
def test_jobs_are_served_in_order(loop: asyncio.AbstractEventLoop, sizes: list[list[int]], data: st.DataObject) -> None:
    waiting = JobQueue(1_000, TOGETHER)
    ids: dict[Job, int] = {}
    before = {}
    for number, tokens in enumerate(sizes):
        jobs = request(loop, *tokens, name=data.draw(st.sampled_from("abc")))
        ids |= dict.fromkeys(jobs, number)
        before[number] = len(waiting)  # its maximal number of batches to wait, for any length of the others
        waiting.add(jobs)
    while batch := waiting.next_batch():
        served = {ids[job] for job in batch}
        for number in before:
            if number in served:
                before[number] = len(sizes)
            else:
                before[number] -= 1
        left = {ids[job] for jobs in waiting._requests for job in jobs}
        assert all(before[number] >= 0 for number in left)


def test_a_long_request_of_another_kind_does_not_hold_up_a_short_one(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(1_000, TOGETHER)
    waiting.add(request(loop, *[TOGETHER] * 50, name="long"))
    waiting.add(request(loop, 1, name="short"))
    names = [waiting.next_batch()[0].name for _ in range(3)]
    assert names == ["long", "short", "long"]


def measured(waiting: JobQueue, batch: list[Job], seconds: float) -> None:
    """Record the same duration until it is the estimate."""
    for _ in range(100):
        waiting.record_cost(batch, seconds)


def test_a_slow_first_batch_counts_in_part(loop: asyncio.AbstractEventLoop) -> None:
    """It loads code and memory; counted in full, it would refuse the requests after it."""
    waiting = JobQueue(1_000, TOGETHER, Clock())
    waiting.record_cost(request(loop, 10), 0.1)
    for _ in range(2 * SHORT_QUEUE):
        waiting.add(request(loop, 10))
    assert len(waiting) == 2 * SHORT_QUEUE


def test_a_cost_is_of_the_tokens_of_a_whole_batch_and_of_its_kind(loop: asyncio.AbstractEventLoop) -> None:
    waiting, batch = JobQueue(1_000, TOGETHER), request(loop, 10, 30, 60)
    (one,) = request(loop, 1)
    waiting.record_cost(batch, 2.0)
    assert waiting.seconds(one) == pytest.approx(FIRST_COST + SMOOTHING * (0.02 - FIRST_COST))
    measured(waiting, batch[::-1], 2.0)
    measured(waiting, request(loop, 40, 10, name="b"), 1.5)
    measured(waiting, request(loop, 0, 0, name="empty"), 1.0)  # as one token
    kinds: list[tuple[dict[str, str], float]] = [
        ({}, 0.02), ({"name": "b"}, 0.03), ({"name": "empty"}, 1.0), ({"operation": "embed"}, FIRST_COST),
        ({"name": "c"}, FIRST_COST),
    ]  # fmt: skip
    for kind, cost in kinds:
        (job,) = request(loop, 7, **kind)  # type: ignore[arg-type]  # no deadline
        assert waiting.seconds(job) == pytest.approx(7 * cost, rel=1e-6)


def test_a_batch_is_filled_to_the_last_token(loop: asyncio.AbstractEventLoop) -> None:
    for tokens, n in (([40, 60], 2), ([40, 61], 1), ([99, 1, 1], 2), ([50, 25, 25], 3), ([101, 1], 1)):
        waiting = JobQueue(1_000, TOGETHER)
        for one in tokens:
            waiting.add(request(loop, one))
        assert [job.n_tokens for job in waiting.next_batch()] == tokens[:n]


def test_a_request_counts_its_own_work(loop: asyncio.AbstractEventLoop) -> None:
    """All of its jobs, and shared by the processes."""
    for n_jobs, n_processes, refused in ((1, 1, False), (3, 1, False), (4, 1, True), (8, 2, False), (9, 2, True)):
        waiting = JobQueue(1_000, TOGETHER, Clock())
        measured(waiting, request(loop, 1), 1.0)  # a second per token
        waiting.add(request(loop, 1, deadline=5 / IN_TIME))
        wanted = pytest.raises(OverloadedError) if refused else nullcontext()
        with wanted:
            waiting.add(request(loop, *[1] * n_jobs, deadline=4.5 / IN_TIME), n_processes)
        assert len(waiting) == 2 - refused


def test_waiting_jobs_are_counted_by_cost(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(1_000, TOGETHER)
    waiting.add(request(loop, 60, 60, name="a"))
    waiting.add(request(loop, 30, name="b"))
    assert waiting.wait_s() == pytest.approx(150 * FIRST_COST)
    assert waiting.wait_s(1) == pytest.approx(90 * FIRST_COST)
    batch = waiting.next_batch()
    assert [job.n_tokens for job in batch] == [60]
    measured(waiting, batch, 6.0)  # a tenth of a second per token of this kind
    assert waiting.wait_s() == pytest.approx(60 * 0.1 + 30 * FIRST_COST)
    waiting.put_back(batch)
    assert waiting.wait_s() == pytest.approx(120 * 0.1 + 30 * FIRST_COST)
    waiting.clear()
    assert waiting.wait_s() == 0
    assert all(map(late, batch))


def test_a_request_of_many_jobs_refuses_only_others_of_many(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(1_000, TOGETHER, Clock())
    measured(waiting, request(loop, 1), 1.0)  # a second per token
    waiting.add(request(loop, *[1] * 25, deadline=30))
    waiting.check_capacity(1, 30)
    waiting.add(request(loop, 1, deadline=30))
    with pytest.raises(OverloadedError):
        waiting.add(request(loop, *[1] * 25, deadline=30))


def test_jobs_that_would_be_late_are_refused(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(1_000, TOGETHER, Clock())
    measured(waiting, request(loop, 1), 1.0)  # a second per token
    waiting.add(request(loop, 50, deadline=10))  # a single job is accepted
    with pytest.raises(OverloadedError):
        waiting.add(request(loop, 1, deadline=10))
    for n_processes in (1, 2):
        with pytest.raises(OverloadedError) as refused:
            waiting.check_capacity(n_processes, (50 / IN_TIME - 1) / n_processes)
        assert refused.value.retry_after == pytest.approx(25 / n_processes)  # half of the waiting time
    waiting.check_capacity(1, 50 / IN_TIME + 1)
    waiting.add(request(loop, 1, deadline=10), n_processes=10)  # a tenth of the wait
    assert len(waiting) == 2


def test_a_longer_queue_is_limited_in_time(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(1_000, TOGETHER, Clock())
    measured(waiting, request(loop, 1), 1 / SHORT_QUEUE * 1.01)
    for _ in range(SHORT_QUEUE):
        waiting.add(request(loop, 1, deadline=1000.0))
    with pytest.raises(OverloadedError) as refused:
        waiting.add(request(loop, 1, deadline=1000.0))
    assert refused.value.retry_after >= 1
    patient = JobQueue(1_000, TOGETHER, Clock(), wait_s=60.0)
    measured(patient, request(loop, 1), 1 / SHORT_QUEUE)
    for _ in range(60):  # a burst
        patient.add(request(loop, 1, deadline=1000.0))
    waiting.next_batch()
    waiting.check_capacity()


def test_the_queue_has_a_maximal_length(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(3, TOGETHER)
    for _ in range(3):
        waiting.add(request(loop, 1))
    with pytest.raises(OverloadedError):
        waiting.add(request(loop, 1))
    with pytest.raises(OverloadedError):
        waiting.check_capacity()


def test_a_job_whose_worker_died_is_retried_alone_and_first(loop: asyncio.AbstractEventLoop) -> None:
    waiting = JobQueue(10, TOGETHER)
    for _ in range(3):
        waiting.add(request(loop, 10))
    batch = waiting.next_batch()
    assert len(batch) == 3
    waiting.add(request(loop, 10))
    waiting.put_back(batch)
    assert [waiting.next_batch() for _ in range(3)] == [[job] for job in batch]
