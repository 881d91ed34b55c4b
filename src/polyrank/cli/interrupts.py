"""Ctrl-C and SIGTERM in a command: heard from its first moment to its last, and never lost.

Python raises KeyboardInterrupt between two steps of whatever the main thread is doing. In a destructor, or in a call
from a library in C, the exception goes no further: it is printed and forgotten; and a library may make another error of
it. So a signal is noted when it comes, raised again where it was lost, and looked for when the command ends. A second
one leaves at once. Little is imported here: until ``hear`` is called, a signal ends in Python's own words.
"""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)
AGAIN_SECONDS = 0.001  # until what was lost is raised again; by then the destructor is done, likely


class Interrupted(KeyboardInterrupt):
    """A signal asks for the end. Of its own kind, because Python kills itself, whatever the exit code, if a plain
    KeyboardInterrupt has once come out of a text that was executed, as dataclasses are made of."""


class _State:
    def __init__(self) -> None:
        self.noted: int | None = None  # the signal that came first
        self.lost = False  # what was raised for it has not come through
        self.leaving: int | None = None  # the exit code, once nothing changes it any more
        self.way_on = ""
        self.handlers: dict[int, Any] = {}  # what was there before
        self.hooks = (sys.unraisablehook, sys.excepthook)


_state = _State()


def hear() -> None:
    """From now on a signal raises Interrupted, once. Only a main thread can hear.

    What this process was started to ignore, as by a shell in the background, stays ignored.
    """
    global _state
    _state = _State()
    try:
        for number in (*ASKING, signal.SIGALRM):
            _state.handlers[number] = signal.getsignal(number)
            if _state.handlers[number] is not signal.SIG_IGN or number not in ASKING:
                signal.signal(number, _hear)
    except ValueError:  # another thread
        return
    sys.unraisablehook, sys.excepthook = _unraisable, _printed


def forget() -> None:
    """Put back what ``hear`` has replaced."""
    for number, handler in _state.handlers.items():
        if signal.getsignal(number) is _hear:
            signal.signal(number, handler)
    sys.unraisablehook, sys.excepthook = _state.hooks


def noted() -> int | None:
    """The signal that came, or None."""
    return _state.noted


def check() -> None:
    """Raise what was noted: where a command ends, and in loops that have no end."""
    if _state.noted is not None:
        _state.lost = False
        raise Interrupted


def say_way_on(text: str) -> None:
    """What is to be said to who interrupts this command."""
    _state.way_on = f"; {text}"


def way_on() -> str:
    """What was to be said, or nothing."""
    return _state.way_on


def leave_with(code: int) -> None:
    """All is done and said: who sends a signal now waits for the end of the process, and has it."""
    _state.leaving = code


def ignore() -> None:
    """Hear no more: while Python takes itself apart no handler runs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)


def show_cursor() -> None:
    """In a terminal: a bar that was stopped in the midst of its work may have left it hidden."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")


def drop_unwritten() -> None:
    """Drop what cannot be written: Python would try again as it leaves, and change the exit code."""
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _hear(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGALRM:
        if not _state.lost:
            return
        _state.lost = False
    elif _state.noted is not None:
        if _state.leaving is None:
            show_cursor()
        os._exit(128 + number if _state.leaving is None else _state.leaving)
    elif _state.leaving is not None:
        os._exit(_state.leaving)
    else:
        _state.noted = number
    raise Interrupted


def _unraisable(found: "sys.UnraisableHookArgs") -> None:
    if issubclass(found.exc_type, KeyboardInterrupt):
        _raise_again()
    else:
        _state.hooks[0](found)


def _printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Libraries in C print what goes wrong when they are imported."""
    if issubclass(kind, KeyboardInterrupt):
        _raise_again()
    else:
        _state.hooks[1](kind, error, trace)


def _raise_again() -> None:
    """Soon: here it would be lost once more."""
    if _state.leaving is None:
        _state.lost = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
