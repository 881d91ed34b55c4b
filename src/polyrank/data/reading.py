"""Files of the world become Examples: JSON lines (gzip too), CSV and Parquet, read line by line.

Four kinds of JSON lines, seen from the first row unless said:
``pairs``      {"context": [turns], "response": "...", "background"?: [...], "negatives"?: [...]}
``dialogues``  {"turns": [{"speaker", "text"}, ...]}: each turn, or each of one speaker's, answers all before it
``candidates`` {"context": [turns], "candidates": [...], "relevant": [indices]}
``pool``       {"context": [turns], "relevant_ids": [...]} against a pool file of {"id", "text"}

Nothing is dropped silently: a bad row stops the reading with file:line, or is counted when asked to skip.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyrank.durable import write_file
from polyrank.errors import DataError, MissingExtraError
from polyrank.records import Candidate, Example

Kind = Literal["pairs", "dialogues", "candidates", "pool"]
MAX_LINE_BYTES = 8 * 2**20


@dataclass(slots=True)
class ReadReport:
    """What a reading met.

    Args:
        n_rows: rows read, bad ones included.
        n_examples: examples made of them.
        n_bad: rows skipped, with the first few reasons in ``reasons``.
        n_skipped: rows left out by the format's own rule, such as negative rows of a labelled file.
        min_candidates, max_candidates: per example.
        n_empty_strings: empty turns and candidates.
        n_duplicate_candidates: texts that an example lists more than once.
        n_duplicate_pairs: examples whose context and response were seen before.
    """

    n_rows: int = 0
    n_examples: int = 0
    n_bad: int = 0
    n_skipped: int = 0
    min_candidates: int = 0
    max_candidates: int = 0
    n_empty_strings: int = 0
    n_duplicate_candidates: int = 0
    n_duplicate_pairs: int = 0
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        low, high = self.min_candidates, self.max_candidates
        parts = [
            f"{self.n_rows:,} rows, {self.n_examples:,} examples of {low if low == high else f'{low} to {high}'} candidates"
        ]
        counts = {
            "bad rows skipped": self.n_bad,
            "rows left out": self.n_skipped,
            "empty strings": self.n_empty_strings,
            "duplicate candidates": self.n_duplicate_candidates,
            "duplicate pairs": self.n_duplicate_pairs,
        }
        parts += [f"{count:,} {name}" for name, count in counts.items() if count]
        return ", ".join(parts) + (f" (first: {self.reasons[0]})" if self.reasons else "")

    def count(self, example: Example, seen: set[int]) -> None:
        """Take an example into the counts; ``seen`` remembers pairs."""
        n = len(example.candidates)
        self.min_candidates = n if self.n_examples == 0 else min(self.min_candidates, n)
        self.max_candidates = max(self.max_candidates, n)
        self.n_examples += 1
        self.n_empty_strings += sum(not text for text in (*example.context, *example.candidates))
        self.n_duplicate_candidates += n - len(set(example.candidates))
        key = hash((example.context, example.background, example.response, example.relevant_ids))
        self.n_duplicate_pairs += key in seen
        seen.add(key)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Examples and how the reading went."""

    examples: list[Example]
    report: ReadReport


class BadRow(ValueError):  # noqa: N818  # internal: becomes a DataError with its place
    """What is wrong with a row."""


def read_examples(
    path: Path, *, kind: Kind | None = None, speaker: str | None = None, skip_bad: bool = False
) -> Loaded:
    """Read a file of examples.

    Args:
        path: ``.jsonl``, ``.jsonl.gz``, ``.csv`` or ``.parquet`` (the last two: columns context and response).
        kind: of the rows; None: seen from the first one.
        speaker: for dialogues, only this speaker's turns are responses.
        skip_bad: count bad rows instead of stopping.

    Raises:
        DataError: ``file:line: what is wrong``; also for a file that is missing or holds no rows.
    """
    state: dict[str, Any] = {"kind": kind}

    def examples_of(row: dict[str, Any], number: int) -> list[Example]:
        if state["kind"] is None:
            state["kind"] = _kind_of(row)
        name = str(row.get("id", f"{path.name.split('.')[0]}:{number}"))
        return PARSERS[state["kind"]](row, name, speaker)

    return collect(path, rows_of(path), examples_of, skip_bad=skip_bad)


