"""Checkpoints: everything that a run needs to resume exactly, in one safetensors file that is written atomically.

Randomness has no state to save: batch order, negatives and dropout are pure functions of (seed, epoch, position, step).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from polyrank.errors import ArtifactError
from polyrank.models import Network
from polyrank.storage.durable import write_file
from polyrank.storage.tensors import read_file, read_header, to_bytes

CHECKPOINT = "checkpoint.safetensors"
Trained = tuple[str, Network, torch.optim.Optimizer]
"""A network in training: its name (empty if it is the only one), the network, its optimizer."""


def save_checkpoint(path: Path, parts: Sequence[Trained], progress: dict[str, Any]) -> None:
    """Write everything that training changes (weights, buffers, optimizer tensors) and ``progress``, atomically."""
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, dict[str, dict[str, float]]] = {}
    for name, model, optimizer in parts:
        values, plain[name] = _state_of(model, optimizer)
        tensors |= {f"{name}/{key}": value for key, value in values.items()}
    write_file(path, to_bytes(tensors, {"progress": json.dumps({**progress, "optimizer_plain": plain})}))


def _state_of(
    model: Network, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]]:
    """Tensors by name, and the optimizer's plain numbers by parameter and name."""
    tensors = {f"model.{n}": p.detach().cpu() for n, p in model.named_parameters() if p.requires_grad}
    tensors |= {f"buffer.{name}": buffer.cpu() for name, buffer in _buffers(model).items()}
    plain: dict[str, dict[str, float]] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value.detach().cpu()
            else:
                plain.setdefault(str(index), {})[name] = value
    return tensors, plain


def _buffers(model: Network) -> dict[str, torch.Tensor]:
    """The buffers in the model's state dict, without the second name of a shared tower."""
    stored = model.state_dict().keys()
    return {name: tensor for name, tensor in model.named_buffers() if name in stored}


def read_progress(path: Path) -> dict[str, Any]:
    """The ``progress`` of a checkpoint, without reading its tensors.

    Raises:
        ArtifactError: the file is damaged.
    """
    with explain_damage(path):
        progress: dict[str, Any] = json.loads(read_header(path)[1]["progress"])
        progress["step"] = int(progress["step"])
    return progress


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Report a missing or wrong part of a checkpoint as damage."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); delete it to start the training again") from error


def load_checkpoint(path: Path, parts: Sequence[Trained]) -> dict[str, Any]:
    """Restore a checkpoint and return its ``progress``.

    Raises:
        ArtifactError: the file is damaged or belongs to other models.
    """
    with explain_damage(path):
        tensors, notes = read_file(path)
        progress: dict[str, Any] = json.loads(notes["progress"])
        wanted = {
            f"{name}/model.{key}" for name, model, _ in parts for key, p in model.named_parameters() if p.requires_grad
        }
        if wanted != {name for name in tensors if name.partition("/")[2].startswith("model.")}:
            raise ArtifactError(f"{path} belongs to another model or recipe; delete it to start the training again")
        for name, model, optimizer in parts:
            state = {key.removeprefix(f"{name}/"): one for key, one in tensors.items() if key.startswith(f"{name}/")}
            _restore(model, optimizer, state, progress["optimizer_plain"][name])
    return {key: value for key, value in progress.items() if key != "optimizer_plain"}


def _restore(
    model: Network,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, torch.Tensor],
    plain: dict[str, dict[str, float]],
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(tensors[f"model.{name}"])
        for name, buffer in _buffers(model).items():
            buffer.copy_(tensors[f"buffer.{name}"])
    model.train()  # these weights are not those of a file, so a ConveRT has to round them
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        kind, index, *rest = name.split(".", 2)
        if kind == "optimizer":
            state.setdefault(int(index), {})[rest[0]] = tensor
    for number, values in plain.items():
        state.setdefault(int(number), {}).update(values)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
