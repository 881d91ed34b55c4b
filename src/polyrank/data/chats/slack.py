"""Slack's export: a folder for each channel, with a JSON file for each day, beside ``users.json``."""

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from polyrank.data.chats.files import Member, Rows, content
from polyrank.data.chats.messages import ATTACHMENT, DELETED, EMPTY, SYSTEM, Message, Messages, ReadLog, ReadOptions
from polyrank.data.rows import Row, object_of
from polyrank.errors import DataError

DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
SAID = {None, "", "thread_broadcast", "me_message", "bot_message", "file_share", "file_comment"}
MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def is_slack(paths: Sequence[PurePath]) -> bool:
    """Whether these are the files of an export."""
    return any(DAY.fullmatch(path.name) for path in paths)


def is_day(rows: Rows) -> bool:
    """Whether a file's rows are messages of Slack."""
    first = rows[0][1] if rows else {}
    return first.get("type") == "message" and isinstance(first.get("ts"), str)


def slack(members: Sequence[Member], options: ReadOptions) -> Messages:
    """Each channel is a stream, and each thread in it a conversation."""
    names: dict[str, str] = {}
    for member in members:
        if member.path.name == "users.json":
            people = replace(options, log=ReadLog(skip_bad=True))  # a bad one speaks by their id
            names |= {str(row.get("id")): _name(row) for _, row in _objects(member, people)}
    for member in members:
        if DAY.fullmatch(member.path.name) or len(members) == 1:
            channel = member.path.parent.name if len(members) > 1 else member.stem
            for number, row in _objects(member, options):
                if found := _message(f"{member.path}:{number}", channel, row, names, options.log):
                    yield found


def _objects(member: Member, options: ReadOptions) -> Rows:
    if not member.read().strip(b" \r\n\t[]"):
        return []  # a day on which nobody said anything
    text, rows = content(member, options)
    if text is not None:
        options.log.bad.add(DataError(f"{member.path}: not JSON; get the export again"))
    return rows


def _name(user: Row) -> str:
    own = object_of(user.get("profile"))
    names = (own.get("display_name"), user.get("real_name"), own.get("real_name"), user.get("name"), user.get("id"))
    return str(next(filter(None, names), ""))


def _message(where: str, channel: str, row: Row, names: dict[str, str], log: ReadLog) -> Message | None:
    if row.get("subtype") == "tombstone":
        log.skip(DELETED)
        return None
    if row.get("type") != "message" or row.get("subtype") not in SAID:
        log.skip(SYSTEM)
        return None
    text = _plain(row.get("text"), names)
    if not text:
        log.skip(ATTACHMENT if row.get("files") or row.get("attachments") or row.get("blocks") else EMPTY)
        return None
    user = str(row.get("user") or row.get("bot_id") or row.get("username") or "")
    profile = object_of(row.get("user_profile") or row.get("bot_profile"))
    known = names.get(user) or row.get("username") or (_name({"profile": profile, **profile}) if profile else "")
    if not (user or known):
        log.bad.add(DataError(f"{where}: a message without a user; remove it"))
        return None
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
