"""What a library message calls an argument, as a user of the command line writes it: `turns` -> --last-turns."""

import re
import sys
from functools import cache
from typing import Any

_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")


def as_options(message: str) -> str:
    """A message with arguments that are named in backticks as options of the command that runs; others stay."""
    return _ARGUMENT.sub(_option, message) if "`" in message else message


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    option = _options().get(name)
    if option is None:
        return found[0]
    return option if value in (None, "True") else f"{option} {value}"


@cache
def _options() -> dict[str, str]:
    """The options of the command that runs, by the names of its arguments."""
    import typer

    from polyrank.cli.commands import app

    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    return {
        parameter.name.rstrip("_"): max(parameter.opts, key=len)
        if parameter.param_type_name == "option"
        else parameter.human_readable_name
        for parameter in command.params
    }
