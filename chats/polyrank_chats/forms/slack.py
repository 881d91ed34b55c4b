"""Slack's export: a folder for each channel with a JSON file for each day, and ``users.json``."""

import html
import re
from functools import lru_cache

from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.files.members import Members
from polyrank_chats.messages import Message, Messages, Reason, Rows
from polyrank_chats.options import Options
from polyrank_chats.report import Report
from polyrank_chats.values import Row, object_of, objects_in, text_of

DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
SAID = (None, "", "thread_broadcast", "me_message", "bot_message", "file_share", "file_comment")
MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def slack(file: File) -> Messages | None:
    """Each channel is a stream, and each thread a conversation; only the files of days hold messages."""
    days = _has_days(file.others)
    if days and not DAY.fullmatch(file.path.name):
        return iter(()) if file.path.suffix == ".json" else None
    if days and not file.data.strip(b" \r\n\t[]"):
        return iter(())  # a day without messages
    first = next((row for _, row in _rows(file)), {})
    theirs = first.get("type") == "message" and text_of(first.get("ts")) != ""
    return _messages(file) if theirs or (days and file.objects) else None


def _messages(file: File) -> Messages:
    names = _names(file.others)
    channel = file.path.parent.name if len(file.others.files) > 1 else file.stem
    for number, row in _rows(file):
        nested = objects_in(row.get("slackdump_thread_replies"))
        for each in (row, *({"thread_ts": row.get("ts"), **reply} for reply in nested)):
            yield _message(f"{file.path}:{number}", channel, each, names)


def _rows(file: File) -> Rows:
    """The messages of a day, or of a channel in a file of slackdump."""
    held = objects_in(file.objects[0][1].get("messages")) if len(file.objects) == 1 else []
    return [*enumerate(held, 1)] if held else file.objects


@lru_cache(maxsize=1)
def _has_days(export: Members) -> bool:
    """Whether the files are an export: a file is named by its day."""
    return any(DAY.fullmatch(member.path.name) for member in export.files)


@lru_cache(maxsize=1)
def _names(export: Members) -> dict[str, str]:
    """Names of the users of an export by id; bad entries are left out."""
    members = (member for member in export.files if member.path.name == "users.json")
    people = (File(member, Options(report=Report(skip_bad=True))) for member in members)
    return {str(row.get("id")): _name(row) for each in people for _, row in each.objects}


def _name(user: Row) -> str:
    own = object_of(user.get("profile"))
    names = (own.get("display_name"), user.get("real_name"), own.get("real_name"), user.get("name"), user.get("id"))
    return str(next(filter(None, names), ""))


def _message(where: str, channel: str, row: Row, names: dict[str, str]) -> Message | Reason | DataError:
    if row.get("subtype") == "tombstone":
        return Reason.DELETED
    if row.get("type") != "message" or row.get("subtype") not in SAID:
        return Reason.SYSTEM
    text = _plain(text_of(row.get("text")), names)
    if not text:
        return Reason.ATTACHMENT if row.get("files") or row.get("attachments") or row.get("blocks") else Reason.EMPTY
    user = str(row.get("user") or row.get("bot_id") or row.get("username") or "")
    profile = object_of(row.get("user_profile") or row.get("bot_profile"))
    known = names.get(user) or row.get("username") or (_name({"profile": profile, **profile}) if profile else "")
    if not (user or known):
        return DataError(f"{where}: a message without a user; remove it")
    thread = row.get("thread_ts")
    return Message(
        where=where,
        stream=channel,
        sender=str(known or user),
        text=text,
        conversation=f"{channel}/{thread}" if thread else None,
        time=float(row["ts"]) if re.fullmatch(r"\d+(\.\d+)?", str(row.get("ts"))) else row.get("ts"),
        role="bot" if row.get("subtype") == "bot_message" or "bot_profile" in row else None,
        sender_id=user or None,
    )


def _plain(text: str, names: dict[str, str]) -> str:
    """Replace Slack's markup: users by their names, links by their texts."""

    def shown(match: re.Match[str]) -> str:
        sign, target, label = match.groups()
        if not sign:
            return label or target
        name = names.get(target) or label or target.partition("^")[0]
        return f"{'#' if sign == '#' else '@'}{name.lstrip('@')}"

    return html.unescape(MARKUP.sub(shown, text)).strip()
