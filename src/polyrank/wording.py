"""Words of messages to users."""

from reprlib import Repr

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxdict = 3


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "reply")
    ('1 row', '1,200 rows', '2 replies')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def brief(value: object) -> str:
    """A value in a line, whatever it holds.

    >>> brief(["a", "b", "c", "d"]), brief("x" * 100)[:5]
    ("['a', 'b', 'c', ...]", "'xxxx")
    """
    return _SHORT.repr(value)
