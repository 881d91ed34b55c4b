"""The options of an import: of ``import_chats``, of the readers, and of the command, which shows them in its help."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from polyrank_chats.errors import UsageError
from polyrank_chats.files.members import MAX_BYTES
from polyrank_chats.report import Report

Form = Literal["mail", "chat_log", "transcript", "conversations", "questions", "table"]
DateOrder = Literal["day", "month", "year"]
Several = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to import chats. Options that are None or empty are inferred and reported.

    Args:
        form: the form of the files; default: by their content.
        conversation: the column of ids of conversations; in JSON a field, with dots: meta.id.
        time: the column of times; two, if date and time of day are separate.
        sender: the column of senders.
        text: the column of texts.
        question: the column of questions, in a table of questions and answers.
        answer: the column of answers, in such a table.
        messages: in JSON, the path to the lists of messages, with dots: thread.events.
        agent: the agents, whose turns are responses: names, ids or roles. They become "agent", all others "customer".
        customer: senders who look like agents but are not: names, ids or roles; "*": all others.
        gap: hours of silence that end a conversation, if the file has no ids of conversations.
        date_order: the first part of dates such as 3/4/24: day, month or year.
        encoding: the encoding of text files, such as cp1252.
        sheet: a sheet of a workbook; default: the largest and those with the same columns.
        max_bytes: the limit of the size of a file, also unpacked; default: 2^30.
        redact: names to replace by {name}, in addition to those of the participants.
        keep_personal: keep names, addresses, links, numbers and passwords.
        skip_bad: count and skip bad rows, instead of stopping at the first.
        report: gets the guesses and counts.

    Raises:
        UsageError: a value is not possible.
    """

    form: Form | None = None
    conversation: str | None = None
    time: Several = ()
    sender: str | None = None
    text: str | None = None
    question: str | None = None
    answer: str | None = None
    messages: str | None = None
    agent: Several = ()
    customer: Several = ()
    gap: float = 8.0
    date_order: DateOrder | None = None
    encoding: str | None = None
    sheet: Several = ()
    max_bytes: int = MAX_BYTES
    redact: Several = ()
    keep_personal: bool = False
    skip_bad: bool = False
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type == Several:
                value = getattr(self, each.name) or ()
                object.__setattr__(self, each.name, (value,) if isinstance(value, str) else tuple(value))
        for name, possible in (("form", get_args(Form)), ("date_order", get_args(DateOrder))):
            if (value := getattr(self, name)) not in (None, *possible):
                raise UsageError(f"{name} {value!r} is unknown; use {', '.join(possible)} or none")
        if self.redact and self.keep_personal:
            raise UsageError("`redact` replaces names, but `keep_personal` keeps them; leave one of them out")
        if not 0 < self.gap < 1e6:
            raise UsageError(f"gap is {self.gap}; give the hours of silence, more than 0 and less than 1,000,000")
        self.report.skip_bad |= self.skip_bad
