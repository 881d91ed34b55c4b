"""What a library message calls an argument, as a user of the command line writes it: `n_candidates` -> --candidates.

Messages of the library name an argument in backticks, alone or with a value: `limit`, `pool=responses`.
"""

import re
import sys
from typing import Any

_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")
_options: dict[str, str] = {}


def take_options(command: Any) -> None:
    """From now on name arguments as the command does that was called.

    Args:
        command: all commands, as one of typer's groups.
    """
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        name = parameter.name.rstrip("_")
        _options[name] = max(parameter.opts, key=len) if option else parameter.metavar or name.upper()


def as_options(message: str) -> str:
    """A message with its arguments as options of the command that was called; those that it does not have stay."""
    return _ARGUMENT.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    if name not in _options:
        return found[0]
    return _options[name] if value in (None, "True") else f"{_options[name]} {value}"
