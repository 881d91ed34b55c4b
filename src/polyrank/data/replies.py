"""Build a catalogue of replies from a table, from a list of texts, or from the frequent replies of conversations."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from polyrank.data import fields
from polyrank.data.language import not_english
from polyrank.data.pool import text_id
from polyrank.data.rows import row_error
from polyrank.data.same_words import template
from polyrank.errors import DataError
from polyrank.loading.extensions import extension, polyrank_errors
from polyrank.records import Candidate, Example
from polyrank.wording import counted


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
        path: CSV or TSV (by the suffix), a workbook, an SQLite database, Parquet, JSON lines or a JSON list; any other
            file is read as text.
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


def frequent_replies(
    examples: Iterable[Example],
    *,
    min_count: int = 2,
    top: int | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """The most frequent replies of examples, most frequent first; near-copies count as one reply.

    Near-copies differ only in case, punctuation, numbers, or the name after a greeting. The most frequent variant
    represents them; ``metadata`` holds their total count and the number of variants.

    Args:
        examples: examples with right answers.
        min_count: leave out replies that occur less often.
        top: keep this many; None: all.
        notify: called with messages about replies that were left out.

    Raises:
        DataError: no reply occurs ``min_count`` times.

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
            f"none of {len(groups):,} different replies occurs {min_count} times, the most frequent {most} times; lower"
            " min_count"
        )
    if rare:
        n_said = sum(texts.total() for texts in groups)
        notify(
            f"{len(rare):,} of {len(groups):,} different replies, {sum(rare) / n_said:.0%} of all {n_said:,} replies,"
            f" are left out because they occur fewer than {min_count} times (`min_count`)"
        )
    if n_numbers:
        notify(f"{counted(n_numbers, 'number')} without a word left out")
    return [
        Candidate(text_id(text := texts.most_common(1)[0][0]), text, {"count": texts.total(), "n_variants": len(texts)})
        for texts in kept
    ]


def _is_number(text: str) -> bool:
    return any(map(str.isdigit, text)) and not any(map(str.isalpha, text))
