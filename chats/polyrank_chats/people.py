"""Replace names of the participants of a conversation in its texts by slots: full names and their parts.

A name that is also an ordinary word (Will, Mark, Rose) is replaced where it is capitalised inside a sentence, or where
somebody is addressed.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from unicodedata import normalize

from polyrank_chats.names import NAMES
from polyrank_chats.patterns import pattern
from polyrank_chats.phones import WINDOW
from polyrank_chats.roles import AGENT, CUSTOMER, SYSTEM_WORDS, part_of
from polyrank_chats.values import Row

WORD, NAME_WORD, WORD_END = map(pattern, ("word", "name_word", "word_end"))  # with the vowel signs of letters
UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # without blanks, or with endings
START = re.compile(r"(?:^|[.!?…:;\n\"“”„«(¿¡*-])\s*$")
GREETED, REPEATED = pattern("greeted"), pattern("repeated_name")
NICKNAMES = [dict.fromkeys(group.split("/")) for group in NAMES["nicknames"]]
CALLED = re.compile(r"\s*(?:[,!?.]|$)|\s+here\b")
DATE_BEFORE, DATE_AFTER = re.compile(r"(?:\d\.?|\b(?:in|since|until|next|last))\s*$"), re.compile(r"\s*\d")


@lru_cache(maxsize=2**14)
def name_words(name: str) -> tuple[str, ...]:
    """The words of a person's name or address in small letters; none if it names a role, as "Customer Support".

    >>> name_words("Dr. Ann van der Berg"), name_words("ann.lee82@x.example"), name_words("Help desk")
    (('ann', 'berg'), ('ann', 'lee'), ())
    >>> name_words("@ann:matrix.example"), name_words("whatsapp:+1555"), name_words("8:live:ann.lee")
    (('ann',), (), ('ann', 'lee'))
    """
    own = name[1:].partition(":")[0] if name.startswith("@") else name.rpartition(":")[2].partition("@")[0]
    if part_of(name) or name.strip().casefold() in SYSTEM_WORDS:
        return ()
    skipped = {*NAMES["particles"], *NAMES["titles"], *NAMES["agents"], *NAMES["customers"]}
    return tuple(word for word in NAME_WORD.findall(own.casefold()) if word not in skipped)


def slots_of(people: Mapping[str, str]) -> dict[str, str]:
    """The slots of the words of names and of their short forms, by the names and their speakers.

    >>> slots_of({"Zoe Lee": "customer", "Bea": "agent", "Bot": "bot"}), slots_of({"Cy": "Cy"})
    ({'bea': '{agent}', 'zoe lee': '{customer}', 'zoe': '{customer}', 'lee': '{customer}'}, {'cy': '{name}'})
    >>> slots_of({"Samuel": "agent"})
    {'samuel': '{agent}', 'sam': '{agent}', 'sammy': '{agent}'}
    """
    slots: dict[str, str] = {}
    for name, speaker in sorted(people.items(), key=lambda item: item[1]):
        name = normalize("NFC", name)  # as texts are
        slot, words = f"{{{speaker if speaker in (AGENT, CUSTOMER) else 'name'}}}", name_words(name)
        short = (other for group in NICKNAMES if group.keys() & {*words} for other in group)
        slots |= dict.fromkeys((name.casefold(), *words, *short) if words else (), slot)
    return slots


def ordinary_words(dialogues: Iterable[Row]) -> set[str]:
    """The words of names that are also words: known ones, and those in small letters in others' conversations."""
    own = [(slots_of(row["people"]), row) for row in dialogues]
    wanted = {word for slots, _ in own for word in slots}
    agents = {word for slots, _ in own for word, slot in slots.items() if slot == "{agent}"}
    found = wanted.intersection(NAMES["word_names"])
    for slots, row in own:
        for turn in row["turns"]:
            found |= wanted.intersection(WORD.findall(turn["text"])).difference(slots, agents)
    return found


def without_names(text: str, slots: Mapping[str, str], ordinary: Iterable[str]) -> str:
    """The text with slots in place of names.

    Args:
        text: a text.
        slots: the slot of each word of a name, such as ``{"ann": "{customer}"}``.
        ordinary: words of names that are also words.

    >>> slots = {"will": "{customer}", "lee": "{customer}", "bea": "{agent}"}
    >>> without_names("Hi Will, will you call Will Lee? Will do. bea's here", slots, {"will"})
    "Hi {customer}, will you call {customer}? Will do. {agent}'s here"
    """

    def slot(found: re.Match[str]) -> str:
        word = found[0].casefold()
        if word in slots and word in ordinary:
            before, after = text[max(0, found.start() - WINDOW) : found.start()], text[found.end() :][:WINDOW]
            called = GREETED.search(before) or (found[0][0].isupper() and CALLED.match(after) and START.search(before))
            then = WORD.search(after)
            is_full = then and then.start() < 3 and then[0].casefold() in slots and then[0][0].isupper()
            inside = found[0][0].isupper() and not START.search(before)
            in_date = DATE_BEFORE.search(before) or DATE_AFTER.match(after)
            if not (called or is_full or (inside and not in_date)):
                return found[0]
        return slots.get(word, found[0])

    folded = text.casefold()
    for name, held in slots.items():
        if name in folded and (" " in name or UNSPACED.search(name)):
            before, after = ("", "") if UNSPACED.search(name) else (r"(?<!\w)", WORD_END.pattern)
            text = re.sub(f"{before}{re.escape(name)}{after}", held, text, flags=re.IGNORECASE)
    return REPEATED.sub(r"\1", WORD.sub(slot, text))
