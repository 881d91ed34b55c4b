"""Ctrl-C and SIGTERM in a command: the first signal raises Interrupted, a second one ends the process at once.

A library may swallow the exception or convert it to another error, so the end of a command checks for a signal. This
module imports little: before ``install_handlers``, Python's own handler applies.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal was received, its argument. A subclass, because after a plain KeyboardInterrupt has left code run by
    ``exec``, as in the definition of a dataclass, Python ends the process by SIGINT whatever the exit code is."""


_received: int | None = None  # the first signal
_hint = ""
_handlers: dict[int, Any] = {}  # those before install_handlers


def install_handlers() -> None:
    """Raise Interrupted on a signal, once. Does nothing outside the main thread.

    Signals that the parent process set to be ignored, as a shell does for background jobs, stay ignored.
    """
    global _received, _hint
    _received, _hint = None, ""
    for number in SIGNALS:
        _handlers[number] = signal.getsignal(number)
        if _handlers[number] is not signal.SIG_IGN:
            try:
                signal.signal(number, _handle)
            except ValueError:  # not the main thread
                return


def restore_handlers() -> None:
    """Restore the handlers that ``install_handlers`` replaced."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore further signals: the process is about to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def received_signal() -> int | None:
    """The signal that was received, or None."""
    return _received


def raise_if_interrupted() -> None:
    """Raise Interrupted if a signal was received: called at the end of a command, and in endless loops."""
    if _received is not None:
        raise Interrupted(_received)


def set_resume_hint(text: str) -> None:
    """Set the advice to print when this command is interrupted."""
    global _hint
    _hint = f"; {text}"


def resume_hint() -> str:
    """The advice on how to resume, or an empty string."""
    return _hint


def discard_partial_output() -> None:
    """Discard output that cannot be written: Python would try again on exit, and change the exit code."""
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _handle(number: int, _frame: FrameType | None) -> None:
    global _received
    if _received is not None:
        if os.isatty(2):
            os.write(2, b"\x1b[?25h\n")  # shows the cursor, which a progress bar hides
        os._exit(128 + number)
    _received = number
    raise Interrupted(number)
