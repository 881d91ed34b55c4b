"""The side that a message is from: words of directions and roles, the column that holds them, and columns of contacts.

In exports of text messages, a column names the other person in every row, and a direction distinguishes who writes.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from polyrank_chats.names import NAMES, words_in
from polyrank_chats.profiles import Profile
from polyrank_chats.roles import AGENT, BOT, CUSTOMER, part_of


@lru_cache(maxsize=2**12)
def direction(value: str) -> str | None:
    """The role of the sender in a column of directions.

    >>> [direction(value) for value in ("MO", "outbound-api", "Eingehend", "recibidos", "open")]
    ['customer', 'agent', 'customer', 'customer', None]
    """
    words = words_in(value)
    if "to" in words[1:-1]:  # Olark's MessageToVisitor
        return {AGENT: CUSTOMER, CUSTOMER: AGENT}.get(_side(words[-1]) or "")
    word = next(iter(re.findall(r"[^\W_]+", value.casefold())), "")
    return CUSTOMER if word in NAMES["received"] else AGENT if word in NAMES["sent"] else None


@lru_cache(maxsize=2**12)
def _side(value: str) -> str | None:
    """The side of a role or a direction, seen as one word; of a user next to customers, it is that of an agent."""
    words = words_in(value)
    part = part_of(value) if len(words) < 4 and "to" not in words else None
    return AGENT if part == BOT else part or direction(value)


def role_columns(free: Sequence[Profile], usual_names: Sequence[str], is_said: Sequence[bool]) -> list[str]:
    """The columns of roles or directions: those whose values in rows with a text are such words of both sides.

    Columns with a usual name for roles come first, and are a role also if only a part of their values are such words.
    """

    by_values = []
    for each in free:
        held = [value for value, said in zip(each.values, is_said, strict=True) if said and value]
        sides = [_side(value) for value in {*held}]
        if None not in sides and len({*sides}) == 2 and 4 * len(sides) <= len(held) + 8:
            by_values.append(each.key)
    return [*sorted(usual_names, key=lambda key: key not in by_values), *(k for k in by_values if k not in usual_names)]


def has_both_sides(column: Profile, side: Profile) -> bool:
    """Whether values of a column are in rows of both sides, as contacts are, except some whom nobody answers.

    >>> from polyrank_chats.profiles import Profile
    >>> has_both_sides(Profile("Name", ["Ann", "Ann", "Bank", "Bank"]), Profile("Direction", ["in", "out", "in", "in"]))
    True
    """
    sides: dict[str, list[str]] = {}
    for value, word in zip(column.values, side.values, strict=True):
        if value and word:
            sides.setdefault(value, []).append(word)
    several = [len({*each}) > 1 for each in sides.values() if len(each) > 1]
    return 4 * sum(several) > len(several)


def contact_column(free: Sequence[Profile], side: Profile) -> list[str]:
    """The column of contacts, which has the most different values of those that are in rows of both sides."""
    possible = [each for each in free if each.filled >= 0.9 and each.key != side.key and has_both_sides(each, side)]
    return [each.key for each in sorted(possible, key=lambda each: -each.n_distinct)[:1]]


def pair_columns(free: Sequence[Profile], senders: Sequence[str], recipients: Sequence[str]) -> list[str]:
    """The columns of senders and recipients, if the same people are in both: a pair of them is a talk."""
    known = {each.key: each for each in free}
    pairs = [(a, b) for a in senders[:1] for b in recipients if a in known and b in known and a != b]
    both = [[a, b] for a, b in pairs if known[b].filled >= 0.9 and {*known[a].values} & {*known[b].values} - {""}]
    return next(iter(both), [])
