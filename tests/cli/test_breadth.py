"""The command line stays small: a new command or option replaces another one, or raises these bounds on purpose."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from polyrank.cli.commands import app

MAX_COMMANDS = 42
MAX_OPTIONS = 240
MAX_OPTIONS_OF_EVALUATE = 14


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """The name and number of options of each command, also of hidden ones; ``--help`` is not counted."""
    if hasattr(command, "commands"):
        for part, below in command.commands.items():
            yield from leaves(below, f"{name} {part}".strip())
    else:
        yield name, sum(parameter.param_type_name == "option" for parameter in command.params)


def test_the_command_line_is_bounded() -> None:
    n_options = dict(leaves(get_command(app)))
    assert len(n_options) <= MAX_COMMANDS, sorted(n_options)
    assert sum(n_options.values()) <= MAX_OPTIONS, n_options
    assert n_options["evaluate"] <= MAX_OPTIONS_OF_EVALUATE
