"""Split a file of conversations into training, validation and test parts.

A conversation, together with conversations that have the same words, belongs to exactly one part. If all conversations
have a time, the latest are the test part and those before them the validation part, as in deployment. Otherwise the
part is a function of the conversation's id and a seed. The candidates of validation and test examples are responses of
the same part.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from polyrank.data import fields
from polyrank.data.beir import example_rows
from polyrank.data.candidate_lists import Responses, default_length
from polyrank.data.examples import Reader, read_with, write_examples
from polyrank.data.lines import stem, write_rows
from polyrank.data.published import as_own, grouped
from polyrank.data.read_report import ReadReport
from polyrank.data.same_words import same_words
from polyrank.data.speakers import choose_speaker
from polyrank.data.values import Row, is_number, type_name
from polyrank.errors import DataError, UsageError
from polyrank.records import Example
from polyrank.storage.durable import sync_folder
from polyrank.wording import counted

By = Literal["auto", "time", "id"]
PARTS = ("train", "valid", "test")
DIGITS = re.compile(r"((?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(\d{4}|\d{6})?")  # 20240531, with a time
EPOCH = re.compile(r"-?\d{9,}(\.\d+)?")  # seconds or milliseconds as a text


@dataclass(slots=True)
class Conversation:
    """A dialogue, or the pairs of one.

    Args:
        id: id of the conversation.
        examples: its examples with a right answer, in order.
        dialogues: rows to write, if the file holds dialogues.
        time: time of the latest row; None: unknown.
    """

    id: str
    examples: list[Example] = field(default_factory=list)
    dialogues: list[Row] = field(default_factory=list)
    time: datetime | None = None

    @property
    def digest(self) -> bytes:
        """A hash of the normalized turns up to the last response, equal for equal conversations."""
        following = [example.context for example in self.examples[1:]]
        said = [_turns_of(example) for example in self.examples]
        longest = [turns for turns, next_ in zip(said, [*following, ()], strict=True) if next_[: len(turns)] != turns]
        text = "\0\0".join("\0".join(map(same_words, turns)) for turns in longest)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Part:
    """Conversations of one part, and their examples, which have candidate lists unless they are for training."""

    conversations: list[Conversation]
    examples: list[Example]

    @property
    def times(self) -> tuple[datetime, datetime] | None:
        """Times of the first and the last conversation; None if a conversation has no time."""
        times = [conversation.time for conversation in self.conversations]
        known = [time for time in times if time is not None]
        return (min(known), max(known)) if known and len(known) == len(times) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The parts of a split, and how they were made.

    Args:
        train, valid, test: the parts; validation and test may be empty.
        report: report of reading the file.
        by: the split is by "time" or by "id".
        speaker: the speaker whose turns are responses; None: all speakers, or the file does not hold dialogues.
        n_candidates: length of the candidate lists of validation and test.
        n_repeated: conversations with the same words as another one, which is in the same part.
    """

    train: Part
    valid: Part
    test: Part
    report: ReadReport
    by: Literal["time", "id"]
    speaker: str | None
    n_candidates: int
    n_repeated: int


