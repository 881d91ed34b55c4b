"""Describe the values of a column: times, times of day, numbers, ids, names or texts. Column names do not count."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from typing import Any, Literal

from polyrank_chats.texts import plain
from polyrank_chats.times import CLOCK, COMPACT, NUMBER, DateForm, read_time

SURE = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)|\d:\d\d")
YEARS = range(1990, 2101)


def kind_of_time(value: Any) -> Literal["time", "maybe", "clock", ""]:
    """Whether a value is a time, possibly a time (a number, or a date with a two-digit year), or a time of day.

    >>> [kind_of_time(value) for value in ("2024-05-01T10:00:00Z", "1714557600", "10:15 PM", "see 10:15", "1.2.3")]
    ['time', 'maybe', 'clock', '', 'maybe']
    """
    if isinstance(value, time | date):
        return "clock" if isinstance(value, time) else "time"
    text = str(value).strip()
    if isinstance(value, bool | list | dict) or len(text) > 48 or sum(map(str.isdigit, text)) < 3:
        return ""
    if CLOCK.fullmatch(text):
        return "clock"
    number = NUMBER.fullmatch(text) is not None
    found = None
    for form in (DateForm("month"), DateForm()):
        with suppress(ValueError):
            found = read_time(value, form)
    if found is None or found.year not in YEARS:
        return ""
    return "time" if not number and not COMPACT.fullmatch(text) and SURE.search(text) else "maybe"


class Profile:
    """Statistics of the values of a column. Shares are of the non-empty values.

    Attributes:
        key: name of the column.
        values: the values as texts, one for each row; an empty text if the row has none.
        filled: share of rows with a value.
        times: share of times.
        maybe_times: share of times and of possible times.
        clocks: share of times of day.
        has_clock: whether a time includes the time of day.
        numbers: share of numbers.
        n_distinct: number of different values.
        words: average number of words.

    >>> Profile("Sent on", ["3 May 2024 10:15", None]).times, Profile("n", [1, 2, 2]).n_distinct
    (1.0, 2)
    """

    def __init__(self, key: str, values: Iterable[Any]) -> None:
        held = list(values)
        filled = [value for value in held if value not in (None, "", [])]
        kinds, n = [kind_of_time(value) for value in filled], max(1, len(filled))
        self.key = key
        self.values = tuple(str(value) if isinstance(value, bool | date) else plain(value) for value in held)
        self.filled = len(filled) / max(1, len(held))
        self.times = kinds.count("time") / n
        self.maybe_times = self.times + kinds.count("maybe") / n
        self.clocks = kinds.count("clock") / n
        self.has_clock = any(map(_has_clock, filled))
        self.numbers = sum(NUMBER.fullmatch(str(value).strip()) is not None for value in filled) / n
        self.n_distinct = len({str(value) for value in filled})
        self.words = sum(len(text.split()) for text in self.values) / n

    @property
    def distinct(self) -> float:
        """Share of different values among the non-empty ones."""
        return self.n_distinct / max(1, sum(map(bool, self.values)))

    @property
    def is_text(self) -> bool:
        """Whether the values may be texts: not times, not numbers, and not a few repeated words."""
        repeated = len(self.values) >= 20 and self.distinct < 0.2 and self.words < 2
        return self.n_distinct > 0 and self.times < 0.8 and self.numbers < 0.9 and not repeated

    @property
    def is_name(self) -> bool:
        """Whether the values may be names of people: short, and not times."""
        return self.n_distinct > 0 and self.times < 0.8 and self.clocks < 0.8 and self.words <= 6

    def changes(self, groups: Sequence[str]) -> float:
        """Share of rows whose value differs from that of the previous row of the same group."""
        last: dict[str, str] = {}
        n = n_changed = 0
        for group, value in zip(groups, self.values, strict=True):
            if value:
                n += group in last
                n_changed += last.get(group, value) != value
                last[group] = value
        return n_changed / max(1, n)


def _has_clock(value: Any) -> bool:
    if isinstance(value, datetime):
        return value.time() != time()
    found = re.search(r"\d[:.h]\d\d(?::\d\d)?(?!\d|[.]\d{2,4})|\d ?[ap]\.?m", str(value), re.IGNORECASE)
    return bool(NUMBER.fullmatch(str(value).strip())) or (
        found is not None and not re.search("[ T]0?0:00(:00)?$", str(value))
    )
