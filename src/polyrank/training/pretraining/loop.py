"""The loop of pre-training: an update from a batch in parts, now and then a validation and a checkpoint.

Everything random is a function of (seed, step), so a run that was killed and resumed is the run that was not, bit for
bit on the same machine and threads.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.config.pretraining import Objective, PretrainRecipe, PretrainSteps
from polyrank.devices import processes
from polyrank.devices.choice import choose_dtype
from polyrank.errors import DivergedError
from polyrank.models.pretraining import PretrainingNetwork
from polyrank.text import Subwords
from polyrank.training.checkpoints import CHECKPOINT, load_checkpoint, save_checkpoint
from polyrank.training.learner import Report, add_record, enough_memory, forget_records
from polyrank.training.optimizer import Schedule
from polyrank.training.pretraining.batches import Batch, Batches, Masking, make_batch
from polyrank.training.pretraining.objectives import OBJECTIVES, StepScalars, counts, figures, tell
from polyrank.training.pretraining.tokens import Pairs
from polyrank.training.shares import add_gradients
from polyrank.training.signals import InterruptedTraining, stop_on_signals

VALID_SEED = 20191202  # of masks and random responses in validation: the same for every run


@dataclass(frozen=True, slots=True)
class PretrainFit:
    """How a pre-training went.

    Args:
        n_steps: updates made, skipped ones included.
        n_tokens: tokens read, without padding.
        best: validation figures of the network that was kept, empty without validation.
        best_step: the step it was met at.
        seconds: wall time of its steps; of an interrupted run, the earlier part is in it, and what was computed after
            the last checkpoint is not.
    """

    n_steps: int
    n_tokens: int
    best: dict[str, float]
    best_step: int
    seconds: float


class Reading:
    """Pairs as batches for the objectives in turns.

    Args:
        pairs: to read.
        subwords: their vocabulary.
        recipe: budgets, masks and objectives.
        seed: of all choices.
    """

    def __init__(self, pairs: Pairs, subwords: Subwords, recipe: PretrainRecipe, seed: int) -> None:
        self.train, self.text, self.seed = recipe.train, recipe.text, seed
        self.pairs, self.subwords = pairs, subwords
        self.turns = OBJECTIVES[self.train.objectives]
        separator = subwords.id_of(separator_of(subwords, recipe.text.turn_separator))
        self.masking = Masking.of(subwords, self.train.mask_share, self.train.whole_words, separator)
        self.orders = [
            Batches(
                pairs,
                recipe.text,
                random_half="next_utterance" in objectives,  # words alone are learnt from true pairs
                batch_tokens=self.train.batch_tokens,
                window=self.train.length_window,
                seed=(seed, number),
            )
            for number, objectives in enumerate(self.turns)
        ]

    def batch(self, step: int) -> tuple[tuple[Objective, ...], list[Batch]]:
        """What the batch of 0-based ``step`` is for, and the batch in its parts."""
        position, turn = divmod(step, len(self.turns))
        return self.turns[turn], self._parts(turn, position, (self.seed, turn, position))

    def epoch(self, turn: int) -> list[list[Batch]]:
        """The batches of the first epoch of one turn's objectives, in their parts."""
        n = self.orders[turn].n_first()
        return [self._parts(turn, position, (self.seed, turn, position)) for position in range(n)]

    def _parts(self, turn: int, position: int, seed: tuple[int, int, int]) -> list[Batch]:
        generator = np.random.Generator(np.random.PCG64((*seed, 1)))
        masking = self.masking if "masked_lm" in self.turns[turn] else None
        chosen, budget, n = self.orders[turn].at(position), self.train.micro_batch_tokens, processes.count()
        if n > 1:  # each has a part at least, and what is masked does not depend on parts
            budget = min(budget or self.train.batch_tokens, max(self.train.batch_tokens // n, self.text.max_tokens))
        batch = make_batch(self.pairs, chosen, self.text, self.subwords, masking, generator)
        return batch.parts(chosen.lengths, budget)


def separator_of(subwords: Subwords, name: str) -> str:
    """The token between two turns: of vocabularies without "[SEP]" the one that ends a text."""
    return subwords.names["end"] if name == "[SEP]" and subwords.known([name]) is None else name


def make_adam(network: PretrainingNetwork, train: PretrainSteps) -> torch.optim.Optimizer:
    """Adam with decoupled decay of matrices, if any."""
    matrices = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas)


def fit(
    network: PretrainingNetwork,
    reading: Reading,
    validation: Reading | None,
    *,
    folder: Path,
    device: torch.device,
    save: Callable[[], None],
    report: Report,
    resume: bool,
) -> PretrainFit:
    """Pre-train a network and keep its best version.

    Args:
        network: on its device.
        reading: the training pairs, and how to train.
        validation: pairs to choose the best version by; None: the last one is kept.
        folder: for ``checkpoint.safetensors`` and ``metrics.jsonl``; exists.
        device: where to compute.
        save: called when the network is the best so far (or is checked, without validation).
        report: called with each record that goes to ``metrics.jsonl``.
        resume: go on from the checkpoint, if there is one.

    Raises:
        DivergedError: ``max_bad_steps`` non-finite losses in a row, or none was finite when a network was to be kept.
        ResourceError: a batch does not fit into memory.
        InterruptedTraining: SIGINT or SIGTERM; state is saved.
    """
    train = reading.train
    optimizer, schedule = make_adam(network, train), Schedule(train.of_network, train.steps)
    parts = [("", network, optimizer)]
    progress: dict[str, Any] = {"step": 0, "n_tokens": 0, "seconds": 0.0, "n_bad": 0, "best": {}, "best_step": 0}
    checkpoint = folder / CHECKPOINT
    if resume and checkpoint.exists():
        progress |= load_checkpoint(checkpoint, parts)  # older ones do not know their seconds
    started = time.monotonic() - progress["seconds"]
    if processes.is_first():
        forget_records(folder, progress["step"])
    autocast = _autocast(device, train)

    def write(record: dict[str, Any]) -> None:
        if processes.is_first():
            add_record(folder, record)
            report(record)

    def keep() -> None:
        if processes.is_first():
            progress["seconds"] = round(time.monotonic() - started, 3)
            save_checkpoint(checkpoint, parts, progress)

    def check() -> None:
        values = {} if validation is None else validate(network, validation, device, autocast)
        if values:
            write({"step": progress["step"], "valid": {k: v if math.isfinite(v) else None for k, v in values.items()}})
        better = values["loss"] < progress["best"].get("loss", math.inf) if values else not progress["n_bad"]
        if better:
            progress.update(best=values, best_step=progress["step"])
            if processes.is_first():
                save()

    with stop_on_signals() as request:
        while progress["step"] < train.steps:
            step = progress["step"]
            rate = train.lr * schedule.factor(step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            torch.manual_seed((train.seed * 1_000_003 + step + processes.number() * 2**40) % 2**63)
            objectives, batch = reading.batch(step)
            values = _update(network, optimizer, batch, objectives, train, device, autocast)
            progress["n_bad"] = 0 if _finite(values) else progress["n_bad"] + 1
            progress["step"] += 1
            progress["n_tokens"] += sum(int(part.tokens.mask.sum()) for part in batch)
            seconds = time.monotonic() - started
            write(
                {
                    "step": step + 1,
                    **{name: value if math.isfinite(value) else None for name, value in values.items()},
                    "lr": rate,
                    "n_steps": train.steps,
                    "n_tokens": progress["n_tokens"],
                    "tokens_per_s": round(progress["n_tokens"] / max(seconds, 1e-9)),
                    "seconds": round(seconds, 3),
                }
            )
            if progress["n_bad"] > train.max_bad_steps:
                kept = f"the checkpoint in {folder} is from before" if checkpoint.exists() else "nothing was saved yet"
                raise DivergedError(
                    f"the loss was not finite for {progress['n_bad']} steps in a row (train.max_bad_steps ="
                    f" {train.max_bad_steps}); {kept}; lower train.lr"
                )
            checked = (step + 1) % train.evaluate_steps == 0 or step + 1 == train.steps
            if checked:
                check()
            if (checked or (step + 1) % train.checkpoint_steps == 0) and not progress["n_bad"]:
                keep()
            if stop := processes.most(request.signal_number or 0):
                keep()
                raise InterruptedTraining(stop, str(folder))
    if not progress["best_step"]:
        raise DivergedError(
            f"no loss was finite when a network was to be kept, so there is none in {folder}; lower train.lr"
        )
    return PretrainFit(
        progress["step"], progress["n_tokens"], progress["best"], progress["best_step"], time.monotonic() - started
    )


def validate(
    network: PretrainingNetwork,
    reading: Reading,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """Losses and accuracies over all pairs, always with the same masks and random responses; "loss" is their sum."""
    network.eval()
    values: dict[str, float] = {}
    for turn, objectives in enumerate(reading.turns):
        everything = [part for parts in reading.epoch(turn) for part in parts]
        with torch.inference_mode(), autocast():
            told = [tell(network, part.to(device), objectives) for part in _own(everything)]
        values |= figures(_of_all(told))
    network.train()
    return {"loss": sum(value for name, value in values.items() if name.endswith("_loss")), **values}


def _own(parts: Sequence[Batch]) -> Sequence[Batch]:
    """Those that this process computes: of like length, as neighbours are, each has as many."""
    return parts[processes.number() :: processes.count()]


def _of_all(told: Sequence[dict[Objective, StepScalars]]) -> list[dict[Objective, StepScalars]]:
    """What every process was told, in the order of the parts; the first has no fewer than others."""
    plain = [{name: replace(own, loss=own.loss.detach().cpu()) for name, own in part.items()} for part in told]
    shares = processes.gathered(plain)
    return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]


def _update(
    network: PretrainingNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Batch],
    objectives: Sequence[Objective],
    train: PretrainSteps,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """One update from a batch in parts, whose losses are the means over the whole; returns its figures.

    A loss or gradient that is not finite changes nothing.
    """
    network.train()
    n = {name: sum(counts(part)[name] for part in batch) for name in objectives}
    told: list[dict[Objective, StepScalars]] = []
    smaller = (train.micro_batch_tokens or train.batch_tokens) // 2
    try:
        with enough_memory(
            f"{sum(part.tokens.ids.numel() for part in batch):,} tokens do not fit into memory; try"
            f" train.micro_batch_tokens={smaller}, which changes no update"
        ):
            for part in _own(batch):
                with autocast():
                    results = tell(network, part.to(device), objectives)
                loss = sum(result.loss / n[name] for name, result in results.items())
                loss.backward()  # type: ignore[union-attr]  # a sum of tensors
                told.append(results)
        values = figures(_of_all(told))
        if _finite(values):
            add_gradients(network)
            norm = torch.nn.utils.clip_grad_norm_(network.parameters(), train.clip_norm or math.inf)
            if math.isfinite(float(norm)):
                optimizer.step()
            else:
                values = {name: math.nan if name.endswith("_loss") else value for name, value in values.items()}
    finally:
        optimizer.zero_grad(set_to_none=True)
    return values


def _finite(values: dict[str, float]) -> bool:
    return all(map(math.isfinite, values.values()))


def _autocast(device: torch.device, train: PretrainSteps) -> Callable[[], AbstractContextManager[Any]]:
    dtype = choose_dtype(train.precision, device)
    return lambda: torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
