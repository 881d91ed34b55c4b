"""Replace personal data, which a model should not learn, by slots in braces such as ``{phone}``.

Cards and accounts have valid check digits (python-stdnum), phone numbers are valid (phonenumbers), and so are addresses
of computers (ipaddress).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from unicodedata import normalize

from stdnum import iban, luhn

from polyrank_chats.patterns import pattern
from polyrank_chats.people import without_names
from polyrank_chats.phones import WINDOW, is_phone, language

LINK, WITH_SECRET, MAIL = pattern("link"), pattern("link_with_secret"), pattern("mail_address")
ACCOUNT, CARD, IP, SECRET, PHONE = map(pattern, ("account", "card", "ip", "secret", "phone"))
VERSION = re.compile(r"(?:\bv|version|release|firmware|build|update)[\s:.]*$", re.IGNORECASE)
DIGIT = re.compile(r"\d")
SLOT = re.compile(r"\{(\w+)\}")
WORD = re.compile(r"\S{1,500}")  # normalizing a run of marks takes the square of its length


@dataclass(frozen=True)
class Redactor:
    """Replaces personal data and counts the replacements.

    Args:
        names: names of people, places or companies to replace in every text; case is ignored.
        kept: links to keep, unless they hold a secret.
        ordinary: words of names that are also words.
        counts: of the replacements by slot.

    >>> redactor = Redactor(["Ann Lee"])
    >>> redactor("Ann Lee: call +44 20 7946 0958 or see www.shop.example/a?b, not 2024-05-13")
    '{name}: call {phone} or see {link}, not 2024-05-13'
    >>> dict(redactor.counts)
    {'name': 1, 'phone': 1, 'link': 1}
    """

    names: Sequence[str] = ()
    kept: Collection[str] = ()
    ordinary: Collection[str] = ()
    counts: Counter[str] = field(default_factory=Counter)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        known = sorted({normalize("NFC", name).strip() for name in self.names} - {""}, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, known))})(?!\w)" if known else "(?!)", re.IGNORECASE)

    def __call__(self, text: str, slots: Mapping[str, str] | None = None, spoken: str = "") -> str:
        """The text with slots.

        Args:
            text: a text.
            slots: the slots of the words of the participants' names.
            spoken: the language of the dialogue.
        """
        text = before = WORD.sub(lambda word: normalize("NFC", word[0]), text)
        text = LINK.sub(self._kept_link, text)
        text = MAIL.sub("{email}", text)
        text = SECRET.sub(_without_secret, text)
        text = _without(ACCOUNT, "{iban}", lambda part, *_: iban.is_valid(re.sub(r"\W", "", part)), text)
        text = _without(CARD, "{card}", _is_card, text)
        text = _without(IP, "{ip}", _is_ip, text)
        if PHONE.search(text):
            spoken = spoken or language(text)
            text = _without(PHONE, "{phone}", lambda part, before, after: is_phone(part, before, after, spoken), text)
        text = self._names.sub("{name}", text)
        text = without_names(text, slots or {}, self.ordinary)
        self.counts.update(SLOT.findall(text))
        self.counts.subtract(SLOT.findall(before))
        return text

    def _kept_link(self, link: re.Match[str]) -> str:
        return link[0] if link[0] in self.kept and not WITH_SECRET.search(link[0]) else "{link}"


def _without(pattern: re.Pattern[str], slot: str, is_kind: Callable[[str, str, str], bool], text: str) -> str:
    """The text with a slot in place of the longest part between blanks of each match that is of the kind.

    Args:
        pattern: of candidates.
        slot: the slot.
        is_kind: called with a part, and the ends of the texts before and after it.
        text: a text.
    """

    if not DIGIT.search(text):
        return text

    def replaced(found: re.Match[str]) -> str:
        ends = [found.start(), *(found.start() + at for at, sign in enumerate(found[0]) if sign.isspace()), found.end()]
        for start, end in sorted(((a, b) for a in ends for b in ends if a < b), key=lambda part: part[0] - part[1]):
            first = start + text[start].isspace()
            if is_kind(text[first:end], text[max(0, first - WINDOW) : first], text[end : end + WINDOW]):
                return f"{text[found.start() : first]}{slot}{text[end : found.end()]}"
        return found[0]

    return pattern.sub(replaced, text)


def _is_card(part: str, *_: str) -> bool:
    return 13 <= len(digits := re.sub(r"\D", "", part)) <= 19 and bool(luhn.is_valid(digits))


def _is_ip(part: str, before: str, _after: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(part) and DIGIT.search(part) and not VERSION.search(before))
    return False


def _without_secret(found: re.Match[str]) -> str:
    """The secret of a match is replaced, the words before it stay."""
    kind = found.lastgroup or ""
    said = found[kind]
    more = re.match(r" *\w", found.string[found.end() :]) or not re.search("[:=：]", found[0])
    if kind == "said" and said.isalpha() and said.islower() and said.isascii() and more:
        return found[0]  # "the password is wrong", "password: please change it"
    start = found.start(kind) - found.start()
    return f"{found[0][:start]}{{secret}}{found[0][start + len(said) :]}"
