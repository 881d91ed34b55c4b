"""Functions that other distributions bring, by their entry points in the group ``polyrank.extensions``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from polyrank.errors import DataError, UsageError

GROUP = "polyrank.extensions"
DISTRIBUTIONS = {"chats": "polyrank-chats", "texts": "polyrank-chats", "ray": "polyrank-ray", "cluster": "polyrank-ray"}


def extension(name: str) -> Callable[..., Any]:
    """The function of an entry point.

    Args:
        name: ``chats`` and ``ray``, command lines, called with their arguments and name; ``texts``, which reads a
            column of texts; ``cluster``, a connection to a
            cluster that trains like ``polyrank.train``.

    Raises:
        UsageError: its distribution is not installed.
    """
    for point in entry_points(group=GROUP, name=name):
        function: Callable[..., Any] = point.load()
        return function
    distribution = DISTRIBUTIONS[name]
    raise UsageError(f"{distribution} is not installed; install it with: pip install {distribution}")


@contextmanager
def polyrank_errors() -> Iterator[None]:
    """Raise an extension's errors, which have exit codes of the command line, as polyrank's."""
    try:
        yield
    except Exception as error:
        kinds = {kind.exit_code: kind for kind in (UsageError, DataError)}
        kind = kinds.get(getattr(error, "exit_code", 0))
        if kind is None:
            raise
        raise kind(str(error)) from error
