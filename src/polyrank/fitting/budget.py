"""The minutes of a fit: what is spent, and whether another step fits into the rest."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


def make_clock(on_processor: bool) -> Callable[[], float]:
    """A clock of the seconds since now.

    Args:
        on_processor: the processor computes, not a GPU: then the time that other programs take from this one does not
            count, and two cores at work do not count twice.
    """
    began, used = time.perf_counter(), time.process_time()

    def seconds() -> float:
        passed = time.perf_counter() - began
        return min(passed, time.process_time() - used) if on_processor else passed

    return seconds


@dataclass(slots=True)
class Budget:
    """Minutes since the start, with those that earlier calls spent on steps whose results are used.

    Args:
        minutes: of the whole fit.
        spent: returns those of earlier calls.
        reserved: what the end of the fit takes: the test, the index and the report.
        clock: its seconds so far.

    >>> Budget(30.0, spent=lambda: 12.0, reserved=1.0, clock=lambda: 60.0).left  # 30 - 12 - 1.2 - 1
    15.8
    """

    minutes: float
    spent: Callable[[], float] = lambda: 0.0
    reserved: float = 0.0
    clock: Callable[[], float] = field(default_factory=lambda: make_clock(on_processor=True))

    @property
    def used(self) -> float:
        """The minutes so far."""
        return self.spent() + self.clock() / 60

    def reserve(self, n_lists: int, n_tests: int, tuned_in: float) -> None:
        """Keep minutes for the end: test lists take what the lists took so far, then half a tuning for the threshold.

        >>> (budget := Budget(30.0, clock=lambda: 120.0)).reserve(n_lists=100, n_tests=50, tuned_in=1.0)
        >>> budget.reserved  # half of 2 minutes, and half of one
        1.5
        """
        self.reserved = self.used * n_tests / n_lists + tuned_in / 2

    @property
    def left(self) -> float:
        """The minutes for further steps; below 0 if the end is already late."""
        return self.minutes - self.used - 1.2 * self.reserved  # a margin
