"""A time limit for searches whose cost depends on the request. It applies to a thread; storage code checks it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from polyrank.errors import DeadlineError


class TimeLimit:
    """How long each search of a thread may take; see ``limit_searches`` and ``limited_search``.

    Args:
        seconds: for one search.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end, self._cancelled = seconds, inf, False

    @property
    def is_over(self) -> bool:
        """Whether the current search must stop now."""
        return self._cancelled or time.monotonic() > self.end

    def cancel(self) -> None:
        """Stop the search at once. Any thread may call this."""
        self._cancelled = True


_limit: ContextVar[TimeLimit | None] = ContextVar("time_limit", default=None)


@contextmanager
def limit_searches(limit: TimeLimit) -> Iterator[None]:
    """Limit the searches of this thread. Outside this block they take as long as they need."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def limited_search() -> Iterator[None]:
    """Run one search under the limit of this thread, if it has one."""
    limit = _limit.get()
    if limit is None:
        yield
        return
    limit.end = time.monotonic() + limit.seconds
    try:
        yield
    finally:
        limit.end = inf


def time_is_over() -> bool:
    """Whether the search of this thread must stop now."""
    limit = _limit.get()
    return limit is not None and limit.is_over


def check_time_left(needed_s: float = 0.0) -> None:
    """Stop the search of this thread if it was cancelled or has less than ``needed_s`` seconds left.

    Raises:
        DeadlineError: the search must stop.
    """
    if (time_is_over() or seconds_left() < needed_s) and (late := deadline_error()) is not None:
        raise late


def seconds_left() -> float:
    """Seconds until the search of this thread must stop; infinite without a limit."""
    limit = _limit.get()
    return inf if limit is None else max(0.0, limit.end - time.monotonic())


def deadline_error() -> DeadlineError | None:
    """The error of a search that was stopped; None if this thread has no limit."""
    if (limit := _limit.get()) is None:
        return None
    return DeadlineError(
        f"the search took longer than {limit.seconds:g} s and was stopped; search for fewer words or terms"
    )
