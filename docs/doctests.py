"""An extension of griffe: examples in docstrings become blocks of code on the site."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around each doctest."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for every object that it reads."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
