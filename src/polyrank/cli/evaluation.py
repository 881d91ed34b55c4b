"""``polyrank evaluate`` and ``polyrank compare``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from polyrank.cli import options
from polyrank.cli.console import make_console, notify, track, use_processor
from polyrank.devices.distributed import is_rank_zero, on_rank_zero, process_group
from polyrank.errors import UsageError
from polyrank.storage.durable import check_output

Metrics = Annotated[
    str | None,
    Option(
        "--metric",
        help="The metrics to show, such as R@1,recall@5,MRR,MAP,nDCG@10; the first is the main one in tests. R@k (or"
        " hits@k) is how often the first k contain a right answer, recall@k the share of all right answers in the"
        " first k.",
    ),
]


@process_group()
def evaluate(
    models: Annotated[
        list[str],
        Argument(
            metavar="MODEL",
            help="Model, run (all seeds) or ranker folders, bm25, tfidf, untuned:BACKBONE or shipped:convert.",
        ),
    ],
    data: Annotated[
        Path,
        Argument(help="Candidate lists, as polyrank split writes them; or pairs or dialogues, with lists of 20 drawn."),
    ],
    pool: Annotated[
        str | None,
        Option(metavar="FILE", help="Rank these texts for every example; `responses`: all right answers in the data."),
    ] = None,
    speaker: options.Speaker = None,
    limit: options.Limit = None,
    metric: Metrics = None,
    scores: Annotated[
        Path | None, Option(help="Write per-example scores to this file; with several models, to this folder.")
    ] = None,
    against: Annotated[
        Path | None, Option(help="Scores file to test against. Default with several models: the first model.")
    ] = None,
    suspects: Annotated[
        Path | None,
        Option(help="Write the examples whose given answer is most likely wrong to this file, as JSON lines."),
    ] = None,
    device: options.Device = "auto",
    backend: options.Runtime = "torch",
    max_context_tokens: options.ContextTokens = None,
    max_candidate_tokens: options.CandidateTokens = None,
    threads: options.Threads = None,
    overwrite: options.Overwrite = False,
    json_: Annotated[bool, Option("--json", help="Print one JSON object; with several models, a list.")] = False,
) -> None:
    """Measure R@k/C, MRR and MAP of one or more models, with 95% intervals and paired tests.

    Tied scores count as their expected rank under random tie-breaking.
    """
    from polyrank.evaluation import evaluate_models, read_task
    from polyrank.evaluation.scores_file import scores_files
    from polyrank.evaluation.suspects import find_suspects, write_suspects
    from polyrank.loading import Lengths, resolve_contestants
    from polyrank.loading.runs import unfinished_seeds

    use_processor(threads)
    # check all arguments before reading a file
    shown = _metrics(metric)
    for folder in (folder for name in models for folder in unfinished_seeds(name)):
        notify(f"{folder} has no model yet and is left out")
    contestants = resolve_contestants(
        models, backend=backend, lengths=Lengths(max_context_tokens, max_candidate_tokens)
    )
    files = scores_files(scores, [model.member.name for model in contestants])
    inputs: list[str | Path | None] = [data, pool, against]

    def check_outputs() -> None:
        for output in (*files, suspects):
            check_output(output, inputs=inputs, overwrite=overwrite)
            inputs.append(output)

    on_rank_zero(check_outputs)
    task = read_task(data, pool=pool, limit=limit, speaker=speaker, notify=notify)
    result = evaluate_models(
        contestants,
        task,
        metrics=shown,
        against=against,
        by_turns=json_,
        scores=files,
        device=device,
        progress=track,
        notify=notify,
    )
    if not is_rank_zero():
        return
    _show(result.rows, shown, json_, alone=len(result.rows) == 1)
    if suspects is not None:
        found = find_suspects([one for model in result.models for one in model.evaluations], task.examples)
        write_suspects(suspects, found)
        notify(f"wrote {suspects}: {len(found):,} of {len(task.examples):,} examples, the most suspicious first")


def compare(
    scores: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]PATH",
            help="Scores files from `evaluate --scores`, or folders of them. Several paths with the same NAME are seeds"
            " of one model.",
        ),
    ],
    metric: Metrics = None,
    format_: Annotated[Literal["table", "markdown", "latex"], Option("--format", help="How to print it.")] = "table",
    json_: options.Json = False,
    plot: options.Plot = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Compare models from their scores files, and test each against the first. Loads no model."""
    from polyrank.evaluation import comparison, layout, plot_comparison

    inputs = [_named(argument) for argument in scores]
    shown = _metrics(metric)
    check_output(plot, inputs=[path for _, path in inputs], overwrite=overwrite)
    models = comparison.group_by_model(comparison.read_scored(inputs))
    rows = comparison.compare_models(models, shown, by_turns=json_)
    _show(rows, shown, json_, format_)
    if plot is not None:
        evaluations = {model.name: model.evaluations for model in models}
        plot_comparison(rows, evaluations, plot, metrics=shown or layout.SHOWN)
        notify(f"wrote {plot}")


def _metrics(metric: str | None) -> list[str] | None:
    """The metrics to show and test, the main one first; None: the defaults."""
    if metric is None:
        return None
    # hits@k is another name for R@k
    names = list(dict.fromkeys(part.strip().replace("hits@", "R@") for part in metric.split(",") if part.strip()))
    if wrong := [name for name in names or [metric] if not re.fullmatch(r"(R|recall)@[1-9]\d*|MRR|MAP|nDCG@10", name)]:
        raise UsageError(
            f"--metric {wrong[0]!r} is not one of R@k, recall@k, MRR, MAP and nDCG@10; write for example R@1,R@5,MRR"
        )
    return names


def _named(argument: str) -> tuple[str | None, Path]:
    """Split NAME=PATH; the name is optional."""
    name, equals, path = argument.partition("=")
    if not equals or not name or Path(argument).exists():
        return None, Path(argument)
    return name, Path(path)


def _show(
    rows: list[dict[str, Any]],
    metrics: Sequence[str] | None,
    as_json: bool,
    form: str = "table",
    *,
    alone: bool = False,
) -> None:
    from polyrank.evaluation import layout

    _report_missing(rows, metrics)
    if as_json:
        print(json.dumps(rows[0] if alone else rows))
        return
    graded = ("nDCG@10",) if any("nDCG@10" in row["metrics"] for row in rows) else ()
    columns = (*layout.SHOWN, *graded) if metrics is None else metrics
    if form != "table":
        write = layout.markdown if form == "markdown" else layout.latex
        print(write(rows, [name for name in columns if any(name in row["metrics"] for row in rows)]))
        return
    out = make_console()
    out.print(layout.table(rows, columns))
    for line in layout.remarks(rows):
        out.print(line, markup=False, soft_wrap=True)


def _report_missing(rows: Sequence[dict[str, Any]], metrics: Sequence[str] | None) -> None:
    missing = [name for name in metrics or () if not any(name in row["metrics"] for row in rows)]
    if missing and "n_candidates" in rows[0]:
        from polyrank.data.values import items_of

        if "nDCG@10" in missing:
            notify("nDCG@10 left out: it needs grades of relevance, as BEIR's folders have them")
            missing.remove("nDCG@10")
    if missing and "n_candidates" in rows[0]:
        shortest = min(items_of(row["n_candidates"])[0] for row in rows)
        also = "; recall@k needs examples with several right answers" if "recall" in "".join(missing) else ""
        notify(f"{', '.join(missing)} left out: k must be below {shortest}, the smallest number of candidates{also}")
