"""Telegram's JSON export: ``result.json`` of one chat or of all chats."""

from collections import Counter

from polyrank_chats.errors import DataError, row_error
from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, object_of, objects_in, text_of

FILES = ("photo", "file", "media_type", "sticker_emoji", "location_information", "contact_information", "poll")
KINDS = ("message", "service")
WHO = ("from", "from_id", "actor", "actor_id")


def telegram(file: File) -> Messages | None:
    """Each chat and each topic is a stream; older exports have names of senders without ids."""
    chats = _chats(file.objects[0][1]) if len(file.objects) == 1 else None
    return None if chats is None else _messages(file, chats)


def _chats(row: Row) -> list[Row] | None:
    """The chats of an export; None if the file is something else."""
    listed = object_of(row.get("chats")).get("list")
    if listed is not None:
        return objects_in(listed)
    held = objects_in(row.get("messages"))
    theirs = any(
        text_of(message.get("date")) and message.get("type") in KINDS and any(who in message for who in WHO)
        for message in held
    )
    return [row] if theirs else None


def _messages(file: File, chats: list[Row]) -> Messages:
    names = Counter(str(chat.get("name") or "") for chat in chats)
    for chat in chats:
        stream = str(chat.get("name") or chat.get("id") or file.stem)
        if names[stream] > 1:  # two people of the same name
            stream += f" ({chat.get('id')})"
        topics: dict[str, str] = {}  # of each message in a topic, the first of which is its creation
        for message in map(object_of, objects_in(chat.get("messages"))):
            own, answered = str(message.get("id")), str(message.get("reply_to_message_id"))
            if message.get("action") == "topic_created":
                topics[own] = f"{stream}/{message.get('title')}"
            elif answered in topics:
                topics[own] = topics[answered]
            yield _message(file, topics.get(own, stream), message)


def _message(file: File, stream: str, message: Row) -> Message | DataError:
    if "id" not in message:
        problem = f"a message of {stream!r} is not an object with an id; export the chat again"
        return row_error(file.path, 1, problem)
    text = plain(message.get("text"))
    sender_id = str(message.get("from_id") or "")
    reason = None if text else ATTACHMENT if any(message.get(name) for name in FILES) else EMPTY
    return Message(
        where=f"{file.path}: message {message['id']}",
        stream=stream,
        sender=str(message.get("from") or sender_id or "deleted account"),
        text=text,
        time=message.get("date_unixtime") or message.get("date"),
        sender_id=sender_id or None,
        id=str(message["id"]),
        answers=tuple(str(message[key]) for key in ("reply_to_message_id",) if message.get(key)),
        is_chat=True,
        left_out=reason if message.get("type") == "message" else SYSTEM,
    )
