"""When two texts say the same in the same words. Knows nothing of meaning."""

import re
import unicodedata
from collections.abc import Callable, Iterable

GREETING = re.compile(r"(hi|hello|hey|dear|good (?:morning|afternoon|evening)) ([\w'’-]+)\s*[,.!:–—]\s*", re.IGNORECASE)


def same_words(text: str) -> str:
    """A text without case, punctuation and differences of spelling that nobody sees.

    >>> same_words("Don't  worry!"), same_words("don’t worry"), same_words("?!")
    ('don t worry', 'don t worry', '?!')
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return " ".join(words) if words else plain.strip()


def template(text: str) -> str:
    """What near-copies have in common: the words without numbers, and without the name behind a greeting.

    >>> template("Hello Ann! Your code is 1234."), template("hello. your code is 99"), template("Hello there")
    ('hello your code is 0', 'hello your code is 0', 'hello there')
    """
    greeting = GREETING.match(text)
    if greeting and greeting[2][0].isupper():
        text = f"{greeting[1]} {text[greeting.end() :]}"
    return re.sub(r"\d+", "0", same_words(text))


def echoes(turns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a reply says one of these turns again, in the same words.

    >>> said = echoes(["Hi!", "My wifi is down."])
    >>> said("my wifi is down"), said("the wifi is down")
    (True, False)
    """
    known = {same_words(turn) for turn in turns}
    return lambda text: same_words(text) in known
