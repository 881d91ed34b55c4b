"""Recognize data in a text by its form: numbers of orders and phones, mail addresses, dates, times, amounts, links."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

KINDS = (
    "customer", "agent", "order", "phone", "email", "address", "date", "time", "amount", "link", "iban", "card", "ip",
    "secret", "number", "name",
)  # fmt: skip
"""Names of slots. Conversations may already hold them, written by polyrank-chats."""
SEVERAL = frozenset({"date", "time", "amount"})
"""Kinds of which a reply may hold several values: its slots are ``{date}``, ``{date_2}`` and so on."""

WORDS = tomllib.loads((Path(__file__).parent / "words.toml").read_text("utf-8"))
"""Words of several languages, as parts of regular expressions."""


def any_of(name: str) -> str:
    """A regular expression of one of these words."""
    return f"(?:{'|'.join(WORDS[name])})"


NUMBER = re.compile(r"(?<![\w.,{-])\d(?:[\d.,]{0,20}\d){2}(?![\w}-])")
"""A number of at least three digits, which may identify something."""
_MONTH = any_of("months") + r"(?![^\W\d_])(?:\.(?= ?\d))?"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_CURRENCY = any_of("currencies")
_SUM = r"\d{1,3}(?:[.,' \u00a0]\d{3})*(?:[.,]\d\d)?(?!\d)|\d+(?:[.,]\d\d)?(?!\d)"
_CUE = any_of("cues") + (  # that a number of an order or a case follows
    r"[\w-]{0,20}\.?(?: (?:number|no|nr|id|code|de|n[°º]|nummer|num[ée]ro|número|ist|is|es|est)\b\.?){0,3}[ :]{0,3}#?"
)
# repetitions are bounded, so that long texts take a time proportional to their length
_WORD = r"(?-i:[^\W\d_a-zß-ÿ])[^\W\d_]{0,30}(?:['’-][^\W\d_]{1,30}){0,2}"  # with a capital
_STREET = "|".join(
    (
        rf"\d{{1,5}}[a-z]?,? (?:{_WORD} ){{1,3}}(?:street|st|road|rd|avenue|ave|lane|ln|drive|dr|close|way|court|ct"
        r"|place|pl|square|boulevard|blvd|terrace|crescent|gardens|row|hill)\b",
        rf"{_WORD}(?:[ -]{_WORD})?[ -]?(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|ring|damm|ufer) \d{{1,4}}[a-z]?\b",
        rf"\d{{1,4}}(?: bis| ter)?,? (?:rue|avenue|av\.|boulevard|bd|place|chemin|impasse|allée|quai|route|cours)"
        rf"(?: (?:del?|des|du|la|les)\b){{0,3}}[ '’]{_WORD}(?: {_WORD}){{0,2}}",
        rf"(?:calle|c/|avenida|avda\.?|plaza|paseo|camino)(?: (?:del?|la|las|los)\b){{0,3}} ?{_WORD}(?: {_WORD}){{0,2}}"
        r",? (?:n[.º°]+ ?)?\d{1,4}",
    )
)
_TOWN = rf"(?:,? (?:flat|apt|unit) \w+)?(?:,? (?:[A-Z]{{1,2}}-)?\d{{4,5}}\b(?: {_WORD})?|, {_WORD}(?: {_WORD})?){{0,3}}"
_FORMS = {
    "slot": rf"\{{(?:{'|'.join(KINDS)})(?:_\d)?\}}",
    "link": r"\b(?:https?://|ftp://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}']",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "iban": r"\b(?-i:[A-Z]{2})\d\d(?:[ -]?(?-i:[A-Z0-9]){4}){3,7}(?:[ -]?(?-i:[A-Z0-9]){1,3})?\b",
    "card": r"(?<![\w-])\d{4}(?:(?P<gap>[ -])\d{4}(?P=gap)\d{4}(?P=gap)\d{1,7}|[ -]\d{6}[ -]\d{5})(?![\w-])",
    "ip": r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)",
    "address": rf"(?<!\w)(?:{_STREET}){_TOWN}",
    "date": (
        r"(?<![\w./-])(?:(?:19|20)\d\d(?P<mark>[./-])\d\d?(?P=mark)\d\d?|\d\d?(?P<dot>[./-])\d\d?(?P=dot)(?:\d{4}|\d\d)"
        rf"|(?:(?<=\bam )|(?<=\b[bv]is )|(?<=\b[vz][ou]m )|(?<=\bde[mn] )){_DAY}\.(?:1[0-2]|0?[1-9])\."
        rf"|{_DAY}(?:st|nd|rd|th|er|\.|º)? ?(?:of |de )?{_MONTH}(?:,? (?:del? )?\d{{4}})?)"
        rf"(?!\w)|\b{_MONTH} {_DAY}(?:st|nd|rd|th)?(?:,? \d{{4}})?(?!\w)"
    ),
    "time": (
        r"(?<![\w.:/-])(?:\d\d?(?::|h)\d\d(?::\d\d)?(?: ?(?:[ap]m\b|[ap]\.m\.)| ?uhr\b)?"
        r"|\d\d?(?:\.\d\d)? ?(?:(?:[ap]m\b|[ap]\.m\.)|uhr\b|o['’]clock))(?!\w)"
    ),
    "amount": rf"(?<![\w.,])(?:{_CURRENCY} ?(?:{_SUM})|(?:{_SUM}) ?{_CURRENCY})(?!\w)",
    "cued": (
        rf"(?:\b{_CUE}|#)(?P<value>(?![\w-]{{0,40}}\b{_DAY}\.)(?=[\w/-]{{0,40}}\d\d)[A-Z0-9](?:[\w/-]{{0,20}}\w){{2}})"
        r"(?![\w]|[.,:/]\d)"
    ),
    "phone": (
        r"(?<![\w,/+-])(?<!\d[.:])(?:(?:\+|00)[ \u00a0]?[1-9](?:[ \u00a0./-]?(?:\(\d{1,4}\)|\d)){6,13}"
        r"|\(?0\d{1,4}\)?[ \u00a0./-]\d(?:[ \u00a0./-]?\d){4,9}|0\d{8,10}"
        r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}|[5-9]\d\d(?:[ .]\d\d\d){2}|[5-9]\d\d(?:[ .]\d\d){3})"
        r"(?![\w-]|[.,:]\d)"
    ),
    "order": (
        r"(?<![\w.,/-])(?!\d+(?:[-/]\d+)?-?[a-z]+(?![\w-]))(?:"
        r"(?=[\w/-]*[A-Z])(?=(?:[A-Z_/-]*\d){3})[A-Z0-9]+(?:[-_/][A-Z0-9]+)*"  # letters and at least three digits
        r"|\d{5,}(?:[-/]\d+)*|\d{2,}(?:-\d{2,}){2,})(?![\w]|[.,:/-]\d)"
    ),
}
_ANY = re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in _FORMS.items()), re.IGNORECASE)


class Found(NamedTuple):
    """A value in a text: its place, its kind, and its words."""

    start: int
    end: int
    kind: str
    value: str


def data_in(text: str) -> list[Found]:
    """The values in a text, in their order; slots in braces are values too.

    Dates, times and amounts are recognized in English, French, German and Spanish. Identifiers are numbers of at least
    five digits, words of letters and at least three digits, and shorter ones after a word such as "order" or "Nr.".

    >>> text = "Order AR-12345 of 3 May: 20 € to ann@shop.example by 5 pm, {phone}"
    >>> [(one.kind, one.value) for one in data_in(text)]
    [('order', 'AR-12345'), ('date', '3 May'), ('amount', '20 €'), ('email', 'ann@shop.example'), ('time', '5 pm'),
    ('phone', '{phone}')]
    """
    found = []
    for match in _ANY.finditer(text):
        kind = match.lastgroup or ""
        place = match.span("value" if kind == "cued" else kind)
        value = text[slice(*place)]
        found.append(Found(*place, {"cued": "order", "slot": value.strip("{}_0123456789")}.get(kind, kind), value))
    return found


def normalized(value: str) -> str:
    """A value without case, spaces and punctuation, to compare it with others.

    >>> normalized("AR-12 345") == normalized("ar12345")
    True
    """
    return "".join(filter(str.isalnum, value)).casefold()
