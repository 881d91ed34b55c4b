"""``read_texts``: the column of texts of a table, such as prepared replies, in every form of table that chats have."""

from collections.abc import Callable
from pathlib import Path

from polyrank_chats.columns import check_columns, keys_of, profiles, usual
from polyrank_chats.errors import DataError, UsageError
from polyrank_chats.files.file import MARKDOWN, File
from polyrank_chats.files.members import members
from polyrank_chats.forms.chat_logs import begins
from polyrank_chats.forms.nested import has_next_page, rows_in, talks_in
from polyrank_chats.forms.tables import first_rows
from polyrank_chats.forms.transcripts import is_transcript
from polyrank_chats.messages import Rows
from polyrank_chats.options import Options
from polyrank_chats.patterns import pattern
from polyrank_chats.texts import plain
from polyrank_chats.values import object_of, objects_in, text_of
from polyrank_chats.wording import listed

TABLES, MARK = {".csv", ".tsv", ".tab"}, pattern("list_mark")


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
        path: CSV or TSV (by the suffix), a workbook, Parquet, JSON lines, a JSON list of objects or texts, or a JSON
            object of names and texts; any other file is read as text.
        column: the column of texts; None: the one with a usual name, or the only one.
        encoding: encoding of text files; None: UTF-8, or the detected encoding.
        sheet: sheet of a workbook; None: the largest.
        notify: called with messages about guesses.

    Returns:
        The column of texts, and the rows with their numbers.

    Raises:
        DataError: the file cannot be read, or has no column of texts.
        MissingLibraryError: an optional library is required but not installed.
        UsageError: the file has no column of this name.
    """
    path = Path(path)
    options = Options(encoding=encoding, sheet=sheet or ())
    try:
        rows = _rows(path, options)
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply; give flatter JSON") from error
    column = _text_column(path, rows, column, options)
    for _, row in rows:
        if isinstance(given := row.get(column), str):
            row[column] = plain(given)
    for note in options.report.notes:
        notify(f"{path}: {note}")
    return column, rows


def _rows(path: Path, options: Options) -> Rows:
    """The rows of all files at ``path``, with their numbers."""
    rows: Rows = []
    for member in members(path, options.report.note):
        file = File(member, options)
        if file.text is None or Path(file.path.name.removesuffix(".gz")).suffix.lower() in TABLES:
            if has_next_page(file.rows):
                options.report.note("is a page of several; the replies of the others are missing")
            talks = [talk for talk in talks_in(file.rows) if talk.owner and "actions" not in talk.owner]  # of a macro
            names = [str(one.get("name", "")) for talk in talks for one, _ in talk.messages]
            is_chat = "" in names or len({*names}) < len(names) or holds_chats(file.rows)  # each reply has another name
            for number, row in rows_in(file.rows):
                for action in objects_in(row.get("actions")):  # of Zendesk's macros, and with arguments, of Gorgias'
                    given = object_of(action.get("arguments")) | {text_of(action.get("field")): action.get("value")}
                    row = row | {key.removesuffix("_html"): value for key, value in given.items() if key}
                rows.append((number, row))
        else:
            if MARKDOWN.search(file.text):
                raise DataError(f"{path}: is Markdown; write a text file with one reply per line, or CSV")
            lines = file.text.removesuffix("\n").split("\n")
            is_chat = is_transcript(file.text) or begins(lines[0])
            lines = [MARK.sub("", line) for line in lines] if all(map(MARK.match, filter(str.strip, lines))) else lines
            rows += [(number, {"text": line}) for number, line in enumerate(lines, 1)]
        if is_chat:
            raise UsageError(
                f"{path} holds chats, not replies; run: polyrank import chats {path} -o chats.jsonl, and then:"
                " polyrank import replies chats.jsonl --from-dialogues -o replies.jsonl"
            )
    one = rows[0][1] if len(rows) == 1 and path.suffix.lower() == ".json" else {}
    if one and not usual(one, "reply", "answer", "text") and all(isinstance(text, str) for text in one.values()):
        return [(number, {"name": name, "text": text}) for number, (name, text) in enumerate(one.items(), 1)]
    return rows


def holds_chats(rows: Rows) -> bool:
    """Whether the rows are messages: they have senders, and conversations or directions.

    >>> holds_chats([(1, {"ticket": 7, "sender": "Ann", "message": "hi"})]), holds_chats([(1, {"author": "Ann"})])
    (True, False)
    """
    keys = keys_of(first_rows(rows))
    return bool(usual(keys, "sender") and usual(keys, "text") and usual(keys, "conversation", "role", "recipient"))


def _text_column(path: Path, rows: Rows, column: str | None, options: Options) -> str:
    """The column of texts: the user's choice, or the first with a usual name, or the only one; never of numbers."""
    keys = keys_of(row for _, row in rows)
    if column is not None or not rows:
        check_columns(keys, [column] if rows else [], path)
        return column or "text"
    if "turns" in keys:
        raise UsageError(
            f"{path} holds dialogues; collect their frequent replies with: polyrank import replies --from-dialogues"
        )
    columns = profiles(first_rows(rows))
    names = keys if len(keys) < 2 else usual(keys, "reply", "answer", "text")
    texts = [key for key in names if key not in columns or columns[key].numbers < 1]
    if not texts:
        problem = "all texts are numbers" if names else f"no column has a usual name among {listed(keys)}"
        raise DataError(f"{path}: {problem}; name the column of texts with `column`")
    if texts[0] != "text":
        options.report.note(f"texts are in column {texts[0]!r}")
    return texts[0]
