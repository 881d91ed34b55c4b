"""Find the conversations and messages in JSON of any nesting, by the fields of its objects.

A message is an object with a text, and a sender or a time. Objects that hold lists of messages are conversations; a
message may hold its replies.
"""

import re
from ast import literal_eval
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from polyrank_chats.columns import flat, normal, usual
from polyrank_chats.files.objects import json_decoder
from polyrank_chats.forms.transcripts import spoken
from polyrank_chats.messages import Rows
from polyrank_chats.names import NAMES
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, object_of, objects_in, text_of

PERSON_IDS = ("id", *NAMES["sender_id"])
Path = tuple[str, ...]  # the keys that lead to a value, through lists and objects


@dataclass(slots=True)
class Talk:
    """A conversation, or a list of messages of several.

    Args:
        owner: the object that holds it.
        number: its row of the file, or its position in its list.
        people: users by their ids.
        name: its key in an object of conversations.
        messages: its messages, and the positions of those that they answer.
        is_tree: replies hold replies.
    """

    owner: Row
    number: int
    people: dict[str, Row]
    name: str | None = None
    messages: list[tuple[Row, int | None]] = field(default_factory=list)
    is_tree: bool = False

    def add(self, item: Row, answered: int | None = None) -> None:
        """Add a message and its replies."""
        position = len(self.messages)
        self.messages.append((item, answered))
        self.is_tree |= answered is not None
        for reply in replies_to(item) or ():
            self.add(bare(reply), position)


def is_message(row: Row) -> bool:
    """Whether the object has a text, and a sender or a time.

    >>> is_message({"from": "Ann", "data": {"text": "hi"}}), is_message({"sender": "Ann"}), is_message({"text": "hi"})
    (True, False, False)
    """
    values = flat(row)
    said = any(isinstance(values[key], str | list) and values[key] for key in usual(values, "text"))
    return said and bool(usual(values, "sender", "role", "time", "from_customer", "from_agent"))


def people_of(row: Row) -> dict[str, Row]:
    """The users in a row by their ids: those of lists, and single ones such as the requester of a ticket."""
    people: dict[str, Row] = {}
    for key, value in row.items():
        if any(word in normal(key) for word in NAMES["users"]):
            for person in objects_in(value) or [object_of(value)]:
                ids = [id_ for key, id_ in flat(person).items() if normal(key.partition(".")[0]) in PERSON_IDS]
                people |= {str(id_): person for id_ in ids if id_ is not None}
        people |= people_of(value) if isinstance(value, dict) else {}
    return people


def replies_to(item: Row) -> list[Row] | None:
    """The replies in a message; None if it has no list of replies.

    >>> replies_to({"data": {"body": "hi", "replies": {"data": {"children": [{"body": "hello"}]}}}})
    [{'body': 'hello'}]
    """
    for key, value in item.items():
        if normal(key) in NAMES["replies"]:
            return _first_list(value)
        if isinstance(value, dict) and (found := replies_to(value)) is not None:
            return found
    return None


def _first_list(value: object) -> list[Row]:
    return next(filter(None, [objects_in(value), *map(_first_list, object_of(value).values())]), [])


def talks_in(rows: Rows, wanted: str | None = None) -> list[Talk]:
    """The conversations in the rows of a file; the owner of messages outside of any is an empty object.

    Args:
        rows: the rows and their numbers.
        wanted: the path to the lists of messages, with dots; None: they are detected.
    """
    walk = _Walk(None if wanted is None else tuple(wanted.split(".")))
    for _, row in rows:
        walk.holds(row, ())
    walk.talks.append(Talk({}, 0, {}))
    for number, row in rows:
        walk.visit(row, (), walk.talks[0], number)
    return [talk for talk in walk.talks if talk.messages]


