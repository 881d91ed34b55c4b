"""Whose turns of a dialogue are replies to learn from and to be judged by: the agents', where they can be told.

A customer's turns taken for right answers make figures of another task.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from polyrank.data.rows import rows

AGENTS = ("agent", "assistant", "support", "operator", "advisor", "representative", "bot", "chatbot", "gpt")
EVERYBODY = "*"
"""Asks for all turns."""


def speakers_of(source: Path | str | Iterable[Any]) -> list[str] | None:
    """Who speaks in dialogues, of a file or of rows, by name; None where it holds something else.

    Bad rows are passed over.
    """
    speakers: set[str] = set()
    numbered: Iterable[tuple[int, Any]] = rows(Path(source)) if isinstance(source, str | Path) else enumerate(source)
    for _, row in numbered:
        if isinstance(row, dict):
            turns = row.get("turns")
            if "turns" not in row and not speakers:
                return None  # the first good row decides, as in reading
            for turn in turns if isinstance(turns, list) else ():
                if isinstance(turn, dict) and isinstance(name := turn.get("speaker"), str):
                    speakers.add(name)
    return sorted(speakers)


def choose_speaker(
    source: Path | str | Iterable[Any],
    asked: str | None = None,
    *,
    name: object = None,
    option: str = "--speaker",
    notify: Callable[[str], None] = lambda text: None,
) -> str | None:
    """The ``speaker`` to read examples with.

    Args:
        source: the file, or its rows.
        asked: a speaker; "*": everybody; None: the agents where one of the speakers is called so, else everybody.
        name: of the source, where it is no file, for ``notify``.
        option: where another can be asked for.
        notify: is told whose turns are taken where that was a choice.
    """
    if asked is not None:
        return None if asked == EVERYBODY else asked
    speakers, path = speakers_of(source) or [], name or source
    if len(speakers) < 2:
        return None
    chosen = next((name for agent in AGENTS for name in speakers if name.casefold() == agent), None)
    others = ", ".join(name for name in speakers[:10] if name != chosen)
    if chosen is not None:
        notify(f"{path}: replies are the turns of {chosen}, not of {others}; another choice: {option}")
    else:
        notify(f"{path}: replies are everybody's turns, of {others}; for those of one: {option}")
    return chosen
