"""A catalogue of replies: from a table or a list of texts, or what is said again and again in conversations."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from polyrank.data import fields
from polyrank.data.chats.columns import ANSWER, TEXT, keys_of, listed, usual
from polyrank.data.chats.files import File, Rows, members
from polyrank.data.chats.messages import ReadLog, ReadOptions
from polyrank.data.chats.profiles import profile
from polyrank.data.pool import text_id
from polyrank.data.read_report import counted
from polyrank.data.rows import row_error, suffix
from polyrank.data.same_words import template
from polyrank.errors import DataError, UsageError
from polyrank.records import Candidate, Example


def read_replies(
    path: Path | str,
    *,
    column: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """Replies of a table, of JSON, or of a text file with one per line; equal texts once, blank ones never.

    A reply without an id gets one from its text, so that it has the same one in every file. Other columns become
    metadata.

    Args:
        path: CSV or TSV by its ending, a sheet, Parquet, JSON lines, or a JSON list; anything else is a text file.
        column: that holds the texts; None: the one that has a usual name, or the only one.
        encoding: of text files; None: UTF-8, or what it looks like.
        sheet: of a workbook; None: the first that is not empty.
        notify: is told what was guessed and left out.

    Raises:
        DataError: the file cannot be read, has no such column, or holds no reply; or two replies have one id.
        MissingExtraError: a library of the extra "chats" is needed and is not installed.
        UsageError: the file has no column of that name.
    """
    path = Path(path)
    log = ReadLog(notify=lambda line: notify(f"{path}: {line}"))
    rows = _rows(path, ReadOptions(log=log, encoding=encoding, sheet=() if sheet is None else (sheet,)))
    if not rows:
        raise DataError(f"{path}: holds no replies; give a file with at least one")
    column = _text_column(path, rows, column, notify)
    replies: dict[str, Candidate] = {}
    texts: set[str] = set()
    n_blank = n_repeated = 0
    for number, row in rows:
        try:
            text = "" if row.get(column) is None else fields.text(row, column).strip()
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
            raise row_error(
                path, number, f"id {reply.id!r} is another reply's already; give each its own, or leave ids out"
            )
        texts.add(text)
        replies[reply.id] = reply
    if not replies:
        raise DataError(f"{path}: holds no replies; give a file with at least one")
    for n, what in ((n_blank, "blank"), (n_repeated, "repeated")):
        if n:
            notify(f"{path}: {n:,} {what} left out")
    return list(replies.values())


def _rows(path: Path, options: ReadOptions) -> Rows:
    """Rows with their numbers."""
    rows: Rows = []
    for member in members(path, options.log.note):
        file = File(member, options)
        if file.text is None or suffix(file.path) in (".csv", ".tsv", ".tab"):
            rows += file.rows
        else:
            rows += [(number, {"text": line}) for number, line in enumerate(file.text.split("\n"), 1)]
    return rows


def _text_column(path: Path, rows: Rows, asked: str | None, notify: Callable[[str], None]) -> str:
    """The column of the texts: as asked, by its name, or the only one; numbers alone are none."""
    keys = keys_of(row for _, row in rows)
    if asked is not None:
        if asked not in keys:
            raise UsageError(f"{path} has no column {asked!r}; it has {listed(keys)}")
        return asked
    if "turns" in keys:
        raise UsageError(f"{path} holds dialogues; take what is said often in them, with --from-dialogues")
    known = keys if len(keys) < 2 else usual(keys, ("text", "cannedresponse", "template", *ANSWER, *TEXT))
    if not known:
        there = f"and there are {listed(keys)}; name one with --text" if keys else "for there are none; check the file"
        raise DataError(f"{path}: no column has a usual name, {there}")
    known = [key for key in known if profile(key, (row.get(key) for _, row in rows[:200])).numbers < 1]
    if not known:
        raise DataError(f"{path}: its replies are numbers alone; name the column of texts with --text")
    if known[0] != "text":
        notify(f"{path}: replies are in column {known[0]!r}")
    return known[0]


def frequent_replies(
    examples: Iterable[Example],
    *,
    min_count: int = 2,
    top: int | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """The replies that were given most often, those that differ in little as one, the most frequent first.

    The same are texts that differ only in case, punctuation, numbers, or the name behind a greeting. Of them the most
    frequent stands for all; ``metadata`` counts how often they were given, and in how many variants.

    Args:
        examples: with right answers.
        min_count: replies that were given less often are left out.
        top: keep so many; None: all.
        notify: is told how much is left out.

    Raises:
        DataError: no reply was given as often.

    >>> said = ["Hi Ann, restart it.", "hi Bob: restart it", "Try port 2.", "Try port 4.", "Try port 2.", "Once."]
    >>> for reply in frequent_replies(Example(("hi",), (text,), (0,)) for text in said):
    ...     print(reply.text, reply.metadata)
    Try port 2. {'count': 3, 'n_variants': 2}
    Hi Ann, restart it. {'count': 2, 'n_variants': 2}
    """
    variants: dict[str, Counter[str]] = {}
    n_numbers = 0
    for example in examples:
        for text in dict.fromkeys(example.candidates[i].strip() for i in example.relevant):
            if _is_number(text):
                n_numbers += 1
            elif text:
                variants.setdefault(template(text), Counter())[text] += 1
    groups = sorted(variants.values(), key=lambda texts: -texts.total())
    rare = [texts.total() for texts in groups if texts.total() < min_count]
    kept = [texts for texts in groups if texts.total() >= min_count][:top]
    if not kept:
        most = groups[0].total() if groups else 0
        raise DataError(
            f"of {len(groups):,} different replies none was given {min_count} times, the most frequent {most}; ask for"
            " fewer (min_count)"
        )
    if rare:
        n_said = sum(texts.total() for texts in groups)
        notify(
            f"{len(rare):,} of {len(groups):,} different replies, {sum(rare) / n_said:.0%} of the {n_said:,} that were"
            f" given, are left out, for they were given fewer than {min_count} times (`min_count`)"
        )
    if n_numbers:
        notify(f"{counted(n_numbers, 'number')} without a word left out")
    return [
        Candidate(text_id(text := texts.most_common(1)[0][0]), text, {"count": texts.total(), "n_variants": len(texts)})
        for texts in kept
    ]


def _is_number(text: str) -> bool:
    return any(map(str.isdigit, text)) and not any(map(str.isalpha, text))
