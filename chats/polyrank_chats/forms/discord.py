"""Discord's JSON: files of DiscordChatExporter, and lists of messages of Discord's API."""

from polyrank_chats.files.file import File
from polyrank_chats.messages import ATTACHMENT, EMPTY, SYSTEM, Message, Messages
from polyrank_chats.values import Row, object_of, objects_in

SAID = ("Default", "Reply", "ThreadStarterMessage", 0, 19, None)
FILES = ("attachments", "embeds", "stickers", "sticker_items")
NAMES = ("nickname", "global_name", "name", "username", "id")


def discord(file: File) -> Messages | None:
    """A channel is a stream; answers refer to their messages."""
    outer = file.objects[0][1] if len(file.objects) == 1 else {}
    messages = objects_in(outer.get("messages")) or [row for _, row in file.objects]
    return _messages(file, outer, messages) if any(map(_is_message, messages[:20])) else None


def _is_message(row: Row) -> bool:
    who = object_of(row.get("author"))
    known = bool({"isBot", "discriminator"} & set(who)) or "channel_id" in row
    return isinstance(row.get("content"), str) and "timestamp" in row and known


def _messages(file: File, outer: Row, messages: list[Row]) -> Messages:
    place = object_of(outer.get("channel"))
    channel = str(place.get("name") or file.stem)
    if place.get("id"):  # several servers may have a channel of this name
        channel += f" [{place['id']}]"
    for number, row in enumerate(messages, 1):
        who = object_of(row.get("author"))
        name = next((str(who[key]) for key in NAMES if who.get(key)), "")
        text = str(row.get("content") or "").strip()
        with_file = any(row.get(key) for key in FILES)
        answered = object_of(row.get("reference") or row.get("message_reference"))
        said = row.get("type") in SAID and name
        yield Message(
            where=f"{file.path}: message {row.get('id', number)}",
            stream=channel,
            sender=name,
            text=text,
            time=row.get("timestamp"),
            role="bot" if who.get("isBot") or who.get("bot") else None,
            sender_id=str(who["id"]) if who.get("id") else None,
            id=str(row.get("id", number)),
            answers=tuple(str(answered[key]) for key in ("messageId", "message_id") if answered.get(key)),
            is_chat=True,
            left_out=SYSTEM if not said else None if text else ATTACHMENT if with_file else EMPTY,
        )
