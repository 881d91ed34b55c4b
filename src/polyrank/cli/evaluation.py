"""``polyrank evaluate`` and ``polyrank compare``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from polyrank.cli.console import console, talk


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A model or pipeline folder, bm25, tfidf, untuned:BACKBONE, shipped:convert, or two: 'bm25>MODEL'."
        ),
    ],
    data: Annotated[Path, typer.Argument(help="Candidate lists, or contexts against --pool.")],
    pool: Annotated[Path | None, typer.Option(help="Candidates for pool examples.")] = None,
    n_retrieved: Annotated[int, typer.Option(min=1, help="For two stages: how many the second sees.")] = 100,
    ensemble: Annotated[
        str, typer.Option(help="For two stages: none, raw, sigmoid, z-score or softmax; how both scores are added.")
    ] = "none",
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first N examples only.")] = None,
    scores: Annotated[Path | None, typer.Option(help="Write per-example scores here.")] = None,
    against: Annotated[Path | None, typer.Option(help="Scores file of another model, for a paired test.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="torch, or an export of the model: onnx, openvino.")] = "torch",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """R@k/C, MRR and MAP with 95% intervals, ties counted fairly."""
    from rich.progress import track

    from polyrank import evaluation as ev
    from polyrank.backends import read_backend
    from polyrank.data import read_examples, read_pool
    from polyrank.ensembles import read_ensemble
    from polyrank.pipeline import open_ranker

    loaded = read_examples(data, skip_bad=skip_bad)
    talk(f"{data}: {loaded.report}")
    examples = loaded.examples[:limit]
    candidates = None if pool is None else read_pool(pool)
    scorer = open_ranker(
        model,
        examples,
        candidates,
        n_retrieved=n_retrieved,
        ensemble=read_ensemble(ensemble),
        device=device,
        backend=read_backend(backend),
    )
    result = ev.evaluate(
        scorer,
        examples,
        pool=candidates,
        progress=lambda batches: track(
            batches, "scoring", console=console(), disable=not console().is_terminal, transient=True
        ),
    )
    summary = ev.summarise(result)
    if scores is not None:
        ev.write_scores(scores, result, scorer=model, data=str(data))
        talk(f"wrote {scores}")
    if against is not None:
        summary["against"] = {"scores": str(against), **ev.paired_test(result, ev.read_scores(against))}
    _show({"name": model, **summary}, json_)


def compare(
    scores: Annotated[list[Path], typer.Argument(help="Scores files of `evaluate --scores`.")],
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw R@1 by context length here (.png or .svg).")] = None,
) -> None:
    """Tables made again from scores files, each tested against the first. Needs no model."""
    from polyrank import evaluation as ev

    found = [ev.read_scores(path) for path in scores]
    rows = []
    for path, result in zip(scores, found, strict=True):
        row = {"name": path.name, **ev.summarise(result)}
        if result is not found[0]:
            row["against"] = {"scores": str(scores[0]), **ev.paired_test(result, found[0])}
        rows.append(row)
    if plot is not None:
        ev.plot_breakdown({path.name: result for path, result in zip(scores, found, strict=True)}, plot)
        talk(f"wrote {plot}")
    if json_:
        print(json.dumps(rows))
        return
    _table(rows)


def _show(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
    else:
        _table([summary])


def _table(rows: list[dict[str, object]]) -> None:
    from rich.console import Console

    from polyrank.evaluation import table

    out = Console()
    out.print(table(rows))
    for row in rows:
        test = row.get("against")
        if isinstance(test, dict):
            out.print(
                f"{row['name']} against {test['scores']}: {test['metric']} {100 * test['difference']:+.1f} points"
                f" [{100 * test['interval'][0]:+.1f}, {100 * test['interval'][1]:+.1f}], p = {test['p']:.4f}",
                markup=False,
                soft_wrap=True,
            )
