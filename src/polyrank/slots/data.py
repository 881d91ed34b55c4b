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

WORDS, PATTERNS = (
    tomllib.loads((Path(__file__).parent / name).read_text("utf-8")) for name in ("words.toml", "patterns.toml")
)
"""Words of several languages, as parts of regular expressions, and the expressions."""
_parts = {name.upper(): f"(?:{'|'.join(words)})" for name, words in WORDS.items() if isinstance(words, list)}
_parts["KINDS"] = "|".join(KINDS)


def expression(form: str | list[str]) -> str:
    """A regular expression of ``PATTERNS`` with its parts in it."""
    return re.sub(r"\{([A-Z]+)\}", lambda name: _parts[name[1]], "".join(form))


for name, form in PATTERNS["parts"].items():
    _parts[name] = expression(form)
NUMBER = re.compile(r"(?<![\w.,{-])\d(?:[\d.,]{0,20}\d){2}(?![\w}-])")
"""A number of at least three digits, which may identify something."""
_WORD = re.compile(r"\d+|[^\W\d_]+|[^\w\s.,:;/'’{}-]")  # of a date, a time or an amount; also a sign of a currency
_ANY = re.compile("|".join(f"(?P<{kind}>{expression(form)})" for kind, form in PATTERNS["data"].items()), re.IGNORECASE)


class Found(NamedTuple):
    """A value in a text: its place, its kind, and its words."""

    start: int
    end: int
    kind: str
    value: str

    @property
    def key(self) -> str:
        """Equal for values that are the same but for case, spaces and punctuation.

        In dates, times and amounts, numbers stay apart, and words and currencies may come before or after them.

        >>> Found(0, 9, "order", "AR-12 345").key == Found(0, 7, "order", "ar12345").key
        True
        >>> [Found(0, 0, "amount", value).key for value in ("1.25 €", "12.5 €", "€12,5")]
        ['€ 1 25', '€ 12 5', '€ 12 5']
        """
        if self.kind in SEVERAL:
            return " ".join(sorted(_WORD.findall(self.value.casefold()), key=str.isdigit))
        return "".join(filter(str.isalnum, self.value)).casefold()


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
