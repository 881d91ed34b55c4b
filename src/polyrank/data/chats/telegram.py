"""Telegram's export in JSON: ``result.json`` of one chat, or of all."""

from polyrank.data.chats.files import Member
from polyrank.data.chats.messages import ATTACHMENT, EMPTY, SYSTEM, Message, Messages, ReadLog
from polyrank.data.chats.texts import plain
from polyrank.data.rows import Row, object_of, objects_in, row_error

FILES = ("photo", "file", "media_type", "sticker_emoji", "location_information", "contact_information", "poll")


def chats_in(row: Row) -> list[Row] | None:
    """The chats of an export; None: it is none."""
    listed = object_of(row.get("chats")).get("list")
    if listed is not None:
        return objects_in(listed)
    theirs = any(
        "date" in message and ("from_id" in message or "actor_id" in message)
        for message in objects_in(row.get("messages"))
    )
    return [row] if theirs else None


def telegram(member: Member, row: Row, log: ReadLog) -> Messages:
    """Each chat is a stream."""
    for chat in chats_in(row) or ():
        stream = str(chat.get("name") or chat.get("id") or member.stem)
        for message in chat.get("messages") or ():
            if found := _message(member, stream, object_of(message), log):
                yield found


def _message(member: Member, stream: str, message: Row, log: ReadLog) -> Message | None:
    if "id" not in message:
        problem = f"a message of {stream!r} is no object with an id; export the chat again"
        log.bad.add(row_error(member.path, 1, problem))
        return None
    if message.get("type") != "message":
        log.skip(SYSTEM)
        return None
    text = plain(message.get("text"))
    if not text:
        log.skip(ATTACHMENT if any(message.get(name) for name in FILES) else EMPTY)
        return None
    sender_id = str(message.get("from_id") or "")
    return Message(
        where=f"{member.path}: message {message['id']}",
        stream=stream,
        sender=str(message.get("from") or sender_id or "deleted account"),
        text=text,
        time=message.get("date_unixtime") or message.get("date"),
        sender_id=sender_id or None,
    )
