"""Ctrl-C and SIGTERM in a command: handled from its first moment to its last, and never lost.

Python raises KeyboardInterrupt between two steps of the main thread. If this happens in a destructor, or in a callback
from a C library, Python prints the exception and drops it; and a library may convert it to another error. So the
handler records the signal, raises it again if it was lost, and the end of the command checks for it. A second signal
ends the process at once. This module imports little: before ``install_handlers``, Python's own handler applies.
"""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RETRY_SECONDS = 0.001  # until a lost exception is raised again, probably outside the destructor


class Interrupted(KeyboardInterrupt):
    """A signal was received. A subclass, because after a plain KeyboardInterrupt has left code run by ``exec``, as in
    the definition of a dataclass, Python ends the process by SIGINT whatever the exit code is."""


class _State:
    def __init__(self) -> None:
        self.received: int | None = None  # the first signal
        self.undelivered = False  # its exception was lost
        self.exit_code: int | None = None  # set when nothing can change it any more
        self.resume_hint = ""
        self.handlers: dict[int, Any] = {}  # those before install_handlers
        self.hooks = (sys.unraisablehook, sys.excepthook)


_state = _State()


def install_handlers() -> None:
    """Raise Interrupted on a signal, once. Does nothing outside the main thread.

    Signals that the parent process set to be ignored, as a shell does for background jobs, stay ignored.
    """
    global _state
    _state = _State()
    try:
        for number in (*SIGNALS, signal.SIGALRM):
            _state.handlers[number] = signal.getsignal(number)
            if _state.handlers[number] is not signal.SIG_IGN or number not in SIGNALS:
                signal.signal(number, _handle)
    except ValueError:  # not the main thread
        return
    sys.unraisablehook, sys.excepthook = _unraisable, _printed


def restore_handlers() -> None:
    """Restore the handlers and hooks that ``install_handlers`` replaced."""
    if _state.undelivered:  # its alarm would end a process that has no handler
        signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in _state.handlers.items():
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)
    sys.unraisablehook, sys.excepthook = _state.hooks


def received_signal() -> int | None:
    """The signal that was received, or None."""
    return _state.received


def raise_if_interrupted() -> None:
    """Raise Interrupted if a signal was received: called at the end of a command, and in endless loops."""
    if _state.received is not None:
        _state.undelivered = False
        raise Interrupted


def set_resume_hint(text: str) -> None:
    """Set the advice to print when this command is interrupted."""
    _state.resume_hint = f"; {text}"


def resume_hint() -> str:
    """The advice on how to resume, or an empty string."""
    return _state.resume_hint


def set_exit_code(code: int) -> None:
    """Fix the exit code: all work and output is done, and further signals exit with this code."""
    _state.exit_code = code


def ignore_signals() -> None:
    """Ignore further signals: no handler can run while the interpreter shuts down."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def show_cursor() -> None:
    """Show the cursor in a terminal: an interrupted progress bar may have left it hidden."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")


def discard_partial_output() -> None:
    """Discard output that cannot be written: Python would try again on exit, and change the exit code."""
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _handle(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGALRM:
        if not _state.undelivered:
            return
        _state.undelivered = False
    elif _state.received is not None:
        if _state.exit_code is None:
            show_cursor()
        os._exit(128 + number if _state.exit_code is None else _state.exit_code)
    elif _state.exit_code is not None:
        os._exit(_state.exit_code)
    else:
        _state.received = number
    raise Interrupted


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _raise_again()
    else:
        _state.hooks[0](unraisable)


def _printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replaces sys.excepthook: C libraries print exceptions that occur while they are imported."""
    if issubclass(kind, KeyboardInterrupt):
        _raise_again()
    else:
        _state.hooks[1](kind, error, trace)


def _raise_again() -> None:
    """Raise Interrupted a moment later; at this point it would be lost again."""
    if _state.exit_code is None:
        _state.undelivered = True
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
