"""How long a search whose cost others choose may take: a limit of its thread, which what carries it out looks up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from polyrank.errors import DeadlineError


class Allowance:
    """How long each search through a table may take, in the thread that has it: see ``allowing`` and ``search``.

    Args:
        seconds: for one search.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end, self._cancelled = seconds, inf, False

    @property
    def spent(self) -> bool:
        """Whether the search ends now, whatever it has read."""
        return self._cancelled or time.monotonic() > self.end

    def cancel(self) -> None:
        """Have the search end at once. Any thread may call it."""
        self._cancelled = True


_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(allowance: Allowance) -> Iterator[None]:
    """Limit the searches of this thread; without it, they take as long as they need."""
    token = _allowance.set(allowance)
    try:
        yield
    finally:
        _allowance.reset(token)


@contextmanager
def search() -> Iterator[None]:
    """A query whose cost others choose; what carries it out raises ``lateness`` where it is ``spent``."""
    allowance = _allowance.get()
    if allowance is None:
        yield
        return
    allowance.end = time.monotonic() + allowance.seconds
    try:
        yield
    finally:
        allowance.end = inf


def spent() -> bool:
    """Whether the search of this thread ends now."""
    allowance = _allowance.get()
    return allowance is not None and allowance.spent


def check_spent(needed_s: float = 0.0) -> None:
    """End the search of this thread where it has no more than ``needed_s`` left, or nobody waits for it.

    Raises:
        DeadlineError: it has not.
    """
    if (spent() or seconds_left() < needed_s) and (late := lateness()) is not None:
        raise late


def seconds_left() -> float:
    """Until the search of this thread ends; infinite where nothing limits it."""
    allowance = _allowance.get()
    return inf if allowance is None else max(0.0, allowance.end - time.monotonic())


def lateness() -> DeadlineError | None:
    """The error of a search that was given up; None where nothing limits it."""
    if (allowance := _allowance.get()) is None:
        return None
    return DeadlineError(
        f"the search took longer than {allowance.seconds:g} s and was given up; search for fewer words or terms"
    )
