"""``import_chats``: read chats as dialogues, with a report that accounts for every message."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyrank_chats.dialogues import PEOPLE, conversations, dialogue
from polyrank_chats.errors import DataError
from polyrank_chats.forms.mail import by_subject
from polyrank_chats.messages import Message
from polyrank_chats.options import Options
from polyrank_chats.people import ordinary_words, slots_of
from polyrank_chats.phones import language
from polyrank_chats.reading import read
from polyrank_chats.redact import LINK, Redactor
from polyrank_chats.report import Chats, Report
from polyrank_chats.roles import AGENT, is_system, names_of, speaker_of
from polyrank_chats.threads import threaded
from polyrank_chats.times import date_form, read_time
from polyrank_chats.values import Row
from polyrank_chats.wording import counted

SHARED = 3  # conversations in which agents gave a link, so that it stays


def import_chats(path: Path | str, **chosen: Any) -> Chats:
    """Import chats of a file, a folder or a zip as dialogues. Consecutive messages of a sender become one turn.

    Args:
        path: CSV, a workbook, Parquet, JSON, JSON lines, mail, a transcript or a messenger's text;
            or a folder or zip of such files.
        chosen: the fields of ``Options``, which describes them.

    Raises:
        DataError: the file or a row is bad, or it has no conversation of two people.
        MissingLibraryError: an optional library is required but not installed.
        UsageError: an argument is invalid, or a column or table does not exist.
    """
    path, options = Path(path), Options(**chosen)
    report = options.report
    messages = list(read(path, options))
    report.n_messages = sum(each.left_out is None for each in messages) + report.left_out.total() + report.n_bad
    dated = [*_dated(messages, options)]
    said = threaded(by_subject(dated) if "mail" in report.forms else dated, report)
    if n_loose := sum(each.conversation is None for each in said):
        has_times = any(each.time for each in said)
        how = f"divided at pauses of {options.gap:g} hours" if has_times else "not divided: no times"
        report.note(f"{counted(n_loose, 'message')} without a conversation {how}")
    talks = [*conversations(said, options)]
    speaker = speaker_of([[each for each in talk if not is_system(each)] for _, talk in talks], options, path)
    rows = [row for name, talk in talks if (row := dialogue(name, talk, speaker, report))]
    if not options.keep_personal:
        redact(rows, options)
    report.n_conversations = len(rows)
    report.left_out = +report.left_out
    report.speakers = Counter(turn["speaker"] for row in rows for turn in row["turns"])
    if not rows:
        raise DataError(f"{path}: {_why_nothing(said, report)}")
    return Chats([{key: value for key, value in row.items() if key != PEOPLE} for row in rows], report)


def _agents_links(dialogues: Sequence[Row]) -> set[str]:
    """Links that agents gave in several conversations: they lead to pages, not to persons."""
    texts = ([turn["text"] for turn in row["turns"] if turn["speaker"] == AGENT] for row in dialogues)
    given = Counter(link for said in texts for link in {link for text in said for link in LINK.findall(text)})
    return {link for link, n in given.items() if n >= SHARED}


def redact(dialogues: Sequence[Row], options: Options) -> None:
    """Replace personal data and participants' names; speakers and ids with such data become numbers."""
    redactor = Redactor(options.redact, _agents_links(dialogues), ordinary_words(dialogues))
    quiet = Redactor(options.redact)  # replacements in speakers and ids do not count
    personal = dict.fromkeys(turn["speaker"] for row in dialogues for turn in row["turns"])
    people = {name: f"person {n}" for n, name in enumerate((name for name in personal if quiet(name) != name), 1)}
    spoken = [language(" ".join(turn["text"] for turn in row["turns"])) for row in dialogues]
    usual = next((name for name, _ in Counter(spoken).most_common() if name), "")
    agents = slots_of({name: AGENT for row in dialogues for name, part in row[PEOPLE].items() if part == AGENT})
    for number, (row, own) in enumerate(zip(dialogues, spoken, strict=True), 1):
        slots = agents | slots_of(row[PEOPLE])
        for turn in row["turns"]:
            turn["speaker"] = people.get(turn["speaker"], turn["speaker"])
            turn["text"] = redactor(turn["text"], slots, own or usual)
        named = {word: slot for word, slot in slots.items() if slot != "{name}"}
        if not row["id"].isdigit() and quiet(row["id"], named) != row["id"]:
            row["id"] = f"conversation {number}"
    options.report.redacted = +redactor.counts
    if n := len(redactor.kept):
        options.report.note(f"kept {counted(n, 'link')} that agents gave in {SHARED} conversations or more")


def _dated(messages: Sequence[Message], options: Options) -> Iterator[Message]:
    form, is_guess = date_form(message.time for message in messages)
    if options.date_order is not None:
        form = form._replace(order=options.date_order)
    elif is_guess:
        how = f"assuming that the {form.order} comes first"
        options.report.note(f"dates are ambiguous: {how} (choose it with the option date order)")
    agents = {name.strip().casefold() for name in options.agent}
    for message in messages:
        if is_system(message) and names_of(message) & agents:
            message = replace(message, role=AGENT)
        try:
            yield replace(message, time=read_time(message.time, form))
        except ValueError as error:
            if message.left_out is None:
                options.report.count_bad(DataError(f"{message.where}: {error}"))


def _why_nothing(said: Sequence[Message], report: Report) -> str:
    """Why the import has no dialogue, and the fix."""
    senders = {each.sender for each in said}
    if report.n_bad and not said:
        return f"has no good row; the first bad one: {report.errors[0]}"
    if len(senders) == 1:
        return f"only {senders.pop()!r} wrote ({counted(len(said), 'message')}); name the column of senders"
    if said:
        n_system = sum(is_system(each) for each in said)
        system = f" ({n_system:,} by a system: name it with the option agent if it answers)" if n_system else ""
        n = counted(len(said), "message")
        return f"none of {n} answers another{system}; name the column of conversations, or raise the gap"
    reasons = ", ".join(counted(n, reason) for reason, n in report.left_out.most_common())
    return f"holds no usable message{f' ({reasons})' if reasons else ''}; check the file, or choose its form"
