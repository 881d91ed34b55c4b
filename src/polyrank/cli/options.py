"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import check_plot_path


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


Rerank = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="A second stage, which re-ranks the best of the first.", callback=existing_model
    ),
]
Speaker = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="In dialogues: whose turns are responses; '*': all. Default: the agents'."),
]
NRetrieved = Annotated[int, typer.Option(min=1, help="With --rerank: number of candidates for the second stage.")]
EnsembleName = Annotated[
    str,
    typer.Option(
        help="With --rerank: how to add the scores of both stages: none, raw, sigmoid, z-score, softmax or"
        " sigmoid-reranked (sigmoid of the re-ranker's score only)."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, envvar="POLYRANK_THREADS", help="CPU threads. Default: the number of idle cores.")
]
AllThreads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output of an earlier call.")]
ContextTokens = Annotated[
    int | None, typer.Option(min=4, help="For untuned and Hugging Face models: maximum tokens of a context.")
]
CandidateTokens = Annotated[
    int | None, typer.Option(min=4, help="For untuned and Hugging Face models: maximum tokens of a candidate.")
]
FilterText = Annotated[
    str | None,
    typer.Option(
        "--filter", metavar="FILTER", help="Only candidates whose metadata match: 'lang = \"en\" and tier >= 2'."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", callback=existing_device)]
Runtime = Annotated[str, typer.Option(help="torch, or an export of the model: onnx, onnx-int8, openvino.")]
AllowEcho = Annotated[
    bool, typer.Option("--allow-echo", help="Also return replies that repeat a turn of the context word for word.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N examples.")]
MovedModel = Annotated[Path | None, typer.Option(help="The index's model, if it has moved since the build.")]
JsonLines = Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write; .gz compresses.")]
Plot = Annotated[Path | None, typer.Option(help="Draw a plot (.png, .svg, .pdf).", callback=check_plot_path)]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a key: train.lr=5e-5. Repeatable.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run, or a finished one for more epochs or steps.")
]
StartAgain = Annotated[bool, typer.Option("--overwrite", help="Start again and replace an earlier run.")]
