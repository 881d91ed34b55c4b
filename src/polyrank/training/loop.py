"""The loop: batches in order, a step's loss, an update, now and then a validation and a checkpoint.

It knows nothing of negatives, teachers or text. Everything random is a pure function of (seed, epoch, position), so a
resumed run is the run that was never interrupted, bit for bit on the same machine and threads.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyrank.config import TrainConfig
from polyrank.data import batch_order
from polyrank.devices import choose_dtype
from polyrank.durable import write_file
from polyrank.errors import DivergedError, ResourceError
from polyrank.models import Model
from polyrank.records import Example
from polyrank.training.checkpoints import load_checkpoint, save_checkpoint
from polyrank.training.optimizer import Schedule, clip_gradients, freeze, make_optimizer
from polyrank.training.signals import InterruptedTraining, stop_on_signals
from polyrank.training.steps import Step

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a training went.

    Args:
        n_steps: updates made, skipped ones included.
        n_examples: examples seen.
        best: validation figures of the best model, empty without validation.
        best_step: the step it was met at.
        seconds: wall time of this process; an interrupted run's earlier part is not in it.
    """

    n_steps: int
    n_examples: int
    best: dict[str, float]
    best_step: int
    seconds: float


def fit(
    model: Model,
    step: Step,
    examples: Sequence[Example],
    settings: TrainConfig,
    *,
    seed: int,
    folder: Path,
    device: torch.device,
    save_best: Callable[[dict[str, float]], None],
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    resume: bool = False,
    report: Report = lambda _: None,
) -> FitResult:
    """Train ``model`` in place and keep its best version.

    Args:
        model: the network, on ``device``.
        step: the training method.
        examples: what to learn from.
        settings: how.
        seed: of order, negatives and dropout.
        folder: for ``metrics.jsonl`` and ``checkpoint.safetensors``; exists.
        device: where to compute.
        save_best: called with the figures when the model is the best so far (or final, without validation).
        evaluate: validation figures with "loss" and "R@1"; None for none.
        resume: go on from the checkpoint, if there is one.
        report: called with each record that goes to ``metrics.jsonl``.

    Raises:
        DivergedError: ``max_bad_steps`` non-finite losses in a row.
        ResourceError: a batch does not fit into memory.
        InterruptedTraining: SIGINT or SIGTERM; state is saved.
    """
    freeze(model, settings.train_layers)
    optimizer = make_optimizer(model, settings)
    peaks = [group["lr"] for group in optimizer.param_groups]
    lengths = [step.length(example) for example in examples]
    steps_per_epoch = math.ceil(len(examples) / settings.batch_size)
    n_steps = settings.epochs * steps_per_epoch
    if settings.max_steps is not None:
        n_steps = min(n_steps, settings.max_steps)
    checks = check_steps(n_steps, steps_per_epoch, settings.evaluate_per_epoch)
    schedule = Schedule(settings, n_steps)
    dtype = choose_dtype(settings.precision, device)
    checkpoint, metrics = folder / "checkpoint.safetensors", folder / "metrics.jsonl"

    state: dict[str, Any] = {"step": 0, "n_examples": 0, "bad": 0, "stale": 0, "best": {}, "best_step": 0}
    if resume and checkpoint.exists():
        state = load_checkpoint(checkpoint, model, optimizer)
        schedule.best_loss = math.inf if state["best_loss"] is None else state["best_loss"]
        schedule.stalls, schedule.decay = state["stalls"], state["decay"]
    _truncate(metrics, state["step"])

    def save() -> None:
        best_loss = None if math.isinf(schedule.best_loss) else schedule.best_loss
        plateau = {"best_loss": best_loss, "stalls": schedule.stalls, "decay": schedule.decay}
        save_checkpoint(checkpoint, model, optimizer, {**state, **plateau})

    def write(record: dict[str, Any]) -> None:
        with metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        report(record)

    def check() -> bool:
        """Validate, keep the best; whether to stop early."""
        figures = {} if evaluate is None else dict(evaluate())
        if figures:
            schedule.observe(figures["loss"])
            write({"step": state["step"], "valid": figures})
        better = not figures or figures["R@1"] > state["best"].get("R@1", -1.0)
        state["stale"] = 0 if better else state["stale"] + 1
        if better:
            state["best"], state["best_step"] = figures, state["step"]
            save_best(figures)
        return settings.early_stopping is not None and state["stale"] >= settings.early_stopping

    started = time.monotonic()
    order: list[Any] = []
    epoch_of_order = -1
    with stop_on_signals() as request:
        while state["step"] < n_steps:
            epoch, position = divmod(state["step"], steps_per_epoch)
            if epoch != epoch_of_order:
                order = batch_order(lengths, settings.batch_size, seed=seed, epoch=epoch, window=settings.length_window)
                epoch_of_order = epoch
            batch = [(int(i), examples[int(i)]) for i in order[position]]
            factor = schedule.factor(state["step"])
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            loss = _update(model, step, batch, epoch, optimizer, settings, device, dtype, seed, state["step"])
            state["bad"] = 0 if math.isfinite(loss) else state["bad"] + 1
            state["step"] += 1
            state["n_examples"] += len(batch)
            write(
                {
                    "step": state["step"],
                    "loss": loss if math.isfinite(loss) else None,
                    "lr": settings.lr * factor,
                    "n_steps": n_steps,
                    "n_examples": state["n_examples"],
                    "seconds": round(time.monotonic() - started, 3),
                }
            )
            if state["bad"] > settings.max_bad_steps:
                kept = f"the checkpoint in {folder} is from before" if checkpoint.exists() else "nothing was saved yet"
                raise DivergedError(
                    f"the loss was not finite for {state['bad']} steps in a row (train.max_bad_steps ="
                    f" {settings.max_bad_steps}); {kept}; lower train.lr"
                )
            stop_early = False
            if state["step"] in checks:
                stop_early = check()
                save()
            elif settings.checkpoint_steps and state["step"] % settings.checkpoint_steps == 0:
                save()
            if stop_early:
                break
            if request.signal_number is not None:
                save()
                raise InterruptedTraining(request.signal_number, str(folder))
    return FitResult(state["step"], state["n_examples"], state["best"], state["best_step"], time.monotonic() - started)


