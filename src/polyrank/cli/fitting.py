"""``polyrank fit``, and ``polyrank quickstart``, which is this command on the sample."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import notify, track, use_processor
from polyrank.cli.options import AllThreads, Device, Json, Overwrite, Resume
from polyrank.cli.training import TrainingDisplay, check_resume
from polyrank.config.names import SAMPLE
from polyrank.loading.extensions import extension

WIDTHS = (34, 22, 22, 12, 6, 8)


def fit(
    data: Annotated[Path, Argument(help="An export of chats, a file of dialogues or pairs, or a folder of split.")],
    output: Annotated[Path, Option("-o", "--output", help="The folder to make: index, ranker and report.")],
    minutes: Annotated[float, Option(min=0.1, help="For everything; time of other programs does not count.")] = 30.0,
    ms: Annotated[float | None, Option(min=0, help="The longest time of an answer on this machine, in ms.")] = None,
    precision: Annotated[
        float, Option(min=0, max=1, help="Answer only if this share of the answers is expected to be right.")
    ] = 0.8,
    replies: Annotated[
        Path | None, Option(help="The catalogue: one per line, CSV or JSON lines. Default: those given twice or more.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Device = "auto",
    ray: Annotated[str | None, Option(help="Train on this Ray cluster: auto, HOST:PORT or local.")] = None,
    threads: AllThreads = None,
    json_: Json = False,
) -> None:
    """From chats to the best ranker that these minutes reach: its index, for `polyrank serve`, and a report.

    Tries baselines, shipped encoders, terms without training, then trainings, and keeps what measurably helps on
    validation conversations. Ctrl-C ends with the best so far.
    """
    given: dict[str, Any] = {"minutes": minutes, "ms": ms, "precision": precision, "replies": replies, "device": device}
    with nullcontext({}) if ray is None else extension("cluster")(ray) as there:
        _fit(data, output, json_, threads, resume=resume, overwrite=overwrite, **given, **there)


def quickstart(
    output: Annotated[Path, Option(help="Folder for index, ranker and report.")] = Path("polyrank-quickstart"),
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Run `polyrank fit` on the included sample: chats of the support desk of a fictional internet provider."""
    notify("the sample is small: its figures show that polyrank works, not how good a ranker is on your data")
    _fit(SAMPLE / "train.jsonl", output, False, minutes=3.0, resume=resume, overwrite=overwrite)


def _fit(data: Path, output: Path, json_: bool, threads: int | None = None, **options: Any) -> None:
    from polyrank.fitting import fit as run
    from polyrank.fitting.report import HEADINGS, report_text, result_of

    check_resume(options["resume"], options["overwrite"])
    use_processor(threads, trains=True)
    headings = iter([HEADINGS])  # above the first line, if the data can be read
    with TrainingDisplay() as display:
        options |= {"progress": track, "report": display.report, "notify": notify}
        fitted = run(data, output, **options, show=lambda line: _show(*headings, line.cells()))
    for name, minutes in fitted.report["untried"].items():
        notify(f"not tried: {name}" + ("" if minutes is None else f", about {minutes:.1f} minutes"))
    notify(result_of(report_text(fitted.report)))
    if json_:
        print(json.dumps(fitted.report, ensure_ascii=False))
    notify(f"wrote {output}; read {output / 'report.html'}; next: polyrank serve {output}")


def _show(*lines: list[str] | tuple[str, ...]) -> None:
    """Add lines to the table, which grows above the progress of the present step."""
    for cells in lines:
        notify("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip())
