"""Find conversations and messages in JSON, inside wrapping objects."""

from typing import Any

from polyrank_chats.columns import (
    flat,
    keys_of,
    normal,
    usual,
)
from polyrank_chats.errors import DataError
from polyrank_chats.messages import Rows
from polyrank_chats.names import NAMES
from polyrank_chats.values import Row, in_object, object_of, objects_in, text_of, type_name

N_LOOKED_AT = 200  # rows from which columns are detected


def is_message(row: Row) -> bool:
    """Whether the object has a text and a sender."""
    keys = list(flat(row))
    return bool(usual(keys, "text") and usual(keys, "sender", "role"))


def messages_in(row: Row) -> list[Row] | None:
    """The messages in a conversation; None if it has none.

    >>> messages_in({"id": 1, "turns": [{"speaker": "a", "text": "hi"}]})
    [{'speaker': 'a', 'text': 'hi'}]
    """
    by_name = {normal(key): value for key, value in row.items()}
    for name in NAMES["messages"]:
        value = by_name.get(name)
        if isinstance(value, dict):
            if name == "mapping":
                return _branch(row, value)
            value = messages_in(value)  # Intercom
        if isinstance(value, list) and any(map(is_message, held := bare([*map(object_of, value)]))):
            return held
    return None


def people_of(row: Row) -> dict[str, Row]:
    """The users in a row by their ids."""
    return {
        str(person["id"]): person
        for key, value in row.items()
        if normal(key) in NAMES["users"]
        for person in objects_in(value)
        if "id" in person
    }


def bare(items: list[Row]) -> list[Row]:
    """Items without the only key of each: Freshdesk's exports have [{"helpdesk_ticket": {...}}, ...].

    >>> bare([{"note": {"id": 1}}, {"note": {"id": 2}}])
    [{'id': 1}, {'id': 2}]
    """
    key = next(iter(items[0]), "") if items else ""
    if all(len(item) == 1 and "id" in object_of(item.get(key)) for item in items):
        return [item[key] for item in items]
    return items


def _branch(row: Row, nodes: dict[str, Any]) -> list[Row]:
    """The messages of a ChatGPT export from the first to the current one; edited questions make it a tree."""
    messages: list[Row] = []
    node = object_of(nodes.get(text_of(row.get("current_node")) or next(reversed(nodes), "")))
    while node and len(messages) <= len(nodes):
        if held := object_of(node.get("message")):
            messages.append(held)
        node = object_of(nodes.get(text_of(node.get("parent"))))
    return messages[::-1]


def unwrapped(rows: Rows) -> tuple[Rows, dict[str, Row], list[DataError]]:
    """If one object wraps all conversations or messages: their rows, people by id, and errors of other items.

    Such an object is a page of an API ({"tickets": [...], "users": [...]}), or has conversations by their ids.
    """
    rows = [*zip((number for number, _ in rows), bare([row for _, row in rows]), strict=True)]
    if len(rows) != 1:
        return rows, {}, []
    outer = rows[0][1]
    people = people_of(outer)
    inside = messages_in(outer) is not None
    good: Rows = []
    bad: list[DataError] = []
    for value in outer.values():
        objects = objects_in(value)
        of_a_table = any(map(is_message, objects)) and usual(keys_of(map(flat, objects[:N_LOOKED_AT])), "conversation")
        of_questions = not inside and any(usual(item, "question") and usual(item, "answer") for item in objects)
        if of_a_table or of_questions or any(messages_in(item) for item in objects):
            for number, item in enumerate(value, 1 + len(good) + len(bad)):
                if isinstance(item, dict):
                    good.append((number, item))
                else:
                    bad.append(DataError(f"item {number} holds {type_name(item)}, not an object; remove it"))
    if good:
        return good, people, bad
    if not inside:
        by_id = {key: object_of(in_object(value, "messages")) for key, value in outer.items()}
        held = {key: value for key, value in by_id.items() if messages_in(value)}
        if held:
            return [(number, {"id": key, **value}) for number, (key, value) in enumerate(held.items(), 1)], people, []
        for value in filter(None, map(object_of, outer.values())):
            within: Rows = [(1, value)]
            rows_there, people_there, bad_there = unwrapped(within)
            if rows_there is not within:
                good += [(number + len(good) + len(bad), row) for number, row in rows_there]
                people, bad = people | people_there, bad + bad_there
        if good:
            return good, people, bad
        if len(lists := [value for value in outer.values() if len(objects_in(value)) > 3]) == 1:
            return [*enumerate(objects_in(lists[0]), 1)], people, []
    return rows, people, []
