"""When two texts say the same in the same words. Knows nothing of meaning."""

import unicodedata
from collections.abc import Callable, Iterable


def same_words(text: str) -> str:
    """A text without case, punctuation and differences of spelling that nobody sees.

    >>> same_words("Don't  worry!"), same_words("don’t worry"), same_words("?!")
    ('don t worry', 'don t worry', '?!')
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return " ".join(words) if words else plain.strip()


def echoes(turns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a reply says one of these turns again, in the same words.

    >>> said = echoes(["Hi!", "My wifi is down."])
    >>> said("my wifi is down"), said("the wifi is down")
    (True, False)
    """
    known = {same_words(turn) for turn in turns}
    return lambda text: same_words(text) in known
