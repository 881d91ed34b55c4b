"""Words of messages to users."""

from collections.abc import Iterable


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "reply")
    ('1 row', '1,200 rows', '2 replies')
    """
    return f"{n:,} {noun if n == 1 else noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"


def listed(keys: Iterable[str]) -> str:
    """The names of columns, at most twenty."""
    names = [repr(key[:40]) for key in keys]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