class _Walk:
    """Walks through JSON twice: to find the paths of conversations and messages, and to collect the messages."""

    def __init__(self, wanted: Path | None) -> None:
        self.wanted = wanted
        self.conversations: set[Path] = set()
        self.messages: set[Path] = set()
        self.known: dict[int, bool] = {}
        self.talks: list[Talk] = []

    def holds(self, item: Row, path: Path) -> bool:
        """Whether an object of a list is a message, or a conversation that holds some."""
        item = bare(item)
        if id(item) not in self.known:
            said = is_message(item) if self.wanted is None else path == self.wanted
            inside = self.reach(item, path, said)
            if inside or said:
                (self.conversations if inside else self.messages).add(path)
            self.known[id(item)] = inside or said
        return self.known[id(item)]

    def reach(self, value: object, path: Path, is_said: bool = False) -> bool:
        """Whether a value leads to lists of messages, other than replies to it if it is a message."""
        if items := items_in(value):
            return sum(self.holds(item, path) for item in items) > 0
        held = object_of(value)
        keys = [key for key in _fields(held) if not (is_said and normal(key) in NAMES["replies"])]
        return sum(self.reach(held[key], (*path, key), is_said) for key in keys) > 0

    def visit(self, item: Row, path: Path, talk: Talk, number: int) -> None:
        """Add a message to its conversation, or begin one."""
        item = bare(item)
        replies = replies_to(item)
        if path in self.conversations or path not in self.messages:
            own = Talk(item, number, talk.people | people_of(item))
            self.talks.append(own)
            self.collect(item, path, own)
        elif replies:
            own = Talk(item, number, talk.people)
            self.talks.append(own)
            if any(replies_to(reply) is not None for reply in replies):
                own.add(item)
            else:  # a thread, the first message of which may be repeated in it
                said = [plain(reply.get(key)) for reply in replies[:1] for key in usual(flat(reply), "text")]
                first = [item] if not any(plain(flat(item)[key]) in said for key in usual(flat(item), "text")) else []
                own.messages += [(each, None) for each in (*first, *replies)]
        else:
            talk.add(item)

    def collect(self, held: Row, path: Path, talk: Talk) -> None:
        """Add the messages in the fields of a conversation; an object of conversations has them by their names."""
        leading = [key for key in _fields(held) if self.reach(held[key], (*path, key))]
        by_name = [key for key in leading if normal(key) not in NAMES["messages"] and not key.endswith("messages")]
        for key in _fields(held):
            value, inside = held[key], (*path, key)
            if self.wanted is None and is_message(object_of(value)) and usual(flat(value), "sender", "role"):
                talk.add(value)
            elif key in leading:
                is_name = key in by_name and (len(by_name) > 1 or (len(held) == 1 and self.wanted is None))
                own = Talk(object_of(value), talk.number, talk.people, name=key) if is_name else talk
                self.talks += [own] if is_name else []
                for position, item in enumerate(items_in(value), 1):
                    self.visit(item, inside, own, position)
                if not items_in(value):
                    self.collect(object_of(value), inside, own)


def items_in(value: object) -> list[Row]:
    """The objects of a list, or messages by their ids."""
    held = object_of(value)
    by_id = [item for item in held.values() if isinstance(item, dict) and is_message(item)]
    return by_id if len(by_id) > 1 and len(by_id) == len(held) else objects_in(value)


def bare(item: Row) -> Row:
    """An object without objects that have it as their only field besides a kind, as Freshdesk and Reddit write it.

    >>> bare({"helpdesk_note": {"id": 1, "body": "hi"}})
    {'id': 1, 'body': 'hi'}
    """
    while len(inside := [value for key, value in item.items() if key not in ("kind", "type")]) == 1:
        own = {key: value for key, value in object_of(inside[0]).items() if not isinstance(value, dict)}
        if not ("id" in own or is_message(own)):
            break
        item = inside[0]
    return item


def current_branch(row: Row) -> Row:
    """A conversation of a ChatGPT export with the messages from the first to the current one; edits make it a tree."""
    nodes, messages = object_of(row.get("mapping")), list[Row]()
    node = object_of(nodes.get(text_of(row.get("current_node")) or next(reversed(nodes), "")))
    while node and len(messages) <= len(nodes):
        if held := object_of(node.get("message")):
            messages.append(held)
        node = object_of(nodes.get(text_of(node.get("parent"))))
    return row | {"mapping": messages[::-1]} if messages else row


def parsed(row: Row, spoken_in: Collection[str]) -> Row:
    """A row with the lists and objects in its cells, written as JSON, by Python, or as lines with names."""
    cells = dict(row)
    for key, value in row.items():
        if isinstance(value, str) and re.match(r"\s*[\[{]\s*[\[{\"']", value):
            for read in (json_decoder.decode, literal_eval):
                with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                    cells[key] = read(value.strip())
                    break
        elif key in spoken_in and (text := plain(value)):
            cells[key] = [{"sender": name, "text": words} for name, words in spoken(text) or [("", text)]]
    return cells


def has_next_page(rows: Rows) -> bool:
    """Whether the only row is a page of an API that names another page.

    >>> has_next_page([(1, {"results": [], "next": "https://x.example?page=2"})]), has_next_page([(1, {"next": None})])
    (True, False)
    """
    page = flat(rows[0][1]) if len(rows) == 1 else {}
    return any(page[key] for key in page for part in key.split(".")[-1:] if normal(part) in NAMES["next_page"])


def rows_in(rows: Rows) -> Rows:
    """The rows of a table; in one object of JSON, those of its list of questions and answers, or of its longest."""
    lists = [*_lists(rows[0][1])] if len(rows) == 1 else []
    best = max(lists, key=lambda items: (_asks(items), len(items)), default=[])
    return [*enumerate(best, 1)] if best and not _asks([rows[0][1]]) else rows


def _lists(value: Row) -> Iterator[list[Row]]:
    yield [item for inner in value.values() for item in objects_in(inner)] if len(value) > 1 else []
    for inner in value.values():
        if items := objects_in(inner):
            yield items
        yield from _lists(object_of(inner))


def _asks(items: list[Row]) -> bool:
    return any(usual(item, "question") and usual(item, "answer") for item in items)


def _fields(item: Row) -> list[str]:
    return [key for key in item if normal(key) not in NAMES["aside"]]
