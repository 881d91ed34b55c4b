"""Whose turns of a dialogue are replies to learn from and to be judged by: the agents', where they can be told.

A customer's turns taken for right answers make figures of another task.
"""

from collections.abc import Callable
from pathlib import Path

from polyrank.data.rows import rows

AGENTS = ("agent", "assistant", "support", "operator", "advisor", "representative", "bot", "chatbot", "gpt")
EVERYBODY = "*"
"""Asks for all turns."""


def speakers_of(path: Path | str) -> list[str] | None:
    """Who speaks in a file of dialogues, by name; None where it holds something else. Bad rows are passed over."""
    speakers: set[str] = set()
    for _, row in rows(Path(path)):
        if isinstance(row, dict):
            turns = row.get("turns")
            if "turns" not in row and not speakers:
                return None  # the first good row decides, as in reading
            for turn in turns if isinstance(turns, list) else ():
                if isinstance(turn, dict) and isinstance(name := turn.get("speaker"), str):
                    speakers.add(name)
    return sorted(speakers)


def choose_speaker(
    path: Path | str,
    asked: str | None = None,
    *,
    option: str = "--speaker",
    say: Callable[[str], None] = lambda text: None,
) -> str | None:
    """The ``speaker`` to read the examples of a file with.

    Args:
        path: the file.
        asked: a speaker; "*": everybody; None: the agents where one of the speakers is called so, else everybody.
        option: where another can be asked for.
        say: is told whose turns are taken where that was a choice.
    """
    if asked is not None:
        return None if asked == EVERYBODY else asked
    speakers = speakers_of(path) or []
    if len(speakers) < 2:
        return None
    chosen = next((name for agent in AGENTS for name in speakers if name.casefold() == agent), None)
    others = ", ".join(name for name in speakers[:10] if name != chosen)
    if chosen is not None:
        say(f"{path}: replies are the turns of {chosen}, not of {others}; another choice: {option}")
    else:
        say(f"{path}: replies are everybody's turns, of {others}; for those of one: {option}")
    return chosen
