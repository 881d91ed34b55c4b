"""Unicode's normal forms, in time that grows with the text."""

import re
import unicodedata
from typing import Literal

MOST_MARKS = 30
"""Combining marks in a row that are kept, as in Unicode's stream-safe text (UAX #15, section 13)."""

_LONG_RUN = re.compile(rf"[^\w\s]{{{MOST_MARKS + 1},}}")


def normal_form(form: Literal["NFC", "NFKC", "NFD", "NFKD"], text: str) -> str:
    """A normal form of a text. Marks after the thirtieth on one letter, which no writing has, are dropped.

    Sorting a run of marks takes quadratic time in Unicode's algorithm.

    >>> normal_form("NFC", "e\u0301"), len(normal_form("NFC", "a" + "\u0316" * 100_000))
    ('é', 31)
    """
    return text if text.isascii() else unicodedata.normalize(form, _LONG_RUN.sub(_with_few_marks, text))


def _with_few_marks(run: re.Match[str]) -> str:
    kept, n_marks = [], 0
    for character in run[0]:
        n_marks = n_marks + 1 if unicodedata.combining(character) else 0
        if n_marks <= MOST_MARKS:
            kept.append(character)
    return "".join(kept)
