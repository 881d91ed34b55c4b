"""Words of messages to users."""


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "reply")
    ('1 row', '1,200 rows', '2 replies')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"
