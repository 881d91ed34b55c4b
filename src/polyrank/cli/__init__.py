"""The command line: one thin command per verb over a library function. Data to stdout, talk to stderr.

What is imported here is small, so that signals are heard almost from the start; ``commands`` has the rest.
"""

import atexit
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from polyrank.cli import interrupts

if TYPE_CHECKING:
    from polyrank.cli.commands import app

__all__ = ["app", "main", "program"]


def program() -> NoReturn:
    """The ``polyrank`` program: as ``main``, and a signal is heard until the process has ended."""
    atexit.register(interrupts.ignore)  # registered first, called last
    raise SystemExit(_outcome())


def main() -> NoReturn:
    """Run the command line; every error is one line on stderr and an exit code of ``polyrank.errors``."""
    code = _outcome()
    interrupts.forget()
    raise SystemExit(code)


def _outcome() -> int:
    """The exit code. A signal raises only once, so that nothing comes between the lines of the last clause."""
    try:
        interrupts.hear()
        from polyrank.cli.commands import run

        code = run()
        interrupts.check()
        interrupts.leave_with(code)
    except BaseException as error:
        if interrupts.noted() is None and not isinstance(error, KeyboardInterrupt):
            raise
        code = 128 + (interrupts.noted() or interrupts.ASKING[0])
        interrupts.leave_with(code)
        interrupts.show_cursor()
        with suppress(OSError):
            os.write(2, f"interrupted{interrupts.way_on()}\n".encode())
        interrupts.drop_unwritten()
    return code


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'polyrank.cli' has no attribute {name!r}")
    from polyrank.cli.commands import app

    return app
