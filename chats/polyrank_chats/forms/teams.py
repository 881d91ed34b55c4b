"""Microsoft Teams: pages of ``chatMessage`` of the Graph API, for a channel or a chat; replies may be nested."""

import re
from collections.abc import Iterator

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, DELETED, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, object_of, objects_in

EMOJI = re.compile(r"<emoji\b[^>]*\balt=\"([^\"]*)\"[^>]*>(?:</emoji>)?")


def teams(file: File) -> Messages | None:
    """A channel's post and its replies are a conversation; a chat is a stream."""
    held = list(_held(row for _, row in file.objects))
    theirs = any("messageType" in row and ("body" in row or "from" in row) for row in held[:20])
    return _messages(file, held) if theirs else None


def _held(rows: Iterator[Row]) -> Iterator[Row]:
    """The messages of pages, and their nested replies."""
    for row in rows:
        if "messageType" in row:
            yield row
            yield from ({"replyToId": row.get("id"), **reply} for reply in objects_in(row.get("replies")))
        else:
            for key in ("value", "messages"):
                yield from _held(iter(objects_in(row.get(key))))


def _messages(file: File, held: list[Row]) -> Messages:
    for number, row in enumerate(held, 1):
        where = f"{file.path}: message {row.get('id', number)}"
        said_by = object_of(row.get("from"))
        who = next(filter(None, (object_of(said_by.get(kind)) for kind in ("user", "application", "device"))), {})
        if row.get("deletedDateTime"):
            yield DELETED
        elif row.get("messageType") != "message" or not said_by:
            yield SYSTEM
        elif not (text := _text(object_of(row.get("body")))):
            yield ATTACHMENT if row.get("attachments") or "<attachment" in str(row.get("body")) else EMPTY
        elif not (name := who.get("displayName") or who.get("id")):
            yield DataError(f"{where}: its field 'from' has no name; fill it in or remove the message")
        else:
            post = row.get("replyToId") or row.get("id")
            yield Message(
                where=where,
                stream=str(row.get("chatId") or file.stem),
                sender=str(name),
                text=text,
                conversation=str(post) if row.get("channelIdentity") or row.get("replyToId") else None,
                time=row.get("createdDateTime"),
                role="bot" if said_by.get("application") else None,
                sender_id=who.get("id"),
            )


def _text(body: Row) -> str:
    content = str(body.get("content") or "")
    shown = EMOJI.sub(r"\1", content)
    return plain(f"<div>{shown}</div>") if body.get("contentType") == "html" else content.strip()
