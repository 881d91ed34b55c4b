"""Read files as messages: every reader checks whether a file has its form, the most specific reader first."""

from collections.abc import Callable, Iterator
from pathlib import Path

from polyrank.data.chats.chat_logs import chat_log
from polyrank.data.chats.discord import discord
from polyrank.data.chats.files import File
from polyrank.data.chats.line_kakaotalk import line_kakaotalk
from polyrank.data.chats.mail import mail
from polyrank.data.chats.mattermost import mattermost
from polyrank.data.chats.members import Members, members
from polyrank.data.chats.messages import Message, Messages, ReadOptions
from polyrank.data.chats.nested import conversations
from polyrank.data.chats.slack import slack
from polyrank.data.chats.tables import questions, table
from polyrank.data.chats.teams import teams
from polyrank.data.chats.telegram import telegram
from polyrank.data.chats.transcript_tables import transcripts
from polyrank.data.chats.transcripts import transcript
from polyrank.data.chats.webvtt import webvtt
from polyrank.data.chats.whatsapp import whatsapp
from polyrank.errors import DataError, UsageError

Reader = Callable[[File], Messages | None]
"""Returns the messages of a file, or None if the file has another form; ``options.form`` is the user's choice."""

READERS: dict[str, Reader] = {
    reader.__name__: reader
    for reader in (
        mail,
        slack,
        teams,
        telegram,
        discord,
        mattermost,
        chat_log,
        whatsapp,
        line_kakaotalk,
        webvtt,
        transcript,
        conversations,
        transcripts,
        questions,
        table,
    )
}
WITH_COLUMNS = (conversations, transcripts, questions, table)


def read(path: Path, options: ReadOptions, forms: dict[str, None]) -> Iterator[Message]:
    """The messages of a file, a folder or an archive; the detected forms are added to ``forms``.

    Raises:
        DataError: a file is damaged, has no known form, or has a bad row.
        UsageError: a file does not have the form or the column of the options.
    """
    parts = Members(members(path, options.log.note, options.max_bytes))
    for member in parts.files:
        try:
            yield from options.log.count(_messages(File(member, options, parts), forms))
        except RecursionError as error:
            raise DataError(f"{member.path}: nested too deeply; give flatter JSON") from error


def _messages(file: File, forms: dict[str, None]) -> Messages:
    options = file.options
    wanted = {options.form: READERS[options.form]} if options.form else READERS
    for form, reader in wanted.items():
        if (found := reader(file)) is None:
            continue
        named = (options.conversation, *options.time, options.sender, options.text)
        if reader not in WITH_COLUMNS and any(named):
            name = next(filter(None, named))
            raise UsageError(f"{file.path} has no column {name!r}, as its form is {form}; leave the option out")
        forms[form] = None
        return found
    raise UsageError(f"{file.path} does not have the form {options.form}; choose another form or none")
