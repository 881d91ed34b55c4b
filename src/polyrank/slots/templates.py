"""Put slots into texts, and fill them from a context where exactly one value of their kind is known."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from polyrank.records import Context
from polyrank.slots.data import KINDS, NUMBER, Found, data_in
from polyrank.slots.people import lowered, mentions, parts_of, people_in
from polyrank.unicode import normal_form

SLOT = re.compile(rf"\{{((?:{'|'.join(KINDS)})(?:_\d+)?)\}}")

GAPS_FIELD = "gaps"
"""The metadata field of slots that agents look up: their values are not from customers."""


READ, TURNS = 4_000, 40  # characters of a text, and texts, that are searched for values: the last ones


def slots_in(text: str) -> list[str]:
    """Names of a text's slots, each once.

    >>> slots_in("Hi {customer}, {order} comes between {date} and {date_2}. {Other} braces are text.")
    ['customer', 'order', 'date', 'date_2']
    """
    return list(dict.fromkeys(SLOT.findall(text)))


def template(
    text: str,
    people: Mapping[str, str] = {},
    *,
    common: Collection[str] = (),
    kept: Callable[[Found], bool] = lambda found: False,
) -> str:
    """A text with slots in place of its data, in composed Unicode.

    Args:
        text: of a reply.
        people: "customer" or "agent" for each word of a name in lower case.
        common: see ``mentions``.
        kept: whether a value stays text.

    Returns:
        The template. Slots of a second value of a kind have a number.

    >>> template("Hi Zoe, AR-12345 comes between 9:00 and 11:30.", {"zoe": "customer"})
    'Hi {customer}, {order} comes between {time} and {time_2}.'
    """
    text = normal_form("NFC", text)
    parts, end = [], 0
    for start, stop, slot in _slots_of(text, people, common, kept):
        parts += [text[end:start], slot]
        end = stop
    return "".join([*parts, text[end:]])


def _slots_of(
    text: str,
    people: Mapping[str, str],
    common: Collection[str] = (),
    kept: Callable[[Found], bool] = lambda found: False,
) -> Iterator[tuple[int, int, str]]:
    """The places of a text's values, and the slots for them."""
    found = data_in(text)
    spans = [(one.start, one.end, one.kind, one.key) for one in found if not kept(one)]
    taken = {place for one in found for place in range(one.start, one.end)}
    spans += [
        (*name.span(), kind := people[lowered(name[1])], kind)
        for name in mentions(text, people, common)
        if taken.isdisjoint(range(*name.span()))
    ]
    numbers: dict[str, dict[str, int]] = {}
    for start, stop, kind, key in sorted(spans):
        n = numbers.setdefault(kind, {}).setdefault(key, len(numbers[kind]) + 1)
        yield start, stop, f"{{{kind}_{n}}}" if n > 1 else f"{{{kind}}}"


