"""Importers for Ubuntu technical support: DSTC7 track 1 (subtasks 1 and 2), and the Ubuntu Dialogue Corpus 2."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from polyrank.data import fields
from polyrank.data.json_list import listed_rows
from polyrank.data.lines import numbered_lines, row_error, stem
from polyrank.data.read_report import Source, parsed
from polyrank.data.rows import rows
from polyrank.data.values import Row
from polyrank.records import Example


def dstc7(source: Path, *, answers: Path | None = None, every_turn: bool = False, as_released: bool = False) -> Source:
    """Import DSTC7 track 1, subtask 1 (also 3 and 4, which share its format): a JSON list, 100 candidates per item.

    An item has ``example-id``, ``messages-so-far`` (each with ``utterance``; each message is a turn, even if one
    speaker has several in a row), ``options-for-next`` and ``options-for-correct-answers`` (each with ``candidate-id``
    and ``utterance``). The right answers are the options with a correct id; if no option has one, ``relevant`` is
    empty. Empty candidates are kept, so that all lists have the same length.

    Args:
        source: the JSON file.
        answers: the published answers of the test set, ``example-id<TAB>candidate-id<TAB>utterance`` per line; the
            candidate id NONE means that no candidate is right.
        every_turn: also make pairs of the turns so far; see ``turns_of``.
        as_released: follow Humeau et al.'s released code: turns of a context begin with their speaker
            ("participant 1: "), and every second earlier turn, counted back from the response, becomes a pair.
    """

    def examples(row: Row, name: str, turns: tuple[str, ...], correct: tuple[str, ...]) -> Iterable[Example]:
        options = fields.objects(row, "options-for-next")
        texts = tuple(fields.text(option, "utterance") for option in options)
        relevant = tuple(i for i, option in enumerate(options) if _id(option) in correct)
        context = turns
        if as_released:
            speakers = (fields.text(message, "speaker") for message in fields.objects(row, "messages-so-far"))
            context = tuple(f"{who.replace('_', ' ')}: {turn}" for who, turn in zip(speakers, turns, strict=True))
        example = Example(context, texts, relevant, name)
        return turns_of(example, turns, 1 + as_released) if every_turn else (example,)

    return _dstc7(source, answers, examples)


def dstc7_pool(source: Path, *, answers: Path | None = None) -> Source:
    """Import DSTC7 track 1, subtask 2: as subtask 1, but with one file of candidates, which ``import_pool`` converts.

    The ids of the right answers become ``relevant_ids``.

    Args:
        source: the JSON file.
        answers: as for subtask 1.
    """

    def examples(_row: Row, name: str, turns: tuple[str, ...], correct: tuple[str, ...]) -> Iterable[Example]:
        return (Example(turns, id=name, relevant_ids=correct),)

    return _dstc7(source, answers, examples)


def _dstc7(
    source: Path, answers: Path | None, make: Callable[[Row, str, tuple[str, ...], tuple[str, ...]], Iterable[Example]]
) -> Source:
    answer_of = None if answers is None else _answers(answers)

    def example(_line: int, row: Row) -> Iterable[Example]:
        name = fields.identifier(fields.field(row, "example-id"), "example-id")
        turns = tuple(fields.text(message, "utterance") for message in fields.objects(row, "messages-so-far"))
        if not turns:
            raise ValueError('field "messages-so-far" is empty; give at least one message')
        if answer_of is not None:
            correct = answer_of.get(name, ())
        elif row.get("options-for-correct-answers") is None:
            correct = ()
        else:
            correct = tuple(dict.fromkeys(_id(option) for option in fields.objects(row, "options-for-correct-answers")))
        return make(row, name, turns, correct)

    return parsed(source, partial(listed_rows, source), example)


def _answers(path: Path) -> dict[str, tuple[str, ...]]:
    """The ids of the right answers of each example id."""
    answer_of: dict[str, tuple[str, ...]] = {}
    for number, line in numbered_lines(path):
        if line.isspace():
            continue
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) < 2:
            raise row_error(path, number, "no tab; write the example's id, a tab and the right candidate's id")
        answer_of[cells[0]] = answer_of.get(cells[0], ()) + ((cells[1],) if cells[1] != "NONE" else ())
    return answer_of


def _id(option: Row) -> str:
    return fields.identifier(fields.field(option, "candidate-id"), "candidate-id")


def ubuntu_v2(source: Path, *, every_turn: bool = False) -> Source:
    """Import the Ubuntu Dialogue Corpus, version 2, from its ranking-dataset creator: one CSV per split.

    Training has ``Context``, ``Utterance`` and ``Label``: rows with label 1 are pairs; rows with label 0 (a random
    utterance) give no example and are counted. Validation and test have ``Context``, ``Ground Truth Utterance`` and
    ``Distractor_0`` to ``Distractor_8``: candidate lists with the right one first, as published. polyrank's metrics do
    not depend on that position.

    ``__eot__`` ends a turn and separates turns; ``__eou__`` ends an utterance within a turn and becomes a blank. Empty
    turns are dropped.

    Args:
        source: the CSV file; gzip if named ``.gz``.
        every_turn: also make pairs of the turns of a context; see ``turns_of``.
    """

    def examples(line: int, row: Row) -> Iterable[Example]:
        last = example(f"{stem(source)}:{line}", row)
        return turns_of(last) if last is not None and every_turn else filter(None, (last,))

    def example(name: str, row: Row) -> Example | None:
        turns = _turns(fields.text(row, "Context"))
        if "Label" not in row:
            distractors = sorted(
                (column for column in row if re.fullmatch(r"Distractor_\d+", column)),
                key=lambda column: int(column[11:]),
            )
            columns = ("Ground Truth Utterance", *distractors)
            return Example(turns, tuple(_plain(fields.text(row, column)) for column in columns), (0,), name)
        label = str(row["Label"]).strip()
        if label not in ("0", "0.0", "1", "1.0"):
            raise ValueError(f"label {label[:40]!r} is neither 0 nor 1; write one of them")
        return Example(turns, (_plain(fields.text(row, "Utterance")),), (0,), name) if label[0] == "1" else None

    return parsed(source, partial(rows, source), examples)


def _turns(text: str) -> tuple[str, ...]:
    """The turns of a context; one empty turn if it has no text.

    >>> _turns("hi __eou__ anyone ? __eou__ __eot__ yes __eou__ __eot__ ")
    ('hi anyone ?', 'yes')
    """
    return tuple(filter(None, map(_plain, text.split("__eot__")))) or ("",)


def _plain(text: str) -> str:
    """An utterance without markers and repeated blanks.

    >>> _plain("try sudo __eou__ it helps __eou__ __eot__")
    'try sudo it helps'
    """
    return " ".join(text.replace("__eou__", " ").replace("__eot__", " ").split())


def turns_of(example: Example, responses: Sequence[str] | None = None, step: int = 1) -> Iterator[Example]:
    """A pair for each turn of the context except the first, then the example itself.

    The ids of the pairs end in the number of the turn, counted from 0. Empty turns are not responses.

    Args:
        example: the example.
        responses: the text of each turn as a response; None: its text in the context.
        step: 2 uses every second turn, counted back from the response.

    Source: Chen and Wang, Sequential Attention-based Network (DSTC7, 2019), taken up in Humeau et al., Real-time
        Inference in Multi-sentence Tasks (2019), section 5.1.

    >>> [(pair.id, pair.response) for pair in turns_of(Example(("hi", "hello?", "yes"), ("my wifi",), (0,), "7"))]
    [('7#1', 'hello?'), ('7#2', 'yes'), ('7', 'my wifi')]
    """
    for number, turn in enumerate(responses or example.context):
        if number and turn.strip() and (len(example.context) - number) % step == 0:
            yield Example(example.context[:number], (turn,), (0,), f"{example.id}#{number}", example.background)
    yield example
