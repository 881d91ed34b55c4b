"""Compare texts by their words, ignoring case, punctuation and spelling variants. Meaning is not compared."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

from polyrank.unicode import normal_form

GREETING = re.compile(r"(hi|hello|hey|dear|good (?:morning|afternoon|evening)) ([\w'’-]+)\s*[,.!:–—]\s*", re.IGNORECASE)

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # hyphens at ends of lines, and signs without a width


def same_words(text: str) -> str:
    """Normalize a text: remove case, punctuation and invisible differences of spelling.

    >>> same_words("Don't  worry!"), same_words("don’t worry"), same_words("?!")
    ('don t worry', 'don t worry', '?!')
    """
    plain = _INVISIBLE.sub("", normal_form("NFKC", text).casefold())
    words = "".join(c if c.isalnum() or is_sign(c) else " " for c in plain).split()
    return " ".join(words) if words else plain.strip()


def is_sign(c: str) -> bool:
    """Whether a character is a vowel or tone sign, which is part of a word; not a variation selector of an emoji.

    >>> [is_sign(c) for c in "हाँ!"]
    [False, True, True, False]
    """
    return unicodedata.category(c) in ("Mn", "Mc") and not "\ufe00" <= c <= "\ufe0f"


@cache
def word_pattern() -> re.Pattern[str]:
    """The pattern of a word: letters, digits, underscores and signs, which ``\\w`` alone leaves out.

    >>> word_pattern().findall("हाँ, है")
    ['हाँ', 'है']
    """
    signs = "".join(filter(is_sign, map(chr, range(0x300, 0x20000))))
    return re.compile(rf"[\w{signs}]+")


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