def check_steps(n_steps: int, steps_per_epoch: int, per_epoch: int) -> set[int]:
    """The steps after which to validate: ``per_epoch`` times an epoch, and at the end.

    >>> sorted(check_steps(10, 4, 2))
    [2, 4, 6, 8, 10]
    """
    n_checks = math.ceil(n_steps / steps_per_epoch * per_epoch)
    return {min(n_steps, round((i + 1) * steps_per_epoch / per_epoch)) for i in range(n_checks)} | {n_steps}


def _update(
    model: Model,
    step: Step,
    batch: Sequence[tuple[int, Example]],
    epoch: int,
    optimizer: torch.optim.Optimizer,
    settings: TrainConfig,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    number: int,
) -> float:
    """One update; a non-finite loss or gradient changes nothing. Returns the loss."""
    torch.manual_seed((seed * 1_000_003 + number) % 2**63)  # dropout as a function of the step
    model.train()
    try:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = step(batch, epoch, number)
        value = float(loss.detach())
        if not math.isfinite(value):
            return value
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        if not math.isfinite(clip_gradients(model, optimizer, settings)):
            return math.nan
        optimizer.step()
        return value
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not _out_of_memory(error):
            raise
        raise ResourceError(
            f"a batch of {len(batch)} does not fit into memory; try train.batch_size={max(1, len(batch) // 2)} (with"
            " in-batch negatives that is also fewer negatives) or smaller text budgets"
        ) from error
    finally:
        optimizer.zero_grad(set_to_none=True)


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    signs = ("out of memory", "not enough memory", "allocate memory")  # CUDA's, and the CPU allocator's two
    return isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in signs)


def _truncate(metrics: Path, last_step: int) -> None:
    """Drop records from after the checkpoint: those steps will be made again."""
    if not metrics.exists():
        return
    kept = []
    for line in metrics.read_text("utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break  # a line that was being written when the process died
        if record["step"] > last_step:
            break
        kept.append(line)
    write_file(metrics, "".join(line + os.linesep for line in kept).encode())
