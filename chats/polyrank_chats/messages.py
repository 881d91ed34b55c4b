"""The output of every chat reader: messages. No file format is known here."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from polyrank_chats.errors import DataError
from polyrank_chats.values import Row

Rows = list[tuple[int, Row]]  # with their numbers, or the lines that they start on


class Reason(StrEnum):
    """Why a message is left out, in the singular."""

    EMPTY = "empty text"
    ATTACHMENT = "attachment"
    SYSTEM = "system line"
    NOTE = "internal note"
    DELETED = "deleted message"
    REPEATED = "repeated message"
    UNANSWERED = "unanswered message"
    BELOW_DELETED = "orphaned answer"  # to a deleted message


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a file.

    Args:
        where: ``file:row``, for errors.
        stream: the file, channel or group of the message.
        sender: name of the sender.
        text: plain text.
        conversation: id of the conversation; None: pauses divide the stream into conversations.
        time: a text, a number, a datetime or None; a datetime or None after ``importer`` has parsed it.
        role: role of the sender, if the file has it: agent, customer, assistant, ...
        sender_id: another name or id of the sender.
        id: id of the message, if answers refer to it.
        answers: ids of the messages that it answers, oldest first; a chain of answers is a conversation.
        is_chat: not every answer names its message, so that pauses divide the stream if few do.
        left_out: the reason for leaving it out, if other messages may answer it.
        names: other names of people in its row, and their parts: customer or agent.
        subject: of a mail.
        recipients: addresses of a mail.
    """

    where: str
    stream: str
    sender: str
    text: str
    conversation: str | None = None
    time: Any = None
    role: str | None = None
    sender_id: str | None = None
    id: str | None = None
    answers: tuple[str, ...] = ()
    is_chat: bool = False
    left_out: Reason | None = None
    names: tuple[tuple[str, str], ...] = ()
    subject: str = ""
    recipients: tuple[str, ...] = ()


Messages = Iterator[Message | Reason | DataError]
"""The output of a reader: messages, reasons for leaving a message out, and errors of bad rows."""
