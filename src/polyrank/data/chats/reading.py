"""Files to messages: sees of which form each is, and hands it to that form's reader."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

from polyrank.data.chats.columns import keys_of
from polyrank.data.chats.files import Member, Rows, content, csv_rows, good, members
from polyrank.data.chats.messages import Form, Items, Settings
from polyrank.data.chats.nested import conversations, messages_in, unwrapped
from polyrank.data.chats.slack import is_day, is_slack, slack
from polyrank.data.chats.tables import N_LOOKED_AT, question_columns, questions, table
from polyrank.data.chats.telegram import chats_in, telegram
from polyrank.data.chats.whatsapp import begins, whatsapp
from polyrank.errors import UsageError

N_LINES_LOOKED_AT = 100


def read(path: Path, form: Form | None, settings: Settings, forms: dict[Form, None]) -> Items:
    """The messages of a file, a folder or an archive.

    Args:
        path: the place.
        form: what each file is read as; None: what it looks like.
        settings: columns, encoding and the like.
        forms: the forms that were read are added to it.
    """
    found = members(path, settings.note)
    if form == "slack" or (form is None and is_slack([member.path for member in found])):
        forms["slack"] = None
        yield from slack(found, settings)
        return
    for member in found:
        own = settings
        if len(found) > 1:
            own = replace(settings, note=lambda line, name=member.path.name: settings.note(f"{name}: {line}"))  # type: ignore[misc]
        yield from _file(member, form, own, forms)


def _file(member: Member, form: Form | None, settings: Settings, forms: dict[Form, None]) -> Items:
    found = content(member, settings)
    if isinstance(found, str):
        if form == "whatsapp" or (
            form is None and any(map(begins, found.split("\n", N_LINES_LOOKED_AT)[:-1] or [found]))
        ):
            forms["whatsapp"] = None
            return whatsapp(member, found)
        found = csv_rows(member, found)
    elif form == "whatsapp":
        raise UsageError(f"{member.path} is not text, as WhatsApp's exports are; name another form or none")
    outer = next(good(found), {})
    if form is None and is_day(found):
        forms["slack"] = None
        return slack([member], settings)
    if form == "telegram" or (form is None and chats_in(outer) is not None):
        forms["telegram"] = None
        if chats_in(outer) is None:
            raise UsageError(f"{member.path} holds no chats as Telegram exports them; name another form or none")
        return telegram(member, outer)
    rows, people = unwrapped(found)
    form = form or _form(rows, settings)
    forms[form] = None
    if form == "conversations":
        return conversations(member, rows, people, settings)
    return (questions if form == "questions" else table)(member, rows, settings)


def _form(rows: Rows, settings: Settings) -> Form:
    some = list(islice(good(rows), N_LOOKED_AT))
    if any(messages_in(row) for row in some):
        return "conversations"
    keys = keys_of(some)
    named = settings.question or settings.answer
    asked = question_columns(keys, settings) and not (settings.sender or settings.text or settings.conversation)
    return "questions" if named or asked else "table"
