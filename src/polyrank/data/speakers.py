"""Choose the speaker whose turns are responses, in training and evaluation: the agent, if the speakers' names show it.

Counting the customer's turns as right answers would measure another task.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyrank.data.beir import example_rows
from polyrank.data.lines import suffix
from polyrank.data.published import as_own, each_row
from polyrank.data.values import Row, object_of, objects_in
from polyrank.errors import DataError, UsageError

AGENTS = ("agent", "assistant", "support", "operator", "advisor", "representative", "bot", "chatbot", "gpt")
EVERYBODY = "*"  # selects the turns of all speakers


def speakers_of(source: Path | str | Iterable[Any]) -> list[str] | None:
    """Names of the speakers of dialogues in a file or in rows; None if they are not dialogues.

    Bad rows are skipped.

    Raises:
        DataError: the file cannot be read, or it is a pipe.
    """
    speakers: set[str] = set()
    for row in _objects(source):
        if "turns" not in row and not speakers:
            return None  # as in reading, the first good row decides
        names = (turn.get("speaker") for turn in objects_in(row.get("turns")))
        speakers |= {name for name in names if isinstance(name, str)}
    return sorted(speakers)


def holds_dialogues(path: Path) -> bool:
    """Whether the first row of a file of JSON lines is a dialogue."""
    is_lines = path.is_file() and suffix(path) == ".jsonl"
    return is_lines and "turns" in next(_objects(path), {})


def _objects(source: Path | str | Iterable[Any]) -> Iterator[Row]:
    if isinstance(source, str | Path):
        if Path(source).is_fifo():
            raise DataError(f"{source}: is a pipe, which can be read only once; save it as a file")
        source = (row for _, row in example_rows(Path(source), on_bad=lambda error: None))
    for _, row in each_row(enumerate(source)):
        with suppress(ValueError):
            if made := as_own(object_of(row)):
                yield made


def choose_speaker(
    source: Path | str | Iterable[Any],
    speaker: str | None = None,
    *,
    name: object = None,
    option: str = "`speaker`",
    notify: Callable[[str], None] = lambda text: None,
) -> str | None:
    """The ``speaker`` argument for ``read_examples``.

    Args:
        source: the file, or its rows.
        speaker: the user's choice; "*": all speakers; None: the agent if a speaker has such a name, else all speakers.
        name: name of the source in messages, if it is not a file.
        option: the option that selects another speaker, for messages.
        notify: called with a message if polyrank made a choice.

    Raises:
        DataError: the file cannot be read, or it is a pipe.
        UsageError: all speakers are chosen, and the source does not hold dialogues; reading refuses other choices.
    """
    if speaker == EVERYBODY and "turns" not in next(_objects(source), {"turns": []}):
        raise UsageError(f"speaker '*' applies only to dialogues, and {name or source} does not hold any; leave it out")
    if speaker is not None:
        return None if speaker == EVERYBODY else speaker
    speakers, path = speakers_of(source) or [], name or source
    if len(speakers) < 2:
        return None
    chosen = next((name for agent in AGENTS for name in speakers if name.casefold() == agent), None)
    others = ", ".join(name for name in speakers[:10] if name != chosen)
    if chosen is not None:
        notify(f"{path}: replies are the turns of {chosen}, not of {others}; choose another speaker with {option}")
    else:
        notify(f"{path}: replies are the turns of all speakers, {others}; choose one speaker with {option}")
    return chosen
