"""Compare texts by their words, ignoring case, punctuation and spelling variants. Meaning is not compared."""

import re
import unicodedata
from collections.abc import Callable, Iterable

GREETING = re.compile(r"(hi|hello|hey|dear|good (?:morning|afternoon|evening)) ([\w'’-]+)\s*[,.!:–—]\s*", re.IGNORECASE)


def same_words(text: str) -> str:
    """Normalize a text: remove case, punctuation and invisible differences of spelling.

    >>> same_words("Don't  worry!"), same_words("don’t worry"), same_words("?!")
    ('don t worry', 'don t worry', '?!')
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return " ".join(words) if words else plain.strip()


def template(text: str) -> str:
    """Normalize a text so that near-copies are equal: also replace numbers and drop the name after a greeting.

    >>> template("Hello Ann! Your code is 1234."), template("hello. your code is 99"), template("Hello there")
    ('hello your code is 0', 'hello your code is 0', 'hello there')
    """
    greeting = GREETING.match(text)
    if greeting and greeting[2][0].isupper():
        text = f"{greeting[1]} {text[greeting.end() :]}"
    return re.sub(r"\d+", "0", same_words(text))


def echoes(turns: Iterable[str]) -> Callable[[str], bool]:
    """A function that tests whether a reply repeats one of these turns in the same words.

    >>> said = echoes(["Hi!", "My wifi is down."])
    >>> said("my wifi is down"), said("the wifi is down")
    (True, False)
    """
    known = {same_words(turn) for turn in turns}
    return lambda text: same_words(text) in known
