"""``polyrank evaluate`` and ``polyrank compare``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrank.cli.console import (
    CandidateTokens,
    ContextTokens,
    EnsembleName,
    NRetrieved,
    Rerank,
    console,
    drawable,
    say_cut,
    talk,
)
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyrank.evaluation import Evaluation
    from polyrank.records import Candidate, Example

Ks = Annotated[str | None, typer.Option("--k", help="Which R@k to show, such as 1,5,100.")]


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A model or pipeline folder, a Hugging Face model, bm25, tfidf, untuned:BACKBONE or shipped:convert."
        ),
    ],
    data: Annotated[Path, typer.Argument(help="Candidate lists, or examples against --pool.")],
    pool: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rank these for every example; `responses`: all right answers of the data."),
    ] = None,
    rerank: Rerank = None,
    n_retrieved: NRetrieved = 100,
    ensemble: EnsembleName = "none",
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first N examples only.")] = None,
    k: Ks = None,
    scores: Annotated[Path | None, typer.Option(help="Write per-example scores here.")] = None,
    against: Annotated[Path | None, typer.Option(help="Scores file of another model, for a paired test.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="torch, or an export of the model: onnx, openvino.")] = "torch",
    max_context_tokens: ContextTokens = None,
    max_candidate_tokens: CandidateTokens = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count and skip bad rows.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """R@k/C, MRR and MAP with 95% intervals, ties counted fairly."""
    from rich.progress import track

    from polyrank import evaluation as ev
    from polyrank.data import read_examples, read_pool
    from polyrank.ranking.ensembles import read_ensemble
    from polyrank.retrieval.pipeline import open_ranker
    from polyrank.scorers.exported import read_backend

    ks = _ks(k)
    loaded = read_examples(data, skip_bad=skip_bad)
    talk(f"{data}: {loaded.report}")
    examples = loaded.examples
    candidates: list[Candidate] | None = None
    if pool == "responses":
        examples, candidates = ev.against_responses(examples)
    elif pool is not None:
        candidates = read_pool(pool)
    limited = examples[:limit]
    examples = ev.rankable(limited, candidates)  # what cannot be ranked is refused before a model is read
    scorer = open_ranker(
        model,
        examples,
        candidates,
        rerank=rerank,
        n_retrieved=n_retrieved,
        ensemble=read_ensemble(ensemble),
        device=device,
        backend=read_backend(backend),
        max_context_tokens=max_context_tokens,
        max_candidate_tokens=max_candidate_tokens,
    )
    result = ev.evaluate(
        scorer,
        examples,
        pool=candidates,
        progress=lambda batches: track(
            batches, "scoring", console=console(), disable=not console().is_terminal, transient=True
        ),
    )
    _say_what_is_missing(limited, result)
    say_cut(scorer, model, rerank)
    name = model if rerank is None else f"{model}, re-ranked by {rerank}"
    summary = {**_summary(result, ks, json_), "n_left_out": len(limited) - len(examples)}
    if scores is not None:
        ev.write_scores(scores, result, scorer=name, data=str(data))
        talk(f"wrote {scores}")
    if against is not None:
        summary["against"] = {"scores": str(against), **ev.paired_test(result, ev.read_scores(against))}
    _show({"name": name, **summary}, ks, json_)


def compare(
    scores: Annotated[list[Path], typer.Argument(help="Scores files of `evaluate --scores`.")],
    k: Ks = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw R@1 by context length (.png, .svg).", callback=drawable)
    ] = None,
) -> None:
    """Tables made again from scores files, each tested against the first. Needs no model."""
    from polyrank import evaluation as ev

    ks = _ks(k)
    results = [ev.read_scores(path) for path in scores]
    names = [path.name for path in scores]
    if len(set(names)) < len(set(scores)):
        names = list(map(str, scores))
    rows = []
    for name, result in zip(names, results, strict=True):
        row = {"name": name, **_summary(result, ks, json_)}
        if result is not results[0]:
            row["against"] = {"scores": str(scores[0]), **ev.paired_test(result, results[0])}
        rows.append(row)
    if plot is not None:
        ev.plot_breakdown(dict(zip(names, results, strict=True)), plot)
        talk(f"wrote {plot}")
    if json_:
        print(json.dumps(rows))
        return
    _table(rows, ks)


def _ks(value: str | None) -> list[int] | None:
    """The k of R@k that were asked for, sorted; None: the usual ones."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"--k {value!r} is no list of positive whole numbers; write it like 1,5,100")
    return sorted({int(part) for part in parts})


def _summary(result: "Evaluation", ks: "Sequence[int] | None", by_turns: bool) -> dict[str, object]:
    from polyrank import evaluation as ev

    if ks is None:
        summary = ev.summarise(result)
    else:
        summary = ev.summarise(result, ks=ks)
        absent = [f"R@{k}" for k in ks if f"R@{k}" not in summary["metrics"]]
        if absent:
            shortest = min(record.placement.n_candidates for record in result.answerable)
            talk(f"{', '.join(absent)} left out: k must be below {shortest}, the fewest candidates of an example")
    return {**summary, "by_turns": ev.breakdown(result)} if by_turns else summary


def _say_what_is_missing(examples: "Sequence[Example]", result: "Evaluation") -> None:
    """What was not ranked, and what could not be: neither is in the figures."""
    n_left_out = len(examples) - len(result.records)
    if n_left_out:
        talk(f"{n_left_out} of {len(examples)} examples left out: they have fewer than 2 candidates, or no wrong one")
        return
    n_absent = sum(bool(e.relevant) and not r.relevant for e, r in zip(examples, result.records, strict=True))
    if n_absent:
        talk(f"{n_absent} of {len(examples)} examples cannot be answered: the pool holds none of their right answers")


def _show(summary: dict[str, object], ks: "Sequence[int] | None", as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
    else:
        _table([summary], ks)


def _table(rows: list[dict[str, object]], ks: "Sequence[int] | None") -> None:
    from rich.console import Console

    from polyrank.evaluation import table

    out = Console()
    out.print(table(rows) if ks is None else table(rows, [*(f"R@{k}" for k in ks), "MRR"]))
    for row in rows:
        if row["n_unanswerable"]:
            out.print(
                f"{row['name']}: {row['n_unanswerable']} of {row['n_examples']} examples have no right answer to find,"
                " and are not in the figures",
                markup=False,
                soft_wrap=True,
            )
        test = row.get("against")
        if isinstance(test, dict):
            out.print(
                f"{row['name']} against {test['scores']}: {test['metric']} {100 * test['difference']:+.1f} points"
                f" [{100 * test['interval'][0]:+.1f}, {100 * test['interval'][1]:+.1f}], p = {test['p']:.4f}",
                markup=False,
                soft_wrap=True,
            )
