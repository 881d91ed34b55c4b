"""What every reader of chats makes of a file: messages, what was left out and why, and rows that are bad.

Knows no form of file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from polyrank.errors import DataError

Form = Literal["table", "questions", "conversations", "slack", "telegram", "transcript", "whatsapp"]
DateOrder = Literal["day", "month", "year"]

# why a message is left out, in the singular
EMPTY, ATTACHMENT, SYSTEM, NOTE, DELETED = "empty text", "attachment", "system line", "internal note", "deleted message"
REPEATED, UNANSWERED = "repeated message", "unanswered message"


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as its file has it.

    Args:
        where: ``file:row``, for errors.
        stream: what it was said in: a file, a channel, a group.
        sender: who wrote it, as people know them.
        text: plain text.
        conversation: its conversation; None: the stream is divided into conversations where it falls silent.
        time: a text, a number or a datetime, or None.
        role: the sender's part in the conversation, where the file says it: agent, customer, assistant, ...
        sender_id: what else the file calls the sender.
    """

    where: str
    stream: str
    sender: str
    text: str
    conversation: str | None = None
    time: Any = None
    role: str | None = None
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is no message, and why."""

    reason: str


Item = Message | Skipped | DataError
Items = Iterator[Item]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a file is read; None is guessed. See ``import_chats``.

    Args:
        note: takes a line about what was guessed.
    """

    note: Callable[[str], None]
    conversation: str | None = None
    time: tuple[str, ...] = ()
    sender: str | None = None
    text: str | None = None
    question: str | None = None
    answer: str | None = None
    encoding: str | None = None
    sheet: str | None = None
