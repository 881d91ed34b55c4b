"""Where the command line talks: stderr, through rich."""

from rich.console import Console
from rich.markup import escape

console = Console(stderr=True, highlight=False)


def talk(message: str, escape_after: str | None = None) -> None:
    """A line on stderr, unwrapped. What follows ``escape_after`` is taken literally, as users' file names must be."""
    if escape_after is None:
        console.print(escape(message), soft_wrap=True)
        return
    head, mark, rest = message.partition(escape_after)
    console.print(head + mark + escape(rest) if mark else escape(message), soft_wrap=True)
