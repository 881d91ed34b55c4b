"""The command line: one thin command per verb over a library function. Data goes to stdout, messages go to stderr.

This module imports little, so that signals are handled almost from the start; ``commands`` imports the rest.
"""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from polyrank.cli import interrupts

if TYPE_CHECKING:
    from polyrank.cli.commands import app

__all__ = ["app", "main", "program"]


def program() -> NoReturn:
    """The ``polyrank`` program: like ``main``, but signals that come after the work are ignored."""
    code = _exit_code()
    interrupts.ignore_signals()
    raise SystemExit(code)


def main() -> NoReturn:
    """Run the command line; every error is one line on stderr and an exit code of ``polyrank.errors``."""
    code = _exit_code()
    interrupts.restore_handlers()
    raise SystemExit(code)


def _exit_code() -> int:
    """Run the command line and return its exit code. A signal raises only once, so the last clause runs to its end."""
    try:
        interrupts.install_handlers()
        from polyrank.cli.commands import run

        code = run()
        interrupts.raise_if_interrupted()
    except BaseException as error:
        if interrupts.received_signal() is None and not isinstance(error, KeyboardInterrupt):
            raise
        code = 128 + (interrupts.received_signal() or interrupts.SIGNALS[0])
        with suppress(OSError):
            os.write(2, f"interrupted{interrupts.resume_hint()}\n".encode())
        interrupts.discard_partial_output()
    return code


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'polyrank.cli' has no attribute {name!r}")
    from polyrank.cli.commands import app

    return app
