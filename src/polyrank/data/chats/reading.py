"""Files to messages: sees of which form each is, and hands it to that form's reader."""

from itertools import islice
from pathlib import Path

from polyrank.data.chats.files import Member, Rows, content, csv_rows, members
from polyrank.data.chats.messages import Form, Messages, ReadOptions
from polyrank.data.chats.nested import conversations, messages_in, unwrapped
from polyrank.data.chats.slack import is_day, is_slack, slack
from polyrank.data.chats.tables import N_LOOKED_AT, first_keys, question_columns, questions, table
from polyrank.data.chats.telegram import chats_in, telegram
from polyrank.data.chats.transcripts import is_transcript, transcript
from polyrank.data.chats.whatsapp import begins, whatsapp
from polyrank.data.read_report import counted
from polyrank.errors import DataError, UsageError

N_LINES_LOOKED_AT = 100


def read(path: Path, form: Form | None, options: ReadOptions, forms: dict[Form, None]) -> Messages:
    """The messages of a file, a folder or an archive.

    Args:
        path: the place.
        form: what each file is read as; None: what it looks like.
        options: columns, encoding and the like.
        forms: the forms that were read are added to it.
    """
    parts = members(path, options.log.note, options.max_bytes)
    if form == "slack" or (form is None and is_slack([member.path for member in parts])):
        forms["slack"] = None
        yield from slack(parts, options)
        return
    for member in parts:
        yield from _file(member, form, options, forms)


def _file(member: Member, form: Form | None, options: ReadOptions, forms: dict[Form, None]) -> Messages:
    n_bad = options.log.bad.n
    text, held = content(member, options)
    if text is not None:
        form = form or _form_of_text(text, options)
        if form == "whatsapp" or form == "transcript":
            forms[form] = None
            return (whatsapp if form == "whatsapp" else transcript)(member, text, options.log)
        held = csv_rows(member, text, options.log)
    elif form in ("whatsapp", "transcript"):
        raise UsageError(f"{member.path} is no text, as a {form} is; name another form or none")
    outer = next((row for _, row in held if row), None)
    if outer is None:
        n_bad = options.log.bad.n - n_bad
        why = f"none of its {counted(n_bad, 'row')} is good; the first: {options.log.bad.messages[0]}" if n_bad else ""
        raise DataError(f"{member.path}: {why or 'holds no messages; give a file with some'}")
    if form is None and "context" in outer and ("response" in outer or "candidates" in outer):
        raise DataError(f"{member.path}: holds examples, not chats; train and evaluate read it as it is")
    if form == "slack" or (form is None and is_day(held)):
        forms["slack"] = None
        return slack([member], options)
    if form == "telegram" or (form is None and chats_in(outer) is not None):
        forms["telegram"] = None
        if chats_in(outer) is None:
            raise UsageError(f"{member.path} holds no chats as Telegram exports them; name another form or none")
        return telegram(member, outer, options.log)
    rows, people = unwrapped(held, options.log)
    form = form or _form_of_rows(rows, options)
    forms[form] = None
    if form == "conversations":
        return conversations(member, rows, people, options)
    return (questions if form == "questions" else table)(member, rows, options)


def _form_of_text(text: str, options: ReadOptions) -> Form | None:
    """The form of a text that is no table."""
    if any(map(begins, islice(text.split("\n"), N_LINES_LOOKED_AT))):
        return "whatsapp"
    named = options.sender or options.text or options.question or options.answer
    return "transcript" if not named and is_transcript(text) else None


def _form_of_rows(rows: Rows, options: ReadOptions) -> Form:
    if any(messages_in(row) for _, row in rows[:N_LOOKED_AT]):
        return "conversations"
    keys = first_keys(rows)
    named = options.question or options.answer
    asked = question_columns(keys, options) and not (options.sender or options.text or options.conversation)
    return "questions" if named or asked else "table"
