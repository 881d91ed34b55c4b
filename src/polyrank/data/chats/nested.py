"""JSON of conversations that hold their messages: OpenAI and ShareGPT records, help desks' exports, and others alike.

Each message becomes a row that also names its conversation, and then goes the way of a table's.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from polyrank.data.chats.columns import (
    ANSWER,
    CONVERSATION,
    FROM_CUSTOMER,
    QUESTION,
    ROLE,
    SENDER,
    SENDER_ID,
    TEXT,
    TIME,
    columns,
    flat,
    keys_of,
    listed,
    normal,
    usual,
    words,
)
from polyrank.data.chats.files import Member, Rows, good
from polyrank.data.chats.messages import REPEATED, Items, Settings, Skipped
from polyrank.data.chats.tables import N_LOOKED_AT, message
from polyrank.data.chats.texts import plain
from polyrank.data.rows import Row, named, row_error
from polyrank.errors import DataError

MESSAGES = words(
    """
    messages turns comments conversations conversation conversationparts dialogue dialog utterances replies
    history chat posts parts entries events items transcript log thread data mapping
    """
)
IDS = words("id conversationid ticketid chatid threadid dialogueid dialogid sessionid uuid number key ticketnumber")
PEOPLE = words("users participants members agents profiles contacts")
ASKED_BY = words("requesterid customerid")
OWN = "(conversation)"


def is_message(value: Any) -> bool:
    """Whether an object has a text and a sender."""
    if not isinstance(value, dict):
        return False
    keys = list(flat(value))
    return bool(usual(keys, TEXT) and usual(keys, [*SENDER, *ROLE]))


def messages_in(row: Row) -> list[Row] | None:
    """The messages that a conversation holds; None: it holds none.

    >>> messages_in({"id": 1, "turns": [{"speaker": "a", "text": "hi"}]})
    [{'speaker': 'a', 'text': 'hi'}]
    """
    by_name = {normal(key): value for key, value in row.items()}
    for name in MESSAGES:
        value = by_name.get(name)
        if isinstance(value, dict) and name == "mapping":
            return _branch(row, value)
        if isinstance(value, dict):  # Intercom
            value = messages_in(value)
        if isinstance(value, list) and any(map(is_message, value)):
            return [item if isinstance(item, dict) else {} for item in value]
    return None


def _branch(row: Row, nodes: dict[str, Any]) -> list[Row]:
    """The messages of a ChatGPT export from the first to the current one: a tree, for questions can be asked anew."""
    messages: list[Row] = []
    node = nodes.get(row.get("current_node") or next(reversed(nodes), ""))
    while isinstance(node, dict) and len(messages) <= len(nodes):
        if isinstance(node.get("message"), dict):
            messages.append(node["message"])
        node = nodes.get(node.get("parent") or "")
    return messages[::-1]


def unwrapped(rows: Rows) -> tuple[Rows, dict[str, Row]]:
    """Conversations or messages out of an object around all of them, and the people that it knows, by their ids.

    Such an object is a page of an interface ({"tickets": [...], "users": [...]}), or has conversations by their ids.
    """
    if len(rows) != 1 or isinstance(rows[0][1], DataError):
        return rows, {}
    outer = rows[0][1]
    lists = {key: value for key, value in outer.items() if isinstance(value, list)}
    people = {
        str(person["id"]): person
        for key, value in lists.items()
        for person in value
        if normal(key) in PEOPLE and isinstance(person, dict) and "id" in person
    }
    inside = messages_in(outer) is not None
    for value in lists.values():
        objects = [item for item in value if isinstance(item, dict)]
        of_a_table = any(map(is_message, objects)) and usual(keys_of(map(flat, objects[:N_LOOKED_AT])), CONVERSATION)
        of_questions = not inside and any(usual(item, QUESTION) and usual(item, ANSWER) for item in objects)
        if of_a_table or of_questions or any(messages_in(item) for item in objects):
            return [(number, _object(item, number)) for number, item in enumerate(value, 1)], people
    if not inside:
        by_id = {key: {"messages": value} if isinstance(value, list) else value for key, value in outer.items()}
        held = {key: value for key, value in by_id.items() if isinstance(value, dict) and messages_in(value)}
        if held:
            return [(number, {"id": key, **value}) for number, (key, value) in enumerate(held.items(), 1)], people
        for value in outer.values():
            deeper = unwrapped([(1, value)]) if isinstance(value, dict) else (rows, {})
            if deeper[0] != [(1, value)] and deeper[0] is not rows:
                return deeper
    return rows, people


def _object(item: Any, number: int) -> Row | DataError:
    return item if isinstance(item, dict) else DataError(f"item {number} holds {named(item)}, not an object; remove it")


def conversations(member: Member, rows: Rows, people: dict[str, Row], settings: Settings) -> Items:
    """A row is a conversation; one alone, without an id, is a stream, such as a channel."""
    stream = len(rows) == 1 and all(_id(row, settings) is None for row in good(rows))
    messages: Rows = []
    known: dict[str, list[list[Row]]] = {}  # under each id, the conversations that have it
    for number, row in rows:
        held = None if isinstance(row, DataError) else messages_in(row)
        if isinstance(row, DataError):
            messages.append((number, row))
        elif held is None:
            problem = (
                f"holds no messages with a text and a sender, but {listed(row)}; name what it is with the option as"
            )
            messages.append((number, row_error(member.path, number, problem)))
        else:
            name = _id(row, settings) or f"{member.stem}:{number}"
            same = known.setdefault(name, [])
            if held in same:
                yield from [Skipped(REPEATED)] * len(held)
                continue
            same.append(held)
            name = name if len(same) == 1 else f"{name} ({len(same)})"
            messages += [(number, item if stream else item | {OWN: name}) for item in _messages(row, held, people)]
    chosen_by = replace(settings, conversation=None if stream else OWN)
    keys = keys_of(islice(good(messages), N_LOOKED_AT))
    if not keys:  # nothing but bad rows
        yield from (row for _, row in messages if isinstance(row, DataError))
        return
    chosen = columns(keys, chosen_by, member.path)
    for number, row in messages:
        yield row if isinstance(row, DataError) else message(row, chosen, f"{member.path}:{number}", member.stem)


def _id(row: Row, settings: Settings) -> str | None:
    keys = [settings.conversation] if settings.conversation in row else usual(row, IDS)
    return next((str(row[key]) for key in keys if isinstance(row[key], str | int) and row[key] != ""), None)


def _messages(row: Row, held: list[Row], people: dict[str, Row]) -> Iterator[Row]:
    """The messages of a conversation as flat rows, with what the conversation says of their senders and times."""
    asked_by = next((row[key] for key in usual(row, ASKED_BY) if isinstance(row[key], str | int)), None)
    began = next((row[key] for key in usual(row, TIME) if isinstance(row[key], str | int | float)), None)
    for position, item in enumerate((*_opening(row, held, asked_by), *held)):
        values = flat(item)
        sender_id = next((values[key] for key in usual(values, SENDER_ID)), None)
        person = people.get(str(sender_id))
        if person is not None:
            values |= {f"author.{key}": person[key] for key in ("name", "role") if isinstance(person.get(key), str)}
        elif asked_by is not None and sender_id is not None and not usual(values, [*ROLE, *FROM_CUSTOMER]):
            values["role"] = "customer" if sender_id == asked_by else "agent"
        if began is not None and not position and not usual(values, TIME):
            values["time"] = began
        yield _mended(values) if "timestamp_ms" in values and "sender_name" in values else values


def _opening(row: Row, held: list[Row], asked_by: object) -> list[Row]:
    """What was said before the messages: Intercom keeps it in ``source``, Freshdesk in ``description_text``."""
    began = {"created_at": row["created_at"]} if "created_at" in row else {}
    source = row.get("source")
    if isinstance(source, dict) and is_message(source):
        return [began | source]
    text = plain(row.get("description_text") or row.get("description")) if asked_by is not None else ""
    first = flat(held[0])
    said = {" ".join(plain(first[key]).split()) for key in usual(first, TEXT)}
    if not text or " ".join(text.split()) in said:
        return []
    return [began | {"text": text, "author_id": asked_by, "role": "customer"}]


def _mended(values: Row) -> Row:
    """Facebook's exports write the bytes of UTF-8 as if each were a character."""
    row = {}
    for key, value in values.items():
        row[key] = value
        if isinstance(value, str):
            with suppress(UnicodeError):
                row[key] = value.encode("latin-1").decode("utf-8")
    return row
