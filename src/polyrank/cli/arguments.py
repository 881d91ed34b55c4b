"""Rewrites a library message for the command line: its argument `n_candidates` becomes the option --candidates.

Library messages name an argument in backticks, alone or with a value: `limit`, `pool=responses`.
"""

import re
import sys
from typing import Any

_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")
_options: dict[str, str] = {}


def take_options(command: Any) -> None:
    """Remember the options of the command that was called, for ``as_options``.

    Args:
        command: the root of all commands.
    """
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        name = parameter.name.rstrip("_")
        _options[name] = max(parameter.opts, key=len) if option else parameter.metavar or name.upper()


def as_options(message: str) -> str:
    """The message with arguments as options of the command; arguments that the command does not have stay."""
    return _ARGUMENT.sub(_option, message)


def _option(match: re.Match[str]) -> str:
    name, value = match.groups()
    if name not in _options:
        return match[0]
    return _options[name] if value in (None, "True") else f"{_options[name]} {value}"
