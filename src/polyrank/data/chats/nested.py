"""JSON of conversations that hold their messages: OpenAI and ShareGPT records, help desks' exports, and others alike.

Each message becomes a row that also names its conversation, and then goes the way of a table's.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
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
from polyrank.data.chats.files import Member, Rows
from polyrank.data.chats.messages import REPEATED, Messages, ReadLog, ReadOptions
from polyrank.data.chats.tables import N_LOOKED_AT, first_keys, message
from polyrank.data.chats.texts import plain
from polyrank.data.rows import Row, named, object_of, objects_in, row_error
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


def is_message(row: Row) -> bool:
    """Whether an object has a text and a sender."""
    keys = list(flat(row))
    return bool(usual(keys, TEXT) and usual(keys, [*SENDER, *ROLE]))


def messages_in(row: Row) -> list[Row] | None:
    """The messages that a conversation holds; None: it holds none.

    >>> messages_in({"id": 1, "turns": [{"speaker": "a", "text": "hi"}]})
    [{'speaker': 'a', 'text': 'hi'}]
    """
    by_name = {normal(key): value for key, value in row.items()}
    for name in MESSAGES:
        value = by_name.get(name)
        if isinstance(value, dict):
            if name == "mapping":
                return _branch(row, value)
            value = messages_in(value)  # Intercom
        if value and any(map(is_message, objects_in(value))):
            return [object_of(item) for item in value]
    return None


def _branch(row: Row, nodes: dict[str, Any]) -> list[Row]:
    """The messages of a ChatGPT export from the first to the current one: a tree, for questions can be asked again."""
    messages: list[Row] = []
    node = object_of(nodes.get(row.get("current_node") or next(reversed(nodes), "")))
    while node and len(messages) <= len(nodes):
        if held := object_of(node.get("message")):
            messages.append(held)
        node = object_of(nodes.get(node.get("parent") or ""))
    return messages[::-1]


def unwrapped(rows: Rows, log: ReadLog) -> tuple[Rows, dict[str, Row]]:
    """Conversations or messages out of an object around all of them, and the people that it knows, by their ids.

    Such an object is a page of an interface ({"tickets": [...], "users": [...]}), or has conversations by their ids.
    """
    if len(rows) != 1:
        return rows, {}
    outer = rows[0][1]
    people = {
        str(person["id"]): person
        for key, value in outer.items()
        if normal(key) in PEOPLE
        for person in objects_in(value)
        if "id" in person
    }
    inside = messages_in(outer) is not None
    for value in outer.values():
        objects = objects_in(value)
        of_a_table = any(map(is_message, objects)) and usual(keys_of(map(flat, objects[:N_LOOKED_AT])), CONVERSATION)
        of_questions = not inside and any(usual(item, QUESTION) and usual(item, ANSWER) for item in objects)
        if of_a_table or of_questions or any(messages_in(item) for item in objects):
            return list(_objects(value, log)), people
    if not inside:
        by_id = {key: {"messages": value} if isinstance(value, list) else value for key, value in outer.items()}
        held = {key: value for key, value in by_id.items() if messages_in(object_of(value))}
        if held:
            return [(number, {"id": key, **value}) for number, (key, value) in enumerate(held.items(), 1)], people
        for value in filter(None, map(object_of, outer.values())):
            within: Rows = [(1, value)]
            deeper = unwrapped(within, log)
            if deeper[0] is not within:
                return deeper
    return rows, people


def _objects(items: list[Any], log: ReadLog) -> Iterator[tuple[int, Row]]:
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield number, item
        else:
            log.bad.add(DataError(f"item {number} holds {named(item)}, not an object; remove it"))


def conversations(member: Member, rows: Rows, people: dict[str, Row], options: ReadOptions) -> Messages:
    """A row is a conversation; one alone, without an id, is a stream, such as a channel."""
    stream = len(rows) == 1 and _id(rows[0][1], options) is None
    messages: Rows = []
    known: dict[str, list[list[Row]]] = {}  # under each id, the conversations that have it
    for number, row in rows:
        held = messages_in(row)
        if held is None:
            problem = (
                f"holds no messages with a text and a sender, but {listed(row)}; name what it is with the option as"
            )
            options.log.bad.add(row_error(member.path, number, problem))
            continue
        name = _id(row, options) or f"{member.stem}:{number}"
        same = known.setdefault(name, [])
        if held in same:
            options.log.skip(REPEATED, len(held))
            continue
        same.append(held)
        name = name if len(same) == 1 else f"{name} ({len(same)})"
        messages += [(number, item if stream else item | {OWN: name}) for item in _messages(row, held, people)]
    if not messages:  # nothing but bad rows
        return
    chosen = columns(first_keys(messages), replace(options, conversation=None if stream else OWN), member.path)
    for number, row in messages:
        if found := message(row, chosen, f"{member.path}:{number}", member.stem, options.log):
            yield found


def _id(row: Row, options: ReadOptions) -> str | None:
    found = _first(row, [options.conversation] if options.conversation in row else usual(row, IDS), str | int)
    return None if found is None else str(found)


def _first(row: Row, keys: Iterable[str], kind: Any) -> Any:
    """The first field of a kind that is not empty."""
    return next((row[key] for key in keys if isinstance(row[key], kind) and row[key] != ""), None)


def _messages(row: Row, held: list[Row], people: dict[str, Row]) -> Iterator[Row]:
    """The messages of a conversation as flat rows, with what the conversation says of their senders and times."""
    asked_by = _first(row, usual(row, ASKED_BY), str | int)
    began = _first(row, usual(row, TIME), str | int | float)
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
        yield _decoded(values) if "timestamp_ms" in values and "sender_name" in values else values


def _opening(row: Row, held: list[Row], asked_by: object) -> list[Row]:
    """What was said before the messages: Intercom keeps it in ``source``, Freshdesk in ``description_text``."""
    began = {"created_at": row["created_at"]} if "created_at" in row else {}
    source = object_of(row.get("source"))
    if is_message(source):
        return [began | source]
    text = plain(row.get("description_text") or row.get("description")) if asked_by is not None else ""
    first = flat(held[0])
    said = {" ".join(plain(first[key]).split()) for key in usual(first, TEXT)}
    if not text or " ".join(text.split()) in said:
        return []
    return [began | {"text": text, "author_id": asked_by, "role": "customer"}]


def _decoded(values: Row) -> Row:
    """Facebook's exports write the bytes of UTF-8 as if each were a character."""
    row = {}
    for key, value in values.items():
        row[key] = value
        if isinstance(value, str):
            with suppress(UnicodeError):
                row[key] = value.encode("latin-1").decode("utf-8")
    return row
