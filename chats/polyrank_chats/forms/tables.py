"""Messages of tables: rows of one message each, and rows of a question and an answer."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any

from polyrank_chats.columns import Columns, columns, flat, normal
from polyrank_chats.errors import DataError
from polyrank_chats.files.file import File
from polyrank_chats.forms.nested import parsed, rows_in
from polyrank_chats.forms.programs import translated
from polyrank_chats.messages import Message, Messages, Reason, Rows
from polyrank_chats.names import NAMES
from polyrank_chats.options import Options
from polyrank_chats.quotations import unquoted
from polyrank_chats.report import Report
from polyrank_chats.roles import CUSTOMER, part_of
from polyrank_chats.sides import direction
from polyrank_chats.texts import plain
from polyrank_chats.values import Row
from polyrank_chats.wording import listed

N_LOOKED_AT = 200  # rows from which columns are detected
TRUE, FALSE = {*NAMES["yes"]}, {*NAMES["no"]}
SYSTEM_GROUPS = ("event/", "threadactivity/", "system_")  # Skype's and Mattermost's
GONE = ("[deleted]", "[removed]")


CONVERSATION, ID, ANSWERED = "(conversation)", "(position)", "(answered position)"
"""Columns of messages in nested JSON."""


def table(file: File) -> Messages | None:
    """A row is a message."""
    rows = rows_in(some_rows(file))
    n_cells = sorted(sum(cell not in (None, "") for cell in row.values()) for row in first_rows(rows))
    if file.text is not None and file.options.form is None and n_cells[len(n_cells) // 2 :][:1] == [1]:
        problem = "is text of an unknown form: its lines do not begin with times or names, and it has no columns"
        raise DataError(f"{file.path}: {problem}; export the chats as CSV or JSON, or choose a form")
    return messages_of(file, [(number, translated(flat(parsed(row, ())), file)) for number, row in rows], file.options)


def messages_of(file: File, rows: Rows, options: Options) -> Messages:
    """The messages of flat rows; a table with the ids of answered messages has trees of replies."""
    report = options.report
    chosen = columns(first_rows(rows), options, file.path)
    if not chosen.time:
        rows = _oldest_first(rows, chosen, report)
    n_replies, id_, reply_to = _links(rows, chosen)
    is_unique = len({_plain_id(row.get(id_)) for _, row in rows}) == len(rows)
    is_chat = not chosen.conversation and id_ != ID and (bool(chosen.stream) or 2 * n_replies < len(rows))
    if n_replies:
        report.note(f"conversations follow the replies in {reply_to!r}")
    threads = {_scalar(row, chosen.of("thread")) for _, row in rows}
    spoken = {kind for _, row in rows if _scalar(row, chosen.sender) for kind in _kinds(row, chosen)}
    for number, row in rows:
        if all(value in (None, "") for value in row.values()):
            continue
        where = f"{file.path}:{number}"
        stream = " and ".join(sorted(filter(None, (_scalar(row, (key,)) for key in chosen.stream)))) or file.stem
        found = message(row, chosen, where, stream, spoken)
        own = _plain_id(row.get(id_)) if n_replies else ""
        if own and not isinstance(found, DataError):
            if isinstance(found, Reason):
                found = Message(where, stream, "", "", left_out=found)
            if not is_chat:
                stream = _scalar(row, () if is_unique else (chosen.conversation,)) or file.stem
            answers = _answers(row, reply_to)
            found = replace(found, stream=stream, conversation=None, id=own, answers=answers, is_chat=is_chat)
        elif chosen.of("thread") and isinstance(found, Message) and found.conversation is None:
            thread = _scalar(row, chosen.of("thread")) or _scalar(row, chosen.of("id"))
            found = replace(found, conversation=thread if thread in threads else None)
        yield found


def _links(rows: Rows, chosen: Columns) -> tuple[int, str, str]:
    """The most replies, and the columns of ids and of the ids that they answer.

    If the table has a column of conversations, all messages of one but its first must be replies.
    """
    names = {row.get(chosen.conversation) for _, row in rows} if chosen.conversation else None
    found = [(0, "", "")]
    pairs = [(id_, reply_to) for reply_to in chosen.of("reply_to") for id_ in chosen.of("id")]
    for key, reply_to in [(ID, ANSWERED), *pairs]:
        known = {_plain_id(row.get(key)) for _, row in rows} - {""}
        n = sum(not known.isdisjoint(_answers(row, reply_to)) for _, row in rows)
        if key == ID or names is None or len(rows) - n <= len(names):
            found.append((n, key, reply_to))
    return max(found, key=itemgetter(0))


def _answers(row: Row, reply_to: str) -> tuple[str, str]:
    answered = _plain_id(row.get(reply_to))
    return answered, answered.partition("_")[2]  # Reddit's ids have a prefix: t1_abc


def _oldest_first(rows: Rows, chosen: Columns, report: Report) -> Rows:
    """Order rows without times: reversed if their ids decrease, else unchanged; add a note."""
    for key in chosen.of("id")[:1]:
        ids = [int(text) for _, row in rows if (text := _plain_id(row.get(key))).isdecimal()]
        if len(ids) == len(rows) > 1 and all(a > b for a, b in pairwise(ids)):
            report.note(f"no column of times; {key!r} decreases, so the last row is the oldest")
            return rows[::-1]
    report.note("no column of times: assuming that the oldest row comes first (choose a column with the option time)")
    return rows


def some_rows(file: File) -> Rows:
    """The rows of a file.

    Raises:
        DataError: the file has no rows, or they are examples.
    """
    outer = next((row for _, row in file.rows if row), None)
    if outer is None:
        bad = "".join(f": none of its rows is good; the first: {error}" for error in file.options.report.errors[:1])
        raise DataError(f"{file.path}: {bad.removeprefix(': ') or 'holds no messages; give a file with some'}")
    if file.options.form is None and "context" in outer and ("response" in outer or "candidates" in outer):
        raise DataError(f"{file.path}: holds examples, not chats; use it with train and evaluate without an import")
    return file.rows


def first_rows(rows: Rows) -> list[Row]:
    """The rows from which columns are detected."""
    return [row for _, row in rows[:N_LOOKED_AT]]


def _plain_id(value: Any) -> str:
    """An id as a text; pandas writes whole numbers as 3.0 if the column has empty cells."""
    return "" if value is None else str(value).strip().removesuffix(".0")


def _kinds(row: Row, chosen: Columns) -> set[str]:
    return {str(row[key]).casefold() for key in chosen.of("kind") if row.get(key) not in (None, "")}


def message(
    row: Row, chosen: Columns, where: str, stream: str, spoken: Collection[str]
) -> Message | Reason | DataError:
    """The message of a row, or the reason for leaving it out, or an error.

    Args:
        row: the cells.
        chosen: its columns.
        where: for errors.
        stream: its stream.
        spoken: the kinds of messages that have a sender.
    """
    kinds = _kinds(row, chosen)
    if _is_note(row, chosen.rest) or ("comment" in kinds and "message" in spoken):  # the latter is HubSpot's
        return Reason.NOTE
    text = next(filter(None, (plain(row.get(key)) for key in chosen.text)), "")
    text = unquoted(text) if chosen.of("mail") else text
    if _is_deleted(row, chosen.of("deleted")) or (chosen.of("reply_to") and text in GONE):
        return Reason.DELETED
    if kinds.intersection(NAMES["system_kinds"]) or any(kind.startswith(SYSTEM_GROUPS) for kind in kinds):
        return Reason.SYSTEM
    if not text:
        parts = any(isinstance(row.get(key), list) and row[key] for key in chosen.text)  # none of which is a text
        with_file = parts or kinds.intersection(NAMES["file_kinds"]) or any(row.get(key) for key in chosen.of("files"))
        return Reason.ATTACHMENT if with_file else Reason.EMPTY
    role = _role(row, chosen)
    sender = _scalar(row, chosen.sender) if set(chosen.sender) - {*chosen.role} else role
    if not (sender or role):
        problem = DataError(f"{where}: no sender in {listed(chosen.sender)}; fill it in or remove the row")
        return Reason.SYSTEM if kinds - {*spoken} else problem
    conversation = _scalar(row, (chosen.conversation,)) if chosen.conversation else None
    if chosen.conversation not in (None, CONVERSATION) and not conversation:
        return DataError(f"{where}: no conversation in {chosen.conversation!r}; fill it in or remove the row")
    return Message(
        where=where,
        stream=stream,
        sender=sender or role or "",
        text=text,
        conversation=conversation,
        time=time_of(row, chosen.time),
        role=role,
        sender_id=_scalar(row, chosen.of("sender_id")),
        names=tuple(
            (name, part_of(key) or CUSTOMER)
            for key in chosen.of("person_name", "contact")
            if (name := _scalar(row, (key,))) and not any(map(str.isdigit, name))
        ),
    )


def time_of(row: Row, keys: Iterable[str]) -> Any:
    """The time of a row, joined from the columns of times."""
    times = [row[key] for key in keys if row.get(key) not in (None, "")]
    return _day_and_clock(times) if len(times) > 1 else next(iter(times), None)


def _day_and_clock(times: list[Any]) -> str:
    """Join a date and a time of day; sheets add midnight to the date, and a date to the time of day."""
    day, clock = (str(value).strip() for value in times[:2])
    clock = clock.split(" ")[-1] if clock[:4] in ("1899", "1900") else clock
    return f"{day.removesuffix(' 00:00:00').removesuffix('T00:00:00')} {clock}"


def _scalar(row: Row, keys: Iterable[str | None]) -> str | None:
    values = (row.get(key) for key in keys if key)
    return next(filter(None, (str(value).strip() for value in values if not isinstance(value, list | None))), None)


@lru_cache(maxsize=2**6)
def _note_keys(keys: tuple[str, ...]) -> list[tuple[str, Collection[str]]]:
    """The columns that tell internal notes from replies, with the values of notes."""
    kinds: dict[str, Collection[str]] = {"private_stems": TRUE, "public_stems": FALSE, "kind_stems": ()}
    named = [key for key in keys if not normal(key).endswith("id")]
    return [(key, kinds[kind]) for key in named for kind in kinds if any(stem in normal(key) for stem in NAMES[kind])]


def _is_note(row: Row, keys: tuple[str, ...]) -> bool:
    """Whether a row is an internal note, by a flag or a word in a column of kinds.

    >>> _is_note({"Visibility": "Internal"}, ("Visibility",)), _is_note({"jsdPublic": True}, ("jsdPublic",))
    (True, False)
    """
    for key, values in _note_keys(keys):
        value = str(row.get(key)).strip().casefold()
        words = re.findall(r"[^\W\d_]+", value)
        if value in values or (len(words) < 4 and not {*NAMES["note_words"]}.isdisjoint(words)):
            return True
    return False


def _flag(row: Row, keys: Iterable[str]) -> bool | None:
    word = str(_scalar(row, keys)).casefold()
    return True if word in TRUE else False if word in FALSE else None


def _is_deleted(row: Row, keys: Iterable[str]) -> bool:
    """Whether a column holds a true flag, or the time of the deletion."""
    values = (str(row.get(key)).strip().casefold() for key in keys)
    return any(value in TRUE or value[:1] in {*"123456789"} for value in values)


def _role(row: Row, chosen: Columns) -> str | None:
    from_customer, from_agent = _flag(row, chosen.of("from_customer")), _flag(row, chosen.of("from_agent"))
    if _flag(row, chosen.of("from_bot")):
        return "bot"
    is_agent = from_agent if from_customer is None else not from_customer
    if is_agent is not None:
        return "agent" if is_agent else "customer"
    role = _scalar(row, chosen.role)
    return role and (direction(role) or role)
