"""``polyrank evaluate`` and ``polyrank compare``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyrank.cli.console import make_console, notify, track, use_processor
from polyrank.cli.options import (
    CandidateTokens,
    ContextTokens,
    Device,
    EnsembleName,
    Json,
    Limit,
    NRetrieved,
    Overwrite,
    Plot,
    Rerank,
    Runtime,
    SkipBad,
    Speaker,
    Threads,
)
from polyrank.devices.distributed import is_rank_zero, on_rank_zero, process_group
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.evaluation.comparison import Scored
    from polyrank.evaluation.tables import By

Ks = Annotated[
    str | None, Option("--k", help="The R@k to show, such as 1,5,100: how often the first k contain a right answer.")
]
Metrics = Annotated[
    str | None,
    Option(
        "--metric",
        help="The metrics to show, such as R@1,recall@5,MRR,MAP; the first is the main one in tests. R@k (or hits@k)"
        " is how often the first k contain a right answer, recall@k the share of all right answers in the first k.",
    ),
]
Breakdown = Annotated[
    str | None,
    Option(
        help="Also show R@1 by the context's length in turns, words, or tokens that the model reads (1-50, 51-100,"
        " 101-, as in Tao et al.)."
    ),
]
Format = Annotated[str, Option("--format", help="table, markdown, csv or latex.")]


@process_group()
def evaluate(
    models: Annotated[
        list[str],
        Argument(
            metavar="MODEL",
            help="Model, run (all seeds) or pipeline folders, bm25, tfidf, untuned:BACKBONE or shipped:convert.",
        ),
    ],
    data: Annotated[
        Path, Argument(help="Candidate lists; or pairs or dialogues, for which polyrank draws lists or uses --pool.")
    ],
    pool: Annotated[
        str | None,
        Option(metavar="FILE", help="Rank these texts for every example; `responses`: all right answers in the data."),
    ] = None,
    allow_echo: Annotated[
        bool, Option("--allow-echo", help="With --pool: do not move replies that repeat the context to the end.")
    ] = False,
    speaker: Speaker = None,
    n_candidates: Annotated[
        int | None, Option("--candidates", min=2, help="Size of the lists that polyrank draws. Default: 20, or fewer.")
    ] = None,
    candidates_from: Annotated[
        str | None,
        Option(metavar="FILE", help="With --candidates: draw wrong candidates from these texts, not from responses."),
    ] = None,
    groups: Annotated[
        int | None,
        Option(
            metavar="N",
            min=2,
            help="Rank each response among those of a random group of N examples; 100: R100@1 of the ConveRT paper.",
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the groups and of the lists that polyrank draws.")] = 0,
    rerank: Rerank = None,
    n_retrieved: NRetrieved = None,
    ensemble: EnsembleName = "none",
    limit: Limit = None,
    last_turns: Annotated[
        int | None, Option(metavar="N", min=1, help="Give models only the last N turns of each context.")
    ] = None,
    probe: Annotated[
        str | None,
        Option(help="Rank with one encoding of multi-context ConveRTs: immediate (the last turn) or earlier."),
    ] = None,
    k: Ks = None,
    metric: Metrics = None,
    scores: Annotated[
        Path | None, Option(help="Write per-example scores to this file; with several models, to this folder.")
    ] = None,
    against: Annotated[
        Path | None, Option(help="Scores file to test against. Default with several models: the first model.")
    ] = None,
    plot: Plot = None,
    breakdown: Breakdown = None,
    device: Device = "auto",
    backend: Runtime = "torch",
    max_context_tokens: ContextTokens = None,
    max_candidate_tokens: CandidateTokens = None,
    threads: Threads = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    format_: Format = "table",
    json_: Annotated[bool, Option("--json", help="Print one JSON object; with several models, a list.")] = False,
) -> None:
    """Measure R@k/C, MRR and MAP of one or more models, with 95% intervals and paired tests.

    Tied scores count as their expected rank under random tie-breaking.
    """
    from polyrank.config.checked import read_choice
    from polyrank.evaluation import evaluate_models, read_task
    from polyrank.evaluation.scores_file import scores_files
    from polyrank.loading import Lengths, read_backend, resolve_contestants
    from polyrank.loading.runs import unfinished_seeds
    from polyrank.models.convert.network import Probe
    from polyrank.ranking.ensembles import read_ensemble
    from polyrank.storage.durable import check_output

    use_processor(threads)
    # check all arguments before reading a file
    if probe is not None:
        read_choice(probe, Probe, "probe")
    shown, tested = _metrics(k, metric)
    layout, broken_down = _layout(format_), _breakdowns(breakdown, json_)
    for folder in (folder for name in models for folder in unfinished_seeds(name)):
        notify(f"{folder} has no model yet and is left out")
    contestants = resolve_contestants(
        models,
        rerank=rerank,
        n_retrieved=n_retrieved,
        ensemble=read_ensemble(ensemble),
        backend=read_backend(backend),
        lengths=Lengths(max_context_tokens, max_candidate_tokens),
    )
    files = scores_files(scores, [model.member.name for model in contestants])
    inputs: list[str | Path | None] = [data, pool, candidates_from, against]

    def check_outputs() -> None:
        for output in (*files, plot):
            check_output(output, inputs=inputs, overwrite=overwrite)
            inputs.append(output)

    on_rank_zero(check_outputs)
    task = read_task(
        data,
        pool=pool,
        n_candidates=n_candidates,
        candidates_from=candidates_from,
        groups=groups,
        seed=seed,
        limit=limit,
        turns=last_turns,
        speaker=speaker,
        allow_echo=allow_echo,
        skip_bad=skip_bad,
        notify=notify,
    )
    result = evaluate_models(
        contestants,
        task,
        metrics=tested,
        against=against,
        by=broken_down,
        probe=probe,
        scores=files,
        device=device,
        progress=track,
        notify=notify,
    )
    if not is_rank_zero():
        return
    _show(result.rows, shown, layout, json_, breakdown, alone=len(result.rows) == 1)
    if plot is not None:
        _draw(result.rows, result.models, shown, plot)


def compare(
    scores: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]PATH",
            help="Scores files from `evaluate --scores`, or folders of them; or run folders, to compare their"
            " validation figures. Several paths with the same NAME are seeds of one model.",
        ),
    ],
    k: Ks = None,
    metric: Metrics = None,
    format_: Format = "table",
    json_: Json = False,
    breakdown: Breakdown = None,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare models from their scores files or run folders, and test each against the first. Loads no model.

    Tests pair the examples of scores files, or the seeds of run folders.
    """
    from polyrank.evaluation import comparison
    from polyrank.loading import runs
    from polyrank.storage.durable import check_output

    inputs = [_named(each) for each in scores]
    kinds = {runs.is_run(path) for _, path in inputs}
    shown, tested = _metrics(k, metric, of_runs=kinds == {True})
    layout, broken_down = _layout(format_), _breakdowns(breakdown, json_)
    check_output(plot, inputs=[path for _, path in inputs], overwrite=overwrite)
    if len(kinds) > 1:
        raise UsageError("scores files cannot be compared with run folders; give only one kind")
    models: list[Scored] = []
    if kinds == {True}:
        shown = shown or ["R@1", "MRR", "loss"]
        if breakdown is not None:
            raise UsageError(f"--breakdown {breakdown} needs scores files, and these are run folders; leave it out")
        rows = comparison.compare_figures(runs.validation_figures(inputs), shown)
    else:
        models = comparison.group_by_model(comparison.read_scored(inputs))
        rows = comparison.compare_models(models, tested, by=broken_down)
    _show(rows, shown, layout, json_, breakdown)
    if plot is not None:
        _draw(rows, models, shown, plot)


