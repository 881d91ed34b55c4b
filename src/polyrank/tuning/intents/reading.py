"""Reading utterances with their intents, from plain files and the published files of banking77, clinc150 and hwu64.

    plain       CSV, JSON lines (both also .gz) or Parquet: "text" (or "utterance") and "intent" ("category", "label")
    banking77   a folder with train.csv and test.csv
    clinc150    data_full.json: train, val and test, each also with utterances that are out of scope
    hwu64       a folder with trainset/ and testset/ of files separated by semicolons; scenario_intent is the intent

In a folder of plain files, the names are the parts: train, dev (valid, val) and test.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.data import fields
from polyrank.data.rows import numbered_lines, row_error, rows, stem, suffix
from polyrank.data.values import Row
from polyrank.errors import DataError

OUT_OF_SCOPE = "oos"
TEXT_FIELDS = ("text", "utterance", "sentence")
INTENT_FIELDS = ("intent", "category", "label")
SUFFIXES = (".csv", ".jsonl", ".parquet")
SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "val": "dev", "validation": "dev", "test": "test"}


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text and its intent.

    Args:
        text: one turn.
        intent: None: out of scope, none of the intents.
    """

    text: str
    intent: str | None


Utterances = tuple[Utterance, ...]


@dataclass(frozen=True, slots=True)
class IntentSplits:
    """The parts of a data set; missing parts are empty."""

    train: Utterances = ()
    dev: Utterances = ()
    test: Utterances = ()

    def __str__(self) -> str:
        """One line.

        >>> print(IntentSplits((Utterance("hi", "greet"), Utterance("4?", None))))
        train 2 utterances of 1 intents (1 out of scope)
        """
        parts = []
        for name, utterances in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            intents = {utterance.intent for utterance in utterances if utterance.intent is not None}
            outside = sum(utterance.intent is None for utterance in utterances)
            note = f" ({outside:,} out of scope)" if outside else ""
            if utterances:
                parts.append(f"{name} {len(utterances):,} utterances of {len(intents):,} intents{note}")
        return "; ".join(parts)


def read_intents(path: Path | str, *, out_of_scope: str = OUT_OF_SCOPE) -> IntentSplits:
    """Read a data set of intents, in the format found at ``path``; a single plain file is a training part.

    Args:
        path: a file or a folder, see above.
        out_of_scope: the intent that means none.

    Raises:
        DataError: ``file:line: what is wrong; what to do``.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; check the path")
    if path.is_file():
        if path.name.endswith(".json"):
            return _clinc150(path, out_of_scope)
        return IntentSplits(train=read_utterances(path, out_of_scope=out_of_scope))
    if (path / "trainset").is_dir():
        parts = {"train": path / "trainset", "test": path / "testset"}
        return IntentSplits(**{name: _hwu64(folder) for name, folder in parts.items() if folder.is_dir()})
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        part = SPLITS.get(stem(file).lower())
        if part and suffix(file) in SUFFIXES:
            if part in files:
                raise DataError(f"{path}: both {files[part].name} and {file.name} could be its {part} part; keep one")
            files[part] = file
    if "train" in files:
        return IntentSplits(**{n: read_utterances(file, out_of_scope=out_of_scope) for n, file in files.items()})
    documents = sorted(path.glob("*.json"))
    if len(documents) == 1 or (path / "data_full.json").exists():
        return _clinc150(documents[0] if len(documents) == 1 else path / "data_full.json", out_of_scope)
    raise DataError(f"{path}: holds no train.csv, train.jsonl, trainset/ or data_full.json; give one of these")


def read_utterances(path: Path | str, *, out_of_scope: str = OUT_OF_SCOPE) -> Utterances:
    """Read one plain file.

    Args:
        path: CSV, JSON lines (both also ``.gz``) or Parquet.
        out_of_scope: the intent that means none.

    Raises:
        DataError: ``file:line: what is wrong; what to do``.
    """
    path = Path(path)
    utterances = []
    for line, row in rows(path):
        try:
            text = fields.text(row, _first(row, TEXT_FIELDS))
            intent = fields.text(row, _first(row, INTENT_FIELDS)).strip()
            utterances.append(_utterance(text, intent, out_of_scope))
        except ValueError as error:
            raise row_error(path, line, error) from error
    return _some(path, utterances)


def _first(row: Row, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in row), names[0])


def _utterance(text: str, intent: str, out_of_scope: str) -> Utterance:
    if not text.strip():
        raise ValueError("the text is empty; remove the row")
    if not intent:
        raise ValueError(f'the intent is empty; name it, or write "{out_of_scope}" for none')
    return Utterance(text, None if intent == out_of_scope else intent)


def _some(path: Path, utterances: list[Utterance]) -> Utterances:
    if not utterances:
        raise DataError(f"{path}: holds no utterances; give a file with at least one")
    return tuple(utterances)


def _clinc150(path: Path, out_of_scope: str) -> IntentSplits:
    """Larson et al., An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction (2019)."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); download the file again") from error
    if not isinstance(document, dict) or not isinstance(document.get("train"), list):
        raise DataError(f'{path}: has no list "train"; give the data set\'s own data_full.json, or JSON lines')

    def part(name: str) -> Utterances:
        return (*_pairs(path, document, name, out_of_scope), *_pairs(path, document, f"oos_{name}", out_of_scope))

    return IntentSplits(part("train"), part("val"), part("test"))


def _pairs(path: Path, document: dict[str, Any], name: str, out_of_scope: str) -> Iterator[Utterance]:
    for number, pair in enumerate(document.get(name) or [], 1):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(value, str) for value in pair):
            raise DataError(f"{path}: {name} item {number} is not [text, intent]; download the file again")
        text, intent = pair
        try:
            yield _utterance(text, out_of_scope if name.startswith("oos_") else intent, out_of_scope)
        except ValueError as error:
            raise DataError(f"{path}: {name} item {number}: {error}") from error


def _hwu64(folder: Path) -> Utterances:
    """Liu et al., Benchmarking Natural Language Understanding Services (2019); one fold of its cross-validation."""
    utterances = []
    for path in sorted(folder.rglob("*.csv")):
        reader = csv.reader((line for _, line in numbered_lines(path)), delimiter=";", strict=True)
        try:
            header = next(reader, [])
            for cells in reader:
                row: Row = dict(zip(header, cells, strict=True))
                intent = f"{fields.text(row, 'scenario')}_{fields.text(row, 'intent')}"
                utterances.append(_utterance(fields.text(row, "answer_from_anno"), intent, ""))
        except (ValueError, csv.Error) as error:
            raise row_error(path, reader.line_num, f"{error}; download the file again") from error
    return _some(folder, utterances)
