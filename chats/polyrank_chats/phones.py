"""Phone numbers in texts: the valid ones of the countries where the language of the dialogue is spoken."""

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from polyrank_chats.names import NAMES
from polyrank_chats.patterns import pattern
from polyrank_chats.times import COMPACT, NUMERIC

NORTH_AMERICAN, OTHERS = pattern("north_american_phone"), pattern("no_phone")
MONEY = re.compile(r"\s?(?:[€$£¥₹%]|(?:eur|usd|gbp|pln|zł|inr|rs|kg|km|mb|gb)\b)", re.IGNORECASE)
MONEY_BEFORE = re.compile(r"[€$£¥₹][\d\s.,]*$")
WINDOW = 50  # letters next to a number or a name in which words tell what it is


def _table(kind: str) -> dict[str, list[str]]:
    return {name: held.split(",") for name, _, held in (each.partition("=") for each in NAMES[kind])}


COUNTRIES = _table("countries")
LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _words in _table("common").items():
    for _word in _words:
        LANGUAGES_OF.setdefault(_word, []).append(_language)
EVERYWHERE = tuple(dict.fromkeys(country for held in COUNTRIES.values() for country in held))
SCRIPTS = {name: re.compile(f"[{letters}]") for name, (letters, *_) in _table("scripts").items()}


def _said(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-zß-ÿа-я])(?:{'|'.join(map(re.escape, NAMES[kind]))})")


PHONE_WORDS, OTHER_WORDS = _said("phone_words"), _said("order_words")


def language(text: str) -> str:
    """The language of a dialogue, by its script or its frequent words; empty if unknown.

    >>> language("¿Dónde está mi pedido? No lo veo por aquí"), language("我的电话是"), language("ok")
    ('es', 'zh', '')
    """
    for name, letters in SCRIPTS.items():
        if len(letters.findall(text)) > len(text) / 6:
            return name
    n = Counter(name for word in re.findall(r"\w+", text.casefold()) for name in LANGUAGES_OF.get(word, ()))
    (first, most), (_, second) = [*n.most_common(2), ("", 1), ("", 0)][:2]
    return first if most > max(1, second) else ""


def is_phone(number: str, before: str, after: str, spoken: str) -> bool:
    """Whether a number in a text is a phone number.

    Args:
        number: it matches the pattern ``phone``.
        before: the end of the text before it; its last word for a phone or for another number, as an order, decides.
        after: the text after it.
        spoken: the language, whose countries count, or all if a word shows that it is a phone.

    >>> is_phone("06 12 34 56 78", "mon numéro ", "", "fr"), is_phone("612345678", "pedido ", "", "es")
    (True, False)
    """
    digits = re.sub(r"\D", "", number)
    if not 7 <= len(digits) <= 15:
        return False
    said = before.casefold()
    phone, other = (max((m.start() for m in words.finditer(said)), default=-1) for words in (PHONE_WORDS, OTHER_WORDS))
    dashed = re.sub(r"\s", "-", number)
    n_after = 0 if phone > other else 3  # an hour may follow a date
    date = NUMERIC.match(dashed)
    is_date = (date and len(dashed) - date.end() <= n_after) or COMPACT.fullmatch(number)
    is_amount = OTHERS.fullmatch(number) or MONEY.match(after) or MONEY_BEFORE.search(before)
    if is_date or is_amount:
        return False
    if number.startswith("+") or (number.startswith("00") and is_valid(digits, ("FR",))):
        return True
    if other > phone:
        return False
    if NORTH_AMERICAN.fullmatch(number):
        return True
    is_bare = number.isdecimal() and number[0] != "0"
    if is_bare and phone <= other and spoken in ("en", ""):
        return False  # without a mark, ten digits are more often an order's
    is_anywhere = phone > other or number[0] in "(0" or not spoken
    return is_valid(digits, EVERYWHERE if is_anywhere else tuple(COUNTRIES.get(spoken, ())))


@lru_cache(maxsize=2**16)
def is_valid(digits: str, countries: Iterable[str]) -> bool:
    """Whether digits are a phone number of one of the countries, or are dialled in one."""
    import phonenumbers  # slow to import

    for country in countries:
        with suppress(phonenumbers.NumberParseException):
            if phonenumbers.is_valid_number(phonenumbers.parse(digits, country)):
                return True
    return False
