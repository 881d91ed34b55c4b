"""``polyrank train`` and ``polyrank quickstart``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrank.cli import interrupts
from polyrank.cli.console import console, talk, use_threads
from polyrank.cli.options import Device, Json, Overwrite, StartAgain
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.config.recipe import DataConfig
    from polyrank.training.run import RunResult


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe in TOML: polyrank split writes one, runs/ has some.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a key: train.lr=5e-5. Repeatable.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, or with a finished one for more epochs.")
    ] = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, envvar="POLYRANK_THREADS", help="CPU threads; all by default.")
    ] = None,
    json_: Json = False,
) -> None:
    """Train by a recipe: the best model goes to OUTPUT/model, figures to OUTPUT/metrics.jsonl.

    Two networks that learn from each other go to OUTPUT/retriever and OUTPUT/reranker. Where the recipe names a
    data.test, the model is evaluated on it in the end, and words alone (BM25) beside it.
    """
    from polyrank.devices.choice import keep_freed_memory
    from polyrank.loading.recipes import load_recipe
    from polyrank.training import train as run

    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one")
    use_threads(threads)
    keep_freed_memory()  # this process is polyrank's own
    plan = load_recipe(recipe, tuple(set_ or ()))
    if not overwrite:  # an earlier run may still be there
        interrupts.say_way_on("go on with --resume")
    with TrainingDisplay() as display:
        results = run(plan, resume=resume, overwrite=overwrite, device=device, report=display.report, notify=talk)
    show_results(plan.data, results, json_)


def show_results(data: "DataConfig", results: "list[RunResult]", json_: bool) -> None:
    """What came of a training."""
    import dataclasses
    import json

    rows = [
        {"seed": r.seed, "network": r.network, "model": str(r.model), **dataclasses.asdict(r.fit), "test": r.test}
        for r in results
    ]
    if json_:
        print(json.dumps(rows))
        return
    for row in rows:
        best = row["best"]
        figures = ", ".join(f"{name} {value:.4f}" for name, value in best.items())
        talk(f"{row['model']}: {row['n_steps']} steps, {row['seconds']:.0f} s; best: step {row['best_step']} {figures}")
    for network in dict.fromkeys(r.network for r in results):
        _say_spread(network, [r.fit.best for r in results if r.network == network])
    if any(r.test for r in results):
        _show_test(data, results)


def _show_test(data: "DataConfig", results: "list[RunResult]") -> None:
    """The figures of the test part, with words alone beside them."""
    from rich.console import Console

    from polyrank.evaluation import evaluate, summarise, table
    from polyrank.scorers.open import corpus_of, load
    from polyrank.training.data import read_lists

    examples = read_lists(data, "test")
    words = summarise(evaluate(load("bm25", corpus=corpus_of(examples)), examples))
    Console().print(table([{"name": "bm25", **words}, *({"name": str(r.model), **r.test} for r in results)]))


def _say_spread(network: str, best: list[dict[str, float]]) -> None:
    """Mean and standard deviation of validation figures over seeds."""
    import statistics

    if len(best) > 1:
        for name in best[0]:
            values = [figures[name] for figures in best]
            what = f"{network} {name}" if network else name
            talk(f"{what} over {len(best)} seeds: {statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}")


class TrainingDisplay:
    """A live line per run: step, loss, rate, last validation. Plain lines where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("seed {task.fields[seed]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console(),
            disable=not console().is_terminal,
        )
        self.tasks: dict[int, Any] = {}
        self.valid: dict[str, str] = {}  # by network; "" where there is one
        self.loss: dict[str, str] = {}

    def __enter__(self) -> "TrainingDisplay":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def report(self, seed: int, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl."""
        network = record.get("network", "")
        if "valid" in record:
            figures = record["valid"]
            loss = "not finite" if figures["loss"] is None else f"{figures['loss']:.3f}"
            self.valid[network] = f"{network} valid loss {loss} R@1 {figures['R@1']:.3f}".lstrip()
            if not console().is_terminal:
                talk(f"seed {seed} step {record['step']}: {self.valid[network]}")
            return
        if seed not in self.tasks:
            self.tasks[seed] = self.progress.add_task("", total=record["n_steps"], seed=seed, text="")
        self.loss[network] = "not finite" if record["loss"] is None else f"{record['loss']:.3f}"
        loss, valid = " / ".join(self.loss.values()), " ".join(self.valid.values())
        speed = record["n_examples"] / max(record["seconds"], 1e-9)
        self.progress.update(
            self.tasks[seed], completed=record["step"], text=f"loss {loss} {valid} {speed:.0f} examples/s"
        )
        if network == "retriever":
            return  # the other network's record of the step follows
        if not console().is_terminal and record["step"] % 50 == 0:
            talk(f"seed {seed} step {record['step']}/{record['n_steps']}: loss {loss}, {speed:.0f} examples/s")


def quickstart(
    output: Annotated[Path, typer.Option(help="Folder for the model and the index.")] = Path("polyrank-quickstart"),
    start: Annotated[
        str | None,
        typer.Option(help="shipped:minilm, embedded, or shipped:convert, which is always there; the first that is."),
    ] = None,
    overwrite: Overwrite = False,
    json_: Json = False,
) -> None:
    """Train, evaluate, index and answer on the shipped sample, end to end. No network, no GPU, a few minutes."""
    from polyrank.cli.quickstart import QUESTIONS
    from polyrank.cli.quickstart import quickstart as run
    from polyrank.config.checked import read_choice
    from polyrank.config.starter_recipe import Start
    from polyrank.devices.choice import keep_freed_memory
    from polyrank.training.signals import InterruptedTraining

    start_from: Start | None = None if start is None else read_choice(start, Start, "start")
    keep_freed_memory()  # this process is polyrank's own
    interrupts.say_way_on("start again with --overwrite")
    try:
        with TrainingDisplay() as display:
            result = run(output, start=start_from, overwrite=overwrite, report=display.report, notify=talk)
    except InterruptedTraining as stopped:  # which knows of --resume only
        stopped.args = (f"{str(stopped).partition(';')[0]}{interrupts.way_on()}",)
        raise
    if json_:
        import json

        print(json.dumps(result.to_dict(), ensure_ascii=False))
        return
    from rich.console import Console

    from polyrank.evaluation import table

    out = Console()
    out.print(table(result.summaries))
    for turns, answer in zip(QUESTIONS, result.answers, strict=True):
        out.print()
        for turn in turns:
            out.print(f"  {turn}", style="dim", markup=False)
        for ranked in answer.ranked:
            out.print(f"  {ranked.score:7.2f}  {ranked.text}", markup=False)
    out.print()
    out.print(result.next_steps, markup=False, soft_wrap=True)
