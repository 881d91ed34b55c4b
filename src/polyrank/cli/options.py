"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyrank.cli.console import check_plot_path
from polyrank.config.names import Backend


def existing_device(name: str | None) -> str | None:
    """Check that this machine has a device, before the command reads anything.

    Raises:
        UsageError: the name is unknown, or this machine does not have the device.
    """
    if name not in (None, "auto", "cpu"):
        from polyrank.devices.choice import choose_device  # imports torch

        choose_device(name)
    return name


def existing_model(name: str | None) -> str | None:
    """Check that a model exists, before the command reads anything.

    Raises:
        UsageError: the model does not exist.
    """
    if name is not None:
        from polyrank.loading.models import resolve_model

        resolve_model(name)
    return name


Speaker = Annotated[
    str | None, Option(metavar="NAME", help="In dialogues: whose turns are responses; '*': all. Default: the agents'.")
]
Threads = Annotated[
    int | None, Option(min=1, envvar="POLYRANK_THREADS", help="CPU threads. Default: the number of idle cores.")
]
AllThreads = Annotated[int | None, Option(min=1, envvar="POLYRANK_THREADS", help="CPU threads. Default: all cores.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace existing output of an earlier call.")]
ContextTokens = Annotated[
    int | None, Option(min=4, help="For untuned and Hugging Face models: maximum tokens of a context.")
]
CandidateTokens = Annotated[
    int | None, Option(min=4, help="For untuned and Hugging Face models: maximum tokens of a candidate.")
]
FilterText = Annotated[
    str | None,
    Option("--filter", metavar="FILTER", help="Only candidates whose metadata match: 'lang = \"en\" and tier >= 2'."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda or mps.", callback=existing_device)]
Runtime = Annotated[Backend, Option(help="torch, or an export of the model.")]
AllowEcho = Annotated[
    bool, Option("--allow-echo", help="Also return replies that repeat a turn of the context word for word.")
]
Wait = Annotated[
    float, Option(min=0, metavar="SECONDS", help="Wait this long for another process that changes the index.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
SkipBad = Annotated[bool, Option("--skip-bad", help="Count and skip bad rows.")]
Limit = Annotated[int | None, Option(min=1, help="Use only the first N examples.")]
MovedModel = Annotated[Path | None, Option(help="The index's model, if it has moved since the build.")]
JsonLines = Annotated[Path, Option("-o", "--output", help="JSON lines to write; .gz compresses.")]
Plot = Annotated[Path | None, Option(help="Draw a plot (.png, .svg, .pdf).", callback=check_plot_path)]
Changes = Annotated[list[str] | None, Option("--set", help="Change a key: train.lr=5e-5. Repeatable.")]
Resume = Annotated[
    bool, Option("--resume", help="Continue an interrupted run, or a finished one for more epochs or steps.")
]
StartAgain = Annotated[bool, Option("--overwrite", help="Start again and replace an earlier run.")]
