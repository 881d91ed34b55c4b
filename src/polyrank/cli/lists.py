"""Candidate lists by which something is chosen or judged, from any file of examples."""

from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.cli.console import talk

if TYPE_CHECKING:
    from polyrank.records import Example


def read_lists(path: Path, speaker: str | None) -> "list[Example]":
    """The examples of a file with their lists; those of pairs and dialogues are drawn."""
    from polyrank.data import choose_speaker, draw_candidates, read_examples
    from polyrank.data.candidate_lists import have_lists

    loaded = read_examples(path, speaker=choose_speaker(path, speaker, notify=talk))
    talk(f"{path}: {loaded.report}")
    return loaded.examples if have_lists(loaded.examples) else draw_candidates(loaded.examples, what=str(path))
