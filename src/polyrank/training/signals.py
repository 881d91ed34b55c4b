"""Ctrl-C and SIGTERM during training: finish the step, save a checkpoint, exit. A second signal exits at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from polyrank.errors import PolyrankError


class InterruptedTraining(PolyrankError):  # noqa: N818  # it is not an error
    """A signal stopped the training; the checkpoint is saved.

    Args:
        signal_number: SIGINT or SIGTERM.
        where: the run folder.
    """

    def __init__(self, signal_number: int, where: str) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; saved in {where}; continue with `resume=True`"
        )


@dataclass(slots=True)
class StopRequest:
    """The signal that was received, or None; and whether ``signal_number`` has returned it."""

    received: int | None = None
    handled: bool = False

    @property
    def signal_number(self) -> int | None:
        """The signal, which counts as handled from now on."""
        self.handled = self.received is not None
        return self.received


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM instead of dying. Only in the main thread, because Python allows handlers only there.

    A signal that the body has not handled is raised again at the end, for the handlers from before.
    """
    request = StopRequest()

    def record(number: int, _frame: FrameType | None) -> None:
        if request.received is not None:
            os._exit(128 + number)
        request.received = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, record)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if request.received is not None and not request.handled:
        signal.raise_signal(request.received)
