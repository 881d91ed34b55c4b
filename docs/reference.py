"""Writes commands.md and recipe.md next to this file, from the commands and the settings.

python docs/reference.py
"""

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from polyrank.config.checked import Settings, field_types, kinds
from polyrank.config.methods import Method
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, ModelConfig, TextPolicy
from polyrank.config.pretrain import (
    ContinuedModel,
    PretrainData,
    PretrainSteps,
    PretrainText,
    ScratchModel,
    VocabularyConfig,
)
from polyrank.config.recipe import DataConfig
from polyrank.config.schedules import ScheduleConfig
from polyrank.config.schema import meanings
from polyrank.config.train import NegativesConfig, NetworkTraining, TrainConfig

HERE = Path(__file__).parent
BY = "<!-- written by docs/reference.py -->\n\n"


def commands() -> str:
    """Every command with its arguments and options, from its help."""
    command = [sys.executable, "-m", "typer", "polyrank.cli.commands", "utils", "docs", "--name", "polyrank"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return BY + found.stdout.strip() + "\n"


def recipe() -> str:
    """Every key of a recipe with its default and its meaning, from the settings' docstrings."""
    parts = [
        "# Recipe keys",
        "A recipe is a TOML file for `polyrank train`. It needs `output`, the model's `kind` and the"
        " data's `train`; all other keys have defaults. The default `none` means that the key is not set. polyrank then"
        " uses the value of the initial model, or one that suits the backbone. The command line overrides any key:"
        " `--set train.lr=1e-4`. Paths given there are relative to the working directory.",
        "`polyrank recipe schema > recipe.schema.json` writes a JSON Schema. Editors that support it complete and check"
        " a recipe whose first line is `#:schema recipe.schema.json`.",
        "`output`: the folder to write; `model` in it is the best model.",
    ]
    parts += _kinds("model", kinds(ModelConfig))
    parts.append(f"## `[text]`\n\n{_table(TextPolicy)}")
    parts.append(f"## `[text]` of a ConveRT\n\n{_table(ConvertText, TextPolicy)}")
    parts.append(f"## `[data]`\n\n{_table(DataConfig)}")
    parts.append(f"## `[train]`\n\n{_table(TrainConfig)}")
    for table, union in (("train.method", Method), ("train.schedule", ScheduleConfig)):
        parts += _kinds(table, kinds(union))
    parts.append(f"## `[train.negatives]`\n\n{_table(NegativesConfig)}")
    starts = (("from scratch", ConvertConfig.training), ("with `init_from` (fine-tuning)", ConvertConfig.tuning))
    parts.append("## Defaults of `[train]` for a ConveRT")
    parts += [f"Training {title}: {', '.join(_changes(train))}." for title, train in starts]
    own = ", ".join(f"`{key}`" for key in field_types(NetworkTraining))
    parts.append(
        '## `[reranker]`\n\nThe second network of `train.method.kind = "mutual"` has the keys of a `[model]` with a'
        f" backbone. The table `[reranker.train]` sets the keys that differ: {own}."
    )
    parts.append(
        "# Pre-training recipe keys\n\nA TOML file for `polyrank pretrain`, with different tables. It needs"
        " `output` and the data's `train`; all other keys have defaults.\n\n`output`: the folder to write; `model` in"
        " it is a Hugging Face folder of the best backbone, for `model.backbone` above."
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
    """A section for each kind of a table; shared keys are described in the first one."""
    earlier = list(options.values())
    return [
        f'## `[{table}]` with `kind = "{name}"`\n\n{_table(kind, *earlier[:number])}'
        for number, (name, kind) in enumerate(options.items())
    ]


def _table(kind: type[Any], *above: type[Any]) -> str:
    """The class and its keys; for keys with the same meaning in a class ``above``, only the defaults."""
    meaning = meanings(kind)
    known = {one for other in above for one in meanings(other).items()}
    first = (inspect.getdoc(kind) or "").splitlines()[0].replace("``", "`")
    shared, own = [], []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{_toml(field.default)}`"
        if (field.name, meaning[field.name]) in known:
            shared.append(f"`{field.name}`{default and f' ({default})'}")
        else:
            own.append(f"| `{field.name}` | {default} | {meaning[field.name]} |")
    rows = [first]
    if shared:
        rows.append(f"As above, with these defaults: {', '.join(shared)}.")
    if own:
        rows += ["", "| key | default | meaning |", "|---|---|---|", *own]
    return "\n".join(rows if shared or own else [f"{first} It has no further keys."])


def _changes(train: TrainConfig) -> list[str]:
    """The keys that differ from the defaults of a training, as TOML."""
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
