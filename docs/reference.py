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

from polyrank.config.checked import Settings, field_types, kinds
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, RecipeModel, TextPolicy
from polyrank.config.pretraining import (
    ContinuedModel,
    PretrainData,
    PretrainSteps,
    PretrainText,
    ScratchModel,
    VocabularyConfig,
)
from polyrank.config.recipe import DataConfig
from polyrank.config.schedules import ScheduleConfig
from polyrank.config.training import Method, NegativesConfig, NetworkTraining, TrainConfig

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
        "A TOML file for `polyrank train`. Each key but `output`, the model's `kind`, a sum's `parts` and the data's"
        " `train` has a default. `none` is a key that is left out: nothing, what suits the backbone, or what the model"
        " has that training starts from. The command line changes any of them: `--set train.lr=1e-4`; paths"
        " given there are relative to the working directory.",
        "`output`: the folder to make; in it `model` is the best model.",
    ]
    parts += _kinds("model", kinds(RecipeModel))
    parts.append(f"## `[text]`\n\n{_table(TextPolicy)}")
    parts.append(f"## `[text]` of a ConveRT\n\n{_table(ConvertText, TextPolicy)}")
    parts.append(f"## `[data]`\n\n{_table(DataConfig)}")
    parts.append(f"## `[train]`\n\n{_table(TrainConfig)}")
    for table, union in (("train.method", Method), ("train.schedule", ScheduleConfig)):
        parts += _kinds(table, kinds(union))
    parts.append(f"## `[train.negatives]`\n\n{_table(NegativesConfig)}")
    starts = (("from scratch", ConvertConfig.training), ("with `init_from`, that is fine-tuning", ConvertConfig.tuning))
    parts.append("## A ConveRT's defaults of `[train]`")
    parts += [f"A ConveRT's training {title}: {', '.join(_changes(train))}." for title, train in starts]
    own = ", ".join(f"`{key}`" for key in field_types(NetworkTraining))
    parts.append(
        '## `[reranker]`\n\nThe second network of `train.method.kind = "mutual"`: the keys of a `[model]`, and tables'
        f" `[reranker.text]` and `[reranker.train]` for what differs; of `train`, {own}."
    )
    parts.append(
        "# A recipe of a pre-training\n\nA TOML file for `polyrank pretrain`, with tables of its own. Each key but"
        " `output` and the data's `train` has a default.\n\n`output`: the folder to make; in it `model` is a Hugging"
        " Face folder of the best backbone, for `model.backbone` above."
    )
    parts += [
        f"## {title}\n\n{_table(kind, *above)}"
        for title, kind, *above in (
            ("`[model]` of a pre-training, from scratch", ScratchModel),
            ("`[model]` of a pre-training that continues", ContinuedModel, BiConfig),
            ("`[vocabulary]` of a pre-training from scratch", VocabularyConfig),
            ("`[text]` of a pre-training", PretrainText, TextPolicy),
            ("`[data]` of a pre-training", PretrainData, DataConfig),
            ("`[train]` of a pre-training", PretrainSteps, TrainConfig),
        )
    ]
    return BY + "\n\n".join(parts) + "\n"


def _kinds(table: str, options: dict[str, type[Any]]) -> list[str]:
    """A section for each kind of a table; a key that an earlier kind has too is described there."""
    earlier = list(options.values())
    return [
        f'## `[{table}]` with `kind = "{name}"`\n\n{_table(kind, *earlier[:number])}'
        for number, (name, kind) in enumerate(options.items())
    ]


def _table(kind: type[Any], *above: type[Any]) -> str:
    """What the class is, and its keys; those that a class ``above`` has are named with their default alone."""
    meaning: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        meaning |= _meanings((inspect.getdoc(ancestor) or "").partition("Args:\n")[2])
    known = {field.name for other in above for field in dataclasses.fields(other)}
    first = (inspect.getdoc(kind) or "").splitlines()[0].replace("``", "`")
    shared, own = [], []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{_toml(field.default)}`"
        if field.name in known:
            shared.append(f"`{field.name}`{default and f' ({default})'}")
        else:
            own.append(f"| `{field.name}` | {default} | {meaning[field.name]} |")
    rows = [first]
    if shared:
        rows.append(f"As above, with these defaults: {', '.join(shared)}.")
    if own:
        rows += ["", "| key | default | meaning |", "|---|---|---|", *own]
    return "\n".join(rows if shared or own else [f"{first} It has no keys of its own."])


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


def _changes(train: TrainConfig) -> list[str]:
    """What differs from the defaults of a training, as TOML."""
    usual, found = TrainConfig(), []
    for key in field_types(TrainConfig):
        value = getattr(train, key)
        if value != getattr(usual, key):
            found += _keys(key, value) if isinstance(value, Settings) else [f"`{key} = {_toml(value)}`"]
    return found


def _keys(table: str, settings: Settings) -> list[str]:
    values = {"kind": settings.kind, **dataclasses.asdict(settings)}  # type: ignore[attr-defined]  # of one kind
    return [f"`{table}.{key} = {_toml(value)}`" for key, value in values.items()]


def _toml(value: Any) -> str:
    if isinstance(value, Settings):
        return f'{{ kind = "{value.kind}" }}'  # type: ignore[attr-defined]  # of one kind
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return "none" if value is None else json.dumps(value)


if __name__ == "__main__":
    (HERE / "commands.md").write_text(commands(), "utf-8")
    (HERE / "recipe.md").write_text(recipe(), "utf-8")
