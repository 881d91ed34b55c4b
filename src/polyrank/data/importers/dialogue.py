"""Importers for conversations: Persona-Chat and others in ParlAI's forms, labelled turns, DailyDialog, and pairs."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path

from polyrank.data import fields
from polyrank.data.examples import Reader
from polyrank.data.json_list import listed_rows
from polyrank.data.lines import OnBad, numbered_lines, stem
from polyrank.data.read_report import Source, parsed
from polyrank.data.rows import rows
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
    return parsed(source, partial(_lines, source), _Dialogues(source, every_turn).examples)


def _lines(source: Path, on_bad: OnBad) -> Iterator[tuple[int, str]]:
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
    return parsed(source, partial(rows, source), Reader(source, "pairs", None).examples)


def labelled_turns(source: Path) -> Source:
    """Import Douban's and E-commerce's conversation corpora: ``label<TAB>turn<TAB>...<TAB>response`` in each line.

    Lines that follow each other and have the same turns are one list; label 1 means that the response is right.
    """

    def lists(on_bad: OnBad) -> Iterator[tuple[int, list[list[str]]]]:
        lines = ((number, line.rstrip("\r\n").split("\t")) for number, line in _lines(source, on_bad))
        for _, group in groupby(lines, key=lambda line: line[1][1:-1]):
            (first, cells), *others = group
            yield first, [cells, *(cells for _, cells in others)]

    def example(line: int, rows: list[list[str]]) -> Iterable[Example]:
        labels, documents = [cells[0] for cells in rows], [cells[-1] for cells in rows]
        return reader.examples(line, {"context": rows[0][1:-1], "docs": documents, "labels": labels})

    reader = Reader(source, None, None)
    return parsed(source, lists, example)


def parlai(source: Path) -> Source:
    """Import ParlAI's dialogue form: ``text:...<TAB>labels:...<TAB>episode_done:True``; ``|`` separates labels.

    The context of an exchange is the texts and first labels of its episode so far. ``label_candidates`` become the
    candidates; ``eval_labels`` are labels too.
    """
    turns: list[str] = []

    def example(line: int, raw: str) -> Iterable[Example]:
        cells = dict(cell.partition(":")[::2] for cell in raw.rstrip("\r\n").replace("\\n", "\n").split("\t"))
        if "text" not in cells:
            raise ValueError("the line has no text:...; write text:...<TAB>labels:... in ParlAI's dialogue form")
        turns.extend(filter(None, [cells["text"]]))
        context, labels = tuple(turns), (cells.get("labels") or cells.get("eval_labels") or "").split("|")
        turns.extend(filter(None, labels[:1]))
        if cells.get("episode_done", "").strip() == "True":
            turns.clear()
        if not labels[0] or not context:
            return ()
        candidates = tuple(cells["label_candidates"].split("|")) if cells.get("label_candidates") else tuple(labels)
        relevant = tuple(i for i, candidate in enumerate(candidates) if candidate in labels)
        return (Example(context, candidates, relevant, f"{stem(source)}:{line}"),)

    return parsed(source, partial(_lines, source), example)


def personachat(source: Path, *, part: str = "train") -> Source:
    """Import Persona-Chat as one JSON object: ``{"train": [{"personality", "utterances"}], "valid": [...]}``.

    An utterance has its ``history`` and ``candidates``, of which the last one is right. The personality becomes
    background.

    Args:
        source: the JSON file.
        part: "train" or "valid".
    """

    def examples(_line: int, whole: Row) -> Iterable[Example]:
        for number, row in enumerate(fields.objects(whole, part)):
            persona = fields.optional_texts(row, "personality")
            for place, utterance in enumerate(fields.objects(row, "utterances")):
                turns, candidates = fields.texts(utterance, "history"), fields.texts(utterance, "candidates")
                yield Example(turns, candidates, (len(candidates) - 1,), f"{number}#{place}", persona)

    return parsed(source, partial(listed_rows, source), examples)


def dailydialog(source: Path) -> Source:
    """Import DailyDialog: a dialogue in each line, with ``__eou__`` after each turn. Each turn answers those before."""

    def examples(line: int, raw: str) -> Iterable[Example]:
        return reader.examples(line, {"turns": list(filter(None, map(str.strip, raw.split("__eou__"))))})

    reader = Reader(source, None, None)
    return parsed(source, partial(_lines, source), examples)
