"""Checkpoints: everything that it takes to go on as if nothing had happened, in one atomic safetensors file.

Randomness needs no state here: batch order, negatives and dropout are pure functions of (seed, epoch, position, step).
"""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from polyrank.durable import write_file
from polyrank.errors import ArtifactError
from polyrank.models import Model


def save_checkpoint(path: Path, model: Model, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Write what training changes (weights, buffers, the optimiser's tensors) and ``progress`` over any earlier one."""
    tensors = {f"model.{n}": p.detach().cpu() for n, p in model.named_parameters() if p.requires_grad}
    tensors |= {f"buffer.{name}": buffer.cpu() for name, buffer in _buffers(model).items()}
    plain: dict[str, dict[str, float]] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value.detach().cpu()
            else:
                plain.setdefault(str(index), {})[name] = value
    header = {"progress": json.dumps({**progress, "optimizer_plain": plain})}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_file(path, safetensors.torch.save(contiguous, header))


def _buffers(model: Model) -> dict[str, torch.Tensor]:
    """The buffers that belong to the model's state. A shared tower's second name is left out."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    named = dict(model.named_buffers())
    return {name: tensor for name, tensor in named.items() if name in model.state_dict() and name not in weights}


def load_checkpoint(path: Path, model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint back and return its ``progress``.

    Raises:
        ArtifactError: the file is damaged or of another model.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt") as stream:
            progress: dict[str, Any] = json.loads(stream.metadata()["progress"])
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  # no dict: has no __iter__
    except Exception as error:  # the library raises its own error for a bad header, OSError, KeyError, ValueError
        raise ArtifactError(f"{path} is damaged ({error}); delete it to start the training again") from error
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = {name.removeprefix("model.") for name in tensors if name.startswith("model.")}
    if found != set(trained):
        raise ArtifactError(f"{path} belongs to another model or recipe; delete it to start the training again")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(tensors[f"model.{name}"])
        for name, buffer in _buffers(model).items():
            if f"buffer.{name}" in tensors:  # earlier versions, whose buffers never changed, did not write them
                buffer.copy_(tensors[f"buffer.{name}"])
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        kind, index, *rest = name.split(".", 2)
        if kind == "optimizer":
            state.setdefault(int(index), {})[rest[0]] = tensor
    for number, values in progress.pop("optimizer_plain").items():
        state.setdefault(int(number), {}).update(values)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return progress
