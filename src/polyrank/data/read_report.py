"""The result of reading a file: the examples, and counts of everything else.

A *source* yields the examples of each good row, and calls the function that it is given with the DataError of each bad
one. Every reader and importer makes such a source; ``collect`` turns it into a Loaded. The report counts every row that
gives no example.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from polyrank.data.lines import OnBad, row_error
from polyrank.errors import DataError
from polyrank.records import Example
from polyrank.wording import counted

Source: TypeAlias = Callable[[OnBad], Iterator[tuple[Example, ...]]]

KEPT_MESSAGES = 3


class BadRows:
    """Counts bad rows and keeps the first error messages.

    Args:
        skip: count bad rows, instead of raising the error of the first.
    """

    def __init__(self, *, skip: bool) -> None:
        self.n, self.messages = 0, list[str]()
        self._skip = skip

    def add(self, error: DataError) -> None:
        """Count a bad row, or raise its error unless bad rows are skipped."""
        if not self._skip:
            raise error
        self.n += 1
        if len(self.messages) < KEPT_MESSAGES:
            self.messages.append(str(error))


class NoExamplesError(DataError):
    """The file has rows, but none gives an example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """Counts of rows and examples.

    Args:
        n_rows: rows of the file (lines, records, exchanges), including bad ones.
        n_examples: examples from these rows.
        n_skipped: good rows that give no example: a dialogue of one turn, a label of 0, a persona line.
        n_bad: bad rows that were left out.
        messages: error messages of the first three bad rows.
        min_candidates: fewest candidates of an example.
        max_candidates: most candidates of an example.
        n_unanswered: examples without a right answer.
        n_empty_strings: turns and candidates that are empty or blank.
        n_duplicate_candidates: candidates that repeat an earlier one of the same example.
        n_duplicate_pairs: answered examples that repeat the context, background and right answers of an earlier one.
    """

    n_rows: int
    n_examples: int
    n_skipped: int = 0
    n_bad: int = 0
    messages: tuple[str, ...] = ()
    min_candidates: int = 0
    max_candidates: int = 0
    n_unanswered: int = 0
    n_empty_strings: int = 0
    n_duplicate_candidates: int = 0
    n_duplicate_pairs: int = 0

    def __str__(self) -> str:
        """One line without the counts that are zero.

        >>> print(ReadReport(n_rows=3, n_examples=2, n_bad=1, messages=("a.jsonl:2: not JSON",)))
        3 rows, 2 examples; 1 bad row left out (a.jsonl:2: not JSON)
        >>> print(ReadReport(n_rows=2, n_examples=2, min_candidates=20, max_candidates=20, n_empty_strings=4))
        2 rows, 2 examples of 20 candidates; 4 empty texts
        """
        low, high = self.min_candidates, self.max_candidates
        width = f" of {counted(high, 'candidate') if low == high else f'{low} to {high} candidates'}" if high else ""
        parts = [f"{counted(self.n_rows, 'row')}, {counted(self.n_examples, 'example')}{width}"]
        notes = [
            (self.n_skipped, "row", " without an example"),
            (self.n_unanswered, "example", " without a right answer"),
            (self.n_empty_strings, "empty text", ""),
            (self.n_duplicate_candidates, "repeated candidate", ""),
            (self.n_duplicate_pairs, "repeated pair", ""),
            (self.n_bad, "bad row", f" left out ({' | '.join(self.messages)})"),
        ]
        return "; ".join(parts + [counted(n, noun) + rest for n, noun, rest in notes if n])


@dataclass(frozen=True, slots=True)
class Loaded:
    """Examples, and the report of how they were read."""

    examples: list[Example]
    report: ReadReport


def parsed(
    path: Path, rows: Callable[[OnBad], Iterable[tuple[int, Any]]], parse: Callable[[int, Any], Iterable[Example]]
) -> Source:
    """Convert rows to examples; add file and line to each ValueError of ``parse``.

    Args:
        path: the file, for messages.
        rows: reads line numbers with rows, such as ``partial(rows, path)``.
        parse: called with the line number and the row; raises a ValueError if the row is bad.
    """

    def source(on_bad: OnBad) -> Iterator[tuple[Example, ...]]:
        for line, row in rows(on_bad):
            try:
                yield tuple(parse(line, row))
            except ValueError as error:
                on_bad(row_error(path, line, error))

    return source


def collect(source: Source, path: Path, *, skip_bad: bool = False) -> Loaded:
    """Read all of a source.

    Args:
        source: the source of a reader or an importer.
        path: the file, for messages.
        skip_bad: count bad rows and continue, instead of stopping at the first.

    Raises:
        DataError: a row is bad and ``skip_bad`` is false; or no row gives an example.
    """
    examples: list[Example] = []
    n_good = n_skipped = 0
    bad = BadRows(skip=skip_bad)
    for item in source(bad.add):
        n_good += 1
        n_skipped += not item
        examples += item
    n_rows = n_good + bad.n
    if not n_rows:
        raise DataError(f"{path}: holds no rows; give a file with at least one")
    if not examples:
        why = f"; the first bad one: {bad.messages[0]}" if bad.n else "; check its kind and format"
        raise NoExamplesError(f"{path}: none of its {counted(n_rows, 'row')} gives an example{why}")
    return Loaded(examples, _report(examples, n_rows, n_skipped, bad))


def _report(examples: list[Example], n_rows: int, n_skipped: int, bad: BadRows) -> ReadReport:
    answered: set[int] = set()
    n_answered = n_empty = n_repeated = 0
    for example in examples:
        n_empty += sum(not text or text.isspace() for text in (*example.context, *example.candidates))
        n_repeated += len(example.candidates) - len(set(example.candidates))
        if example.relevant or example.relevant_ids:
            n_answered += 1
            right = tuple(example.candidates[i] for i in example.relevant)
            # hashes instead of texts, so that millions of pairs fit into memory
            answered.add(hash((example.context, example.background, right, example.relevant_ids)))
    return ReadReport(
        n_rows=n_rows,
        n_examples=len(examples),
        n_skipped=n_skipped,
        n_bad=bad.n,
        messages=tuple(bad.messages),
        min_candidates=min(len(example.candidates) for example in examples),
        max_candidates=max(len(example.candidates) for example in examples),
        n_unanswered=len(examples) - n_answered,
        n_empty_strings=n_empty,
        n_duplicate_candidates=n_repeated,
        n_duplicate_pairs=n_answered - len(answered),
    )
