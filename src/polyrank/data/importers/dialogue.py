"""Importers for conversations between two people: ConvAI2 (Persona-Chat) and the conversational-datasets pairs."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path

from polyrank.data import fields
from polyrank.data.read_report import Source, parsed
from polyrank.data.rows import OnBad, numbered_lines, rows, stem
from polyrank.data.values import Row
from polyrank.records import Example

OWN, PARTNER = "your persona: ", "partner's persona: "
SILENCE = "__SILENCE__"


def convai2(source: Path, *, every_turn: bool = False) -> Source:
    r"""Import ConvAI2 in ParlAI's older text format, with or without candidates, with one or two personas.

    Lines are ``number text<TAB>label<TAB>reward<TAB>candidate|candidate|...``; the reward is usually empty, and the
    candidates may be missing. Number 1 begins a dialogue. ``|`` also separates labels, and a literal ``\n`` is a line
    break. Each exchange is an example: its context is all earlier texts and labels and its own text.

    ``your persona:`` lines become background without their prefix; ``partner's persona:`` lines keep theirs, to
    distinguish the two. They are numbered lines, or the beginning of an exchange's text. The right answers are all
    candidates that equal a label; without candidates, the labels themselves. ``__SILENCE__`` is not a turn: it is not
    part of any context, and an exchange with an empty context or with it as the answer gives no example. A line without
    a tab is an unanswered turn.

    Args:
        source: the published file.
        every_turn: also turn the partner's turns into responses to everything before them: pairs whose ids end in
            ``#partner``, with the two personas exchanged.
    """
    return parsed(source, partial(_exchanges, source), _Dialogues(source, every_turn).examples)


def _exchanges(source: Path, on_bad: OnBad) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in numbered_lines(source, on_bad) if not line.isspace())


class _Dialogues:
    """Parses line by line; holds the current dialogue so far."""

    def __init__(self, source: Path, every_turn: bool) -> None:
        self.stem, self.every_turn = stem(source), every_turn
        self.number = 0
        self.background: tuple[str, ...] = ()
        self.turns: tuple[str, ...] = ()

    def examples(self, line: int, raw: str) -> Iterable[Example]:
        """The examples of a line.

        Raises:
            ValueError: the line is bad.
        """
        digits, _, rest = raw.rstrip("\r\n").partition(" ")
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError("the line does not begin with a number; write ParlAI text, such as: 1 hello<TAB>hi there")
        number = int(digits)
        if number == 1:
            self.background, self.turns = (), ()
        elif number <= self.number:
            raise ValueError(f"is numbered {number} after {self.number}; a new dialogue begins with 1")
        self.number = number
        text, *others = rest.replace("\\n", "\n").split("\t")
        lines = text.split("\n")
        persona = list(takewhile(lambda each: each.startswith((OWN, PARTNER)), lines))
        if persona:
            self.background += tuple(each.removeprefix(OWN) for each in persona)
            text = "\n".join(lines[len(persona) :]) or SILENCE
        return self._exchange(line, text, others)

    def _exchange(self, line: int, text: str, others: list[str]) -> Iterable[Example]:
        labels = tuple(others[0].split("|")) if others else ()
        # a reward may come between label and candidates, and both may be empty
        candidates = tuple(others[2].split("|")) if len(others) > 2 and others[2] else labels
        relevant = tuple(i for i, candidate in enumerate(candidates) if candidate in labels)
        earlier = self.turns
        context = earlier if text == SILENCE else (*earlier, text)
        # before the checks: the turns are part of the dialogue even if the candidates are bad
        self.turns = context if not labels or labels[0] == SILENCE else (*context, labels[0])
        examples = []
        if self.every_turn and earlier and context != earlier and text.strip():
            examples.append(Example(earlier, (text,), (0,), f"{self.stem}:{line}#partner", self._as_partner()))
        if labels and SILENCE not in labels and context:
            if not relevant:
                raise ValueError(
                    f"label {labels[0][:40]!r} is not among the {len(candidates)} candidates; add it to them"
                )
            examples.append(Example(context, candidates, relevant, f"{self.stem}:{line}", self.background))
        return examples

    def _as_partner(self) -> tuple[str, ...]:
        """The background from the partner's point of view."""
        own = (each.removeprefix(PARTNER) for each in self.background if each.startswith(PARTNER))
        return (*own, *(PARTNER + each for each in self.background if not each.startswith(PARTNER)))


def pairs(source: Path) -> Source:
    """Import Reddit, OpenSubtitles and Amazon QA in the JSON lines of the conversational-datasets scripts.

    A row has ``response``, ``context`` (the turn before it) and extra contexts ``context/0``, ``context/1``, ... that
    go back in time: ``context/0`` is the turn before ``context``. The turns are the extra contexts from the highest
    number to the lowest, then ``context``. Empty extra contexts are padding and left out. Other fields are ignored.

    Args:
        source: JSON lines (also ``.gz``), CSV or Parquet.
    """

    def example(line: int, row: Row) -> Iterable[Example]:
        names = (name for name in row if re.fullmatch(r"context/\d+", name))
        back = sorted(names, key=lambda name: int(name.removeprefix("context/")), reverse=True)
        extra = [fields.text(row, name) for name in back if row[name] is not None]
        turns = (*filter(None, extra), fields.text(row, "context"))
        return (
            Example(turns, (fields.text(row, "response"),), (0,), fields.optional_id(row, f"{stem(source)}:{line}")),
        )

    return parsed(source, partial(rows, source), example)
