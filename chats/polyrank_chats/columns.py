"""Detect the columns of a table of messages, from the user's options, from usual names, and from the values.

For JSON, a column is the path to a field, with dots: ``author.name``.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.names import NAMES, words_in
from polyrank_chats.options import Options
from polyrank_chats.profiles import Profile
from polyrank_chats.sides import contact_column, has_both_sides, pair_columns, role_columns
from polyrank_chats.values import Row
from polyrank_chats.wording import listed

OTHERS = re.compile("|".join(word if len(word) > 3 else f"{word}$" for word in NAMES["others"]))
MIN_ROWS = 4  # that are necessary to detect a column by its values
ANSWERED = 0.25  # the share of rows with the id of an answered message from which such ids define the conversations


@lru_cache(maxsize=2**14)
def normal(name: str) -> str:
    """Normalize a column name: remove case, accents and punctuation.

    >>> normal("Conversation_ID"), normal("Expéditeur"), normal("author.name")
    ('conversationid', 'expediteur', 'authorname')
    """
    plain = unicodedata.normalize("NFKD", name[:100].casefold())  # a longer name is not a usual one
    return re.sub(r"[\W_]", "", "".join(letter for letter in plain if not unicodedata.combining(letter)))


def flat(row: Row, prefix: str = "") -> Row:
    """Flatten nested objects.

    >>> flat({"author": {"name": "Ann", "tags": [1]}, "body": "hi"})
    {'author.name': 'Ann', 'author.tags': [1], 'body': 'hi'}
    """
    leaves: Row = {}
    for key, value in row.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def keys_of(rows: Iterable[Row]) -> list[str]:
    """The columns of rows, in order of appearance.

    Raises:
        DataError: they are too many to be those of messages.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if len(keys) > 10_000:
        raise DataError(f"{len(keys):,} columns, more than 10,000; export a table of messages, one in each row")
    return keys


def profiles(rows: Sequence[Row]) -> dict[str, Profile]:
    """The profiles of the columns."""
    return {key: Profile(key, (row.get(key) for row in rows)) for key in keys_of(rows)}


def usual(keys: Iterable[str], *kinds: str) -> list[str]:
    """The columns with a usual name of one of the kinds, in the order of ``NAMES``; full names come first.

    >>> usual(["messageData.msg.text", "quoted.text", "info.conversationId", "channel.id"], "text", "conversation")
    ['messageData.msg.text', 'info.conversationId']
    """
    return [key for kind in kinds for key in _usual(tuple(keys), kind)]


@lru_cache(maxsize=2**12)
def _usual(keys: tuple[str, ...], kind: str) -> list[str]:
    by_name: tuple[dict[str, list[str]], ...] = ({}, {}, {})
    for key in keys:
        for names, spelled in zip(by_name, _spellings(key, kind), strict=True):
            for name in spelled:
                names.setdefault(name, []).append(key)
    return list(dict.fromkeys(key for names in by_name for name in NAMES[kind] for key in names.get(name, ())))