def split(
    path: Path | str,
    *,
    valid: float = 0.1,
    test: float = 0.1,
    n_candidates: int | None = None,
    speaker: str | None = None,
    by: By = "auto",
    seed: int = 0,
    skip_bad: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> Split:
    """Split a file of examples by conversations.

    A dialogue is a conversation, and dialogues with the same id are one conversation. Pairs and candidate lists belong
    to one conversation if their ids are equal up to a ``#`` and a number, or, without ids, if a row continues the row
    before. The ``time`` of a row is an ISO time or seconds since 1970.

    Args:
        path: a file that ``read_examples`` reads.
        valid, test: the share of conversations in the part; 0: no such part. Equal conversations count once.
        n_candidates: length of validation and test lists; None: 20, or less if a part has too few responses.
        speaker: in dialogues, the speaker whose turns are responses; "*": all; None: the agent if names show it.
        by: "time": the latest conversations are the test part. "id": at random. "auto": by time if all have one.
        seed: random seed of the parts and of the lists.
        skip_bad: count bad rows and continue.
        notify: called with messages about choices and their reasons.

    Raises:
        UsageError: the shares leave no training part, or the file has no texts of responses.
        DataError: a row is bad, conversations have no time, or there are too few.
    """
    path = Path(path)
    if not (valid >= 0 and test >= 0 and 0 < valid + test < 1):
        raise UsageError(
            f"shares of {valid:g} and {test:g} for validation and test are impossible; give shares of 0 or more whose"
            " sum is above 0 and below 1"
        )
    speaker = choose_speaker(path, speaker, notify=notify)
    known = _Conversations(path, speaker, timed=by != "id")
    numbered = grouped(partial(example_rows, path))
    report = read_with(known.reader, path, numbered, known.examples, skip_bad=skip_bad).report
    conversations = [conversation for conversation in known.conversations.values() if conversation.examples]
    alike: dict[bytes, list[Conversation]] = {}  # with the same words
    for conversation in conversations:
        alike.setdefault(conversation.digest, []).append(conversation)
    groups = list(alike.values())
    chosen = _choose_order(path, conversations, by, notify)
    groups.sort(key=_random_key(seed))
    if chosen == "time":
        # by the latest time of a group, so that no training conversation is later than a test conversation; those with
        # the same time stay in random order
        groups.sort(key=lambda group: max(one.time for one in group if one.time is not None))
    n_valid, n_test = _sizes(path, len(groups), valid, test)
    first, second = len(groups) - n_valid - n_test, len(groups) - n_test
    parts = {
        name: [conversation for group in part for conversation in group]
        for name, part in zip(PARTS, (groups[:first], groups[first:second], groups[second:]), strict=True)
    }
    examples = {name: [e for conversation in part for e in conversation.examples] for name, part in parts.items()}
    with_lists = {
        name: Responses(examples[name], f"{path}: {name} ({len(parts[name])} of {len(conversations)} conversations)")
        for name in PARTS[1:]
        if parts[name]
    }
    n_candidates = default_length(*with_lists.values()) if n_candidates is None else n_candidates
    examples |= {name: responses.lists(n_candidates, seed) for name, responses in with_lists.items()}
    made = {name: Part(parts[name], examples[name]) for name in PARTS}
    return Split(
        **made,
        report=report,
        by=chosen,
        speaker=speaker,
        n_candidates=n_candidates,
        n_repeated=len(conversations) - len(groups),
    )


def write_split(folder: Path | str, parts: Split) -> list[Path]:
    """Write train.jsonl, valid.jsonl and test.jsonl; returns the paths of the files that were written.

    The training part is written as dialogues if the file held dialogues. All three files of an earlier split in the
    folder are replaced, after the new ones are complete. A crash leaves fewer files, never parts of two splits.
    """
    folder = Path(folder)
    files = {name: folder / f"{name}.jsonl" for name in PARTS}
    new = {name: folder / f".{name}.new.jsonl" for name in PARTS}
    dialogues = [row for conversation in parts.train.conversations for row in conversation.dialogues]
    try:
        if dialogues:
            write_rows(new["train"], dialogues)
        else:
            write_examples(new["train"], parts.train.examples)
        for name, part in (("valid", parts.valid), ("test", parts.test)):
            if part.examples:
                write_examples(new[name], part.examples)
        for name in ("test", "valid"):
            files[name].unlink(missing_ok=True)
        sync_folder(folder)
        for name, file in files.items():
            if new[name].exists():
                new[name].replace(file)
        sync_folder(folder)
    finally:
        for file in new.values():
            file.unlink(missing_ok=True)
    return [file for file in files.values() if file.exists()]


class _Conversations:
    """Groups rows into conversations while reading."""

    def __init__(self, path: Path, speaker: str | None, timed: bool) -> None:
        self.path, self.timed = path, timed
        self.conversations: dict[str, Conversation] = {}
        self.reader = Reader(path, None, speaker)
        self._last: Example | None = None

    def examples(self, line: int, row: Row) -> Iterable[Example]:
        """The examples of a row with a right answer; they are also added to their conversation.

        Raises:
            ValueError: the row is bad.
        """
        examples = [example for example in self.reader.examples(line, row) if example.relevant]
        kind = self.reader.kind
        if kind == "pool":
            raise UsageError(
                f"{self.path} holds ids of right answers in a pool, but lists are drawn from texts; give pairs or"
                " dialogues"
            )
        time, row = _time(row) if self.timed else None, as_own(row)
        name = fields.optional_id(row, f"{stem(self.path)}:{line}")
        key = name if kind == "dialogues" else self._key(row, name, examples)
        conversation = self.conversations.setdefault(key, Conversation(key))
        conversation.examples += examples
        if time is not None:
            conversation.time = time if conversation.time is None else max(conversation.time, time)
        if kind == "dialogues":
            conversation.dialogues.append(_dialogue(row, name, self.reader.turns(row), time))
        return examples

    def _key(self, row: Row, name: str, examples: Sequence[Example]) -> str:
        """The id of the conversation of a pair."""
        before, self._last = self._last, examples[-1] if examples else None
        if row.get("id") not in (None, ""):
            front, mark, number = name.rpartition("#")
            return front if mark and number.isdecimal() else name
        if before is not None and examples:
            turns = _turns_of(before)
            if examples[0].context[: len(turns)] == turns:
                return next(reversed(self.conversations))
        return name


def _turns_of(example: Example) -> tuple[str, ...]:
    """The turns of the context and the response."""
    return (*example.context, example.response or "")


def _dialogue(row: Row, name: str, turns: Sequence[tuple[str | None, str]], time: datetime | None) -> Row:
    known: dict[str, Any] = {"id": name}
    if time is not None:
        known["time"] = time.isoformat()
    if background := fields.optional_texts(row, "background"):
        known["background"] = background
    spoken = [{"text": text} if speaker is None else {"speaker": speaker, "text": text} for speaker, text in turns]
    return known | {"turns": spoken}


def _time(row: Row) -> datetime | None:
    """The time of a row; a time without a zone is interpreted as UTC.

    >>> str(_time({"time": "2024-05-31T14:00:00+02:00"})), str(_time({"time": "1717164000"}))
    ('2024-05-31 14:00:00+02:00', '2024-05-31 14:00:00+00:00')
    >>> str(_time({"time": 20240531})), str(_time({"time": "202405311400"}))
    ('2024-05-31 00:00:00+00:00', '2024-05-31 14:00:00+00:00')
    """
    value = row.get("time")
    if value is None or value == "":
        return None
    try:
        if not isinstance(value, bool) and (digits := DIGITS.fullmatch(str(value).strip())):
            value = f"{digits[1]}T{digits[2] or '00'}"
        if isinstance(value, str) and EPOCH.fullmatch(value.strip()):  # a table holds numbers as texts
            value = float(value)
        if is_number(value):
            return datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC)  # or milliseconds
        time = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError) as error:
        shown = repr(value[:40]) if isinstance(value, str) else type_name(value)
        raise ValueError(
            f'field "time" holds {shown}; write it as 2024-05-31T14:00:00, or split by id, which ignores times'
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _choose_order(
    path: Path, conversations: Sequence[Conversation], by: By, notify: Callable[[str], None]
) -> Literal["time", "id"]:
    """Whether to split by time or by id."""
    times = [conversation.time for conversation in conversations if conversation.time is not None]
    n_without = len(conversations) - len(times)
    if n_without and (by == "time" or (by == "auto" and times)):
        problem = f"{path}: {n_without} of {len(conversations)} conversations have no time"
        if by == "time":
            raise DataError(f'{problem}; give each a field "time", or split by id')
        notify(f"{problem}, so the split is by id")
    return "time" if by == "time" or (by == "auto" and not n_without and len(set(times)) > 1) else "id"


def _random_key(seed: int) -> Callable[[Sequence[Conversation]], bytes]:
    def key(group: Sequence[Conversation]) -> bytes:
        name = min(conversation.id for conversation in group)
        return hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    return key


def _sizes(path: Path, n: int, valid: float, test: float) -> tuple[int, int]:
    """Number of conversations of validation and test."""
    n_valid, n_test = (max(1, round(share * n)) if share else 0 for share in (valid, test))
    if n - n_valid - n_test < 1:
        n_parts = 1 + bool(valid) + bool(test)
        raise DataError(
            f"{path}: {counted(n, 'different conversation')} with a response, too few for {n_parts} parts; give at"
            f" least {n_parts} (reliable figures need several hundred)"
        )
    return n_valid, n_test
