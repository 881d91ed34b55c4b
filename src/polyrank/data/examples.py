"""Files of examples, which have one of four kinds of rows.

    pairs       {"context": [turns] or text, "response": text}           may have "negatives": [texts], and earlier
                                                                         turns as "context/0", "context/1", ...
    dialogues   {"turns": [{"speaker", "text"} or text]}                 each turn answers all turns before it
    candidates  {"context", "candidates": [texts], "relevant": [positions] or position}
    pool        {"context", "relevant_ids": [ids]}                       against a file of {"id", "text"}

Every kind may have "id" and "background", and relevant ids may have "grades"; this module ignores other fields, such
as the time of a dialogue. CSV and Parquet files hold the same rows as columns.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from polyrank.data import fields
from polyrank.data.beir import example_rows
from polyrank.data.lines import OnBad, check_object, row_error, stem, write_rows
from polyrank.data.published import as_own, grouped
from polyrank.data.read_report import Loaded, NoExamplesError, collect, parsed
from polyrank.data.values import Row, rows_of, type_name
from polyrank.errors import UsageError
from polyrank.records import Example

MEMORY = Path("row")  # the "file" of rows in memory, for messages and ids such as row:3

Kind = Literal["pairs", "dialogues", "candidates", "pool"]

# the field that identifies each kind; the first match decides, because rows of candidates may also have a response
KIND_OF_FIELD: dict[str, Kind] = {
    "turns": "dialogues",
    "candidates": "candidates",
    "response": "pairs",
    "relevant_ids": "pool",
}


def read_examples(
    path: Path | str | Iterable[Any],
    *,
    kind: Kind | None = None,
    speaker: str | None = None,
    skip_bad: bool = False,
) -> Loaded:
    """Read examples from a ``.jsonl``, ``.csv`` (both also ``.gz``) or ``.parquet`` file, or from rows in memory.

    An example without an id gets ``<file>:<line>``; examples of dialogues get ``<id>#<turn>``, turns counted from 0.

    Args:
        path: the file; or the rows, which pass the same checks: dictionaries, Examples, or a table that
            ``polyrank.data.values.rows_of`` supports.
        kind: kind of the rows; None: that of the first good row.
        speaker: in dialogues, only turns of this speaker are responses; None: the turns of all speakers.
        skip_bad: count bad rows in the report and continue, instead of stopping at the first.

    Raises:
        DataError: ``file:line: what is wrong; what to do``.
        MissingExtraError: the file is Parquet and pyarrow is not installed.
        UsageError: an argument does not apply to this kind of rows.
    """
    numbered: Callable[[OnBad], Iterable[tuple[int, Any]]]
    if isinstance(path, str | Path):
        path = Path(path)
        numbered = grouped(partial(example_rows, path))
    else:
        source = path
        numbered = grouped(lambda on_bad: enumerate(rows_of(source)))
        path = MEMORY
    if kind is not None and kind not in get_args(Kind):
        raise UsageError(f"kind {kind!r} is unknown; use {', '.join(get_args(Kind))} or none")
    reader = Reader(path, kind, speaker)
    return read_with(reader, path, numbered, reader.examples, skip_bad=skip_bad)


class Reader:
    """Converts the rows of one file to examples; keeps the kind of the first good row and the speakers so far."""

    def __init__(self, path: Path, kind: Kind | None, speaker: str | None) -> None:
        self.stem, self.kind, self.speaker = stem(path), kind, speaker
        self.speakers: set[str] = set()

    def examples(self, line: int, row: Row | Example) -> Iterable[Example]:
        """The examples of a row.

        Raises:
            ValueError: the row is bad.
        """
        if isinstance(row, Example):
            return (row,)
        row = as_own(check_object(row, escaped=self.stem == MEMORY.name))
        kind = self.kind or kind_of(row)
        if self.speaker is not None and kind != "dialogues":
            raise UsageError(f"speaker {self.speaker!r} applies only to dialogues, and these are {kind}; leave it out")
        read = {
            "pairs": self._pairs,
            "dialogues": self._dialogues,
            "candidates": self._candidates,
            "pool": self._pool,
        }[kind]
        name = fields.optional_id(row, f"{self.stem}:{line}")
        examples = tuple(read(row, name, fields.optional_texts(row, "background")))
        self.kind = kind
        return examples

    def _pairs(self, row: Row, name: str, background: tuple[str, ...]) -> Iterator[Example]:
        names = (name for name in row if re.fullmatch(r"context/\d+", name) and row[name] not in (None, ""))
        back = sorted(names, key=lambda name: int(name.removeprefix("context/")), reverse=True)
        context = (*(fields.text(row, name) for name in back), *fields.context(row))
        candidates = (fields.text(row, "response"), *fields.optional_texts(row, "negatives"))
        yield Example(context, candidates, (0,), name, background)

    def _candidates(self, row: Row, name: str, background: tuple[str, ...]) -> Iterator[Example]:
        relevant_ids = fields.identifiers(row, "relevant_ids") if row.get("relevant_ids") is not None else ()
        if isinstance(fields.field(row, "candidates"), str):  # probably several candidates in one text
            raise ValueError('field "candidates" holds a text; write a list of texts')
        candidates, relevant = fields.texts(row, "candidates"), fields.indices(row, "relevant")
        if relevant and not candidates:
            raise ValueError('field "relevant" holds a position, but "candidates" is empty; give some, or write []')
        yield Example(fields.context(row), candidates, relevant, name, background, relevant_ids, fields.grades(row))

    def _pool(self, row: Row, name: str, background: tuple[str, ...]) -> Iterator[Example]:
        relevant_ids = fields.identifiers(row, "relevant_ids")
        yield Example(fields.context(row), (), (), name, background, relevant_ids, fields.grades(row))

    def _dialogues(self, row: Row, name: str, background: tuple[str, ...]) -> Iterator[Example]:
        spoken = self.turns(row)
        words = tuple(text for _, text in spoken)
        for position, (speaker, text) in enumerate(spoken):
            if position and (self.speaker is None or speaker == self.speaker):
                yield Example(words[:position], (text,), (0,), f"{name}#{position}", background)

    def turns(self, row: Row) -> list[tuple[str | None, str]]:
        """Speaker and text of each turn of a dialogue.

        Raises:
            ValueError: a turn is bad.
        """
        turns = fields.field(row, "turns")
        if not isinstance(turns, list) or not turns:
            raise ValueError('field "turns" is not a list of turns; write [{"speaker": "...", "text": "..."}, ...]')
        return [self._turn(turn, position) for position, turn in enumerate(turns)]

    def _turn(self, turn: object, position: int) -> tuple[str | None, str]:
        speaker, text = (turn.get("speaker"), turn.get("text")) if isinstance(turn, dict) else (None, turn)
        if not isinstance(text, str):
            problem = f"the text of turn {position} is {type_name(text)}"
            raise ValueError(f'{problem}; write {{"speaker": "...", "text": "..."}}')
        if speaker is not None and not isinstance(speaker, str):
            raise ValueError(f"the speaker of turn {position} is {type_name(speaker)}; write a text")
        if speaker is None and self.speaker is not None:
            raise ValueError(
                f"turn {position} has no speaker, which speaker={self.speaker!r} requires; name each turn's speaker"
            )
        if speaker is not None:
            self.speakers.add(speaker)
        return speaker, text


def read_with(
    reader: Reader,
    path: Path,
    numbered: Callable[[OnBad], Iterable[tuple[int, Any]]],
    examples: Callable[[int, Row], Iterable[Example]],
    *,
    skip_bad: bool,
) -> Loaded:
    """Collect examples from rows; ``examples`` returns those of a row and uses ``reader``."""
    try:
        return collect(parsed(path, numbered, examples), path, skip_bad=skip_bad)
    except NoExamplesError as error:
        if reader.speaker is None or not reader.speakers or reader.speaker in reader.speakers:
            raise
        names = ", ".join(sorted(reader.speakers)[:10])
        raise NoExamplesError(f"{path}: no turn is by speaker {reader.speaker!r}; its speakers are {names}") from error


def kind_of(row: Row) -> Kind:
    """The kind of a row, from its fields.

    >>> kind_of({"context": "hi", "response": "hello"})
    'pairs'

    Raises:
        ValueError: the row has none of the fields that identify a kind.
    """
    for name, kind in KIND_OF_FIELD.items():
        if name in row:
            return kind
    required = ", ".join(f'"{name}"' for name in KIND_OF_FIELD)
    raise ValueError(
        f"unknown kind of row: it needs one of {required} and has {', '.join(row) or 'no fields'}; polyrank"
        " import --list names the forms that are read, and polyrank import chats converts tables and exports"
    )


def write_examples(path: Path | str, examples: Iterable[Example]) -> None:
    """Write examples as JSON lines, gzipped if ``path`` ends in ``.gz``; ``read_examples`` reads them again.

    The file is written atomically, and the same examples give the same bytes. If every example has only its response,
    the rows are pairs; if no example has candidates, they are pool rows; otherwise they are rows of candidates.

    Args:
        path: the file to create or replace.
        examples: the examples to write.

    Raises:
        DataError: an example has no turns or holds a lone surrogate, so it could not be read again.
    """
    path, examples = Path(path), list(examples)
    kind: Kind = "candidates"
    if all(
        len(example.candidates) == 1 and example.relevant == (0,) and not example.relevant_ids for example in examples
    ):
        kind = "pairs"
    elif not any(example.candidates for example in examples):
        kind = "pool"
    for line, example in enumerate(examples, 1):
        if not example.context:
            raise row_error(path, line, f"example {example.id!r} has no turns; give it at least one")
    write_rows(path, (_row(example, kind) for example in examples))


def _row(example: Example, kind: Kind) -> Row:
    row: Row = {"id": example.id} if example.id else {}
    if example.background:
        row["background"] = example.background
    row["context"] = example.context
    if kind == "pairs":
        row["response"] = example.candidates[0]
    elif kind == "candidates":
        row |= {"candidates": example.candidates, "relevant": example.relevant}
    if kind == "pool" or example.relevant_ids:
        row["relevant_ids"] = example.relevant_ids
    if example.grades:
        row["grades"] = example.grades
    return row
