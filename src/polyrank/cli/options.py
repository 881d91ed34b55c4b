"""Options that several commands have, declared once."""

from typing import Annotated

import typer


def existing_device(name: str | None) -> str | None:
    """A device that this machine has, checked before the command reads anything.

    Raises:
        UsageError: the name is unknown, or there is no such device here.
    """
    if name not in (None, "auto", "cpu"):
        from polyrank.devices.choice import choose_device  # imports torch

        choose_device(name)
    return name


def existing_model(name: str | None) -> str | None:
    """The name of a model, checked before the command reads anything.

    Raises:
        UsageError: there is no such model.
    """
    if name is not None:
        from polyrank.loading.models import resolve_model

        resolve_model(name)
    return name


Rerank = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A second stage: a model that orders the best of the first one.",
        callback=existing_model,
    ),
]
Speaker = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of dialogues, whose turns are responses: else the agents'; '*': everybody's."),
]
NRetrieved = Annotated[int, typer.Option(min=1, help="With --rerank: how many the second stage sees.")]
EnsembleName = Annotated[
    str,
    typer.Option(
        help="With --rerank: none, raw, sigmoid, z-score, softmax or sigmoid-reranked (the sigmoid of the"
        " re-ranker's score alone); how both scores are added."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="POLYRANK_THREADS", help="CPU threads; else as many as there are cores that nobody keeps busy."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier call wrote there.")]
ContextTokens = Annotated[
    int | None, typer.Option(min=4, help="Of untuned and other people's models: how much of a context is read.")
]
CandidateTokens = Annotated[
    int | None, typer.Option(min=4, help="Of untuned and other people's models: how much of a candidate is read.")
]
FilterText = Annotated[
    str | None,
    typer.Option(
        "--filter", metavar="FILTER", help="Only candidates whose metadata pass: 'lang = \"en\" and tier >= 2'."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", callback=existing_device)]
Runtime = Annotated[str, typer.Option(help="torch, or an export of the model: onnx, onnx-int8, openvino.")]
AllowEcho = Annotated[
    bool, typer.Option("--allow-echo", help="Also give what the context already contains, in the same words.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")]
StartAgain = Annotated[bool, typer.Option("--overwrite", help="Start again over an earlier run.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use the first N examples only.")]
