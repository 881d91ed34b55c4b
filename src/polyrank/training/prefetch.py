"""Preparing the next batches in a background thread while the current one is trained on.

Batches are pure functions of their numbers, so results do not depend on how far the thread is ahead. A single thread is
enough: tokens come from a cache, and torch holds Python's lock for a small part of a step.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

Batch = TypeVar("Batch")
AHEAD = 2  # batches: one is ready when a step ends, and a slow one does not stop the next step at once


class Prefetched(Generic[Batch]):
    """Batches in order, each prepared before it is requested.

    Args:
        make: makes the batch of a number.
        first: number of the first batch.
        end: the number after the last batch.
        ahead: how many batches to prepare in advance; 0: none, in the caller's thread.

    >>> with Prefetched(lambda number: number**2, first=2, end=5) as batches:
    ...     [batches.next() for _ in range(3)]
    [4, 9, 16]
    """

    def __init__(self, make: Callable[[int], Batch], *, first: int, end: int, ahead: int = AHEAD) -> None:
        self._make, self._number, self._end, self._ahead = make, first, end, ahead
        self._waiting: deque[Future[Batch]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polyrank-batches")

    def __enter__(self) -> "Prefetched[Batch]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def next(self) -> Batch:
        """The next batch; an error in the thread is raised here."""
        if not self._ahead:
            self._number += 1
            return self._make(self._number - 1)
        while len(self._waiting) <= self._ahead and self._number < self._end:
            self._waiting.append(self._thread.submit(self._make, self._number))
            self._number += 1
        return self._waiting.popleft().result()
