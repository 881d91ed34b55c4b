"""``polyrank feedback``: counts the outcomes of answers, and writes them as examples."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyrank.cli import interrupts
from polyrank.cli.console import make_console, notify, track
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import AllThreads, Changes, Device, Json, Overwrite
from polyrank.errors import DataError, UsageError
from polyrank.storage.durable import check_output, write_file

if TYPE_CHECKING:
    from polyrank.feedback.records import RequestFeedback
    from polyrank.feedback.store import FeedbackStore

feedback_app = command_group("feedback", "Use replies that were taken, edited and refused as training data.")
StoreFile = Annotated[Path, Argument(metavar="STORE", help="The feedback file of a server.")]
IndexOfTexts = Annotated[
    Path | None, Option("--index", help="An index that has the texts of the replies, if the store has only their ids.")
]
Contexts = Annotated[
    Path | None, Option("--contexts", help="Your conversations, if the store has only hashes of the contexts.")
]
Since = Annotated[str | None, Option(metavar="DATE", help="Only requests from this date or time (UTC) on: 2026-05-31.")]


@add_command(feedback_app, "export", "feedback.db -o accepted.jsonl --index my-index")
def feedback_export(
    store: StoreFile,
    output: Annotated[Path, Option("-o", "--output", help="JSON lines to write, for polyrank split and train.")],
    index: IndexOfTexts = None,
    contexts: Contexts = None,
    refused: Annotated[bool, Option("--refused", help="Also write contexts without a right reply.")] = False,
    since: Since = None,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Write examples to train on: replies that were taken are right, the others that were shown are wrong."""
    from polyrank.data import read_examples, write_examples
    from polyrank.feedback.export import examples
    from polyrank.feedback.store import FeedbackStore, context_code
    from polyrank.index import open_index

    check_output(output, inputs=(store, index, contexts), overwrite=overwrite)
    start = _time(since)
    texts = {}
    if index is not None:
        with open_index(index) as opened:
            texts = {candidate.id: candidate.text for _, candidate in opened.iter_candidates()}
    with FeedbackStore(store, write=False) as feedback:
        queries = [] if contexts is None else [example.query for example in read_examples(contexts).examples]
        exported = examples(
            _tracked(feedback, start),
            texts=texts,
            contexts={context_code(context): context for context in queries},
            refused=refused,
        )
    reasons = "; ".join(f"{n:,} left out: {why}" for why, n in exported.left_out.items())
    if not exported.examples:
        raise DataError(
            f"{store}: none of {exported.n_requests:,} requests yields an example ({reasons or 'it is empty'})"
        )
    write_examples(output, exported.examples)
    counts = {"n_examples": len(exported.examples), "n_requests": exported.n_requests, "left_out": exported.left_out,
              "n_unknown": exported.n_unknown}  # fmt: skip
    notify(f"{output}: {len(exported.examples):,} examples, one per context, from {exported.n_requests:,} requests")
    for why, n in exported.left_out.items():
        notify(f"{n:,} left out: {why}")
    if exported.n_unknown:
        notify(f"{exported.n_unknown:,} replies that were shown are left out, because their texts are unknown")
    if json_:
        print(json.dumps(counts))


@add_command(feedback_app, "train", "feedback.db my-run/model -o next-run --index my-index")
def feedback_train(
    store: StoreFile,
    model: Annotated[str, Argument(help="The model that answered; of a ranker, its first encoder is trained.")],
    output: Annotated[Path, Option("-o", "--output", help="Folder for the examples, their parts and the run.")],
    index: IndexOfTexts = None,
    contexts: Contexts = None,
    since: Since = None,
    changes: Changes = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: AllThreads = None,
) -> None:
    """Train a model further on replies that users took, and compare both on the latest conversations.

    The same as feedback export, split, train and evaluate, with the recipe that split writes for such examples.
    """
    from polyrank.cli.evaluation import evaluate
    from polyrank.cli.splitting import RECIPE, recipe_of
    from polyrank.cli.training import run_recipe
    from polyrank.config.models import MODEL
    from polyrank.data import split, write_split
    from polyrank.loading.models import resolve_model
    from polyrank.storage.document import read_document

    answered = resolve_model(model)
    parts = answered.parts or (answered,)
    encoder = next((part for part in parts if part.kind == "trained" and not part.corrects), None)
    if encoder is None or encoder.folder is None:
        raise UsageError(f"{model} has no encoder that polyrank trained; give one, such as my-run/model")
    kind = read_document(encoder.folder, MODEL)["model"]["kind"]
    if kind in ("cross", "late"):
        raise UsageError(f"{model} is a Cross-encoder; give the encoder that answered, and train the other by a recipe")
    for file in ("used.jsonl", RECIPE, "run"):
        check_output(output / file, inputs=(store, index, contexts), overwrite=overwrite)
    feedback_export(store, output / "used.jsonl", index, contexts, since=since, overwrite=overwrite)
    split_up = split(output / "used.jsonl", notify=notify)
    write_split(output, split_up)
    recipe = recipe_of(split_up, "shipped:convert" if kind == "convert" else "shipped:minilm")
    write_file(output / RECIPE, recipe.encode())
    start = [f"model.kind={json.dumps(kind)}", f"train.init_from={json.dumps(encoder.name)}"]
    changes = [*start, *(changes or ())]
    given = " ".join(f"--set {quote(change)}" for change in changes)
    interrupts.set_resume_hint(f"continue with polyrank train {quote(str(output / RECIPE))} {given} --resume")
    run_recipe(output / RECIPE, changes, False, overwrite, device, threads)
    evaluate([encoder.name, str(output / "run" / "model")], output / "test.jsonl", device=device, threads=threads)


@add_command(feedback_app, "report", "feedback.db")
def feedback_report(store: StoreFile, since: Since = None, json_: Json = False) -> None:
    """Show how often replies were taken, edited and refused, by rank, week and model."""
    from polyrank.feedback.rates import report
    from polyrank.feedback.store import FeedbackStore

    start = _time(since)
    with FeedbackStore(store, write=False) as feedback:
        figures = report(_tracked(feedback, start))
    if json_:
        print(json.dumps(figures))
    else:
        _show(figures)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since {text!r} is not a date; write 2026-05-31 or 2026-05-31T14:00") from error


def _tracked(store: "FeedbackStore", since: datetime | None) -> "Iterator[RequestFeedback]":
    # len(store) is evaluated first: rows that a server adds meanwhile are not in the view
    yield from track("reading", store.requests(since=since), total=len(store))


def _show(figures: dict[str, Any]) -> None:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from polyrank.feedback.rates import BY

    out = make_console()
    for chosen in BY:
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
    rates = f"; accepted {_accepted(figures)}%" if figures["interval"] else ""
    if figures["mrr"] is not None:
        rates += f"; MRR of used replies {figures['mrr']:.3f}"
    counted = ", ".join(f"{figures[name]:,} {name}" for name in _COUNTS)
    out.print(f"{figures['n_requests']:,} requests: {counted}{rates}", soft_wrap=True, highlight=False)


_COUNTS = ("taken", "edited", "refused", "unanswered")
_HEADINGS = {"n_shown": "shown", "n_requests": "n"}


def _accepted(row: dict[str, Any]) -> str:
    """The acceptance rate in percent, with its interval."""
    if row["interval"] is None:
        return ""
    low, high = (100 * end for end in row["interval"])
    return f"{100 * row['acceptance']:.1f} ({low:.1f}-{high:.1f})"
