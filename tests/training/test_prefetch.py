"""Batches are prepared ahead, in order, in one thread, which ends with its block."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from polyrank.config.train import TrainConfig
from polyrank.devices.pipeline import AHEAD, prefetched
from polyrank.records import Example
from polyrank.training.fitting import ExampleOrder
from train_settings import train_config


def test_batches_come_in_order_and_at_most_a_few_ahead() -> None:
    made, threads, full = list[int](), set[int](), threading.Event()

    def make(number: int) -> int:
        made.append(number)
        threads.add(threading.get_ident())
        if len(made) == 1 + AHEAD:
            full.set()
        return number**2

    with closing(prefetched(make, range(3, 9))) as batches:
        assert next(batches) == 9
        assert full.wait(10)
        assert made == [3, 4, 5][: 1 + AHEAD]
        assert [next(batches) for _ in range(5)] == [16, 25, 36, 49, 64]
    assert made == [*range(3, 9)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert not any(thread.name.startswith("polyrank-batches") for thread in threading.enumerate())


def test_no_batch_beyond_the_last_is_made() -> None:
    made: list[int] = []
    with closing(prefetched(made.append, range(4), ahead=1000)) as batches:
        for _ in range(4):
            next(batches)
    assert made == [0, 1, 2, 3]


def test_no_two_batches_are_made_at_the_same_time() -> None:
    """A network's subwords and random numbers are not made for several threads."""
    meet = threading.Barrier(2, timeout=0.2)

    def make(number: int) -> bool:
        try:
            meet.wait()
        except threading.BrokenBarrierError:
            return False
        return True

    with closing(prefetched(make, range(4), ahead=4)) as batches:
        assert [*batches] == [False] * 4


def test_batches_that_wait_are_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun, ended = list[int](), threading.Event(), threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def end(self: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shutdown(self, wait=False, cancel_futures=cancel_futures)
        ended.set()
        shutdown(self, wait=wait)

    def make(number: int) -> None:
        made.append(number)
        if number == 1:
            begun.set()
            assert ended.wait(10)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", end)
    with closing(prefetched(make, range(9), ahead=4)) as batches:
        next(batches)
        assert begun.wait(10)
    assert made == [0, 1]


def test_an_error_is_raised_for_its_batch_and_ends_the_thread() -> None:
    def make(number: int) -> int:
        if number == 1:
            raise ValueError("bad batch")
        return number

    batches = prefetched(make, range(5))
    assert next(batches) == 0
    with pytest.raises(ValueError, match="bad batch"):
        next(batches)
    assert not any(thread.name.startswith("polyrank-batches") for thread in threading.enumerate())


def test_without_a_lead_batches_are_made_by_the_caller() -> None:
    """A network that mines negatives needs the weights of that moment."""
    made: list[tuple[int, int]] = []
    with closing(prefetched(lambda n: made.append((n, threading.get_ident())), range(9), ahead=0)) as batches:
        next(batches)
        next(batches)
    assert made == [(0, threading.get_ident()), (1, threading.get_ident())]


@pytest.mark.parametrize(("window", "n_lengths"), [(1, 0), (2, 7)])
def test_lengths_are_read_only_for_sorting(window: int, n_lengths: int) -> None:
    examples = [Example((f"turn {i}",), (f"reply {i}",), (0,)) for i in range(7)]
    measured: list[Example] = []

    def length(example: Example) -> int:
        measured.append(example)
        return len(example.context[0])

    order = ExampleOrder(examples, length, TrainConfig(batch_size=2, epochs=1, length_window=window), seed=1)
    assert sorted(at for number in range(4) for at, _ in order.rows(number)[0]) == [*range(7)]
    assert len(measured) == n_lengths


def test_only_mining_prevents_preparing_ahead(tmp_path: Path) -> None:
    examples = [Example(("hi",), ("hello",), (0,))]
    for sources, ahead in ((["given", "random"], True), (["mined", "random"], False)):
        remine = {} if ahead else {"remine_epochs": 1}
        settings = train_config(**{"method": "listwise", "negatives.sources": sources, **remine})
        assert ExampleOrder(examples, lambda example: 1, settings, seed=1).ahead == ahead
