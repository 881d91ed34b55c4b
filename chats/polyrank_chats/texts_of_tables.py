"""``read_texts``: the column of texts of a table, such as prepared replies, in every form of table that chats have."""

from collections.abc import Callable
from pathlib import Path

from polyrank_chats.columns import check_columns, keys_of, listed, usual
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.file import MARKDOWN, File
from polyrank_chats.files.members import members
from polyrank_chats.forms.chat_logs import begins
from polyrank_chats.forms.nested import has_next_page, rows_in, talks_in
from polyrank_chats.forms.transcripts import is_transcript
from polyrank_chats.messages import Rows
from polyrank_chats.options import Options
from polyrank_chats.profiles import Profile
from polyrank_chats.report import Report
from polyrank_chats.texts import plain

N_PROFILED = 200
TABLES = {".csv", ".tsv", ".tab"}
IS_CHAT = (
    "{path} holds chats, not replies; run: polyrank import chats {path} -o chats.jsonl, and then:"
    " polyrank import replies chats.jsonl --from-dialogues -o replies.jsonl"
)


def read_texts(
    path: Path | str,
    *,
    column: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[str, Rows]:
    """Read a table, JSON, or a text file with one text per line. HTML becomes plain text.

    Args:
        path: CSV or TSV (by the suffix), a workbook, an SQLite database, Parquet, JSON lines or a JSON list; any other
            file is read as text.
        column: the column of texts; None: the one with a usual name, or the only one.
        encoding: encoding of text files; None: UTF-8, or the detected encoding.
        sheet: sheet of a workbook or table of a database; None: the largest.
        notify: called with messages about guesses.

    Returns:
        The column of texts, and the rows with their numbers.

    Raises:
        DataError: the file cannot be read, or has no column of texts.
        MissingLibraryError: an optional library is required but not installed.
        UsageError: the file has no column of this name.
    """
    path = Path(path)
    report = Report(notify=lambda line: notify(f"{path}: {line}"))
    options = Options(report=report, encoding=encoding, sheet=() if sheet is None else (sheet,))
    rows = _rows(path, options)
    if not rows:
        return column or "text", []
    column = _text_column(path, rows, column, notify)
    n_html = 0
    for _, row in rows:
        if isinstance(given := row.get(column), str):
            row[column] = plain(given)
            n_html += row[column] != given.strip()
    if n_html:
        notify(f"{path}: HTML of {n_html:,} became plain text")
    return column, rows


def _rows(path: Path, options: Options) -> Rows:
    """The rows of all files at ``path``, with their numbers."""
    rows: Rows = []
    for member in members(path, options.report.note):
        file = File(member, options)
        if file.text is None or Path(file.path.name.removesuffix(".gz")).suffix.lower() in TABLES:
            if has_next_page(file.rows):
                options.report.note("is a page of several; the replies of the others are missing")
            if any(talk.owner for talk in talks_in(file.rows)) or holds_chats(file.rows):
                raise UsageError(IS_CHAT.format(path=path))
            rows += rows_in(file.rows)
        elif MARKDOWN.search(file.text):
            raise DataError(f"{path}: is Markdown; write a text file with one reply per line, or CSV")
        elif is_transcript(file.text) or begins(file.text.split("\n")[0]):
            raise UsageError(IS_CHAT.format(path=path))
        else:
            lines = file.text.removesuffix("\n").split("\n")
            rows += [(number, {"text": line}) for number, line in enumerate(lines, 1)]
    return rows


def holds_chats(rows: Rows) -> bool:
    """Whether the rows are messages: they have senders, and conversations or directions.

    >>> holds_chats([(1, {"ticket": 7, "sender": "Ann", "message": "hi"})]), holds_chats([(1, {"author": "Ann"})])
    (True, False)
    """
    keys = keys_of(row for _, row in rows[:N_PROFILED])
    return bool(usual(keys, "sender") and usual(keys, "text") and usual(keys, "conversation", "role", "recipient"))


def _text_column(path: Path, rows: Rows, column: str | None, notify: Callable[[str], None]) -> str:
    """The column of texts: the user's choice, or the first with a usual name, or the only one; never of numbers."""
    keys = keys_of(row for _, row in rows)
    if column is not None:
        check_columns(keys, (column,), path)
        return column
    if "turns" in keys:
        raise UsageError(
            f"{path} holds dialogues; collect their frequent replies with: polyrank import replies --from-dialogues"
        )
    names = keys if len(keys) < 2 else usual(keys, "reply", "answer", "text")
    if not names:
        raise DataError(
            f"{path}: no column has a usual name among {listed(keys)}; name the column of texts with `column`"
            if keys
            else f"{path}: has no columns; check the file"
        )
    texts = [key for key in names if Profile(key, (row.get(key) for _, row in rows[:N_PROFILED])).numbers < 1]
    if not texts:
        raise DataError(f"{path}: all texts are numbers; name the column of texts with `column`")
    if texts[0] != "text":
        notify(f"{path}: texts are in column {texts[0]!r}")
    return texts[0]
