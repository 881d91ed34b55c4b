"""Messages of some programs, whose fields have names that do not state what they hold."""

import html
import re
from contextlib import suppress
from functools import lru_cache

from polyrank_chats.columns import flat, usual
from polyrank_chats.files.file import File
from polyrank_chats.files.members import Members
from polyrank_chats.options import Options
from polyrank_chats.texts import plain
from polyrank_chats.values import Row, text_of

CHANNEL = "(channel)"  # the column of the channel, group or chat of a message, which holds many conversations
TAWK = {"v": "customer", "a": "agent", "s": "system"}
SMS_KINDS = {"1": "received", "2": "sent"}
QUOTE = re.compile(r"\A(?:> .*\n)+\n+(?=\S)")
SAID = (None, "", "thread_broadcast", "me_message", "bot_message", "file_share", "file_comment")  # kinds of Slack
MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")
PLACEHOLDER = re.compile(r"Reacted \S+ to your message ?|Liked a message|(?:You|\S.{0,60}) sent an attachment\.")


def translated(row: Row, file: File) -> Row:
    """A message with fields that have usual names.

    Args:
        row: the message, with dots in the names of nested fields.
        file: its file; others of the same export may hold the names of users.
    """
    row = dict(row)
    if "timestamp_ms" in row and "sender_name" in row:
        return _of_facebook(row)
    if "ts" in row and row.get("type") == "message":
        return _of_slack(row, file)
    if "display_recipient" in row:  # Zulip, whose type private is that of direct messages
        row |= {"topicid": f"{row['display_recipient']}/{row.get('subject')}", "type": ""}
    if "channel_members" in row or ("create_at" in row and "channel" in row):  # Mattermost
        row[CHANNEL] = "/".join(map(str, row.get("channel_members") or (row.get("team"), row["channel"])))
    if "createdDateTime" in row and "messageType" in row:  # Teams: a post of a channel and its replies are a thread
        row[CHANNEL] = row.pop("chatId", None)
        reply_to = row.pop("replyToId", None)
        row["rootid"] = reply_to or (row.get("id") if "channelIdentity.channelId" in row else None)
    if str(row.get("messagetype")).startswith("RichText"):  # Skype
        row["content"] = plain(f"<div>{row.get('content')}</div>")
    if row.get("body.contentType") == "html":
        row["body.content"] = plain(f"<div>{row.get('body.content')}</div>")
    if "readable_date" in row:  # SMS Backup & Restore
        row["direction"] = SMS_KINDS.get(row.get("type") or row.get("msg_box") or "")
    if (letter := row.get("sender.t")) in TAWK:
        row["role"] = TAWK[letter]
    # Matrix repeats an edited message; the latter is of Rocket.Chat
    if row.get("content.m.relates_to.rel_type") == "m.replace" or ("rid" in row and row.get("t")):
        row["type"] = "event"
    if usual(row, "reply_to"):  # Matrix quotes the message that is answered
        row |= {key: QUOTE.sub("", row[key]) for key in usual(row, "text") if isinstance(row[key], str)}
    return row


def in_topics(rows: list[Row], channel: str) -> None:
    """Set the channels of the messages of a chat of Telegram; answers to the creation of a topic are in the topic."""
    topics: dict[object, str] = {}
    for row in rows:
        own, answered = row.get("id"), row.get("reply_to_message_id")
        if row.get("action") == "topic_created":
            topics[own] = f"{channel}/{row.get('title')}"
        elif answered in topics:
            topics[own] = topics[answered]
        row[CHANNEL] = topics.get(own) or row.get(CHANNEL) or channel


def _of_facebook(values: Row) -> Row:
    """Fix exports of Messenger and Instagram, which write a byte of UTF-8 as a character; drop placeholders."""
    row = {}
    for key, value in values.items():
        row[key] = value
        if isinstance(value, str):
            with suppress(UnicodeError):
                row[key] = value.encode("latin-1").decode("utf-8")
    return row | {"content": ""} if PLACEHOLDER.fullmatch(str(row.get("content"))) else row


def _of_slack(row: Row, file: File) -> Row:
    """Messages of Slack name users by ids, also in their texts; each channel is a folder with a file for each day."""
    names = users(file.others)

    def shown(mark: re.Match[str]) -> str:
        sign, target, label = mark.groups()
        name = names.get(target) or label or target.partition("^")[0]
        return f"{'#' if sign == '#' else '@'}{name.lstrip('@')}" if sign else label or target

    user = next(filter(None, map(row.get, ("user", "bot_id", "username"))), None)
    own = (f"{kind}_profile.{field}" for kind in ("user", "bot") for field in ("display_name", "real_name", "name"))
    channel = file.path.parent.name if len(file.others.files) > 1 else file.stem
    thread, kind = row.pop("thread_ts", None), row.get("subtype")
    return row | {
        "sender": next(filter(None, (names.get(str(user)), row.get("username"), *map(row.get, own))), user),
        "sender_id": user,
        "role": "bot" if kind == "bot_message" or any(key.startswith("bot_profile") for key in row) else None,
        "text": html.unescape(MARKUP.sub(shown, text_of(row.get("text")))),
        "type": "message" if kind in SAID else "event",
        "deleted": kind == "tombstone",
        CHANNEL: channel,
        "rootid": thread and f"{channel}/{thread}",
    }


@lru_cache(maxsize=1)
def users(export: Members) -> dict[str, str]:
    """The names of the users of Slack's export by their ids; bad entries are left out."""
    lists = (File(member, Options(skip_bad=True)) for member in export.files if member.path.name == "users.json")
    people = {str(row.get("id")): flat(row) for each in lists for _, row in each.rows}
    fields = ("profile.display_name", "real_name", "profile.real_name", "name")
    return {id_: str(next(filter(None, map(row.get, fields)), id_)) for id_, row in people.items()}
