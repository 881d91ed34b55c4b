"""JSON of conversations with lists of messages: OpenAI and ShareGPT records, exports of help desks, and similar files.

Each message becomes a row with the id of its conversation, which is then read like a row of a table.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from polyrank_chats.columns import columns, flat, listed, usual
from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.file import File
from polyrank_chats.forms.tables import first_rows, message, some_rows
from polyrank_chats.forms.wrapping import is_message, messages_in, people_of, unwrapped
from polyrank_chats.messages import REPEATED, Messages, ReadOptions, Rows
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, object_of

OWN = "(conversation)"
TAWK = {"v": "customer", "a": "agent", "s": "system"}
PLACEHOLDER = re.compile(r"Reacted \S+ to your message ?|Liked a message|(?:You|\S.{0,60}) sent an attachment\.")


def conversations(file: File) -> Messages | None:
    """A row is a conversation; a single row without an id is a stream, such as a channel."""
    rows, people, bad = unwrapped(some_rows(file))
    if file.options.form is None and not any(messages_in(row) for row in first_rows(rows)):
        return None
    return _all_messages(file, rows, people, bad)


def _all_messages(file: File, rows: Rows, people: dict[str, Row], bad: Sequence[DataError]) -> Messages:
    options = file.options
    yield from bad
    stream = len(rows) == 1 and _id(rows[0][1], options) is None
    messages: Rows = []
    known: dict[str, list[list[Row]]] = {}  # the conversations with each id
    for number, row in rows:
        held = messages_in(row)
        if held is None:
            problem = (
                f"holds no messages with a text and a sender, but {listed(row)}; choose its form with the option as"
            )
            yield row_error(file.path, number, problem)
            continue
        name = _id(row, options) or f"{file.stem}:{number}"
        same = known.setdefault(name, [])
        if held in same:
            yield from [REPEATED] * len(held)
            continue
        same.append(held)
        name = name if len(same) == 1 else f"{name} ({len(same)})"
        messages += [(number, item if stream else item | {OWN: name}) for item in _messages(row, held, people)]
    if not messages:  # all rows are bad
        return
    chosen = columns(first_rows(messages), replace(options, conversation=None if stream else OWN), file.path)
    if stream and not chosen.time:
        options.report.note("no times: assuming that the oldest message comes first")
    for number, row in messages:
        yield message(row, chosen, f"{file.path}:{number}", file.stem)


def _id(row: Row, options: ReadOptions) -> str | None:
    keys = [options.conversation] if options.conversation in row else usual(row, "conversation_id")
    found = _first(row, keys, str | int)
    return None if found is None else str(found)


def _first(row: Row, keys: Iterable[str], kind: Any) -> Any:
    """The first field of a type that is not empty."""
    return next((row[key] for key in keys if isinstance(row[key], kind) and row[key] != ""), None)


def _messages(row: Row, held: list[Row], people: dict[str, Row]) -> Iterator[Row]:
    """The messages of a conversation as flat rows, with senders and times that the conversation records."""
    people = people | people_of(row)
    asked_by = _first(row, usual(row, "asked_by"), str | int)
    began = _first(row, usual(row, "time"), str | int | float)
    for position, item in enumerate((*_opening(row, held, asked_by), *held)):
        values = flat(item)
        sender_id = next((values[key] for key in usual(values, "sender_id")), None)
        person = people.get(str(sender_id))
        if person is not None:
            named = {"name": person.get("name"), "role": person.get("role") or person.get("type")}
            values |= {f"author.{key}": value for key, value in named.items() if isinstance(value, str)}
        elif asked_by is not None and sender_id is not None and not usual(values, "role", "from_customer"):
            values["role"] = "customer" if sender_id == asked_by else "agent"
        if began is not None and not position and not usual(values, "time"):
            values["time"] = began
        if "timestamp_ms" in values and "sender_name" in values:
            values = _of_facebook(values)
        elif str(values.get("messagetype")).startswith("RichText"):  # Skype
            values["content"] = plain(f"<div>{values.get('content')}</div>")
        elif (letter := values.get("sender.t")) in TAWK:
            values["role"] = TAWK[letter]
        yield values


def _opening(row: Row, held: list[Row], asked_by: object) -> list[Row]:
    """The first message if it is not in the list: Intercom has it in ``source``, Freshdesk in ``description_text``."""
    began = {"created_at": row["created_at"]} if "created_at" in row else {}
    source = object_of(row.get("source"))
    if is_message(source):
        return [began | source]
    text = plain(row.get("description_text") or row.get("description")) if asked_by is not None else ""
    first = flat(held[0])
    said = {" ".join(plain(first[key]).split()) for key in usual(first, "text")}
    if not text or " ".join(text.split()) in said:
        return []
    return [began | {"text": text, "author_id": asked_by, "role": "customer"}]


def _of_facebook(values: Row) -> Row:
    """Fix exports of Messenger and Instagram, which write a byte of UTF-8 as a character; drop placeholders."""
    row = {}
    for key, value in values.items():
        row[key] = value
        if isinstance(value, str):
            with suppress(UnicodeError):
                row[key] = value.encode("latin-1").decode("utf-8")
    return row | {"content": ""} if PLACEHOLDER.fullmatch(str(row.get("content"))) else row
