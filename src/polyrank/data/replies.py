"""Build a catalogue of replies from a table or from a list of texts."""

from collections.abc import Callable
from pathlib import Path

from polyrank.data import fields
from polyrank.data.language import not_english
from polyrank.data.lines import row_error
from polyrank.data.pool import text_id
from polyrank.errors import DataError
from polyrank.loading.extensions import extension, polyrank_errors
from polyrank.records import Candidate


def read_replies(
    path: Path | str,
    *,
    column: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """Read replies from a table, from JSON, or from a text file with one reply per line.

    The distribution polyrank-chats reads the file; HTML becomes plain text, as in chats. Equal texts count once; blank
    texts are left out. A reply without an id gets one from its text, the same in every file. Other columns become
    metadata.

    Args:
        path: CSV or TSV (by the suffix), a workbook, Parquet, JSON lines, a JSON list of objects or texts, or a JSON
            object of names and texts; any other file is read as text.
        column: the column of texts; None: the one with a usual name, or the only one.
        encoding: encoding of text files; None: UTF-8, or the detected encoding.
        sheet: sheet of a workbook or table of a database; None: the largest.
        notify: called with messages about guesses and about replies that were left out.

    Raises:
        DataError: the file cannot be read, has no column of texts, or holds no reply; or two replies have the same id.
        UsageError: the file has no column of this name, or polyrank-chats is not installed.
    """
    path = Path(path)
    with polyrank_errors():
        column, rows = extension("texts")(path, column=column, encoding=encoding, sheet=sheet, notify=notify)
    replies: dict[str, Candidate] = {}
    texts: set[str] = set()
    n_blank = n_repeated = 0
    for number, row in rows:
        try:
            text = "" if row.get(column) is None else fields.text(row, column)
            reply = Candidate(
                fields.optional_id(row, text_id(text)),
                text,
                fields.metadata(row, without=("id", column), empty=(None, "")),
            )
        except ValueError as error:
            raise row_error(path, number, error) from error
        n_blank += not text
        n_repeated += text in texts
        if not text or text in texts:
            continue
        if reply.id in replies:
            problem = f"id {reply.id!r} belongs to another reply; give each reply its own id, or leave ids out"
            raise row_error(path, number, problem)
        texts.add(text)
        replies[reply.id] = reply
    if not replies:
        raise DataError(f"{path}: holds no replies; give a file with at least one")
    for n, what in ((n_blank, "blank"), (n_repeated, "repeated")):
        if n:
            notify(f"{path}: {n:,} {what} left out")
    if warning := not_english("replies", (reply.text for reply in replies.values())):
        notify(f"{path}: {warning}")
    return list(replies.values())
