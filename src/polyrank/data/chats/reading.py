"""Files to messages: sees of which form each is, and hands it to that form's reader."""

from itertools import islice
from pathlib import Path

from polyrank.data.chats.columns import keys_of
from polyrank.data.chats.files import Member, Rows, content, csv_rows, good, members
from polyrank.data.chats.messages import Form, Items, Settings
from polyrank.data.chats.nested import conversations, messages_in, unwrapped
from polyrank.data.chats.slack import is_day, is_slack, slack
from polyrank.data.chats.tables import N_LOOKED_AT, question_columns, questions, table
from polyrank.data.chats.telegram import chats_in, telegram
from polyrank.data.chats.transcripts import is_transcript, transcript
from polyrank.data.chats.whatsapp import begins, whatsapp
from polyrank.errors import DataError, UsageError

N_LINES_LOOKED_AT = 100


def read(path: Path, form: Form | None, settings: Settings, forms: dict[Form, None]) -> Items:
    """The messages of a file, a folder or an archive.

    Args:
        path: the place.
        form: what each file is read as; None: what it looks like.
        settings: columns, encoding and the like.
        forms: the forms that were read are added to it.
    """
    parts = members(path, settings.note)
    if form == "slack" or (form is None and is_slack([member.path for member in parts])):
        forms["slack"] = None
        yield from slack(parts, settings)
        return
    for member in parts:
        yield from _file(member, form, settings, forms)


def _file(member: Member, form: Form | None, settings: Settings, forms: dict[Form, None]) -> Items:
    held = content(member, settings)
    if isinstance(held, str):
        form = form or _form_of_text(held, settings)
        if form == "whatsapp" or form == "transcript":
            forms[form] = None
            return (whatsapp if form == "whatsapp" else transcript)(member, held)
        held = csv_rows(member, held)
    elif form in ("whatsapp", "transcript"):
        raise UsageError(f"{member.path} is no text, as a {form} is; name another form or none")
    outer = next((row for row in good(held) if row), None)
    if outer is None:  # whatever is wrong with the rows
        errors = [row for _, row in held if isinstance(row, DataError)]
        raise errors[0] if errors else DataError(f"{member.path}: holds no messages; give a file with some")
    if form is None and "context" in outer and ("response" in outer or "candidates" in outer):
        raise DataError(f"{member.path}: holds examples, not chats; train and evaluate read it as it is")
    if form == "slack" or (form is None and is_day(held)):
        forms["slack"] = None
        return slack([member], settings)
    if form == "telegram" or (form is None and chats_in(outer) is not None):
        forms["telegram"] = None
        if chats_in(outer) is None:
            raise UsageError(f"{member.path} holds no chats as Telegram exports them; name another form or none")
        return telegram(member, outer)
    rows, people = unwrapped(held)
    form = form or _form_of_rows(rows, settings)
    forms[form] = None
    if form == "conversations":
        return conversations(member, rows, people, settings)
    return (questions if form == "questions" else table)(member, rows, settings)


def _form_of_text(text: str, settings: Settings) -> Form | None:
    """The form of a text that is no table."""
    if any(map(begins, islice(text.split("\n"), N_LINES_LOOKED_AT))):
        return "whatsapp"
    named = settings.sender or settings.text or settings.question or settings.answer
    return "transcript" if not named and is_transcript(text) else None


def _form_of_rows(rows: Rows, settings: Settings) -> Form:
    some = list(islice(good(rows), N_LOOKED_AT))
    if any(messages_in(row) for row in some):
        return "conversations"
    keys = keys_of(some)
    named = settings.question or settings.answer
    asked = question_columns(keys, settings) and not (settings.sender or settings.text or settings.conversation)
    return "questions" if named or asked else "table"
