"""From a user's data to what the steps of a fit read: parts by conversation and time, lists, and a catalogue."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.recipe import DataConfig
from polyrank.data import choose_speaker, frequent_replies, read_pool, split, write_split
from polyrank.data.examples import kind_of
from polyrank.data.forms import field_of_turns
from polyrank.data.language import detect, not_english
from polyrank.data.lines import suffix
from polyrank.data.published import as_candidates, each_row
from polyrank.data.rows import rows
from polyrank.data.same_words import same_words
from polyrank.data.speakers import EVERYBODY, speakers_of
from polyrank.data.splits import PARTS
from polyrank.data.values import object_of
from polyrank.errors import DataError, UsageError
from polyrank.evaluation.tables import count_dialogues
from polyrank.loading.extensions import extension
from polyrank.records import Candidate, Example
from polyrank.training.data import load_data, read_lists
from polyrank.tuning.scored import lists_to_fit

FEW_REPEATS = 0.02
"""With a smaller share of replies that were given more than once, counts of replies mean nothing."""


@dataclass(frozen=True, slots=True)
class FitData:
    """The input of a fit.

    Args:
        files: the parts by name.
        speaker: for recipes: whose turns are replies; None: the parts are not dialogues.
        pairs: of the training part.
        lists, tests: candidate lists of the other parts.
        replies: the catalogue.
        repeated: the share of training pairs whose reply was given more than once.
    """

    files: dict[str, Path]
    speaker: str | None
    pairs: Sequence[Example]
    lists: list[Example]
    tests: list[Example]
    replies: list[Candidate]
    repeated: float

    def facts(self) -> dict[str, Any]:
        """Numbers that describe the data, ready for JSON."""
        languages = Counter(detect("\n".join(example.context)) for example in self.pairs[:: len(self.pairs) // 300 + 1])
        parts = {"train": self.pairs, "valid": self.lists, "test": self.tests}
        return {
            "pairs": {name: len(part) for name, part in parts.items()},
            "conversations": {name: count_dialogues([one.id for one in part]) for name, part in parts.items()},
            "replies": len(self.replies),
            "repeated": self.repeated,
            "languages": {code or "unclear": n / languages.total() for code, n in languages.most_common(5)},
            "warning": not_english("turns", (text for example in self.pairs for text in example.context)),
        }


def repeated_share(pairs: Sequence[Example]) -> float:
    """The share of pairs whose reply, in the same words, was given more than once.

    >>> repeated_share([Example(("hi",), (text,), (0,)) for text in ("Hello.", "hello", "Good day.", "Hey")])
    0.5
    """
    said = [same_words(example.response or "") for example in pairs]
    counts = Counter(said)
    return sum(counts[text] > 1 for text in said) / max(1, len(said))


def part_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that ``polyrank split`` made, by part; empty if one is missing."""
    found = {name: sorted(folder.glob(f"{name}.jsonl*")) for name in PARTS} if folder.is_dir() else {}
    return {name: files[0] for name, files in found.items()} if all(found.values()) else {}


def make_parts(source: Path, folder: Path, notify: Callable[[str], None]) -> dict[str, Any]:
    """Import and split a user's data into ``folder / "data"``, unless they are a folder of ``polyrank split``.

    Args:
        source: a folder of ``split``, a file of examples, or an export of chats.
        folder: for the new files.
        notify: called with messages for the user.

    Returns:
        How they were split, ready for JSON.

    Raises:
        UsageError: the source does not exist, or polyrank-chats, which reads exports, is not installed.
        DataError: it cannot be read, or has too few conversations.
    """
    if not source.exists():
        raise UsageError(f"{source} does not exist; give chats, a file of dialogues or pairs, or a folder of split")
    if part_files(source):
        return {}
    if not _holds_examples(source):
        chats = folder / "chats.jsonl"
        try:
            extension("chats")([str(source), "-o", str(chats), "--yes", "--overwrite"], "polyrank fit")
        except SystemExit as error:
            raise DataError(f"{source} cannot be read as chats, for the reason above") from error
        source = chats
    parts = split(source, notify=notify)
    notify(f"{source}: {parts.report}")
    write_split(folder / "data", parts)
    return {"by": parts.by, "repeated": parts.n_repeated}


def read_parts(files: dict[str, Path], replies: Path | None, notify: Callable[[str], None]) -> FitData:
    """Read the parts, and make the catalogue if none is given: replies that were given twice or more, with slots.

    Raises:
        DataError: a file cannot be read, or has no pair with a reply.
    """
    speaker = choose_speaker(files["train"], notify=notify) or (EVERYBODY if speakers_of(files["train"]) else None)
    names = {name: str(path) for name, path in files.items()}
    config = DataConfig(**names, speaker=speaker)  # type: ignore[arg-type]  # its fields have the names of the parts
    pairs, _ = load_data(DataConfig(train=names["train"], speaker=speaker), notify=notify)
    repeated = repeated_share(pairs)
    made = () if replies else frequent_replies(pairs, min_count=2 if repeated > 0.5 else 1, notify=notify)
    pool = read_pool(replies or made, notify=notify)
    lists, tests = (read_lists(config, part, notify=notify) for part in ("valid", "test"))
    return FitData(files, speaker, pairs, lists_to_fit(lists)[: config.max_valid], tests, pool, repeated)


def _holds_examples(source: Path) -> bool:
    """Whether the first row of a file is a pair, a list, a dialogue of polyrank's own form, or one of plain texts.

    Otherwise the file is an export of chats.
    """
    if source.is_file() and suffix(source) in (".json", ".jsonl", ".csv", ".parquet"):
        with suppress(DataError, ValueError, StopIteration):
            row = as_candidates(next(object_of(row) for _, row in each_row(rows(source))))
            return isinstance(row.get(field_of_turns(row) or "", [None])[0], str) or bool(kind_of(row))
    return False
