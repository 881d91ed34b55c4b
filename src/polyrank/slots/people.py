"""Recognize the names of a conversation's participants by their place: after a greeting, in a signature and the like.

The place shows whose name it is: the speaker's ("my name is Zoe", "Regards, Zoe") or the listener's ("Hi Zoe!").
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from polyrank.slots.data import PATTERNS, WORDS, expression

TITLE, _NAME = expression("{TITLE}"), expression("{NAME}")
_GENERIC = frozenset(WORDS["generic"].split())
"""Words at the places of names that are not names."""

_ALIKE = str.maketrans("ıſς", "isσ")

Whose = Literal["speaker", "listener", "either"]
_PLACES: list[tuple[Whose, bool, re.Pattern[str]]] = [
    (place["whose"], place["sure"], re.compile(expression(place["form"]), re.IGNORECASE))
    for place in PATTERNS["people"]
]


class Named(NamedTuple):
    """A name in a text.

    Args:
        start, end: its place.
        name: without titles and generic words such as "team".
        whose: "either" if the place does not show it.
        sure: whether the place holds nothing but names; a word before a comma ("Zoe, it is here") may be another.
    """

    start: int
    end: int
    name: str
    whose: Whose
    sure: bool


def people_in(text: str) -> Iterator[Named]:
    r"""The names at the places of names, in no order; a name may be at several places.

    >>> [(one.name, one.whose) for one in people_in("Hi Zoe, this is Sam from the depot. Kind regards\nSam Lee")]
    [('Sam Lee', 'speaker'), ('Sam', 'speaker'), ('Zoe', 'listener'), ('Zoe', 'listener')]
    >>> [*people_in("Hello there, thank you for waiting. Dear customer, thanks!")]
    []
    """
    for whose, sure, place in _PLACES:
        for match in place.finditer(text):
            group = match.lastindex or 1
            end = match.start(group)
            names = []
            for word in re.finditer(rf"{TITLE}|{_NAME}|\S+", match[group], re.IGNORECASE):
                if not is_title(word[0]):
                    if re.split("['’]", word[0])[0].lower() in _GENERIC or (sure and not word[0][0].isupper()):
                        break
                    names.append(word[0])
                end = match.start(group) + word.end()
            if names:
                yield Named(match.start(group), end, " ".join(names), whose, sure)


def is_title(word: str) -> bool:
    """Whether a word is a form of address, such as "Mrs." or "Herr"."""
    return re.fullmatch(TITLE, word, re.IGNORECASE) is not None


def parts_of(name: str) -> list[str]:
    """The words of a name, to find each of them alone: "Zoe Miller" is also "Zoe" and "Miller".

    >>> parts_of("Frau von Berg"), parts_of("Zoe J Miller")
    (['Berg'], ['Zoe', 'Miller'])
    """
    return [word for word in name.removesuffix("'s").removesuffix("’s").split() if len(word) > 1 and not is_title(word)]


def lowered(word: str) -> str:
    """A word in lower case, of as many letters, with those that a regular expression finds alike as one.

    >>> lowered("IŞIK") == lowered("Işık"), lowered("İbrahim")
    (True, 'ibrahim')
    """
    return "".join(letter.lower()[0] for letter in word).translate(_ALIKE)


def mentions(text: str, people: Mapping[str, str], common: Collection[str] = ()) -> Iterator[re.Match[str]]:
    """The places where a text names these people, with their titles.

    Args:
        text: in any case.
        people: the kind of slot of each word of a name, ``lowered``.
        common: words in lower case that are not only names, such as "may"; they count only with a capital, and at
            the start of a sentence only with an "s" after them.

    >>> people = {"miller": "customer", "zoe": "customer", "may": "agent"}
    >>> [found[0] for found in mentions("Mrs Miller, may I ask zoe miller or May?", people, ["may"])]
    ['Mrs Miller', 'zoe miller', 'May']
    """
    for match in _pattern(frozenset(people)).finditer(text) if people else ():
        word = match[0].lower()
        before = text[max(match.start() - 9, 0) : match.start()].rstrip(" \t")
        starts = not match.start() or before.endswith((".", "!", "?", ":", "\n"))
        possessive = text.startswith(("'s ", "’s "), match.end())
        if lowered(match[1]) in people and (
            word not in common or (match[0][0].isupper() and (possessive or not starts))
        ):
            yield match


@lru_cache(1000)
def _pattern(parts: frozenset[str]) -> re.Pattern[str]:
    one = "|".join(map(re.escape, sorted(parts, key=len, reverse=True)))
    return re.compile(
        rf"(?<!\w)(?:{TITLE} ){{0,3}}({one})(?:[ -](?:{TITLE} ){{0,2}}(?:{one})){{0,5}}(?!\w)", re.IGNORECASE
    )
