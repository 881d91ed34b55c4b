"""What every reader of chats makes of a file: messages, and a log of what is not one.

Knows no form of file.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from polyrank.data.chats.unpacking import MAX_BYTES
from polyrank.data.read_report import BadRows

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
        id: the message's own, where others answer it by that.
        answers: ids of the messages that it answers, the first one's first; such chains are conversations.
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


Messages = Iterator[Message]


class ReadLog:
    """What becomes of all that is not a message: guesses are noted, rows skipped for a reason, bad rows counted.

    Args:
        skip_bad: count bad rows, instead of raising the first.
        notify: takes each note, once.
    """

    def __init__(self, *, skip_bad: bool = False, notify: Callable[[str], None] = lambda line: None) -> None:
        self.notes: dict[str, None] = {}
        self.skipped: Counter[str] = Counter()
        self.bad = BadRows(skip=skip_bad)
        self._say = notify

    def note(self, line: str) -> None:
        """A line about what was guessed."""
        if line not in self.notes:
            self.notes[line] = None
            self._say(line)

    def skip(self, reason: str, n: int = 1) -> None:
        """Count rows that are no messages."""
        self.skipped[reason] += n


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a file is read; None is guessed. See ``import_chats``."""

    log: ReadLog
    form: str | None = None
    conversation: str | None = None
    time: tuple[str, ...] = ()
    sender: str | None = None
    text: str | None = None
    question: str | None = None
    answer: str | None = None
    encoding: str | None = None
    sheet: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
