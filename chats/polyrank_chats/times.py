"""Parse times: ISO 8601, seconds since 1970, days of a sheet, or the format of a country.

The order of day and month in a date such as 3/4/24 is determined from the whole file: by numbers that can only be a
day, else by the order of the rows.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, get_args

from polyrank_chats.messages import DateOrder
from polyrank_chats.values import is_number, text_of

THREE_NUMBERS = re.compile(r"(?:[^\W\d]+\.?,? )?(\d{1,2})([./-]) ?(\d{1,2})[./-] ?(\d{4}|\d{1,2})(?!\d)(.*)", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
CLOCK = re.compile(r"(?:1(?:899|900)-\S+ )?\d{1,2}[:h]\d\d(?::\d\d(?:\.\d+)?)?(?: ?[ap]\.? ?m\.?)?", re.IGNORECASE)
COMPACT = re.compile(r"(?:19|20)\d{6}(?:\d{6})?")
UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e8, 1.0))  # the least number of a unit, and how many are a second
SHEET_DAYS = (20_000, 80_000)  # days of a sheet, counted from the end of 1899: the years 1954 to 2119
HALVES = {
    **dict.fromkeys(("上午", "午前", "오전", "ص", "π.μ.", "पूर्वाह्न"), "AM"),
    **dict.fromkeys(("下午", "午後", "오후", "م", "μ.μ.", "अपराह्न"), "PM"),
}
HALF = re.compile(f"(?:{'|'.join(map(re.escape, HALVES))})(?![^\\W\\d])")
AM_OR_PM = re.compile(r"\b([ap])\.? ?m\b\.?", re.IGNORECASE)
LANGUAGES = "en de de_AT fr es it pt nl pl cs sk hu ro sv da nb fi tr ru uk bg el hr sl et lv lt id hi"
"""Languages of the names of months; a name with several meanings has that of the first."""
WORD = re.compile(r"[^\W\d_]{3,}")
FILLERS = re.compile(r"^[^\W\d_]+\.?, ?(?=\d)|\b(?:de|del|um|uhr|klo|kl|le|den|alle|às|à|h)\b\.?", re.IGNORECASE)
NO_YEAR = 1904  # the default year for dateutil: a leap year before all chats


def read_time(value: Any, order: DateOrder) -> datetime | None:
    """Parse a time. The result has no zone: it is in UTC if the value has a zone or counts seconds.

    >>> read_time("31.12.23, 21:15", "day").isoformat(), read_time(1704057300000, "day").isoformat()
    ('2023-12-31T21:15:00', '2023-12-31T21:15:00')

    Raises:
        ValueError: the value is not a readable time; the message explains the fix.
    """
    match value:
        case None:
            return None
        case str():
            return read_time(_from_text(value.strip(), order), order)
        case datetime():
            try:
                return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            except OverflowError as error:
                raise ValueError(f"{value.isoformat()} is outside of the years 1 to 9999 in UTC; correct it") from error
        case date():
            return datetime.combine(value, time())
    if is_number(value):
        with suppress(OverflowError):  # an integer that is too large for a float
            return _from_number(float(value))
    raise ValueError(f"{str(value)[:40]!r} is not a time; write times as 2024-01-31T21:15:00")


def _from_number(number: float) -> datetime:
    try:
        if SHEET_DAYS[0] <= number < SHEET_DAYS[1]:
            return datetime(1899, 12, 30) + timedelta(seconds=round(number * 86_400))
        for least, per_second in UNITS:
            if number >= least:
                return datetime.fromtimestamp(number / per_second, UTC).replace(tzinfo=None)
    except (OverflowError, OSError, ValueError):
        pass
    raise ValueError(f"{number:g} is not a time; write seconds since 1970, or 2024-01-31T21:15:00")


@lru_cache(maxsize=2**14)
def _from_text(text: str, order: DateOrder) -> datetime | float | None:
    if not text:
        return None
    if NUMBER.fullmatch(text) and not COMPACT.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _parsed(text, order)


def _parsed(text: str, order: DateOrder) -> datetime:
    from dateutil.parser import parse  # slow to import

    plain = WORD.sub(
        lambda word: english_months().get(word[0].casefold(), word[0]),
        FILLERS.sub("", AM_OR_PM.sub(r"\1m", text)).strip(),
    )
    if half := HALF.search(text):
        plain = f"{HALF.sub(' ', text)} {HALVES[half[0]]}"
    numbers = THREE_NUMBERS.match(plain)  # does not match a year of four digits in front, which a month follows
    if numbers and order == "year":
        plain = f"20{plain[numbers.start(1) :]}"
    try:
        time: datetime = parse(
            plain,
            dayfirst=numbers is not None and order == "day",
            default=datetime(NO_YEAR, 1, 1),
            tzinfos=_zone,
        )
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"{text[:40]!r} is not a readable time; write times as 2024-01-31T21:15:00") from error
    if time.year == NO_YEAR:
        raise ValueError(f"{text[:40]!r} has no date; join the columns of date and time, or name both")
    return time


@cache
def english_months() -> dict[str, str]:
    """The English abbreviations of months by their names, and by the beginnings of these, in small letters.

    >>> [english_months()[name] for name in ("mayo", "août", "maja", "okt")]
    ['May', 'Aug', 'May', 'Oct']
    """
    from babel.dates import get_month_names  # slow to import

    english = get_month_names("abbreviated", "format", "en")
    months = {"mrz": "Mar"}  # Excel's German abbreviation
    for language in LANGUAGES.split():
        for context in ("format", "stand-alone"):
            for month, name in get_month_names("wide", context, language).items():
                for end in range(3, len(name) + 1):
                    months.setdefault(name[:end].casefold(), english[month])
    return months


ZONES = {  # hours from UTC; CST is that of Chicago, IST of India, BST of London
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "HST": -10,
    "BRT": -3, "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "SAST": 2, "WAT": 1,
    "EAT": 3, "IST": 5.5, "PKT": 5, "SGT": 8, "HKT": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "NZST": 12,
    "NZDT": 13,
}  # fmt: skip


def _zone(name: str | None, seconds: int | None) -> tzinfo | None:
    hours = None if name is None else ZONES.get(name)
    offset = seconds if hours is None else hours * 3600
    return None if offset is None else timezone(timedelta(seconds=offset))


def order_of_dates(values: Iterable[Any]) -> tuple[DateOrder, bool]:
    """The number that comes first in the dates of a file, and whether that is a guess.

    >>> order_of_dates(["3/4/24, 9:15", "4/13/24, 8:00"]), order_of_dates(["2024-04-03"])
    (('month', False), ('day', False))
    >>> order_of_dates(["3/4/24, 9:15 PM"]), order_of_dates(["1/2/24 9:00", "2/2/24 9:00", "1/3/24 9:00"])
    (('month', True), ('day', False))
    """
    matches = [match for value in values if (match := THREE_NUMBERS.match(text_of(value).strip()))]
    numbers = [(int(match[1]), int(match[3]), int(match[4])) for match in matches]
    possible = [order for order in get_args(DateOrder) if all(_date(order, *three) for three in numbers)]
    if not numbers or len(possible) == 1:
        return (possible or ["day"])[0], False
    if not possible:
        return "day", True
    rising = [order for order in possible if _rises([_date(order, *three) for three in numbers])]
    if len(rising) == 1:
        return rising[0], False
    usual = [order for order in possible if order != "year"] or possible  # years of two digits come last
    if len(usual) == 1 or matches[0][2] == ".":
        return usual[0], False
    return ("month" if matches[0][2] == "/" and AM_OR_PM.search(matches[0][5]) else "day"), True


def _date(order: DateOrder, a: int, b: int, c: int) -> date | None:
    """The date; None if it does not exist."""
    day, month, year = {"day": (a, b, c), "month": (b, a, c), "year": (c, b, a)}[order]
    try:
        return date(year if year > 99 else 2000 + year, month, day)
    except ValueError:
        return None


def _rises(dates: Sequence[date | None]) -> bool:
    """Whether the dates never decrease, and not all are equal."""
    known = [each for each in dates if each]
    return all(a <= b for a, b in pairwise(known)) and len(set(known)) > 1
