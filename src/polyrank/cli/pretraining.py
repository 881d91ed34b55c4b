"""``polyrank pretrain``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from polyrank.cli import interrupts
from polyrank.cli.console import console, talk
from polyrank.cli.options import Device, Json, StartAgain
from polyrank.errors import UsageError

SHORT = {"masked_lm": "words", "next_utterance": "pairs"}


def pretrain(
    recipe: Annotated[Path, typer.Argument(help="A recipe in TOML, as runs/recipes/pretrain.toml.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a key: train.steps=1000. Repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: StartAgain = False,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all by default.")] = None,
    json_: Json = False,
) -> None:
    """Pre-train a transformer on dialogues or pairs without labels: a BERT from scratch, or a backbone that goes on.

    It learns to tell masked words, and whether a response follows or is a random one. The result, OUTPUT/model, is a
    Hugging Face folder that a recipe of polyrank train takes as model.backbone; figures go to OUTPUT/metrics.jsonl.
    """
    import dataclasses
    import json

    import torch

    from polyrank.devices.choice import keep_freed_memory
    from polyrank.loading.recipes import load_pretrain_recipe
    from polyrank.training.pretraining import pretrain as run

    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one")
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()  # this process is polyrank's own
    plan = load_pretrain_recipe(recipe, tuple(set_ or ()))
    if not overwrite:  # an earlier run may still be there
        interrupts.say_way_on("go on with --resume")
    with PretrainingDisplay() as display:
        result = run(plan, resume=resume, overwrite=overwrite, device=device, report=display.report, notify=talk)
    if json_:
        print(json.dumps({"model": str(result.model), **dataclasses.asdict(result.fit)}))
        return
    fit = result.fit
    figures = ", ".join(f"{name} {value:.4f}" for name, value in fit.best.items())
    talk(
        f"{result.model}: {fit.n_steps:,} steps, {fit.n_tokens:,} tokens, {fit.seconds:.0f} s; best: step"
        f" {fit.best_step:,} {figures}".rstrip()
    )


class PretrainingDisplay:
    """A live line: losses and accuracies of both kinds, tokens a second, time left. Plain lines without a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=console(),
            disable=not console().is_terminal,
        )
        self.task: Any = None
        self.shown: dict[str, str] = {}

    def __enter__(self) -> "PretrainingDisplay":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def report(self, record: dict[str, Any]) -> None:
        """Show one record of metrics.jsonl."""
        if "valid" in record:
            text = f"valid {'; '.join(_figures(record['valid']).values())}"
            self.shown["valid"] = text
            if not console().is_terminal:
                talk(f"step {record['step']}: {text}")
            return
        step, n_steps = record["step"], record["n_steps"]
        if self.task is None:  # a run that goes on has made those before
            self.task = self.progress.add_task("", total=n_steps, completed=step - 1, text="")
        self.shown |= _figures(record)
        text = f"{'; '.join(self.shown.values())}; {record['n_tokens'] / record['seconds']:,.0f} tokens/s"
        self.progress.update(self.task, completed=step, text=text)
        if not console().is_terminal and step % 50 == 0:
            talk(f"step {step}/{n_steps}: {text}")


def _figures(record: dict[str, Any]) -> dict[str, str]:
    """Loss and accuracy of each kind that a record has."""
    return {
        name: f"{short} {'not finite' if (loss := record[f'{name}_loss']) is None else f'{loss:.3f}'}"
        f" ({record[f'{name}_accuracy'] or 0:.1%} right)"
        for name, short in SHORT.items()
        if f"{name}_loss" in record
    }
