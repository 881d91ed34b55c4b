"""Training settings from flat keyword arguments, so that a test can use one dictionary for several methods."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from polyrank.config.checked import field_types, from_dict, kinds
from polyrank.config.methods import Method
from polyrank.config.models import ConvertText, ModelConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe
from polyrank.config.schedules import ScheduleConfig
from polyrank.config.train import NetworkTraining, TrainConfig
from polyrank.training.convert_step import ConvertStep
from polyrank.training.learner import Loss, TrainState

SHORT = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
PLACES = {
    **{key: f"method.{key}" for kind in kinds(Method).values() for key in field_types(kind)},
    **{key: f"schedule.{key}" for kind in kinds(ScheduleConfig).values() for key in field_types(kind)},
    **{key: f"negatives.{key}" for key in ("redraw", "remine_epochs", "remine_ranks")},
    "n_negatives": "negatives.n",
    "method": "method.kind",
    "schedule": "schedule.kind",
}


def in_chunks(step: Any, size: int | None) -> Any:
    """A step with so many texts in memory at once."""
    if isinstance(step, ConvertStep):
        return replace(step, in_batch=replace(step.in_batch, chunk_size=size))
    return replace(step, chunk_size=size)


def network_settings(settings: TrainConfig, **changes: Any) -> NetworkTraining:
    """Settings of one network, with the values of a whole training."""
    return from_dict(NetworkTraining, changes, defaults=settings)


def train_config(start: TrainConfig | None = None, **values: Any) -> TrainConfig:
    """A TrainConfig with each key in its table; drops negatives if the method has none."""
    start = TrainConfig() if start is None else start
    tables: dict[str, Any] = {}
    if values.get("remine_epochs") and "negatives.sources" not in values:
        values = {**values, "negatives.sources": ["mined", "given", "random"]}
    for key, value in values.items():
        table, dot, name = PLACES.get(key, key).partition(".")
        if dot:
            tables.setdefault(table, {})[name] = value
        else:
            tables[key] = value
    if values.get("method", start.method.kind) in ("in_batch", "convert"):
        tables.pop("negatives", None)
    return from_dict(TrainConfig, tables, "train", start)


def toy_recipe(
    task: Mapping[str, Path],
    output: Path,
    model: ModelConfig,
    text: TextPolicy | ConvertText = SHORT,
    *,
    partner: Partner | None = None,
    **settings: Any,
) -> Recipe:
    """A recipe for the toy task, perhaps without validation, with the training's settings as keyword arguments."""
    data = DataConfig(train=str(task["train"]), valid=str(task["valid"]) if "valid" in task else None)
    return Recipe(
        model=model, text=text, data=data, train=train_config(**settings), output=str(output), reranker=partner
    )


def bi_tables(task: Mapping[str, Path], backbone: Path, output: Path, **train: Any) -> dict[str, Any]:
    """A recipe for a Bi-encoder on the toy task, perhaps without validation, as tables."""
    return {
        "output": str(output),
        "model": {"kind": "bi", "backbone": str(backbone)},
        "text": {"max_context_tokens": 24, "max_candidate_tokens": 8},
        "data": {part: str(task[part]) for part in ("train", "valid") if part in task},
        "train": {"precision": "fp32", **train},
    }


def update(state: TrainState, loss: Tensor, n_contexts: int = 1) -> float:
    """Make one update of a network with a loss; returns its record for metrics.jsonl."""
    return state.update(iter([Loss(loss, n_contexts)]))["loss"]


def loss_of(step: Any, batch: Any, epoch: int = 0, number: int = 0) -> Tensor:
    """The mean loss of a batch, by a step for one network."""
    return next(losses_of(step, batch, epoch, number))


def losses_of(step: Any, batch: Any, epoch: int = 0, number: int = 0) -> Iterator[Tensor]:
    """The mean losses of a step for several networks on a batch."""
    for loss in step.losses(step.prepare(batch, epoch), number):
        yield loss.mean