def collect(
    path: Path,
    rows: Iterable[tuple[int, Any]],
    examples_of: Callable[[Any, int], list[Example]],
    *,
    skip_bad: bool = False,
) -> Loaded:
    """Turn numbered rows into examples, counting and placing what is wrong. A row may itself be a BadRow."""
    examples: list[Example] = []
    report = ReadReport()
    seen: set[int] = set()
    for number, row in rows:
        report.n_rows += 1
        try:
            if isinstance(row, BadRow):
                raise row
            found = examples_of(row, number)
        except ValueError as error:
            message = f"{path}:{number}: {error}"
            if not skip_bad:
                raise DataError(message) from error
            report.n_bad += 1
            report.reasons[3:] = []
            report.reasons.append(message)
            continue
        report.n_skipped += not found
        for example in found:
            report.count(example, seen)
            examples.append(example)
    if report.n_rows == 0:
        raise DataError(f"{path} is empty; give a file with at least one row")
    return Loaded(examples, report)


def lines_of(path: Path) -> Iterator[tuple[int, str | BadRow]]:
    """Numbered lines of a text file, gzip by its name; a line that is no UTF-8 or too long comes as a BadRow."""
    try:
        with path.open("rb") as raw, gzip.open(raw) if path.suffix == ".gz" else raw as stream:
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(MAX_LINE_BYTES)
                    yield number, BadRow(f"line longer than {MAX_LINE_BYTES:,} bytes; split it")
                    continue
                try:
                    yield number, line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    yield number, BadRow(f"not UTF-8 at byte {error.start} of the line; convert the file")
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; give a file") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not whole gzip data ({error}); fetch or compress it again") from error