def _spellings(key: str, kind: str) -> tuple[list[str], list[str], list[str]]:
    """The name of a column; without objects that only wrap a value; and its ends, if they are not of another object."""
    parts = key.split(".")
    while len(parts) > 1 and (parts[-1].startswith("$") or (parts[-1] == "id" and normal(parts[-2]).endswith("id"))):
        parts.pop()
    own = [part for part in parts[:-1] if normal(part) not in NAMES["wrappers"]] + parts[-1:]
    least = 1 if kind in ("text", "time", "reply_to", "conversation") else 2
    ends = [
        normal(".".join(own[n:]))
        for n in range(1, len(own) - least + 1)
        if not any(map(OTHERS.match, map(normal, own[:n])))
    ]
    return [normal(key)], [normal(".".join(own))], ends


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of messages. If a kind has several columns, the first non-empty value of a row counts.

    ``stream``: columns whose values, in any order, name a channel or two people, whose messages are divided at pauses.
    """

    conversation: str | None
    stream: tuple[str, ...]
    time: tuple[str, ...]
    sender: tuple[str, ...]
    text: tuple[str, ...]
    role: tuple[str, ...]
    keys: tuple[str, ...]
    rest: tuple[str, ...]

    def of(self, *kinds: str) -> list[str]:
        """The columns with a usual name of a kind: among all if it is of persons, else among those without a use."""
        of_persons = {"from_customer", "from_agent", "from_bot", "person_name", "contact", "mail"}
        return usual(self.keys if of_persons.issuperset(kinds) else self.rest, *kinds)


def columns(rows: Sequence[Row], options: Options, where: object) -> Columns:
    """Detect the columns from their names and values, and note the guesses.

    Args:
        rows: the first rows of the table.
        options: the user's choices.
        where: the file, for messages.

    Raises:
        DataError: the column of senders or of texts cannot be detected.
        UsageError: a column of the options does not exist.
    """
    keys = keys_of(rows)
    named = [name for name in (options.conversation, *options.time, options.sender, options.text) if name]
    check_columns(keys, named, where)
    all_profiles = profiles(rows)
    free = [each for key, each in all_profiles.items() if key not in named]
    time = list(options.time) or time_columns(free, options)
    free = [each for each in free if each.key not in time]
    text = [options.text] if options.text else _text(free)
    others = {each.key: each for each in free if each.key not in text}
    is_said = [any(row.get(key) for key in text) for row in rows]
    role = role_columns([*others.values()], usual(others, "role"), is_said)
    flags = usual(keys, "from_customer", "from_agent")
    conversation = [options.conversation] if options.conversation else _conversation(free, options)
    senders = [options.sender] if options.sender else _sender([*others.values()], is_said) or role or flags[:1]
    if not options.sender and all(all_profiles[key].n_distinct < 2 for key in senders):
        groups = all_profiles[conversation[0]].values if conversation else ("",) * len(rows)
        unnamed = [each for key, each in others.items() if key not in conversation]
        senders = _sender_by_values(unnamed, groups) or senders
    for what, found in (("sender", senders), ("text", text)):
        if not found:
            problem = f"no column has a usual name for the {what} among {listed(keys)}"
            raise DataError(f"{where}: {problem}; name it with the option {what}, or add a header if the file has none")
    stream: list[str] = []
    for side in [*role, *flags][:1]:
        contacts = [all_profiles[key] for key in usual(keys, "contact", "sender")]
        contact = contact_column(contacts, all_profiles[side])
        if contact and not options.sender and has_both_sides(all_profiles[senders[0]], all_profiles[side]):
            senders = [side]
        stream = contact if senders == [side] else []
    stream = pair_columns([*others.values()], senders, usual(keys, "recipient")) or stream
    if not (conversation or stream or any(all_profiles[key].filled >= ANSWERED for key in usual(others, "reply_to"))):
        unnamed = [each for key, each in others.items() if key not in (*senders, *role)]
        conversation = _conversation_by_values(unnamed, all_profiles[senders[0]].values)
    stream = ["(channel)"] if "(channel)" in keys else [] if conversation else stream or usual(others, "channel")[:1]
    if len(stream) == 1 and not time and not conversation:
        conversation, stream = stream, []
    roles = [key for key in (*role, *flags) if key not in (*named, *senders)][:1]
    guessed = {"conversation": conversation, "time": time, "sender": senders[:1], "text": text[:1], "role": roles}
    if shown := [f"{what} in {' and '.join(map(repr, held))}" for what, held in guessed.items() if {*held} - {*named}]:
        options.report.note(f"guessed by names and values: {', '.join(shown)}")
    if stream:
        options.report.note(f"a talk for each {listed(stream)}, divided at long pauses")
    rest = [each.key for each in free if each.key not in {*text, *senders[:1], *role, *conversation, *stream}]
    return Columns(next(iter(conversation), None), *map(tuple, (stream, time, senders, text, role, keys, rest)))


def check_columns(keys: Collection[str], named: Iterable[str | None], where: object) -> None:
    """Check that the columns of the options exist.

    Raises:
        UsageError: a column does not exist.
    """
    for name in named:
        if name is not None and name not in keys:
            raise UsageError(f"{where} has no column {name!r}; it has {listed(keys)}")


def hinted(key: str, *kinds: str) -> bool:
    """Whether a word of the column name is a hint of one of the kinds, or the name contains a long one.

    >>> hinted("dateSent", "said_at"), hinted("Erstellt am", "said_at"), hinted("state", "said_at")
    (True, True, False)
    """
    hints = {hint for kind in kinds for hint in NAMES[kind]}
    return not hints.isdisjoint(words_in(key)) or any(len(hint) > 4 and hint in normal(key) for hint in hints)


def time_columns(free: Sequence[Profile], options: Options) -> list[str]:
    """The column of times, by its name and values; if it holds only dates, also a column of times of day."""
    exact = {key: rank for rank, key in enumerate(usual((each.key for each in free), "time"))}

    def is_hint(each: Profile) -> bool:
        return each.key in exact or (hinted(each.key, "said_at", "timed") and not hinted(each.key, "lasts"))

    def is_sure(each: Profile) -> bool:
        return each.times >= 0.8 or (is_hint(each) and each.maybe_times >= 0.8)

    def is_time(each: Profile) -> bool:
        """A row that is not a time is later an error that names it."""
        often = each.filled >= 0.5 and each.maybe_times > 0.3 and (is_hint(each) or each.times > 0)
        return often or (each.key in exact and each.maybe_times > 0)

    def rank(each: Profile) -> tuple[float, ...]:
        name = 0 if each.key in exact else 1 if hinted(each.key, "said_at") else 2 if hinted(each.key, "timed") else 3
        name = 4 if hinted(each.key, "later") else name
        return not is_sure(each), name, each.filled < 0.5, exact.get(each.key, 0), not each.has_clock, -each.n_distinct

    found = sorted(filter(is_time, free), key=rank)

    named = [each for each in free if each.key in exact]
    dotted = [each.key for each in named if all(re.fullmatch(r"(\d\d?\.\d\d)?", value) for value in each.values)]
    clocks = [each for each in free if each.clocks >= 0.8 or each.key in dotted]
    clock = clocks[:1] if found and not found[0].has_clock else []
    for each in named:
        if each.n_distinct and each not in [*found, *clock]:
            value = next(filter(None, each.values), "")
            problem = f"column {each.key!r} holds values that are not readable times, such as {value[:40]!r}"
            if not found and each not in clocks and each.numbers < 0.5 and sum(map(str.isdigit, value)) > 2:
                raise DataError(f"{problem}; write times as 2024-01-31T21:15:00, or rename the column")
            options.report.note(problem)
    if others := [each.key for each in found[1:] if is_sure(each)]:
        options.report.note(f"also times: {listed(others)} (choose a column with the option time)")
    return [each.key for each in (*found[:1], *clock)]


def _text(free: Sequence[Profile]) -> list[str]:
    """The columns of texts: those with a usual name and texts, else the one with the longest texts."""
    by_key = {each.key: each for each in free}
    names = usual(by_key, "text")
    good = [key for key in names if by_key[key].is_text]
    long = [each for each in free if each.is_text and each.words >= 2 and each.distinct > 0.5]
    longest = max(long if free and len(free[0].values) >= MIN_ROWS else [], key=lambda each: each.words, default=None)
    if good:
        return [key for key in good if key == good[0] or normal(key) not in NAMES["vague"]]
    return [longest.key] if longest else [key for key in names if by_key[key].times < 0.8]


def _sender(free: Sequence[Profile], is_said: Sequence[bool]) -> list[str]:
    """The columns with a usual name that most texts have; those with several senders come first."""
    by_key = {each.key: each for each in free if each.is_name or not each.n_distinct}
    names = usual(by_key, "sender")
    named = {
        key: sum(bool(value) and said for value, said in zip(by_key[key].values, is_said, strict=True)) for key in names
    }
    often = [key for key in names if 2 * named[key] >= sum(is_said)]
    rank = {key: (key not in often, len(is_said) > 1 and by_key[key].n_distinct < 2) for key in names}
    return sorted((key for key in names if named[key] or not any(is_said)), key=rank.__getitem__) if often else []


def _conversation(free: Sequence[Profile], options: Options) -> list[str]:
    """A column with a usual name; columns with repeated values are preferred."""
    by_key = {each.key: each for each in free}
    names = usual(by_key, "conversation")
    ids = {value for key in usual(by_key, "id") for value in by_key[key].values}
    for key in by_key if ids else ():  # the parent of a mail or a comment of Salesforce is the case; Reddit's is t1_abc
        if normal(key) == "parentid" and by_key[key].filled == 1:
            names += [key] * all(value not in ids and not re.match(r"t\d_", value) for value in by_key[key].values)
    for key in [key for key in names if by_key[key].filled < 0.5]:
        options.report.note(f"{key!r} is not the column of conversations, because it is empty in most rows")
        names.remove(key)
    # without threads, each message of Google Chat has its own topic
    names = [key for key in names if normal(key) != "topicid" or by_key[key].distinct < 1]
    return sorted(names, key=lambda key: by_key[key].distinct >= 1)[:1]


def asking_columns(rows: Sequence[Row], kind: Literal["question", "answer"]) -> list[str]:
    """The columns of questions or answers: by their names, or by a word of their names and the longest texts.

    >>> asking_columns([{"Kundenfrage": "Wo?", "Antwort": "Hier.", "Bearbeiter": "Ben"}], "question")
    ['Kundenfrage']
    """
    side = {"question": "customers", "answer": "agents"}[kind]
    columns = profiles(rows)
    texts = [each.key for each in sorted(columns.values(), key=lambda each: -each.words) if each.is_text]
    by_word = [key for key in texts if any(stem in normal(key) for stem in NAMES[f"{kind}_stems"])]
    both = [key for key in texts if hinted(key, side) and hinted(key, "text", "answer", "question")]
    return usual(columns, kind) or by_word or both


def _sender_by_values(free: Sequence[Profile], groups: Sequence[str]) -> list[str]:
    """The column of a few short names that change between messages; a column name that hints at people wins."""
    n = len(groups)
    found = [
        each
        for each in free
        if each.is_name
        and each.filled >= 0.8
        and each.maybe_times < 0.8
        and 2 <= each.n_distinct <= max(2, n // 2)
        and each.changes(groups) >= 0.3
        and n >= MIN_ROWS
    ]
    rank = {each.key: (not hinted(each.key, "people"), each.numbers > 0.5) for each in found}
    return sorted(rank, key=rank.__getitem__)[:1]


def _conversation_by_values(free: Sequence[Profile], senders: Sequence[str]) -> list[str]:
    """The column of repeated ids, most of which have several senders."""

    def is_conversation(each: Profile) -> bool:
        groups: dict[str, set[str]] = {}
        for name, sender in zip(each.values, senders, strict=True):
            groups.setdefault(name, set()).add(sender)
        return (
            each.filled == 1
            and each.words <= 3
            and each.maybe_times < 0.8
            and 2 <= each.n_distinct <= len(senders) // 2
            and sum(len(group) > 1 for group in groups.values()) >= 0.7 * len(groups)
            and sum(any(map(str.isdigit, name)) for name in groups) >= 0.9 * len(groups)
        )

    return [each.key for each in free if is_conversation(each)][:1] if len(senders) >= MIN_ROWS else []
