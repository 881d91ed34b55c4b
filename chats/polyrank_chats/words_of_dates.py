"""The words in dates: names of months and days of CLDR, the Unicode tables of languages, by babel.

Babel's tables instead of dateparser: of the dates with words that babel writes in 37 languages, dateparser 1.5 reads
two thirds, and takes 16 ms for one; with these tables ``times`` reads all but one in a thousand, in 0.05 ms.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

from polyrank_chats.names import NAMES

WORD = re.compile(r"[^\s\d,،;:/()\[\]<>–-]+")
OTHERS = {"mrz": 3}  # abbreviations of programs that CLDR does not have


def folded(text: str) -> str:
    """The text in small letters and without accents, with digits, blanks and letters of full width in ASCII.

    >>> folded("２４ Févr．"), folded("OCAK Kasım"), folded("٣")
    ('24 fevr.', 'ocak kasim', '3')
    """
    if text.isascii():
        return text.casefold()
    plain = unicodedata.normalize("NFKD", text).casefold().replace("ı", "i")
    kept = (sign for sign in plain if not ("\u0300" <= sign <= "\u036f" or unicodedata.category(sign) == "Cf"))
    signs = (str(unicodedata.decimal(sign)) if sign.isdecimal() else " " if sign.isspace() else sign for sign in kept)
    return unicodedata.normalize("NFC", "".join(signs))


def words_of(text: str) -> set[str]:
    """The words in a folded text, without Hebrew's and Thai's words for "on" that are written together with them.

    >>> sorted(words_of("den 5. jan. 2024")), words_of("5 בינואר")
    (['den', 'jan'], {'ינואר'})
    """
    words = (word.strip(".'’").removeprefix("ב").removesuffix("ที่") for word in WORD.findall(text))
    return {word for word in words if word}


@cache
def months(language: str = "") -> dict[str, int]:
    """The numbers of months by their names, and by beginnings of three letters or more with one meaning.

    Args:
        language: the language whose meaning counts if a name has several.

    >>> [months()[name] for name in ("mayo", "aout", "maja", "okt")], months()["listopad"], months("hr")["listopad"]
    ([5, 8, 5, 10], 11, 10)
    """
    names = dict(OTHERS)
    for each in sorted(NAMES["languages"], key=lambda each: each != language):
        for name, number in _names(each, "months"):
            names.setdefault(name, number)
    beginnings: dict[str, set[int]] = {}
    for name, number in names.items():
        for end in range(3, len(name)):
            beginnings.setdefault(name[:end], set()).add(number)
    return {name: number for name, (number, *others) in beginnings.items() if not others and name not in days()} | names


@cache
def days() -> frozenset[str]:
    """The words of the names of the days of the week."""
    return frozenset(
        word for language in NAMES["languages"] for name, _ in _names(language, "days") for word in words_of(name)
    )


@cache
def _names(language: str, what: str) -> list[tuple[str, int]]:
    from babel import Locale  # slow to import

    held = getattr(Locale.parse(language), what)
    names = {
        (folded(name).strip(". ").removeprefix("de "), number)
        for context in ("format", "stand-alone")
        for width in ("wide", "abbreviated")
        for number, name in held[context][width].items()
    }
    return [(name, number) for name, number in sorted(names) if not any(map(str.isdigit, name))]


def language_of(words: Iterable[str]) -> str:
    """The language of names of months if one of them has two meanings: Croatian listopad is not Polish listopad.

    >>> language_of(["srpnja", "lip"]), language_of(["lip", "maj"]), language_of(["May"])
    ('hr', 'pl', '')
    """
    meanings: dict[str, dict[int, list[str]]] = {}
    for language in NAMES["languages"]:
        for name, number in _names(language, "months"):
            meanings.setdefault(name, {}).setdefault(number, []).append(language)
    known = [meanings[word] for word in set(words) if word in meanings]
    if all(len(numbers) < 2 for numbers in known):
        return ""
    votes = Counter(language for numbers in known for languages in numbers.values() for language in languages)
    return max(NAMES["languages"], key=votes.__getitem__)
