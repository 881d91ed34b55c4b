"""Slack's export: a folder for each channel, with a JSON file for each day, beside ``users.json``."""

import html
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from polyrank.data.chats.files import Member, Rows, content
from polyrank.data.chats.messages import ATTACHMENT, DELETED, EMPTY, SYSTEM, Item, Items, Message, Settings, Skipped
from polyrank.data.rows import Row
from polyrank.errors import DataError

DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
SAID = {None, "", "thread_broadcast", "me_message", "bot_message", "file_share", "file_comment"}
MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def is_slack(paths: Sequence[PurePath]) -> bool:
    """Whether these are the files of an export."""
    return any(DAY.fullmatch(path.name) for path in paths)


def is_day(rows: Rows) -> bool:
    """Whether a file's rows are messages of Slack."""
    first = next((row for _, row in rows if not isinstance(row, DataError)), {})
    return first.get("type") == "message" and isinstance(first.get("ts"), str)


def slack(members: Sequence[Member], settings: Settings) -> Items:
    """Each channel is a stream, and each thread in it a conversation."""
    names: dict[str, str] = {}
    for member in members:
        if member.path.name == "users.json":
            names |= {str(row.get("id")): _name(row) for row in _objects(member, settings) if isinstance(row, dict)}
    for member in members:
        if DAY.fullmatch(member.path.name) or len(members) == 1:
            channel = member.path.parent.name if len(members) > 1 else member.stem
            for number, row in enumerate(_objects(member, settings), 1):
                yield row if isinstance(row, DataError) else _item(f"{member.path}:{number}", channel, row, names)


def _objects(member: Member, settings: Settings) -> list[Row | DataError]:
    if not member.read().strip(b" \r\n\t[]"):
        return []  # a day on which nobody said anything
    rows = content(member, settings)
    return (
        [DataError(f"{member.path}: not JSON; get the export again")] if isinstance(rows, str) else [r for _, r in rows]
    )


def _name(user: Row) -> str:
    profile = user.get("profile")
    own = profile if isinstance(profile, dict) else {}
    names = (own.get("display_name"), user.get("real_name"), own.get("real_name"), user.get("name"), user.get("id"))
    return str(next(filter(None, names), ""))


def _item(where: str, channel: str, row: Row, names: dict[str, str]) -> Item:
    if row.get("subtype") == "tombstone":
        return Skipped(DELETED)
    if row.get("type") != "message" or row.get("subtype") not in SAID:
        return Skipped(SYSTEM)
    text = _plain(row.get("text"), names)
    if not text:
        return Skipped(ATTACHMENT if row.get("files") or row.get("attachments") or row.get("blocks") else EMPTY)
    user = str(row.get("user") or row.get("bot_id") or row.get("username") or "")
    profile = row.get("user_profile") or row.get("bot_profile")
    known = (
        names.get(user)
        or row.get("username")
        or (_name({"profile": profile, **profile}) if isinstance(profile, dict) else "")
    )
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


def _plain(text: Any, names: dict[str, str]) -> str:
    """Text without Slack's markup: people by name, links by their text."""

    def shown(match: re.Match[str]) -> str:
        sign, target, label = match.groups()
        if sign == "@":
            return f"@{names.get(target) or label or target}"
        if sign == "#":
            return f"#{label or target}"
        if sign == "!":
            return f"@{(label or target).lstrip('@').partition('^')[0]}"
        return label or target

    return html.unescape(MARKUP.sub(shown, text)).strip() if isinstance(text, str) else ""
