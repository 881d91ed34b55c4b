"""``polyrank feedback``: what became of the answers, counted and written as examples."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrank.cli.console import console, drawable, talk
from polyrank.cli.options import Json, Overwrite
from polyrank.errors import DataError, UsageError

if TYPE_CHECKING:
    from polyrank.feedback.rates import By
    from polyrank.feedback.records import RequestFeedback
    from polyrank.feedback.store import FeedbackStore

feedback_app = typer.Typer(no_args_is_help=True, help="Learn from what was taken, edited and refused.")
StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="The file of feedback that a server writes.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="Only what was shown then or later: 2026-05-31, or with a time (UTC)."),
]


@feedback_app.command("export")
def feedback_export(
    store: StoreFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write, for polyrank split and train.")],
    index: Annotated[
        Path | None, typer.Option(help="Where the texts of replies are looked up by id, if they were not kept.")
    ] = None,
    contexts: Annotated[
        Path | None,
        typer.Option(help="Your own conversations, in which contexts are looked up, if their texts were not kept."),
    ] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Also write contexts for which no reply is known to be right.")
    ] = False,
    edited_is_wrong: Annotated[
        bool, typer.Option("--edited-is-wrong", help="Take what a reply was edited from for wrong; else for neither.")
    ] = False,
    since: Since = None,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Write examples to train on: what was taken is right, what was shown beside it is wrong."""
    from polyrank.data import read_examples, write_examples
    from polyrank.feedback.export import examples
    from polyrank.feedback.store import FeedbackStore
    from polyrank.index import open_index
    from polyrank.storage.durable import check_output

    check_output(output, inputs=(store, index, contexts), overwrite=overwrite)
    start = _time(since)
    texts = {}
    if index is not None:
        with open_index(index) as opened:
            texts = {candidate.id: candidate.text for _, candidate in opened.iter_candidates()}
    with FeedbackStore(store, write=False) as feedback:
        own = [] if contexts is None else [example.query for example in read_examples(contexts).examples]
        exported = examples(
            _tracked(feedback, start),
            texts=texts,
            contexts={feedback.context_code(context): context for context in own},
            refused=refused,
            edited_is_wrong=edited_is_wrong,
        )
    reasons = "; ".join(f"{n:,} left out: {why}" for why, n in exported.left_out.items())
    if not exported.examples:
        raise DataError(
            f"{store}: none of {exported.n_requests:,} requests makes an example ({reasons or 'it is empty'})"
        )
    write_examples(output, exported.examples)
    counts = {"n_examples": len(exported.examples), "n_requests": exported.n_requests, "left_out": exported.left_out,
              "n_unknown": exported.n_unknown}  # fmt: skip
    talk(f"{output}: {len(exported.examples):,} examples, one a context, of {exported.n_requests:,} requests")
    for why, n in exported.left_out.items():
        talk(f"{n:,} left out: {why}")
    if exported.n_unknown:
        talk(f"{exported.n_unknown:,} replies that were shown are in no example, for their texts are not known")
    if json_:
        print(json.dumps(counts))


@feedback_app.command("report")
def feedback_report(
    store: StoreFile,
    by: Annotated[str | None, typer.Option(help="rank, week or model; else all three.")] = None,
    since: Since = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the acceptance, as .png or .svg.", callback=drawable)] = None,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """How often replies were taken, edited and refused: by the rank at which they were shown, by week, by model."""
    from polyrank.feedback.rates import BY, report
    from polyrank.feedback.store import FeedbackStore
    from polyrank.storage.durable import check_output

    chosen, start = _by(by), _time(since)
    check_output(plot, inputs=(store,), overwrite=overwrite)
    with FeedbackStore(store, write=False) as feedback:
        figures = report(_tracked(feedback, start))
    if json_:
        left_out = {f"by_{name}" for name in BY if chosen not in (None, name)}
        print(json.dumps({name: value for name, value in figures.items() if name not in left_out}))
    else:
        _show(figures, chosen)
    if plot is not None:
        from polyrank.feedback.plots import plot_report

        plot_report(figures, plot, by=chosen)
        talk(f"wrote {plot}")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since {text!r} is no date; write 2026-05-31 or 2026-05-31T14:00") from error


def _by(text: str | None) -> "By | None":
    from polyrank.feedback.rates import BY

    if text is None:
        return None
    for name in BY:
        if name == text:
            return name
    raise UsageError(f"--by {text!r} is unknown; use {', '.join(BY)}")


def _tracked(store: "FeedbackStore", since: datetime | None) -> "Iterator[RequestFeedback]":
    from rich.progress import track

    # counted before: what a server adds meanwhile is not in the view that is read
    yield from track(
        store.requests(since=since),
        "reading",
        total=len(store),
        console=console(),
        disable=not console().is_terminal,
        transient=True,
    )


def _show(figures: dict[str, Any], by: "By | None") -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from polyrank.feedback.rates import BY

    out = Console()
    for chosen in BY if by is None else (by,):
        rows = figures[f"by_{chosen}"]
        counts = ["n_shown", "taken", "edited"] if chosen == "rank" else ["n_requests", *_COUNTS]
        table = Table(title=f"by {chosen}", box=SIMPLE, collapse_padding=True, pad_edge=False)
        table.add_column(chosen, overflow="fold")
        for heading in (*counts, "accepted (%)", *([] if chosen == "rank" else ["MRR"])):
            table.add_column(_HEADINGS.get(heading, heading), justify="right", no_wrap=True)
        for row in rows:
            mrr = [] if chosen == "rank" else ["" if row["mrr"] is None else f"{row['mrr']:.3f}"]
            table.add_row(escape(row["name"]), *(f"{row[name]:,}" for name in counts), _accepted(row), *mrr)
        out.print(table)
    told = f"; accepted {_accepted(figures)}%" if figures["interval"] else ""
    if figures["mrr"] is not None:
        told += f"; MRR of what was used {figures['mrr']:.3f}"
    counted = ", ".join(f"{figures[name]:,} {name}" for name in _COUNTS)
    out.print(f"{figures['n_requests']:,} requests: {counted}{told}", soft_wrap=True, highlight=False)


_COUNTS = ("taken", "edited", "refused", "unanswered")
_HEADINGS = {"n_shown": "shown", "n_requests": "n"}


def _accepted(row: dict[str, Any]) -> str:
    """In percent, with the interval."""
    if row["interval"] is None:
        return ""
    low, high = (100 * end for end in row["interval"])
    return f"{100 * row['acceptance']:.1f} ({low:.1f}-{high:.1f})"
