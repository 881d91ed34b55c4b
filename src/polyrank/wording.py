"""Words of messages to users."""

from collections.abc import Mapping
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


def percent(figure: Mapping[str, float], *, signed: bool = False) -> str:
    """A share, or a difference of shares, in percent with its interval.

    >>> percent({"mean": 0.5, "low": 0.4, "high": 0.6}), percent({"mean": 0.01, "low": 0.0, "high": 0.02}, signed=True)
    ('50.0 (40.0 to 60.0)', '+1.0 (+0.0 to +2.0)')
    """
    if not figure:
        return ""
    sign = "+" if signed else ""
    return "{:{s}.1f} ({:{s}.1f} to {:{s}.1f})".format(*(100 * figure[n] for n in ("mean", "low", "high")), s=sign)
