"""Telegram's export in JSON: ``result.json`` of one chat, or of all."""

from typing import Any

from polyrank.data.chats.files import Member
from polyrank.data.chats.messages import ATTACHMENT, EMPTY, SYSTEM, Item, Items, Message, Skipped
from polyrank.data.chats.texts import plain
from polyrank.data.rows import Row, row_error

FILES = ("photo", "file", "media_type", "sticker_emoji", "location_information", "contact_information", "poll")


def chats_in(row: Row) -> list[Row] | None:
    """The chats of an export; None: it is none."""
    listed = row.get("chats")
    if isinstance(listed, dict) and isinstance(listed.get("list"), list):
        return [chat for chat in listed["list"] if isinstance(chat, dict)]
    messages = row.get("messages")
    theirs = isinstance(messages, list) and any(
        isinstance(message, dict) and "date" in message and ("from_id" in message or "actor_id" in message)
        for message in messages
    )
    return [row] if theirs else None


def telegram(member: Member, row: Row) -> Items:
    """Each chat is a stream."""
    for chat in chats_in(row) or ():
        stream = str(chat.get("name") or chat.get("id") or member.stem)
        for message in chat.get("messages") or ():
            yield _item(member, stream, message)


def _item(member: Member, stream: str, message: Any) -> Item:
    if not isinstance(message, dict) or "id" not in message:
        return row_error(member.path, 1, f"a message of {stream!r} is no object with an id; export the chat again")
    if message.get("type") != "message":
        return Skipped(SYSTEM)
    text = plain(message.get("text"))
    if not text:
        return Skipped(ATTACHMENT if any(message.get(name) for name in FILES) else EMPTY)
    sender_id = str(message.get("from_id") or "")
    return Message(
        where=f"{member.path}: message {message['id']}",
        stream=stream,
        sender=str(message.get("from") or sender_id or "deleted account"),
        text=text,
        time=message.get("date_unixtime") or message.get("date"),
        sender_id=sender_id or None,
    )
