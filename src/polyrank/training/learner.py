"""One network in training: its optimiser, schedule, best version and metrics.jsonl. The loop may have several."""

import json
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from polyrank.config.training import NetworkTraining
from polyrank.devices import processes
from polyrank.errors import ResourceError
from polyrank.models import Network
from polyrank.storage.durable import write_file
from polyrank.training.optimizer import Schedule, clip_gradients, freeze, make_optimizer
from polyrank.training.shares import add_gradients

METRICS = "metrics.jsonl"
Report = Callable[[dict[str, Any]], None]
Figures = Mapping[str, float | Tensor]
LossParts = Generator[Tensor, None, Figures]
"""The parts of a loss, each with a graph of its own, whose sum is the loss; returns its figures for metrics.jsonl."""


def loss_of(phases: Iterator[Tensor], weight: int = 1) -> LossParts:
    """The next of some losses, in one part; its figures are the loss without the weight."""
    loss = next(phases)
    yield weight * loss
    return {"loss": loss.detach()}


def read(figures: Figures) -> dict[str, float]:
    """The numbers of all tensors among some figures, for which the host waits once.

    >>> read({"loss": torch.tensor(0.5), "epoch": 2.0})
    {'loss': 0.5, 'epoch': 2.0}
    """
    tensors = [value for value in figures.values() if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return {name: next(numbers) if isinstance(value, Tensor) else value for name, value in figures.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A network to train, and what is its own where several are trained together.

    Args:
        name: of it among several; empty where it is alone.
        model: the network, on its device.
        settings: how it is trained.
        folder: for ``metrics.jsonl``; exists.
        save_best: called with the figures when the model is the best so far (or final, without validation).
        evaluate: validation figures, "loss" and ``best_by`` among them; None for none.
        best_by: the figure that the best version is chosen by: the highest "R@1" or the lowest "loss".
        report: called with each record that goes to ``metrics.jsonl``.
    """

    model: Network
    settings: NetworkTraining
    folder: Path
    save_best: Callable[[dict[str, float]], None]
    evaluate: Callable[[], Mapping[str, float]] | None = None
    best_by: Literal["R@1", "loss"] = "R@1"
    report: Report = lambda _: None
    name: str = ""


class TrainState:
    """A learner at work. What ``progress`` gives, with weights and optimiser, is all that it takes to go on.

    Args:
        learner: the network and its settings.
        n_steps: length of the whole training.
    """

    def __init__(self, learner: Learner, n_steps: int) -> None:
        self.learner, self.model, self.settings = learner, learner.model, learner.settings
        freeze(self.model, self.settings.train_layers)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.schedule = Schedule(self.settings, n_steps)
        self._peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.best: dict[str, float] = {}
        self.n_bad = self.n_stale = self.best_step = 0

    @property
    def progress(self) -> dict[str, Any]:
        """Everything that changes besides tensors, ready for JSON."""
        best_loss = None if math.isinf(self.schedule.best_loss) else self.schedule.best_loss
        plateau = {"best_loss": best_loss, "stalls": self.schedule.stalls, "decay": self.schedule.decay}
        kept = {"best": self.best, "best_step": self.best_step}
        return {"bad": self.n_bad, "stale": self.n_stale, **kept, **plateau}

    def restore(self, progress: dict[str, Any]) -> None:
        """Put back what ``progress`` gave."""
        self.n_bad, self.n_stale = progress["bad"], progress["stale"]
        self.best, self.best_step = progress["best"], progress["best_step"]
        self.schedule.best_loss = math.inf if progress["best_loss"] is None else progress["best_loss"]
        self.schedule.stalls, self.schedule.decay = progress["stalls"], progress["decay"]

    def set_rates(self, step: int) -> float:
        """Give the optimiser the learning rates of 0-based ``step``; returns the plain one."""
        factor = self.schedule.factor(step)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        return self.settings.lr * factor

    def update(self, parts: LossParts, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
        """One update by the sum of a loss's parts, computed in ``dtype``; where it is not finite, nothing changes.

        Returns the loss's figures; losses among them are not finite if the gradient was not.
        """
        self.model.train()
        try:
            told = self._backward(parts, device, dtype)
            add_gradients(self.model)
            figures = read({**told, "norm": clip_gradients(self.model, self.optimizer, self.settings)})
            norm = figures.pop("norm")
            if all(map(math.isfinite, figures.values())):
                if math.isfinite(norm):
                    self.optimizer.step()
                else:
                    figures = {name: math.nan if name.endswith("loss") else value for name, value in figures.items()}
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.n_bad = 0 if all(map(math.isfinite, figures.values())) else self.n_bad + 1
        return figures

    def _backward(self, parts: LossParts, device: torch.device, dtype: torch.dtype) -> Figures:
        while True:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                try:
                    loss = next(parts)
                except StopIteration as end:
                    figures: Figures = end.value
                    return figures
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it

    @property
    def has_enough(self) -> bool:
        """Whether ``early_stopping`` validations in a row brought nothing better."""
        return self.settings.early_stopping is not None and self.n_stale >= self.settings.early_stopping

    def check(self, step: int, where: Mapping[str, float]) -> None:
        """Validate after ``step`` updates and keep the best version; ``where`` goes into the record."""
        figures = {} if self.learner.evaluate is None else dict(self.learner.evaluate())
        finite = all(map(math.isfinite, figures.values()))
        if figures:
            self.schedule.observe(figures["loss"])
            shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
            self.write({"step": step, **where, "valid": shown})
        sign = -1 if (name := self.learner.best_by) == "loss" else 1
        best = sign * self.best[name] if self.best else -math.inf
        better = finite and sign * figures[name] > best if figures else self.n_bad == 0
        self.n_stale = 0 if better else self.n_stale + 1
        if better:
            self.best, self.best_step = figures, step
            if processes.is_first():
                self.learner.save_best(figures)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record to ``metrics.jsonl``; of several processes the first one does."""
        if processes.is_first():
            with (self.learner.folder / METRICS).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
            self.learner.report(record)

    def forget_after(self, last_step: int) -> None:
        """Drop records from after the checkpoint: those steps will be made again."""
        metrics = self.learner.folder / METRICS
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


@contextmanager
def enough_memory(message: str) -> Iterator[None]:
    """Running out of memory inside becomes a ResourceError with this message."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not _out_of_memory(error):
            raise
        raise ResourceError(message) from error


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    signs = ("out of memory", "not enough memory", "allocate memory")  # CUDA's, and the CPU allocator's two
    return isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in signs)
