"""Ctrl-C and SIGTERM during training: finish the step, save, leave. A second one leaves at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from polyrank.errors import PolyrankError


class InterruptedTraining(PolyrankError):  # noqa: N818  # it reports no error
    """Training stopped because it was asked to; the checkpoint is saved.

    Args:
        signal_number: what asked: SIGINT or SIGTERM.
        where: the run folder.
    """

    def __init__(self, signal_number: int, where: str) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; saved in {where}, go on with --resume")


@dataclass(slots=True)
class StopRequest:
    """The signal that asked for a stop, or None; and whether anybody has seen that it did."""

    came: int | None = None
    seen: bool = False

    @property
    def signal_number(self) -> int | None:
        """What came, which counts as seen."""
        self.seen = self.came is not None
        return self.came


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying; do nothing outside the main thread, where Python allows no handlers.

    What comes after the body has last looked goes to whoever heard signals before.
    """
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        if request.came is not None:
            os._exit(128 + number)
        request.came = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if request.came is not None and not request.seen:
        signal.raise_signal(request.came)
