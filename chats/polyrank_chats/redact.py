"""Replace personal data, which a model should not learn, by placeholders: addresses, numbers and given names.

Card and account numbers are recognized by their check digits. Phone numbers must begin with +, 00 or 0, or be grouped
as in North America.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from unicodedata import normalize

from stdnum import iban, luhn

LINK = re.compile(r"\b(?:https?://|ftp://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}']", re.IGNORECASE)
MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.IGNORECASE)
BLANKS = r" \u00a0\u202f"  # between groups of digits: also no-break spaces
ACCOUNT = re.compile(rf"\b[A-Z]{{2}}\d{{2}}(?:[{BLANKS}-]?[A-Z0-9]){{11,30}}\b", re.IGNORECASE)
CARD = re.compile(rf"(?<![\w,/+-])(?<!\d\.)[2-6]\d{{3}}(?:[{BLANKS}-]?\d){{9,15}}(?![\w-])")
PHONE = re.compile(
    r"(?<![\w,/+-])(?<!\d[.:])(?:"
    rf"(?:\+|00)[{BLANKS}]?[1-9](?:[{BLANKS}./-]?(?:\(\d{{1,4}}\)|\d)){{6,14}}"  # with a country code
    rf"|\(?0[1-9]\d{{0,4}}\)?[{BLANKS}/-]?\d(?:[{BLANKS}/-]?\d){{4,9}}"  # with an area code
    rf"|(?:1[{BLANKS}.-])?(?:\(\d{{3}}\)[{BLANKS}]?|\d{{3}}[{BLANKS}.-])\d{{3}}[{BLANKS}.-]\d{{4}}"  # North America
    r")(?![\w-]|[.,:]\d)"
)
CARD_DIGITS = range(13, 20)
DATE = re.compile(r"\d{1,2}([ ./-])\d{1,2}\1(?:\d{4}|\d\d)(?!\d)")


class Redactor:
    """Replaces personal data and counts the replacements.

    Args:
        names: names of people, places or companies to replace; case is ignored.
        kept: links to keep.

    >>> redactor = Redactor(["Ann Lee"])
    >>> redactor("Ann Lee: call +44 20 7946 0958 or see www.shop.example/a?b, not 2024-05-13")
    '[name]: call [phone] or see [link], not 2024-05-13'
    >>> dict(redactor.counts)
    {'link': 1, 'phone': 1, 'name': 1}
    """

    def __init__(self, names: Iterable[str] = (), kept: Collection[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.names, self.kept = tuple(names), kept
        forms = {normalize(form, name).strip() for form in ("NFC", "NFD") for name in self.names if name.strip()}
        known = sorted(forms, key=len, reverse=True)
        steps: list[tuple[str, re.Pattern[str], Callable[[str], int]]] = [
            ("link", LINK, lambda text: len(text) * (text not in self.kept)),
            ("address", MAIL, len),
            ("account", ACCOUNT, _n_of_account),
            ("card", CARD, _n_of_card),
            ("phone", PHONE, lambda text: len(text) * (7 <= len(_digits(text)) <= 15 and not DATE.match(text))),
        ]
        if known:
            pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, known))})(?!\w)"
            steps.append(("name", re.compile(pattern, re.IGNORECASE), len))
        self._steps = [(pattern, partial(self._placeholder, what, n)) for what, pattern, n in steps]

    def __call__(self, text: str) -> str:
        """The text with placeholders such as ``[phone]``."""
        for pattern, placeholder in self._steps:
            text = pattern.sub(placeholder, text)
        return text

    def _placeholder(self, what: str, n_personal: Callable[[str], int], found: re.Match[str]) -> str:
        """The replacement of a match: a placeholder for its first ``n_personal`` letters, and the rest."""
        n = n_personal(found[0])
        self.counts[what] += n > 0
        return f"[{what}]{found[0][n:]}" if n else found[0]


def links(text: str) -> set[str]:
    """The links in a text.

    >>> sorted(links("See www.shop.example/faq, or https://shop.example."))
    ['https://shop.example', 'www.shop.example/faq']
    """
    return set(LINK.findall(text))


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _n_of_account(text: str) -> int:
    """Length of the account number at the start of ``text``; words may follow it."""
    return next((end for end in _ends(text) if iban.is_valid(re.sub(rf"[{BLANKS}-]", "", text[:end]))), 0)


def _n_of_card(text: str) -> int:
    """Length of the card number at the start of ``text``; other numbers, such as a date, may follow it."""
    numbers = ((end, _digits(text[:end])) for end in _ends(text))
    return next((end for end, digits in numbers if len(digits) in CARD_DIGITS and luhn.is_valid(digits)), 0)


def _ends(text: str) -> Sequence[int]:
    """Where a number at the start of ``text`` may end, the last first."""
    return [end for end in range(len(text), 0, -1) if end == len(text) or re.match(rf"[{BLANKS}-]", text[end])]
