"""Parse times: ISO 8601, seconds since 1970, days of a sheet, or the format of a country.

The order of day and month in a date such as 3/4/24 is determined from the whole file: by numbers that can only be a
day, else by the order of the rows, since messages follow each other in days, not in months.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import pairwise
from math import log1p
from typing import Any, NamedTuple, get_args
from zoneinfo import ZoneInfo

from polyrank_chats.names import NAMES
from polyrank_chats.options import DateOrder
from polyrank_chats.patterns import pattern, replacements
from polyrank_chats.values import text_of
from polyrank_chats.words_of_dates import days, folded, language_of, months, words_of

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
CLOCK = pattern("time_of_day")
COMPACT = re.compile(r"(?:19|20)\d{6}(?:\d{6})?")
UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e8, 1.0))  # the least number of a unit, and how many are a second
SHEET_DAYS = (20_000, 80_000)  # days of a sheet, counted from the end of 1899: the years 1954 to 2119
PM = {"pm", *map(folded, NAMES["pm"])}
HOURS, DOTTED, NUMERIC = map(pattern, ("hours", "dotted_hours", "numeric_date"))
SPELLED, SPELLED_CJK = replacements("spelled"), replacements("spelled_cjk")
IANA = re.compile(r"\[?\b([A-Z][A-Za-z]+(?:/[A-Za-z_+-]+)+)\b\]?")
THAI = re.compile("[\u0e00-\u0e7f]")
MAX_LENGTH = 100  # of the text of a time
BUDDHIST = 543  # years before those of the common calendar
ZONES = {word: float(hours) for word, _, hours in (zone.partition("=") for zone in NAMES["zones"])}


class DateForm(NamedTuple):
    """How to read the dates of a file.

    Args:
        order: the number that comes first in a date such as 3/4/24.
        language: the language of names of months that have other meanings in other languages.
    """

    order: DateOrder = "day"
    language: str = ""


def read_time(value: Any, form: DateForm = DateForm()) -> datetime | None:  # noqa: B008 - immutable
    """Parse a time. The result has no zone: it is in UTC if the value has a zone or counts seconds.

    >>> [str(read_time(value)) for value in ("31.12.23, 21:15", 1704057300000, "15:04 5 août 2024")]
    ['2023-12-31 21:15:00', '2023-12-31 21:15:00', '2024-08-05 15:04:00']

    Raises:
        ValueError: the value is not a readable time; the message explains the fix.
    """
    match value:
        case None:
            return None
        case str() if len(value) <= MAX_LENGTH:
            return read_time(_from_text(value.strip(), form), form)
        case datetime():
            try:
                return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            except OverflowError as error:
                raise ValueError(f"{value.isoformat()} is outside of the years 1 to 9999 in UTC; correct it") from error
        case date():
            return datetime.combine(value, time())
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that is too large for a float
            return _from_number(float(value))
    raise ValueError(f"{str(value)[:40]!r} is not a time; write times as 2024-01-31T21:15:00")


def _from_number(number: float) -> datetime:
    with suppress(OverflowError, OSError, ValueError):
        if SHEET_DAYS[0] <= number < SHEET_DAYS[1]:
            return datetime(1899, 12, 30) + timedelta(seconds=round(number * 86_400))
        for least, per_second in UNITS:
            if number >= least:
                return datetime.fromtimestamp(number / per_second, UTC).replace(tzinfo=None)
    raise ValueError(f"{number:g} is not a time; write seconds since 1970, or 2024-01-31T21:15:00")


@lru_cache(maxsize=2**14)
def _from_text(text: str, form: DateForm) -> datetime | float | None:
    if not text:
        return None
    if NUMBER.fullmatch(text) and not COMPACT.fullmatch(text):
        return float(text)
    with suppress(ValueError):
        return datetime.fromisoformat(f"{text[:8]}T{text[8:]}" if len(text) == 14 and text.isdecimal() else text)
    try:
        return _parsed(text, form)
    except (ValueError, OverflowError, KeyError, OSError) as error:  # the last two: an unknown zone
        hint = "; join the columns of date and time, or name both" if CLOCK.fullmatch(text) else ""
        what = "has no date" if hint else "is not a readable time; write times as 2024-01-31T21:15:00"
        raise ValueError(f"{text[:40]!r} {what}{hint}") from error


def _spelled(text: str) -> str:
    plain = folded(text)
    for form, to in SPELLED if text.isascii() else SPELLED + SPELLED_CJK:
        plain = form.sub(to, plain)
    return plain


def _cut(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, str]:
    """The first match, and the text without it."""
    found = pattern.search(text)
    return found, text if found is None else f"{text[: found.start()]} {text[found.end() :]}"


def _parsed(text: str, form: DateForm) -> datetime:
    place, rest = _cut(IANA, text)
    rest = _spelled(rest)
    hours, rest = _cut(HOURS, rest)
    words = words_of(rest)
    month = _month(words - ZONES.keys() - {*NAMES["in_dates"]}, form.language)
    three, rest = (None, rest) if month else _cut(NUMERIC, rest)
    if not hours:
        hours, rest = _cut(DOTTED, rest)
    numbers = [*(three.group(1, 3, 4) if three else ()), *re.findall(r"\d+", rest)]
    if len(numbers) != (2 if month else 3) or not (three or words):
        raise ValueError("too many or too few numbers")
    order = form.order
    if month:
        is_first = len(numbers[0]) == 4 or (len(numbers[1]) < 4 and order == "year")
        year, day_of_month = numbers if is_first else numbers[::-1]
        numbers, order = [year, str(month), day_of_month], "year"
    day = _date(order, *numbers, is_thai=THAI.search(text) is not None)
    zone: tzinfo | None = next((timezone(timedelta(hours=ZONES[word])) for word in words if word in ZONES), None)
    found = datetime.combine(day, time())
    if hours:
        found += _of_day(hours.groupdict())
        if hours.groupdict().get("sign"):
            offset = timedelta(hours=int(hours["zh"]), minutes=int(hours["zm"] or 0))
            zone = timezone(-offset if hours["sign"] == "-" else offset)
    if place:
        zone = ZoneInfo(place[1])
    return found.replace(tzinfo=zone)


def _of_day(parts: dict[str, str | None]) -> timedelta:
    half = parts.get("early") or parts.get("late") or (parts.get("alone") or "").replace("h", "")
    hour, minute, second = (int(parts.get(name) or 0) for name in ("h", "m", "s"))
    if half and hour <= 12:
        hour = hour % 12 + 12 * (half in PM)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("not a time of day")
    return timedelta(0, second, int(f"{parts.get('part') or '':0<6.6}"), minutes=minute, hours=hour)


def _month(words: Iterable[str], language: str) -> int | None:
    """The month that is named, if one is; days of the week count only if no other word can be a month: French mar.

    Raises:
        ValueError: a word has no meaning.
    """
    named = {word: months(language).get(word) for word in sorted(words, key=lambda word: (word in days(), word))}
    if unknown := [word for word, number in named.items() if number is None and word not in days()]:
        raise ValueError(f"unknown words {unknown}")
    return next(filter(None, named.values()), None)


def _date(order: DateOrder, a: str, b: str, c: str, *, is_thai: bool = False) -> date:
    if len(a) == 4:
        order = "year"
    day, month, year = {"day": (a, b, c), "month": (b, a, c), "year": (c, b, a)}[order]
    return date(_year(year, is_thai=is_thai), int(month), int(day))


def _year(digits: str, *, is_thai: bool) -> int:
    """The year of a date: those of two digits are from 1970 to 2069, and Thai years are Buddhist."""
    year = int(digits)
    if len(digits) < 3:
        year += 2500 if is_thai else 2000 if year < 70 else 1900
    year -= BUDDHIST * (year > 2400)
    if not 1900 <= year < 2400:
        raise ValueError(f"year {year}")
    return year


def date_form(values: Iterable[Any]) -> tuple[DateForm, bool]:
    """How to read the dates of a file, and whether the order of their numbers is a guess.

    If several orders are possible, that with the smallest steps from date to date counts: sum_i log(1 + |days_i|).

    >>> date_form(["3/4/24, 9:15", "4/13/24, 8:00"])[0].order, date_form(["1/12/24", "1/12/24", "2/12/24"])[0].order
    ('month', 'day')
    >>> date_form(["3/4/24, 9:15 PM"])
    (DateForm(order='month', language=''), True)
    """
    numbers: list[tuple[str, str, str]] = []
    words: set[str] = set()
    sign, in_halves = "", False
    for text in filter(None, (_spelled(text_of(value)[:MAX_LENGTH]) for value in values)):
        if (found := NUMERIC.search(text)) and len(found[1]) < 4:
            numbers.append((found[1], found[3], found[4]))
            sign, in_halves = sign or found[2], in_halves or re.search(r"\d ?[ap]m\b", text) is not None
        else:
            words |= words_of(text)
    language = language_of(words) if any(len(word) > 1 for word in words) else ""
    steps = {}
    for order in get_args(DateOrder):
        with suppress(ValueError):
            steps[order] = [b - a for a, b in pairwise(_date(order, *three) for three in numbers)]
    if not numbers or len(steps) == 1:
        return DateForm(next(iter(steps), "day") if numbers else "day", language), False
    if not steps:
        return DateForm("day", language), True
    sizes = {order: sum(log1p(abs(step.days)) for step in held) for order, held in steps.items()}
    usual = "month" if sign == "/" and in_halves else "day"
    best = min(sizes, key=lambda order: (round(sizes[order], 6), order != usual, order == "year"))
    zero, usable = timedelta(), {best, "day", "month"}  # a year of two digits seldom comes first
    sorted_by = [o for o in steps if o in usable and any(s := steps[o]) and (min(s) >= zero or max(s) <= zero)]
    return DateForm(best, language), sorted_by != [best] and not (sign == "." and best == "day")
