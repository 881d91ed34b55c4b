"""A recipe for whoever has data and no recipe yet: settings that do well on most data of a few thousand examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from polyrank.errors import DataError, MissingExtraError
from polyrank.models import find_backbone

Start = Literal["embedded", "shipped:convert"]
PARTS = ("train", "valid", "test")
POLY: dict[str, Any] = {
    "model": {"kind": "poly", "n_codes": 16, "shared_towers": True},
    "text": {"max_context_tokens": 128, "max_candidate_tokens": 48},
    "train": {
        "epochs": 2,
        "batch_size": 32,
        "lr": 2e-4,
        "new_lr": 2e-3,
        "dropout": 0.0,
        "schedule": {"kind": "linear", "warmup_steps": 10},
    },
}
CONVERT: dict[str, Any] = {
    "model": {"kind": "convert"},
    "train": {
        "init_from": "shipped:convert",
        "epochs": 10,
        "batch_size": 64,
        "lr": 2e-3,
        "schedule": {"final_lr": 2e-6},
    },
}


def part_file(folder: Path, part: str) -> Path:
    """The file of a part in a folder that ``polyrank split`` wrote.

    Raises:
        DataError: it is not there.
    """
    path = folder / f"{part}.jsonl"
    if not path.is_file():
        raise DataError(f"{folder} holds no {path.name}; make such a folder with polyrank split, or give a recipe")
    return path


def starting_recipe(
    folder: Path,
    output: Path,
    *,
    start: Start | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The tables of a recipe, as ``load_recipe`` takes them.

    Args:
        folder: with ``train.jsonl`` and ``valid.jsonl``, as ``polyrank split`` writes it.
        output: of the run.
        start: what to start from: the embedded backbone makes a Poly-encoder; the shipped ConveRT stays one.
            None: the first, if it is installed.
        say: is told where that is not.

    Raises:
        DataError: a file is missing.
    """
    values = POLY if (start or _best_start(say)) == "embedded" else CONVERT
    data = {part: str(part_file(folder, part).resolve()) for part in PARTS[:2]}
    return {**values, "data": data, "output": str(output.resolve())}


def _best_start(say: Callable[[str], None]) -> Start:
    try:
        find_backbone("embedded")
    except MissingExtraError as error:
        say(f"{error}; until then the ConveRT that comes with polyrank, small and weaker, takes its place")
        return "shipped:convert"
    return "embedded"
