"""Tables with a conversation in each row, as a transcript in one cell: lines such as ``Agent: hello``."""

from polyrank_chats.columns import keys_of, time_columns, usual
from polyrank_chats.errors import row_error
from polyrank_chats.files.file import File
from polyrank_chats.forms.tables import first_rows, some_rows, time_of
from polyrank_chats.forms.transcripts import is_transcript, spoken
from polyrank_chats.messages import Message, Messages
from polyrank_chats.profiles import profile
from polyrank_chats.texts import plain
from polyrank_chats.values import text_of


def transcripts(file: File) -> Messages | None:
    """Each row is a conversation; the column of transcripts is detected from its cells."""
    options = file.options
    if options.sender or options.question or options.answer:
        return None
    rows = first_rows(some_rows(file))
    for key in [options.text] if options.text else keys_of(rows):
        cells = [cell for row in rows if (cell := plain(text_of(row.get(key))))]
        if cells and sum("\n" in cell and is_transcript(cell) for cell in cells) >= 0.8 * len(cells):
            return _messages(file, key)
    return None


def _messages(file: File, text: str) -> Messages:
    options, rows = file.options, first_rows(file.rows)
    keys = [key for key in keys_of(rows) if key != text]
    names = [options.conversation] if options.conversation else usual(keys, "conversation", "id")
    time = options.time or time_columns([profile(key, (row.get(key) for row in rows)) for key in keys], options)
    options.report.note(f"each row is a conversation, with its transcript in {text!r}")
    for number, row in file.rows:
        said = spoken(plain(row.get(text)))
        if not said:
            yield row_error(file.path, number, f"no transcript in {text!r}; fill it in or remove the row")
        name = next((str(row[key]) for key in names if row.get(key)), f"{file.stem}:{number}")
        for position, (speaker, words) in enumerate(said):  # the time of the row is that of the first message
            at = None if position else time_of(row, time)
            yield Message(f"{file.path}:{number}", file.stem, speaker, words, name, at)
