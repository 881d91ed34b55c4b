"""``import_chats``: read chats as dialogues, with a report that accounts for every message."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

from polyrank_chats.dialogues import PEOPLE, Talk, conversations, dialogue
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.members import MAX_BYTES
from polyrank_chats.forms.mail import by_subject
from polyrank_chats.messages import DatedMessage, DateOrder, Message, ReadOptions
from polyrank_chats.people import ordinary_words, slots_of
from polyrank_chats.phones import check_countries, language
from polyrank_chats.reading import READERS, read
from polyrank_chats.redact import Redactor, links
from polyrank_chats.report import Chats, Report
from polyrank_chats.roles import AGENT, is_system, names_of, speakers
from polyrank_chats.threads import threaded
from polyrank_chats.times import date_form, read_time
from polyrank_chats.values import Row
from polyrank_chats.wording import counted

GAP_HOURS = 8.0
SHARED = 3
"""Conversations in which agents gave a link, so that it stays."""


def import_chats(
    path: Path | str,
    *,
    form: str | None = None,
    conversation: str | None = None,
    time: str | Sequence[str] | None = None,
    sender: str | None = None,
    text: str | None = None,
    question: str | None = None,
    answer: str | None = None,
    messages: str | None = None,
    agent: str | Sequence[str] = (),
    customer: str | Sequence[str] = (),
    join: bool = True,
    gap_hours: float = GAP_HOURS,
    date_order: DateOrder | None = None,
    keep_system: bool = False,
    encoding: str | None = None,
    sheet: str | Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    redact: Sequence[str] = (),
    country: str | Sequence[str] = (),
    keep_personal: bool = False,
    skip_bad: bool = False,
) -> Chats:
    """Import chats of a file, a folder or a zip. polyrank guesses arguments that are None and notes it in the report.

    Args:
        path: CSV, a workbook, an SQLite database, Parquet, JSON, JSON lines, a transcript or a messenger's text; or a
            folder or zip of such files.
        form: form of the files, one of ``READERS``.
        conversation: the column (or field, with dots: ``meta.id``) of conversation ids. Without one, each channel,
            group or file is divided at long pauses.
        time: the column of times, or the columns of dates and of times of day.
        sender: the column of senders.
        text: the column of texts.
        question: the column of questions, in a table of questions and answers.
        answer: the column of answers, in such a table.
        messages: in JSON, the path to the lists of messages, with dots: ``thread.events``. It reaches into every list.
        agent: names, ids or roles of the agents, whose turns are responses; they become ``agent``, all others
            ``customer``. Empty: detected from roles, names and behaviour; if that fails, speakers keep their names.
        customer: names, ids or roles of senders who look like agents but are not; ``"*"``: all others.
        join: make one turn of consecutive messages of a sender.
        gap_hours: a longer pause ends a conversation, if the file has no conversation ids.
        date_order: the number that comes first in a date such as 3/4/24.
        keep_system: keep system texts before all others, as background.
        encoding: encoding of text files.
        sheet: sheets of a workbook, or tables and views of an SQLite database. Empty: the largest sheet and those with
            the same columns, or the only table.
        max_bytes: the limit for the unpacked size of a file (zip, gzip or a workbook).
        redact: names to replace by ``{name}``. Names of participants, mail addresses, links, phone, card and account
            numbers, IP addresses and passwords are always replaced by slots such as ``{phone}``.
        country: countries (``"FR"``) of phone numbers without a country code. Empty: those of the dialogue's language.
        keep_personal: replace nothing.
        skip_bad: count bad rows in the report and continue, instead of stopping at the first.

    Raises:
        DataError: the file or a row is bad, or it has no conversation of two people.
        MissingLibraryError: an optional library is required but not installed.
        UsageError: an argument is invalid, or a column or table does not exist.
    """
    path = Path(path)
    for name, value, possible in (("form", form, [*READERS]), ("date_order", date_order, get_args(DateOrder))):
        if value is not None and value not in possible:
            raise UsageError(f"{name} {value!r} is unknown; use {', '.join(possible)} or none")
    if redact and keep_personal:
        raise UsageError("`redact` replaces names, but `keep_personal` keeps them; leave one of them out")
    if not 0 < gap_hours < 1e6:
        raise UsageError(f"gap_hours is {gap_hours}; give the hours of silence, more than 0 and less than 1,000,000")
    if country:
        check_countries(_several(country))
    report = Report(skip_bad=skip_bad)
    options = ReadOptions(
        report=report,
        form=form,
        conversation=conversation,
        time=_several(time),
        sender=sender,
        text=text,
        question=question,
        answer=answer,
        messages=messages,
        encoding=encoding,
        sheet=_several(sheet),
        max_bytes=max_bytes,
    )
    known = list(read(path, options))
    report.n_messages = sum(each.left_out is None for each in known) + report.left_out.total() + report.n_bad
    dated = [*_dated(known, date_order, report)]
    said = threaded(by_subject(dated) if "mail" in report.forms else dated, report)
    if n_loose := sum(each.message.conversation is None for each in said):
        how = (
            f"divided at pauses of {gap_hours:g} hours" if any(each.time for each in said) else "not divided: no times"
        )
        report.note(f"{counted(n_loose, 'message')} without a conversation {how}")
    talks = _with_speakers(
        [*conversations(said, report, timedelta(hours=gap_hours))], _several(agent), _several(customer), report, path
    )
    found = (dialogue(name, talk, report, join=join, keep_system=keep_system) for name, talk in talks)
    rows = [row for row in found if row is not None]
    if keep_personal:
        rows = [{key: value for key, value in row.items() if key != PEOPLE} for row in rows]
    else:
        redactor = Redactor(redact, _agents_links(rows), _several(country), ordinary_words(rows))
        rows = redacted(rows, redactor)
        report.redacted = +redactor.counts
        if redactor.kept:
            n = counted(len(redactor.kept), "link")
            report.note(f"kept {n} that agents gave in {SHARED} conversations or more")
    report.n_conversations = len(rows)
    report.left_out = +report.left_out
    report.speakers = Counter(turn["speaker"] for row in rows for turn in row["turns"])
    if not rows:
        raise DataError(f"{path}: {_why_nothing(said, report)}")
    return Chats(rows, report)


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _agents_links(dialogues: Sequence[Row]) -> set[str]:
    """Links that agents gave in several conversations: they lead to pages, not to persons."""
    given: Counter[str] = Counter()
    for row in dialogues:
        given.update(set().union(*(links(turn["text"]) for turn in row["turns"] if turn["speaker"] == AGENT)))
    return {link for link, n in given.items() if n >= SHARED}


def redacted(dialogues: Sequence[Row], redactor: Redactor) -> list[Row]:
    """Replace personal data and participants' names in dialogues; personal speakers and ids become numbers."""
    quiet = Redactor(redactor.names)  # replacements in speakers and ids do not count
    names = dict.fromkeys(turn["speaker"] for row in dialogues for turn in row["turns"])
    personal = [name for name in names if quiet(name) != name]
    people = {name: f"person {number}" for number, name in enumerate(personal, 1)}
    spoken = [language(" ".join(turn["text"] for turn in row["turns"])) for row in dialogues]
    usual = next((name for name, _ in Counter(spoken).most_common() if name), "")
    agents = slots_of({name: AGENT for row in dialogues for name, part in row[PEOPLE].items() if part == AGENT})
    rows = []
    for number, (row, own) in enumerate(zip(dialogues, spoken, strict=True), 1):
        slots = agents | slots_of(row[PEOPLE])

        def plain(text: str, slots: dict[str, str] = slots, spoken: str = own or usual) -> str:
            return redactor(text, slots, spoken)

        named = {word: slot for word, slot in slots.items() if slot != "{name}"}
        stays = row["id"].isdigit() or quiet(row["id"], named) == row["id"]
        changed: Row = {"id": row["id"] if stays else f"conversation {number}"}
        if "background" in row:
            changed["background"] = [*map(plain, row["background"])]
        changed["turns"] = [
            {"speaker": people.get(turn["speaker"], turn["speaker"]), "text": plain(turn["text"])}
            for turn in row["turns"]
        ]
        rows.append({key: value for key, value in (row | changed).items() if key != PEOPLE})
    return rows


