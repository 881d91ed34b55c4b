"""Read files as messages: every reader checks whether a file has its form, the most specific reader first."""

from collections.abc import Callable, Iterator
from pathlib import Path

from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.file import File
from polyrank_chats.files.members import Members, members
from polyrank_chats.forms.chat_logs import chat_log
from polyrank_chats.forms.conversations import conversations, questions
from polyrank_chats.forms.mail import mail
from polyrank_chats.forms.tables import table
from polyrank_chats.forms.transcripts import transcript
from polyrank_chats.messages import Message, Messages
from polyrank_chats.names import NAMES
from polyrank_chats.options import Options

Reader = Callable[[File], Messages | None]
"""Returns the messages of a file, or None if the file has another form; ``options.form`` is the user's choice."""

READERS: dict[str, Reader] = {
    reader.__name__: reader for reader in (mail, chat_log, transcript, conversations, questions, table)
}
WITH_COLUMNS = (conversations, questions, table)


def read(path: Path, options: Options) -> Iterator[Message]:
    """The messages of a file, a folder or an archive; everything else is counted in the report.

    Raises:
        DataError: a file is damaged, has no known form, or has a bad row.
        UsageError: a file does not have the form or the column of the options.
    """
    report = options.report
    parts = Members(members(path, report.note, options.max_bytes))
    for file in (File(member, options, parts) for member in parts.files):
        if len(parts.files) > 1 and (file.path.name in NAMES["no_chats"] or file.data[:9].strip() == b"[]"):
            continue
        try:
            for found in _messages(file):
                if isinstance(found, Message):
                    report.left_out[found.left_out or ""] += found.left_out is not None
                    yield found
                elif isinstance(found, DataError):
                    report.count_bad(found)
                else:
                    report.left_out[found] += 1
        except RecursionError as error:
            raise DataError(f"{file.path}: nested too deeply; give flatter JSON") from error


def _messages(file: File) -> Messages:
    options = file.options
    wanted = {options.form: READERS[options.form]} if options.form else READERS
    for form, reader in wanted.items():
        if (found := reader(file)) is None:
            continue
        named = (options.conversation, *options.time, options.sender, options.text, options.messages)
        if reader not in WITH_COLUMNS and (name := next(filter(None, named), None)):
            raise UsageError(f"{file.path} has no column {name!r}, as its form is {form}; leave the option out")
        if form not in options.report.forms:
            options.report.forms.append(form)
        return found
    raise UsageError(f"{file.path} does not have the form {options.form}; choose another form or none")