def _metrics(k: str | None, metric: str | None, *, of_runs: bool = False) -> tuple[list[str] | None, list[str] | None]:
    """The metrics to show and those to test, the main one first; None: the defaults. Run folders also have a loss."""
    if k is not None and metric is not None:
        raise UsageError("--k and --metric both choose the metrics; give one")
    if metric is not None:
        # hits@k is another name for R@k
        names = list(dict.fromkeys(p.strip().replace("hits@", "R@") for p in metric.split(",") if p.strip()))
        known = rf"(R|recall)@[1-9]\d*|MRR|MAP{'|loss' if of_runs else ''}"
        if wrong := [name for name in names or [metric] if not re.fullmatch(known, name)]:
            raise UsageError(
                f"--metric {wrong[0]!r} is not one of R@k, recall@k, MRR and MAP; write for example R@1,R@5,MRR"
            )
        return names, names
    if k is None:
        return None, None
    parts = [part.strip() for part in k.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise UsageError(f"--k {k!r} is not a list of positive whole numbers; write for example 1,5,100")
    names = [*(f"R@{number}" for number in sorted({int(part) for part in parts})), "MRR"]
    return names, ["R@1", *names]


def _layout(name: str) -> str:
    from polyrank.config.checked import read_choice
    from polyrank.evaluation import layout

    return str(read_choice(name, layout.Format, "format"))


def _breakdowns(name: str | None, as_json: bool) -> "list[By]":
    """The lengths to break rows down by; JSON always includes turns."""
    from polyrank.config.checked import read_choice
    from polyrank.evaluation.tables import By

    chosen: list[By] = [] if name is None else [read_choice(name, By, "breakdown")]
    return ["turns", *(by for by in chosen if by != "turns")] if as_json else chosen


def _named(argument: str) -> tuple[str | None, Path]:
    """Split NAME=PATH; the name is optional."""
    name, equals, path = argument.partition("=")
    if not equals or not name or Path(argument).exists():
        return None, Path(argument)
    return name, Path(path)


def _draw(rows: list[dict[str, Any]], models: "Sequence[Scored]", metrics: Sequence[str] | None, path: Path) -> None:
    from polyrank.evaluation import plot_comparison
    from polyrank.evaluation.layout import SHOWN

    plot_comparison(rows, {model.name: model.evaluations for model in models}, path, metrics=metrics or SHOWN)
    notify(f"wrote {path}")


def _show(
    rows: list[dict[str, Any]],
    metrics: Sequence[str] | None,
    form: str,
    as_json: bool,
    breakdown: str | None = None,
    *,
    alone: bool = False,
) -> None:
    from polyrank.evaluation import layout

    _report_missing(rows, metrics)
    if as_json:
        print(json.dumps(rows[0] if alone else rows))
        return
    columns = layout.SHOWN if metrics is None else metrics
    if form != "table":
        write = {"markdown": layout.markdown, "csv": layout.comma_separated, "latex": layout.latex}[form]
        print(write(rows, [name for name in columns if any(name in row["metrics"] for row in rows)]))
        for line in () if breakdown is None else layout.breakdowns(rows, breakdown):
            notify(line)
        return
    out = make_console()
    out.print(layout.table(rows, columns))
    for line in (*layout.remarks(rows), *(() if breakdown is None else layout.breakdowns(rows, breakdown))):
        out.print(line, markup=False, soft_wrap=True)


def _report_missing(rows: Sequence[dict[str, Any]], metrics: Sequence[str] | None) -> None:
    missing = [name for name in metrics or () if not any(name in row["metrics"] for row in rows)]
    if missing and "n_candidates" in rows[0]:
        from polyrank.data.values import items_of

        shortest = min(items_of(row["n_candidates"])[0] for row in rows)
        also = "; recall@k needs examples with several right answers" if "recall" in "".join(missing) else ""
        notify(f"{', '.join(missing)} left out: k must be below {shortest}, the smallest number of candidates{also}")
