"""``polyrank pretrain``."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from polyrank.cli.console import ProgressDisplay, console, notify, use_processor
from polyrank.cli.options import AllThreads, Changes, Device, Json, Resume, StartAgain
from polyrank.cli.training import check_resume

SHORT = {"masked_lm": "words", "next_utterance": "pairs"}


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
    with PretrainingDisplay() as display:
        result = run(plan, resume=resume, overwrite=overwrite, device=device, report=display.report, notify=notify)
    fit = result.fit
    if json_:
        print(json.dumps({"model": str(result.model), **dataclasses.asdict(fit)}))
        return
    figures = ", ".join(f"{name} {value:.4f}" for name, value in fit.best.items())
    notify(
        f"{result.model}: {fit.n_steps:,} steps, {fit.n_tokens:,} tokens, {fit.seconds:.0f} s; best: step"
        f" {fit.best_step:,} {figures}".rstrip()
    )


class PretrainingDisplay(ProgressDisplay):
    """A progress bar with losses, accuracies and tokens per second; plain lines if stderr is not a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        super().__init__(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn())
        self.task: Any = None
        self.shown: dict[str, str] = {}

    def report(self, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl."""
        step, plain = record["step"], not console().is_terminal
        if "valid" in record:
            self.shown["valid"] = f"valid {'; '.join(_figures(record['valid']).values())}"
            if plain:
                notify(f"step {step}: {self.shown['valid']}")
            return
        n_steps = record["n_steps"]
        if self.task is None:  # a resumed run starts after the steps of the first part
            self.task = self.progress.add_task("", total=n_steps, completed=step - 1, text="")
        self.shown |= _figures(record)
        text = f"{'; '.join(self.shown.values())}; {record['n_tokens'] / record['seconds']:,.0f} tokens/s"
        self.progress.update(self.task, completed=step, text=text)
        if self.line_is_due(step % 50 == 0):
            notify(f"step {step}/{n_steps}: {text}")


def _figures(record: dict[str, Any]) -> dict[str, str]:
    """Loss and accuracy of each objective in a record."""
    return {
        name: f"{short} {'not finite' if (loss := record[f'{name}_loss']) is None else f'{loss:.3f}'}"
        f" ({record[f'{name}_accuracy'] or 0:.1%} right)"
        for name, short in SHORT.items()
        if f"{name}_loss" in record
    }
