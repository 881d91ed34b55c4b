"""Reading utterances with their intents, from plain files and the published files of banking77, clinc150 and hwu64.

    plain       CSV, JSON, JSON lines (also .gz) or Parquet: "text" (or "utterance") and "intent" ("category", "label");
                in JSON also lists of texts next to their intent or by its name, at any depth, as chatbots have them
    banking77   a folder with train.csv and test.csv
    clinc150    data_full.json: train, val and test, each also with utterances that are out of scope
    hwu64       a folder with trainset/ and testset/ of files separated by semicolons; scenario_intent is the intent

In a folder of plain files, the names are the parts: train, dev (valid, val) and test.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from polyrank.data import fields
from polyrank.data.lines import numbered_lines, row_error, stem, suffix
from polyrank.data.rows import rows
from polyrank.data.values import Row, object_of, objects_in
from polyrank.errors import DataError

OUT_OF_SCOPE = "oos"
TEXT_FIELDS = ("text", "utterance", "sentence")
INTENT_FIELDS = ("intent", "category", "label_text", "label")
LISTS = ("patterns", "examples", "utterances")
SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
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
        is_clinc150 = path.name.endswith(".json") and b'"oos_train"' in path.read_bytes()
        return _clinc150(path) if is_clinc150 else IntentSplits(_plain(path, out_of_scope))
    if (path / "trainset").is_dir():
        return IntentSplits(_hwu64(path / "trainset"), test=_hwu64(path / "testset"))
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        part = SPLITS.get(stem(file).lower())
        if part and suffix(file) in SUFFIXES:
            if part in files:
                raise DataError(f"{path}: both {files[part].name} and {file.name} could be its {part} part; keep one")
            files[part] = file
    if "train" in files:
        return IntentSplits(**{name: _plain(file, out_of_scope) for name, file in files.items()})
    if (path / "data_full.json").exists():
        return _clinc150(path / "data_full.json")
    raise DataError(f"{path}: holds no train.csv, train.jsonl, trainset/ or data_full.json; give one of these")


def _plain(path: Path, out_of_scope: str) -> Utterances:
    utterances = []
    for line, row in ((line, one) for line, whole in rows(path) for one in _utterances_in(whole) or [whole]):
        try:
            text, intent = (
                fields.text(row, next((name for name in names if name in row), names[0]))
                for names in (TEXT_FIELDS, INTENT_FIELDS)
            )
            utterances.append(_utterance(text, intent.strip(), out_of_scope))
        except ValueError as error:
            raise row_error(path, line, error) from error
    return _some(path, utterances)


def _utterances_in(row: Row, depth: int = 0) -> list[Row]:
    """The utterances in a row: itself, those of its intent or of each intent, or those in the objects in it.

    Objects are followed to a depth of 20, so that no file exceeds Python's stack.

    >>> _utterances_in({"intents": [{"tag": "greet", "patterns": ["hi"], "responses": ["Hello!"]}]})
    [{'text': 'hi', 'intent': 'greet'}]
    >>> _utterances_in({"greet": ["hi", "hello"], "leave": ["bye"]})[1:]
    [{'text': 'hello', 'intent': 'greet'}, {'text': 'bye', 'intent': 'leave'}]
    """
    if depth > 20 or any(isinstance(row.get(name), str) for name in TEXT_FIELDS):
        return [row]
    lists = {name: value for name, value in row.items() if isinstance(value, list) and {*map(type, value)} <= {str}}
    intent = next((row[name] for name in (*INTENT_FIELDS, "tag", "name") if isinstance(row.get(name), str)), None)
    named = lists.items() if len(lists) == len(row) else [(intent, lists[name]) for name in LISTS if name in lists]
    inside = (one for value in row.values() for one in objects_in(value) or [object_of(value)] if one)
    found = [{"text": text, "intent": name} for name, texts in named if name for text in texts]
    return found or [utterance for one in inside for utterance in _utterances_in(one, depth + 1)]


def _utterance(text: str, intent: str, out_of_scope: str = OUT_OF_SCOPE) -> Utterance:
    if not text.strip() or not intent:
        raise ValueError(f'the text or the intent is empty; fill both in (intent "{out_of_scope}" means none)')
    return Utterance(text, None if intent == out_of_scope else intent)


def _some(path: Path, utterances: list[Utterance]) -> Utterances:
    if not utterances:
        raise DataError(f"{path}: holds no utterances; give a file with at least one")
    return tuple(utterances)


def _clinc150(path: Path) -> IntentSplits:
    """Larson et al., An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction (2019)."""
    try:
        document = json.loads(path.read_bytes())
        train, dev, test = (
            tuple(_utterance(text, intent) for text, intent in [*document[name], *document.get(f"oos_{name}", [])])
            for name in ("train", "val", "test")
        )
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not the data set's data_full.json ({error}); download it again, or give JSON lines"
        ) from error
    return IntentSplits(_some(path, [*train]), dev, test)


def _hwu64(folder: Path) -> Utterances:
    """Liu et al., Benchmarking Natural Language Understanding Services (2019); one fold of its cross-validation."""
    utterances = []
    for path in sorted(folder.rglob("*.csv")):
        reader = csv.DictReader((line for _, line in numbered_lines(path)), delimiter=";")
        try:
            for row in reader:
                intent = f"{fields.text(row, 'scenario')}_{fields.text(row, 'intent')}"
                utterances.append(_utterance(fields.text(row, "answer_from_anno"), intent))
        except (ValueError, csv.Error) as error:
            raise row_error(path, reader.line_num, f"{error}; download the file again") from error
    return _some(folder, utterances)
