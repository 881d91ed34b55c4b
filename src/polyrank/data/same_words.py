"""When two texts say the same in the same words. Knows nothing of meaning."""

import unicodedata


def same_words(text: str) -> str:
    """A text without case, punctuation and differences of spelling that nobody sees.

    >>> same_words("Don't  worry!"), same_words("don’t worry"), same_words("?!")
    ('don t worry', 'don t worry', '?!')
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return " ".join(words) if words else plain.strip()
