"""``polyrank tune``: the best ranker of some models for a user's validation lists."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyrank.cli.console import load_examples, load_lists, make_console, notify, report_cut_texts, track, use_processor
from polyrank.cli.options import Device, Json, Overwrite, Speaker, Threads
from polyrank.errors import UsageError
from polyrank.wording import percent

if TYPE_CHECKING:
    from polyrank.tuning import Tuning


def tune(
    models: Annotated[
        list[str], Argument(metavar="MODEL...", help="Models to combine: encoders, Cross-encoders, rankers, bm25.")
    ],
    output: Annotated[Path, Option("-o", "--output", help="The ranker folder to make.")],
    valid: Annotated[Path, Option(help="Candidate lists to choose on; for pairs or dialogues, lists are drawn.")],
    dialogues: Annotated[
        Path | None, Option(help="Dialogues or pairs of the training part, for counts of replies and hubs.")
    ] = None,
    without: Annotated[list[str] | None, Option(help="A term that is not tried, such as hubs. Repeatable.")] = None,
    weight: Annotated[
        list[str] | None,
        Option(metavar="TERM=WEIGHT", help="A fixed weight, in units of the first model's score. Repeatable."),
    ] = None,
    ms: Annotated[float | None, Option(min=0, help="The longest time of an answer on this machine, in ms.")] = None,
    catalogue: Annotated[
        int | None, Option(min=1, help="How many replies an answer is searched in. Default: those of the lists.")
    ] = None,
    precision: Annotated[
        float | None, Option(min=0, max=1, help="Answer only if this share of the answers is expected to be right.")
    ] = None,
    max_lists: Annotated[int, Option(min=1, help="Use the first N lists.")] = 1000,
    speaker: Speaker = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Choose the terms of a ranker and their weights on validation lists; use the result like any model.

    The models may gain from terms that need no training: counts (how often a reply was said), hubs (replies that score
    high everywhere), words (shared with the context), and a re-ranker that ships for an encoder. An interrupted call
    continues.
    """
    import shutil

    from polyrank.data.speakers import speakers_of
    from polyrank.loading.folders import RANKER
    from polyrank.loading.models import check_apart, resolve_model
    from polyrank.storage.durable import check_replaceable
    from polyrank.tuning import tune as fit

    use_processor(threads)
    weights = _weights(weight or [])
    check_apart(output, [resolve_model(name) for name in models])
    check_replaceable(output, own_files=RANKER.files, replace=overwrite)
    # lists have no speakers, and the dialogues do
    lists = load_lists(valid, speaker if dialogues is None or speakers_of(valid) is not None else None)
    said = [] if dialogues is None else load_examples(dialogues, speaker)
    work = output.resolve().with_name(f"{output.resolve().name}.scores")
    tuning = fit(
        models,
        lists,
        dialogues=said,
        without=without or (),
        weights=weights,
        ms=ms,
        catalogue=catalogue,
        precision=precision,
        max_lists=max_lists,
        device=device,
        cache=work,
        progress=track,
    )
    report_cut_texts(tuning.ranker)
    tuning.ranker.save(output, replace=overwrite)
    shutil.rmtree(work, ignore_errors=True)
    if json_:
        print(json.dumps(tuning.ranker.figures))
    else:
        _show(tuning)
    if not tuning.is_better:
        notify(f"{tuning.alone} alone is best: no measurable difference on {tuning.n_lists:,} lists")
    searched = tuning.ranker.encoder is not None
    then = f"index build {output} REPLIES -o INDEX" if searched else f"rank {output} QUERY FILE"
    notify(f"wrote {output}; next: polyrank {then}")


def _weights(given: list[str]) -> dict[str, float]:
    weights = {}
    for argument in given:
        name, _, value = argument.rpartition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"--weight {argument!r} is not TERM=WEIGHT; write for example --weight counts=0.5")
    return weights


def _show(tuning: "Tuning") -> None:
    """Print the terms with their gains, and the curve."""
    from rich.table import Column, Table

    out = make_console()
    gains = [Column(f"R@1, MRR {when} it", no_wrap=True) for when in ("with", "without")]
    table = Table(Column("term", overflow="fold"), "weight", *gains, Column("ms", justify="right"))
    for row in tuning.rows:
        differences = [row.get(when) for when in ("with", "without")]
        cells = [one and "\n".join(percent(one[name], signed=True) for name in ("R@1", "MRR")) for one in differences]
        weights = row["weights"]
        shown = "\n".join(f"{w:.3g}" if len(weights) == 1 else f"{name} {w:.3g}" for name, w in weights.items())
        table.add_row(row["name"], shown or "not chosen", *cells, f"{row['milliseconds']:.1f}")
    out.print(table)
    curve = Table("terms", "ms", "R@1", "MRR")
    for point in tuning.curve:
        figures = (percent(point[name]) for name in ("R@1", "MRR"))
        curve.add_row(" + ".join(point["terms"]), f"{point['milliseconds']:.1f}", *figures)
    out.print(curve)
