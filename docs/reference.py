"""Writes commands.md and recipe.md beside this file, from the commands and the settings themselves.

python docs/reference.py
"""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from polyrank.config import (
    CONVERT_TRAIN,
    CONVERT_TUNE,
    MODEL_KINDS,
    OF_ONE_NETWORK,
    BiConfig,
    ConvertText,
    DataConfig,
    PolyConfig,
    TextPolicy,
    TrainConfig,
)

HERE = Path(__file__).parent
ENTRY = re.compile(r"^    ([a-z_][a-z_, ]*): (.*)$")
BY = "<!-- written by docs/reference.py -->\n\n"


def commands() -> str:
    """Every command with its arguments and options, as its help has them."""
    command = [sys.executable, "-m", "typer", "polyrank.cli.commands", "utils", "docs", "--name", "polyrank"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return BY + found.stdout.strip() + "\n"


def recipe() -> str:
    """Every key of a recipe with its default and its meaning, as the settings' docstrings have them."""
    parts = [
        "# A recipe",
        "A TOML file for `polyrank train`. Each key but `output`, the model's `kind` and the data's `train` has a"
        " default. `none` is a key that is left out: nothing, what suits the backbone, or what the model has that"
        " training starts from. The command line changes any of them: `--set train.lr=1e-4`.",
        "`output`: the folder to make; in it `model` is the best model.",
    ]
    for name, kind in MODEL_KINDS.items():
        parts.append(f'## `[model]` with `kind = "{name}"`\n\n{_table(kind, BiConfig if kind is PolyConfig else None)}')
    parts.append(f"## `[text]`\n\n{_table(TextPolicy)}")
    parts.append(f"## `[text]` of a ConveRT\n\n{_table(ConvertText)}")
    parts.append(f"## `[data]`\n\n{_table(DataConfig)}")
    parts.append(f"## `[train]`\n\n{_table(TrainConfig)}")
    for title, defaults in (("from scratch", CONVERT_TRAIN), ("with `init_from`, that is fine-tuning", CONVERT_TUNE)):
        values = ", ".join(f"`{key} = {_toml(value)}`" for key, value in defaults.items())
        parts.append(f"A ConveRT's defaults {title}: {values}.")
    parts.append(
        '## `[reranker]`\n\nThe second network of `method = "mutual"`: the keys of a `[model]`, and tables'
        f" `[reranker.text]` and `[reranker.train]` for what differs; of `train`, {_listed(OF_ONE_NETWORK)}."
    )
    return BY + "\n\n".join(parts) + "\n"


def _table(kind: type[Any], below: type[Any] | None = None) -> str:
    """What the class is, and its keys; with ``below``, those that it does not have from there."""
    text = inspect.getdoc(kind) or ""
    meaning = _meanings(text.partition("Args:\n")[2])
    inherited = {field.name for field in dataclasses.fields(below)} if below else set()
    rows = [text.splitlines()[0] + (" The keys of the Bi-encoder, and:" if below else "")]
    rows += ["", "| key | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name not in inherited:
            default = "" if field.default is dataclasses.MISSING else _toml(field.default)
            rows.append(f"| `{field.name}` | {default and f'`{default}`'} | {meaning[field.name]} |")
    return "\n".join(rows)


def _meanings(arguments: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in arguments.splitlines():
        if entry := ENTRY.match(line):
            current = [entry[2]]
            found |= dict.fromkeys(entry[1].split(", "), current)
        elif line.startswith("        "):
            current.append(line.strip())
        else:
            break
    joined = {name: " ".join(lines) for name, lines in found.items()}
    return {name: re.sub(r"\bNone\b", "none", text).replace("``", "`") for name, text in joined.items()}


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return "none" if value is None else json.dumps(value)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    (HERE / "commands.md").write_text(commands(), "utf-8")
    (HERE / "recipe.md").write_text(recipe(), "utf-8")
