"""``polyrank train``, ``polyrank pretrain`` and ``polyrank recipe``."""

import dataclasses
import json
from collections import defaultdict
from functools import partial
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
    from polyrank.training.loop import FitResult
    from polyrank.training.run import RunResult

OBJECTIVES = {"masked_lm": "words", "next_utterance": "pairs"}  # of a pre-training, with their names in the display

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
    check_resume(resume, overwrite)
    run_recipe(recipe, changes, resume, overwrite, device, threads, json_)


def run_recipe(
    recipe: Path, changes: Changes, resume: bool, overwrite: bool, device: str, threads: int | None, json_: bool = False
) -> None:
    """Train by a recipe, and print the results."""
    from polyrank.loading.recipes import load_recipe
    from polyrank.training import train as run

    use_processor(threads, trains=True)
    plan = load_recipe(recipe, changes or ())
    with TrainingDisplay() as display:
        results = run(plan, resume=resume, overwrite=overwrite, device=device, report=display.report, notify=notify)
    show_results(plan.data, results, json_)


def pretrain(
    recipe: Annotated[Path, Argument(help="A TOML recipe, such as runs/recipes/pretrain.toml.")],
    changes: Changes = None,
    resume: Resume = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    threads: AllThreads = None,
    json_: Json = False,
) -> None:
    """Pre-train a transformer on dialogues or pairs without labels: a BERT from scratch, or an existing backbone.

    The objectives are to predict masked words, and whether a response follows the context or is random. The result,
    OUTPUT/model, is a Hugging Face folder for model.backbone in a recipe of polyrank train; metrics go to
    OUTPUT/metrics.jsonl.
    """
    from polyrank.loading.recipes import load_pretrain_recipe
    from polyrank.training.pretraining import pretrain as run

    check_resume(resume, overwrite)
    use_processor(threads, trains=True)
    plan = load_pretrain_recipe(recipe, changes or ())
    with TrainingDisplay() as display:
        report = partial(display.report, "")
        result = run(plan, resume=resume, overwrite=overwrite, device=device, report=report, notify=notify)
    if json_:
        print(json.dumps({"model": str(result.model), **dataclasses.asdict(result.fit)}))
    else:
        _notify_fit(result.model, result.fit)


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
    for r in results:
        _notify_fit(r.model, r.fit)
    for network in dict.fromkeys(r.network for r in results):
        _show_spread(network, [r.fit.best for r in results if r.network == network])
    if any(r.test for r in results):
        _show_test(data, results)


def _notify_fit(model: Path, fit: "FitResult") -> None:
    """Print how a training went."""
    figures = ", ".join(f"{name} {value:.4f}" for name, value in fit.best.items())
    tokens = f"{fit.n_tokens:,} tokens, " if fit.n_tokens else ""
    done = f"{fit.n_steps:,} steps, {tokens}{fit.seconds:.0f} s"
    notify(f"{model}: {done}; best: step {fit.best_step:,} {figures}".rstrip())


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
    """A progress bar per run with losses, speed and the last validation; plain lines if stderr is not a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        texts = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
        super().__init__(
            texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeElapsedColumn(), TimeRemainingColumn()
        )
        self.tasks: dict[int | str, Any] = {}
        # the losses and validations of each run, by network or objective; the key is empty for a single network
        self.texts: dict[int | str, dict[tuple[str, str], str]] = defaultdict(dict)
        self.first: dict[int | str, tuple[int, float]] = {}  # a resumed run may have begun on another machine

    def report(self, run: int | str, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl of a run: a seed, or the name of a training among others, or nothing."""
        network, name = record.get("network", ""), f"seed {run}" if isinstance(run, int) else run
        step = f"{name} step {record['step']}".lstrip()
        if "valid" in record:
            r1 = f" R@1 {record['valid']['R@1']:.3f}" if "R@1" in record["valid"] else ""
            losses = "; ".join(_losses("", record["valid"]).values())
            self.texts[run]["valid", network] = f"{network} valid {losses}{r1}".lstrip()
            if not console().is_terminal:
                notify(f"{step}: {self.texts[run]['valid', network]}")
            return
        if run not in self.tasks:
            self.tasks[run] = self.progress.add_task(name, total=record["n_steps"], text="")
        self.texts[run] |= {("loss", name): text for name, text in _losses(network, record).items()}
        text = "; ".join([*dict(sorted(self.texts[run].items())).values(), self._speed(run, record)])
        self.progress.update(self.tasks[run], completed=record["step"], text=text)
        # the re-ranker's record of the same step follows the retriever's
        if network != "retriever" and self.line_is_due(record["step"] % 50 == 0):
            notify(f"{step}/{record['n_steps']}: {text}")

    def _speed(self, run: int | str, record: dict[str, Any]) -> str:
        """Examples or tokens per second since the first report, or for that one, since the beginning of the run."""
        unit = "examples" if "n_examples" in record else "tokens"
        n, seconds = record[f"n_{unit}"], record["seconds"]
        first = self.first.setdefault(run, (n, seconds))
        n_before, before = first if first[0] < n else (0, 0.0)
        return f"{(n - n_before) / max(seconds - before, 1e-9):,.0f} {unit}/s"


def _losses(network: str, record: dict[str, Any]) -> dict[str, str]:
    """The loss of a network, or the loss and accuracy of each objective of a pre-training."""
    losses = {
        name: f"{short} {_number(record[f'{name}_loss'])} ({record[f'{name}_accuracy'] or 0:.1%} right)"
        for name, short in OBJECTIVES.items()
        if f"{name}_loss" in record
    }
    return losses or {network: f"{network} loss {_number(record['loss'])}".lstrip()}


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
