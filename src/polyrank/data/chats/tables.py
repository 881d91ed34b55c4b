"""Rows of one message each, and rows of a question and an answer, to messages."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from polyrank.data.chats.columns import ANSWER, QUESTION, Columns, columns, flat, keys_of, listed, usual
from polyrank.data.chats.files import Member, Rows
from polyrank.data.chats.messages import ATTACHMENT, EMPTY, NOTE, SYSTEM, Message, Messages, ReadLog, ReadOptions
from polyrank.data.chats.texts import plain
from polyrank.data.rows import Row, row_error
from polyrank.errors import DataError, UsageError

N_LOOKED_AT = 200  # rows whose columns are looked at
THREAD = "(thread)"
TRUE, FALSE = {"true", "1", "yes", "y", "t", "x", "1.0"}, {"false", "0", "no", "n", "f", "0.0"}
SYSTEM_KINDS = {
    "system",
    "service",
    "event",
    "notification",
    "info",
    "join",
    "leave",
    "joined",
    "left",
    "status",
    "call",
}
FILE_KINDS = {"image", "photo", "video", "audio", "voice", "file", "document", "sticker", "location", "media", "gif"}
NOTE_KINDS = {"note", "internal", "internal note", "internal_note", "private", "private_note", "note_and_reopen"}


def table(member: Member, rows: Rows, options: ReadOptions, *, stream: str | None = None) -> Messages:
    """A row is a message."""
    flattened = [(number, flat(row)) for number, row in rows]
    chosen = columns(first_keys(flattened), options, member.path)
    if chosen.conversation is None and chosen.ids and chosen.reply_to:
        options.log.note(f"conversations follow the replies in {chosen.reply_to[0]!r}")
        flattened = _threaded(flattened, chosen.ids[0], chosen.reply_to[0])
        chosen = replace(chosen, conversation=THREAD)
    for number, row in flattened:
        filled = any(value not in (None, "") for value in row.values())
        if filled and (found := message(row, chosen, f"{member.path}:{number}", stream or member.stem, options.log)):
            yield found


def first_keys(rows: Rows) -> list[str]:
    """The columns of the first rows."""
    return keys_of(row for _, row in rows[:N_LOOKED_AT])


def _threaded(rows: Rows, id_: str, reply_to: str) -> Rows:
    """Rows with their conversation: the first message that they answer, by way of others."""
    parents = {_plain_id(row.get(id_)): _plain_id(row.get(reply_to)) for _, row in rows}

    def root(name: str) -> str:
        seen = {name}
        while (parent := parents.get(name)) and parent not in seen:
            seen.add(name := parent)
        return name

    return [(number, row | {THREAD: root(_plain_id(row.get(id_)))}) for number, row in rows]


def _plain_id(value: Any) -> str:
    """An id as a text; pandas writes whole numbers with gaps among them as 3.0."""
    return "" if value is None else str(value).strip().removesuffix(".0")


def message(row: Row, chosen: Columns, where: str, stream: str, log: ReadLog) -> Message | None:
    """The message of a row; None: the log says why there is none."""
    kinds = {str(row[key]).casefold() for key in chosen.kind if row.get(key)}
    if kinds & NOTE_KINDS or _flag(row, chosen.private) is True or _flag(row, chosen.public) is False:
        log.skip(NOTE)
        return None
    text = next(filter(None, (plain(row.get(key)) for key in chosen.text)), "")
    if kinds & SYSTEM_KINDS:
        log.skip(SYSTEM)
        return None
    if not text:
        parts = any(isinstance(row.get(key), list) and row[key] for key in chosen.text)  # of which none is a text
        with_file = parts or kinds & FILE_KINDS or any(row.get(key) for key in chosen.files)
        log.skip(ATTACHMENT if with_file else EMPTY)
        return None
    sender = _scalar(row, chosen.sender)
    role = _role(row, chosen)
    if not (sender or role):
        log.bad.add(DataError(f"{where}: no sender in {listed(chosen.sender)}; fill it in or remove the row"))
        return None
    conversation = _scalar(row, (chosen.conversation,)) if chosen.conversation else None
    if chosen.conversation and not conversation:
        log.bad.add(DataError(f"{where}: no conversation in {chosen.conversation!r}; fill it in or remove the row"))
        return None
    times = [row[key] for key in chosen.time if row.get(key) not in (None, "")]
    return Message(
        where=where,
        stream=stream,
        sender=sender or role or "",
        text=text,
        conversation=conversation,
        time=_day_and_clock(times) if len(times) > 1 else next(iter(times), None),
        role=role,
        sender_id=_scalar(row, chosen.sender_ids),
    )


def _day_and_clock(times: list[Any]) -> str:
    """One text of a date and a time of day; a sheet has midnight behind the one, a date in front of the other."""
    day, clock = (str(value).strip() for value in times[:2])
    clock = clock.split(" ")[-1] if clock[:4] in ("1899", "1900") else clock
    return f"{day.removesuffix(' 00:00:00').removesuffix('T00:00:00')} {clock}"


def _scalar(row: Row, keys: Iterable[str | None]) -> str | None:
    values = (row.get(key) for key in keys if key is not None)
    return next(
        (
            text
            for value in values
            if not isinstance(value, list) and value is not None and (text := str(value).strip())
        ),
        None,
    )


def _flag(row: Row, keys: Iterable[str]) -> bool | None:
    word = str(_scalar(row, keys)).casefold()
    return True if word in TRUE else False if word in FALSE else None


def _role(row: Row, chosen: Columns) -> str | None:
    from_customer, from_agent = _flag(row, chosen.from_customer), _flag(row, chosen.from_agent)
    if from_customer is not None:
        return "customer" if from_customer else "agent"
    if from_agent is not None:
        return "agent" if from_agent else "customer"
    return _scalar(row, chosen.role)


def question_columns(keys: list[str], options: ReadOptions) -> tuple[str, str] | None:
    """The columns of questions and of answers, if there are both."""
    for name in (options.question, options.answer):
        if name is not None and name not in keys:
            raise UsageError(f"there is no column {name!r}; there are {listed(keys)}")
    answers = [options.answer] if options.answer else usual(keys, ANSWER)
    questions = [options.question] if options.question else usual([key for key in keys if key not in answers], QUESTION)
    return (questions[0], answers[0]) if questions and answers else None


def questions(member: Member, rows: Rows, options: ReadOptions) -> Messages:
    """A row is a conversation of two: a customer who asks and an agent who answers."""
    keys = first_keys(rows)
    chosen = question_columns(keys, options)
    if chosen is None:
        raise DataError(
            f"{member.path}: no columns of questions and answers; name them with the options question and answer:"
            f" {listed(keys)}"
        )
    if not (options.question and options.answer):
        options.log.note(f"guessed by its name: question in {chosen[0]!r}, answer in {chosen[1]!r}")
    ids = usual(keys, ["id", "questionid", "faqid", "qid"])[:1]
    for number, row in rows:
        texts = [plain(row.get(key)) for key in chosen]
        if not all(texts):
            problem = f"no text in {chosen[texts.index('')]!r}; fill it in or remove the row"
            options.log.bad.add(row_error(member.path, number, problem))
            continue
        where, conversation = f"{member.path}:{number}", _scalar(row, ids) or f"{member.stem}:{number}"
        for role, text in zip(("customer", "agent"), texts, strict=True):
            yield Message(where, member.stem, role, text, conversation, role=role)
