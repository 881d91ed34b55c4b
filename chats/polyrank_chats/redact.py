"""Replace personal data, which a model should not learn, by slots in braces such as ``{phone}``.

Cards and accounts have valid check digits (python-stdnum), phone numbers are valid (phonenumbers), and so are addresses
of computers (ipaddress).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address
from unicodedata import normalize

from stdnum import iban, luhn

from polyrank_chats.names import NAMES
from polyrank_chats.people import without_names
from polyrank_chats.phones import BLANKS, NUMBER, is_phone, language

LINK = re.compile(
    r"(?:\b[a-z][a-z+]{1,9}://|\bwww\.|(?<![\w.@/-])(?:[a-z0-9-]+\.)+[a-z]{2,12}(?::\d+)?/)"
    r"[^\s<>\"]*[^\s<>\".,;:!?)\]}']",
    re.IGNORECASE,
)
WITH_SECRET = re.compile(
    r"//[^/\s]*@|[?&#;]\w*(?:token|key|sig|pass|pwd|secret|auth|session|sid|code)\w*=", re.IGNORECASE
)
MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+(?:@| ?[\[(]at[\])] ?)[\w-]+(?:\.[\w-]+)+", re.IGNORECASE)
ACCOUNT = re.compile(rf"\b[A-Z]{{2}}\d{{2}}(?:[{BLANKS}-]?[A-Z0-9]){{11,30}}\b", re.IGNORECASE)
CARD = re.compile(rf"(?<![\w,/+-])(?<!\d\.)[2-6]\d{{3}}(?:[{BLANKS}-]?\d){{9,15}}(?![\w-])")
CARD_DIGITS = range(13, 20)
IP = re.compile(
    r"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)|(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![\w:]))", re.IGNORECASE
)
VERSION = re.compile(r"(?:\bv|version|release|firmware|build|update)[\s:.]*$", re.IGNORECASE)
_SECRETS = rf"(?<![^\W\d_])(?:{'|'.join(word.replace(' ', '[ _-]?') for word in NAMES['secrets'])})(?![a-z])['’\"]?"
_IS = rf"(?:[:=：]+|是|为|\b(?:{'|'.join(NAMES['is'])})\b[: ]*)"
SECRET = re.compile(
    rf"{_SECRETS} *(?:[^\W\d]+ ){{0,2}}?{_IS} *[\"'“«`]?(?P<said>[^\s\"'”»`,;，。]+)"
    rf"|{_SECRETS} *(?P<given>(?=\S*\d)[^\s\"'”»`,;，。]{{3,}})"
    r"|\b(?P<token>(?:bearer |sk-|pk_|sk_|rk_|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|akia|aiza|ya29\.|eyj)"
    r"[\w.~+/-]{12,}=*)"
    r"|(?<![\w/-])(?P<long>(?=[\w-]*\d)(?=[\w-]*[a-z])[0-9a-f]{32,}|(?=[\w-]*\d)(?=[\w-]*(?-i:[A-Z]))"
    r"(?=[\w-]*(?-i:[a-z]))[\w-]{24,})(?![\w-])",
    re.IGNORECASE,
)
DIGIT = re.compile(r"\d")
SLOT = re.compile(r"\{(\w+)\}")


class Redactor:
    """Replaces personal data and counts the replacements.

    Args:
        names: names of people, places or companies to replace in every text; case is ignored.
        kept: links to keep, unless they hold a secret.
        countries: the countries of phone numbers without a country code; empty: those of the language.
        ordinary: words of names that are also words.

    >>> redactor = Redactor(["Ann Lee"])
    >>> redactor("Ann Lee: call +44 20 7946 0958 or see www.shop.example/a?b, not 2024-05-13")
    '{name}: call {phone} or see {link}, not 2024-05-13'
    >>> dict(redactor.counts)
    {'name': 1, 'phone': 1, 'link': 1}
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        kept: Collection[str] = (),
        countries: Collection[str] = (),
        ordinary: Collection[str] = (),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.names, self.kept, self.countries, self.ordinary = tuple(names), kept, tuple(countries), ordinary
        known = sorted({normalize("NFC", name).strip() for name in self.names} - {""}, key=len, reverse=True)
        self._names = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, known))})(?!\w)" if known else "(?!)", re.I)

    def __call__(self, text: str, slots: Mapping[str, str] | None = None, spoken: str = "") -> str:
        """The text with slots.

        Args:
            text: a text.
            slots: the slots of the words of the participants' names.
            spoken: the language of the dialogue.
        """
        text = before = normalize("NFC", text)
        text = LINK.sub(self._kept_link, text)
        text = MAIL.sub("{email}", text)
        text = SECRET.sub(_without_secret, text)
        text = _without(ACCOUNT, "{iban}", lambda part, *_: iban.is_valid(re.sub(r"\W", "", part)), text)
        text = _without(CARD, "{card}", _is_card, text)
        text = _without(IP, "{ip}", _is_ip, text)

        def phone(part: str, before: str, after: str) -> bool:
            return is_phone(part, before, after, self.countries, spoken or language(text))

        text = _without(NUMBER, "{phone}", phone, text)
        text = self._names.sub("{name}", text)
        if slots:
            text = without_names(text, slots, self.ordinary)
        self.counts.update(SLOT.findall(text))
        self.counts.subtract(SLOT.findall(before))
        return text

    def _kept_link(self, link: re.Match[str]) -> str:
        return link[0] if link[0] in self.kept and not WITH_SECRET.search(link[0]) else "{link}"


def links(text: str) -> set[str]:
    """The links in a text.

    >>> sorted(links("See www.shop.example/faq, or https://shop.example."))
    ['https://shop.example', 'www.shop.example/faq']
    """
    return set(LINK.findall(text))


def _without(pattern: re.Pattern[str], slot: str, is_kind: Callable[[str, str, str], bool], text: str) -> str:
    """The text with a slot in place of the longest part between blanks of each match that is of the kind.

    Args:
        pattern: of candidates.
        slot: the slot.
        is_kind: called with a part, the text before it and the text after it.
        text: a text.
    """

    if not DIGIT.search(text):
        return text

    def replaced(found: re.Match[str]) -> str:
        ends = [found.start(), *(found.start() + at for at, sign in enumerate(found[0]) if sign.isspace()), found.end()]
        for start, end in sorted(((a, b) for a in ends for b in ends if a < b), key=lambda part: part[0] - part[1]):
            first = start + text[start].isspace()
            if is_kind(text[first:end], text[:first], text[end:]):
                return f"{text[found.start() : first]}{slot}{text[end : found.end()]}"
        return found[0]

    return pattern.sub(replaced, text)


def _is_card(part: str, *_: str) -> bool:
    digits = re.sub(r"\D", "", part)
    return len(digits) in CARD_DIGITS and bool(luhn.is_valid(digits))


def _is_ip(part: str, before: str, after: str) -> bool:
    try:
        ip_address(part)
    except ValueError:
        return False
    return not VERSION.search(before) and DIGIT.search(part) is not None


def _without_secret(found: re.Match[str]) -> str:
    """The secret of a match is replaced, the words before it stay."""
    kind = found.lastgroup or ""
    said = found[kind]
    more = re.match(r" *\w", found.string[found.end() :]) or not re.search("[:=：]", found[0])
    if kind == "said" and said.isalpha() and said.islower() and said.isascii() and more:
        return found[0]  # "the password is wrong", "password: please change it"
    start = found.start(kind) - found.start()
    return f"{found[0][:start]}{{secret}}{found[0][start + len(said) :]}"
