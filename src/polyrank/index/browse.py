"""Candidates to look at: one by its id, or page by page, all or those that hold some words. No torch.

Each call opens the file anew and sees the last change, whoever made it; a page costs what it shows, not what is stored,
unless words are looked for or metadata are filtered. Of an index on a server, a page costs what is stored there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrank.index.filters import Filter
from polyrank.index.remote import RemoteIndex, is_remote
from polyrank.index.store import connect, read_meta, read_rows, sqlite_errors, transaction
from polyrank.records import Candidate


@dataclass(frozen=True, slots=True)
class Page:
    """A part of an index.

    Args:
        candidates: by row.
        next: the row to go on after; None: these are the last.
        n: live candidates in the whole index.
    """

    candidates: tuple[Candidate, ...]
    next: int | None
    n: int


def count(path: Path) -> int:
    """Live candidates.

    Raises:
        ArtifactError: the index is missing or damaged.
    """
    if is_remote(path):
        with RemoteIndex(path) as index:
            return len(index)
    connection = connect(path, write=False)
    try:
        return read_meta(connection, path).n
    finally:
        connection.close()


def candidate_of(path: Path, id_: str) -> Candidate | None:
    """The candidate of an id; None: there is none.

    Raises:
        ArtifactError: the index is missing or damaged.
    """
    if not _storable(id_):
        return None
    if is_remote(path):
        with RemoteIndex(path) as index:
            return index.find([id_]).get(id_)
    connection = connect(path, write=False)
    try:
        with transaction(connection, path, write=False):
            row = connection.execute("SELECT row FROM candidates WHERE id = ?", (id_,)).fetchone()
            return None if row is None else read_rows(connection, path, [row[0]])[0].candidate
    finally:
        connection.close()


def page(path: Path, *, after: int = 0, n: int = 50, words: Sequence[str] = (), filter: Filter | None = None) -> Page:
    """Candidates by row.

    Args:
        path: of the index.
        after: the row to go on after.
        n: how many.
        words: each of which must be part of the text or of the id; of ASCII letters either case will do.
        filter: leaves the candidates whose metadata pass; None: all.

    Raises:
        ArtifactError: the index is missing or damaged.
    """
    words = [word for word in words if word]
    if is_remote(path):
        return _remote_page(path, after, n, words, filter)
    connection = connect(path, write=False)
    try:
        with transaction(connection, path, write=False):
            meta = read_meta(connection, path)
            if not all(map(_storable, words)):
                return Page((), None, meta.n)
            condition = "".join(" AND (text LIKE ? ESCAPE '\\' OR id LIKE ? ESCAPE '\\')" for _ in words)
            values = [pattern for word in words for pattern in [f"%{_literal(word)}%"] * 2]
            if filter is not None:
                condition += f" AND {filter.where}"
                values += filter.bound
            with sqlite_errors(path):
                rows = connection.execute(
                    f"SELECT row FROM candidates WHERE row > ?{condition} ORDER BY row LIMIT ?",
                    (after, *values, n + 1),
                ).fetchall()
            numbers = [row for (row,) in rows]
            candidates = tuple(row.candidate for row in read_rows(connection, path, numbers[:n]))
            return Page(candidates, numbers[n - 1] if len(numbers) > n else None, meta.n)
    finally:
        connection.close()


def _remote_page(path: Path, after: int, n: int, words: Sequence[str], filter: Filter | None) -> Page:
    with RemoteIndex(path) as index:
        pairs = [
            (row, candidate)
            for row, candidate in index.iter_candidates(filter)
            if row > after and all(_has(candidate.text, word) or _has(candidate.id, word) for word in words)
        ]
        candidates = tuple(candidate for _, candidate in pairs[:n])
        return Page(candidates, pairs[n - 1][0] if len(pairs) > n else None, len(index))


def _has(text: str, word: str) -> bool:
    """Whether a word is part of a text, ASCII letters in either case, as SQLite has it."""
    return _lower(word) in _lower(text)


def _lower(text: str) -> str:
    return text.translate({upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)})


def _literal(word: str) -> str:
    """A word in which no letter stands for others."""
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True