def masked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text with slots, as a model reads it, and the original characters of each of its characters.

    Only the text itself shows its names, and equal values of several texts have equal slots.

    >>> masked("Hi Zoe, 5 pm")
    ('Hi {customer}, {time}', [(0, 1), (1, 2), (2, 3), (3, 6), ..., (8, 12)])
    """
    made, places, end = "", [], 0
    for start, stop, slot in (*_slots_of(text, _people_of(text)), (len(text), len(text), "")):
        made += text[end:start] + slot
        places += [*((i, i + 1) for i in range(end, start)), *[(start, stop)] * len(slot)]
        end = stop
    return made, places


def _people_of(text: str, context: Context | None = None, *, sure: bool = True) -> dict[str, str]:
    """The kind of slot of each word of a name at the places of names, and of those that a context has."""
    names = [
        (name.name, "agent" if name.whose == "speaker" else "customer") for name in people_in(text) if name.sure >= sure
    ]
    values = {} if context is None else values_of(context)
    names += [(values[kind], kind) for kind in ("agent", "customer") if kind in values]
    return {lowered(part): kind for name, kind in names for part in parts_of(name)}


def sent_template(text: str, shown: Iterable[str], context: Context | None = None) -> str:
    """A text that an agent sent, with slots: the reply that was filled, or the agent's words without data.

    Args:
        text: that was sent.
        shown: the templates that the agent saw. Values in them stay text.
        context: of the reply, for names; None: unknown.

    >>> shown = ["{order} is on its way.", "Call 0800 123 456."]
    >>> sent_template("AR-12345 is on its way.", shown), sent_template("Hi Zoe, call 0800 123 456 on 3 May.", shown)
    ('{order} is on its way.', 'Hi {customer}, call 0800 123 456 on {date}.')
    """
    shown = [*shown]
    for reply in shown:
        if slots_in(reply) and _is_filled(text, SLOT.split(reply)[::2]):
            return reply
    known = {found.key for reply in shown for found in data_in(reply)}
    made = template(text, _people_of(text, context, sure=False), kept=lambda found: found.key in known)
    return NUMBER.sub(lambda number: number[0] if any(number[0] in reply for reply in shown) else "{number}", made)


def _is_filled(text: str, fixed: Sequence[str]) -> bool:
    """Whether a text is these parts with something between them; each part is searched for once."""
    first, *middle, last = fixed
    at = len(first)
    for part in middle:
        at = text.find(part, at + 1) + len(part)
        if at < len(part):
            return False
    return text.startswith(first) and text.endswith(last) and at < len(text) - len(last)


def values_of(context: Context) -> dict[str, str]:
    """The value of each kind of which a context holds exactly one.

    The end of each of the last turns is read. The last turn is the customer's, and turns alternate. The names of both
    are recognized only by their place.

    >>> values_of(Context(["Hi Zoe, which order?", "AR-12345 of 3 May, or of 4 May"]))
    {'order': 'AR-12345', 'customer': 'Zoe'}
    """
    values: dict[str, dict[str, str]] = {}
    background, turns = (
        tuple(normal_form("NFC", text[-READ:]) for text in texts[-TURNS:])
        for texts in (context.background, context.turns)
    )
    for text in (*background, *turns):
        for one in data_in(text):
            if not one.value.startswith("{"):
                values.setdefault(one.kind, {}).setdefault(one.key, one.value)
    for age, text in enumerate(reversed(turns)):
        for name in people_in(text):
            if name.sure and name.whose != "either":
                kind = "customer" if (name.whose == "speaker") == (age % 2 == 0) else "agent"
                values.setdefault(kind, {}).setdefault(name.name.casefold(), name.name)
    for kind in ("customer", "agent"):
        values[kind] = _shortest(values.get(kind, {}).values())
    return {kind: next(iter(found.values())) for kind, found in values.items() if len(found) == 1}


def _shortest(names: Iterable[str]) -> dict[str, str]:
    """Names without those that hold another of them: "Zoe" of "Zoe" and "Zoe Miller"."""
    words = {name: {part.casefold() for part in parts_of(name)} for name in names}
    return {name: name for name, own in words.items() if not any(other < own for other in words.values())}


def fill(text: str, values: Mapping[str, str], gaps: Collection[str] = ()) -> tuple[str, dict[str, str | None]]:
    """Fill a template.

    Args:
        text: the template.
        values: of slots, see ``values_of``.
        gaps: slots that stay gaps, because agents look their values up.

    Returns:
        The text, in which gaps look like ``{date}``, and the value of each slot, or None.

    >>> fill("{order} was sent on {date}.", {"order": "AR-12345", "date": "3 May"}, ["date"])
    ('AR-12345 was sent on {date}.', {'order': 'AR-12345', 'date': None})
    """
    names = slots_in(text)
    slots = {name: None if name in gaps or f"{name}_2" in names else values.get(name) for name in names}
    return SLOT.sub(lambda slot: slots[slot[1]] or slot[0], text), slots
