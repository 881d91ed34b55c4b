"""Reads files of examples and reports what they contain."""

from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.cli.console import notify

if TYPE_CHECKING:
    from polyrank.records import Example


def load_examples(path: Path, speaker: str | None, *, skip_bad: bool = False) -> "list[Example]":
    """Read the examples of a file."""
    from polyrank.data import choose_speaker, read_examples

    loaded = read_examples(path, speaker=choose_speaker(path, speaker, notify=notify), skip_bad=skip_bad)
    notify(f"{path}: {loaded.report}")
    return loaded.examples


def load_lists(path: Path, speaker: str | None) -> "list[Example]":
    """Read the examples of a file with their candidate lists; for pairs and dialogues, draw the lists."""
    from polyrank.data import draw_candidates
    from polyrank.data.candidate_lists import have_lists

    examples = load_examples(path, speaker)
    return examples if have_lists(examples) else draw_candidates(examples, what=str(path))