def _dated(messages: Sequence[Message], order: DateOrder | None, report: Report) -> Iterator[DatedMessage]:
    form, is_guess = date_form(message.time for message in messages)
    if order is not None:
        form = form._replace(order=order)
    elif is_guess:
        report.note(
            f"dates are ambiguous: assuming that the {form.order} comes first (choose it with the option date order)"
        )
    for message in messages:
        try:
            yield DatedMessage(message, read_time(message.time, form), "")
        except ValueError as error:
            if message.left_out is None:
                report.count_bad(DataError(f"{message.where}: {error}"))


def _with_speakers(
    talks: Sequence[Talk], agents: Sequence[str], customers: Sequence[str], report: Report, path: Path
) -> list[Talk]:
    wanted = {name.strip().casefold() for name in agents}

    def heard(each: DatedMessage) -> DatedMessage:
        is_agent = is_system(each.message) and names_of(each.message) & wanted
        return replace(each, message=replace(each.message, role=AGENT)) if is_agent else each

    talks = [(name, [*map(heard, talk)]) for name, talk in talks]
    spoken = [[each.message for each in talk if not is_system(each.message)] for _, talk in talks]
    found = (iter(names) for names in speakers(spoken, agents, customers, report, path))
    return [
        (name, [each if is_system(each.message) else replace(each, speaker=next(names)) for each in talk])
        for (name, talk), names in zip(talks, found, strict=True)
    ]


def _why_nothing(said: Sequence[DatedMessage], report: Report) -> str:
    """Why the import has no dialogue, and the fix."""
    senders = {each.message.sender for each in said}
    if report.n_bad and not said:
        return f"has no good row; the first bad one: {report.errors[0]}"
    if len(senders) == 1:
        return f"all {counted(len(said), 'message')} are by {senders.pop()!r}; name the column of senders"
    if said:
        n_system = sum(is_system(each.message) for each in said)
        system = f" ({n_system:,} by a system: name it with the option agent if it answers)" if n_system else ""
        n = counted(len(said), "message")
        return f"none of {n} answers another{system}; name the column of conversations, or raise the gap"
    reasons = ", ".join(counted(n, reason) for reason, n in report.left_out.most_common())
    return f"holds no usable message{f' ({reasons})' if reasons else ''}; check the file, or choose its form"