def rows_of(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered rows of a JSON lines, CSV or Parquet file as dicts."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".parquet" in suffixes:
        yield from _parquet_rows(path)
    elif ".csv" in suffixes or ".tsv" in suffixes:
        yield from csv_rows(path, "\t" if ".tsv" in suffixes else ",")
    else:
        yield from json_rows(path)


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered JSON objects, one per line; blank lines are passed over."""
    for number, line in lines_of(path):
        if isinstance(line, BadRow):
            yield number, line
        elif line.strip():
            try:
                row = json.loads(line, parse_constant=_refuse_constant)
                yield number, row if isinstance(row, dict) else BadRow(f"not a JSON object but {type(row).__name__}")
            except (ValueError, RecursionError) as error:
                yield number, BadRow(f"broken JSON ({error})")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    """Numbered rows of a CSV file with a header, by its own line numbers."""

    def text() -> Iterator[str]:
        for number, line in lines_of(path):
            if isinstance(line, BadRow):
                raise DataError(f"{path}:{number}: {line}")
            yield line + "\n"

    reader = csv.DictReader(text(), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            odd = None in row or None in row.values()
            yield reader.line_num, BadRow("a row with more or fewer fields than the header") if odd else row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: broken CSV ({error})") from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a whole Parquet file ({error})") from error


def _kind_of(row: dict[str, Any]) -> Kind:
    kinds: dict[str, Kind] = {
        "turns": "dialogues",
        "candidates": "candidates",
        "relevant_ids": "pool",
        "response": "pairs",
    }
    for key, kind in kinds.items():
        if key in row:
            return kind
    raise BadRow(f"none of the fields {', '.join(kinds)}; see the documentation of the four kinds of rows")


def text_field(row: dict[str, Any], name: str) -> str:
    """A string field, free of lone surrogates."""
    if name not in row:
        raise BadRow(f'the field "{name}" is missing')
    return checked_text(row[name], name)


def checked_text(value: Any, name: str) -> str:
    """``value`` if it is a string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" holds {type(value).__name__} where text is due')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f'"{name}" holds a lone surrogate, which is no text') from error
    return value


def _texts(row: dict[str, Any], name: str, required: bool = True) -> tuple[str, ...]:
    """A list of strings; one string counts as a list of one."""
    if name not in row and not required:
        return ()
    value = row.get(name)
    if isinstance(value, str):
        return (checked_text(value, name),)
    if not isinstance(value, list):
        raise BadRow(f'the field "{name}" is missing' if name not in row else f'"{name}" is no list of texts')
    return tuple(checked_text(item, name) for item in value)


def _context(row: dict[str, Any]) -> tuple[str, ...]:
    turns = _texts(row, "context")
    if not turns:
        raise BadRow('"context" is empty; it needs at least one turn')
    return turns


def _pairs(row: dict[str, Any], name: str, speaker: str | None) -> list[Example]:
    response, negatives = text_field(row, "response"), _texts(row, "negatives", required=False)
    background = _texts(row, "background", required=False)
    return [Example(_context(row), (response, *negatives), (0,), name, background)]


def _dialogues(row: dict[str, Any], name: str, speaker: str | None) -> list[Example]:
    turns = row.get("turns")
    if not isinstance(turns, list):
        raise BadRow('"turns" is no list')
    background = _texts(row, "background", required=False)
    texts = [text_field(turn, "text") if isinstance(turn, dict) else checked_text(turn, "turns") for turn in turns]
    speakers = [turn.get("speaker") if isinstance(turn, dict) else None for turn in turns]
    if speaker is not None and None in speakers:
        raise BadRow(f"a turn without a speaker, and only turns of {speaker!r} are wanted")
    return [
        Example(tuple(texts[:i]), (texts[i],), (0,), f"{name}#{i}", background)
        for i in range(1, len(texts))
        if speaker is None or speakers[i] == speaker
    ]


def _candidates(row: dict[str, Any], name: str, speaker: str | None) -> list[Example]:
    candidates = _texts(row, "candidates")
    relevant = row.get("relevant", [])
    indices = [relevant] if isinstance(relevant, int) else relevant
    if not isinstance(indices, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in indices):
        raise BadRow('"relevant" is no list of indices')
    return [Example(_context(row), candidates, tuple(indices), name, _texts(row, "background", required=False))]


def _pool(row: dict[str, Any], name: str, speaker: str | None) -> list[Example]:
    background = _texts(row, "background", required=False)
    return [Example(_context(row), (), (), name, background, relevant_ids=tuple(map(str, _texts(row, "relevant_ids"))))]


PARSERS: dict[Kind, Callable[[dict[str, Any], str, str | None], list[Example]]] = {
    "pairs": _pairs,
    "dialogues": _dialogues,
    "candidates": _candidates,
    "pool": _pool,
}


def read_pool(path: Path) -> list[Candidate]:
    """Candidates: JSON lines or CSV of id and text (and metadata), or a ``.txt`` file with one reply per line.

    Raises:
        DataError: ``file:line: what is wrong``, also for an id that comes twice.
    """
    plain = ".txt" in path.suffixes
    candidates: list[Candidate] = []
    seen: dict[str, int] = {}
    for number, row in lines_of(path) if plain else rows_of(path):
        try:
            if isinstance(row, BadRow):
                raise row
            if isinstance(row, str):
                if not row.strip():
                    continue
                found = Candidate(str(number), checked_text(row, "line"))
            else:
                name = str(row.get("id", number))
                known = {"id", "text", "metadata"}
                extra = {key: value for key, value in row.items() if key not in known}
                found = Candidate(name, text_field(row, "text"), {**extra, **(row.get("metadata") or {})})
            if found.id in seen:
                raise BadRow(f"id {found.id!r} was used in line {seen[found.id]} already; ids must differ")
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from error
        seen[found.id] = number
        candidates.append(found)
    if not candidates:
        raise DataError(f"{path} is empty; give a file with at least one candidate")
    return candidates


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """Write examples as JSON lines that ``read_examples`` reads back equal; the same examples give the same bytes."""
    buffer = io.BytesIO()
    for example in examples:
        row: dict[str, Any] = {"id": example.id, "context": example.context}
        if example.background:
            row["background"] = example.background
        if example.relevant_ids or not example.candidates:
            row["relevant_ids"] = example.relevant_ids
        else:
            row |= {"candidates": example.candidates, "relevant": example.relevant}
        buffer.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    data = buffer.getvalue()
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
