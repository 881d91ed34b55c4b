"""``polyrank train`` and ``polyrank recipe``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyrank.cli import interrupts
from polyrank.cli.console import ProgressDisplay, console, make_console, notify, use_processor
from polyrank.cli.help import add_command, command_group
from polyrank.cli.options import AllThreads, Changes, Device, Json, Resume, StartAgain
from polyrank.errors import UsageError

if TYPE_CHECKING:
    from polyrank.config.recipe import DataConfig
    from polyrank.training.run import RunResult

recipe_app = command_group("recipe", "Describe the recipes of train and pretrain.")


def train(
    recipe: Annotated[Path, Argument(help="A TOML recipe, for example from polyrank split.")],
    changes: Changes = None,
    resume: Resume = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    threads: AllThreads = None,
    json_: Json = False,
) -> None:
    """Train a model from a recipe. The best model goes to OUTPUT/model, metrics to OUTPUT/metrics.jsonl.

    A mutual training writes two models, OUTPUT/retriever and OUTPUT/reranker. If the recipe has data.test, polyrank
    evaluates the final model on it, and BM25 for comparison.
    """
    from polyrank.loading.recipes import load_recipe
    from polyrank.training import train as run

    check_resume(resume, overwrite)
    use_processor(threads, trains=True)
    plan = load_recipe(recipe, changes or ())
    with TrainingDisplay() as display:
        results = run(
            plan,
            resume=resume,
            overwrite=overwrite,
            device=device,
            report=display.report,
            notify=notify,
        )
    show_results(plan.data, results, json_)


def check_resume(resume: bool, overwrite: bool) -> None:
    """Refuse --resume with --overwrite, and set the advice for an interruption.

    Raises:
        UsageError: both are set.
    """
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one")
    if not overwrite:  # until the run starts, --overwrite has not replaced the earlier run
        interrupts.set_resume_hint("continue with --resume")


def show_results(data: "DataConfig", results: "list[RunResult]", json_: bool) -> None:
    """Print the results of a training."""
    rows = [
        {"seed": r.seed, "network": r.network, "model": str(r.model), **dataclasses.asdict(r.fit), "test": r.test}
        for r in results
    ]
    if json_:
        print(json.dumps(rows))
        return
    for row in rows:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in row["best"].items())
        notify(
            f"{row['model']}: {row['n_steps']} steps, {row['seconds']:.0f} s; best: step {row['best_step']} {figures}"
        )
    for network in dict.fromkeys(r.network for r in results):
        _show_spread(network, [r.fit.best for r in results if r.network == network])
    if any(r.test for r in results):
        _show_test(data, results)


def _show_test(data: "DataConfig", results: "list[RunResult]") -> None:
    """Print the figures of the test part, with BM25 for comparison."""
    from polyrank.evaluation import evaluate, summarise, table
    from polyrank.scorers.lexical import corpus_of
    from polyrank.scorers.open import load
    from polyrank.training.data import read_lists

    examples = read_lists(data, "test")
    lexical = summarise(evaluate(load("bm25", corpus=corpus_of(examples)), examples))
    make_console().print(table([{"name": "bm25", **lexical}, *({"name": str(r.model), **r.test} for r in results)]))


def _show_spread(network: str, best: list[dict[str, float]]) -> None:
    """Print mean and standard deviation of the validation figures over seeds."""
    import statistics

    if len(best) > 1:
        for name in best[0]:
            values = [figures[name] for figures in best]
            label = f"{network} {name}".lstrip()
            notify(f"{label} over {len(best)} seeds: {statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}")


class TrainingDisplay(ProgressDisplay):
    """A progress bar per seed with loss, speed and the last validation; plain lines if stderr is not a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        super().__init__(
            TextColumn("seed {task.fields[seed]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
        )
        self.tasks: dict[int, Any] = {}
        self.valid: dict[str, str] = {}  # by network; the key is empty for a single network
        self.loss: dict[str, str] = {}
        self.first: dict[int, tuple[int, float]] = {}  # by seed; a resumed run may have begun on another machine

    def report(self, seed: int, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl."""
        network, step, plain = record.get("network", ""), record["step"], not console().is_terminal
        if "valid" in record:
            figures = record["valid"]
            self.valid[network] = f"{network} valid loss {_number(figures['loss'])} R@1 {figures['R@1']:.3f}".lstrip()
            if plain:
                notify(f"seed {seed} step {step}: {self.valid[network]}")
            return
        if seed not in self.tasks:
            self.tasks[seed] = self.progress.add_task("", total=record["n_steps"], seed=seed, text="")
        self.loss[network] = _number(record["loss"])
        loss, valid = " / ".join(self.loss.values()), " ".join(self.valid.values())
        speed = self._speed(seed, record["n_examples"], record["seconds"])
        self.progress.update(self.tasks[seed], completed=step, text=f"loss {loss} {valid} {speed:.0f} examples/s")
        # the re-ranker's record of the same step follows the retriever's
        if network != "retriever" and self.line_is_due(step % 50 == 0):
            notify(f"seed {seed} step {step}/{record['n_steps']}: loss {loss}, {speed:.0f} examples/s")

    def _speed(self, seed: int, n_examples: int, seconds: float) -> float:
        """Examples per second since the first report, or for that one, since the beginning of the run."""
        n_before, before = self.first.setdefault(seed, (n_examples, seconds))
        if n_examples == n_before:
            n_before, before = 0, 0.0
        return (n_examples - n_before) / max(seconds - before, 1e-9)


def _number(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"


@recipe_app.callback()
def recipe() -> None:
    """Describe the recipes of train and pretrain."""  # without a callback, a group of one command is that command


@add_command(recipe_app, "schema", "> recipe.schema.json")
def schema(
    pretrain: Annotated[bool, Option("--pretrain", help="The schema of a recipe for polyrank pretrain.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, with which editors complete and check TOML."""
    from polyrank.config.schema import pretrain_schema, recipe_schema

    print(json.dumps(pretrain_schema() if pretrain else recipe_schema(), ensure_ascii=False, indent=2))
