"""Where the command line talks: stderr, through rich. rich is loaded when there is something to say."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> "Console":
    """The console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def talk(message: str) -> None:
    """A line on stderr, unwrapped and taken literally, as users' file names must be."""
    console().print(message, soft_wrap=True, markup=False)
