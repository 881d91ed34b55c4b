"""Computations on a simulated device: no mixed devices, few waits, and the CPU's results."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from convert_models import make
from polyrank.config.training import NetworkTraining
from polyrank.search import search
from polyrank.search.ways import WAYS
from polyrank.training import train
from polyrank.training.optimizer import make_optimizer
from simulated import DEVICE, MAC, SimulatedDevice
from test_ranks import KINDS, curve, recipe


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """A simulated device that ``choose_device("cuda")`` returns."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    # optimizers of torch's CUDA build ask the driver, which is not there
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
    with SimulatedDevice() as simulated:
        yield simulated


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """A simulated Apple GPU, which "auto" chooses."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    monkeypatch.setattr(torch.mps, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", torch.set_rng_state)
    with SimulatedDevice(MAC) as simulated:
        yield simulated


def test_mixed_devices_are_refused_and_waits_counted(device: SimulatedDevice) -> None:
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    assert there.device == (2 * there + 1).device == DEVICE
    assert here.device.type == "cpu"
    with pytest.raises(RuntimeError, match="mixes devices"):
        here + there
    with pytest.raises(RuntimeError, match="mixes devices"):
        torch.stack([here, there])
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there + torch.tensor(1.0)).device == DEVICE  # a host scalar is allowed
    assert not device.waits
    assert float(there.sum()) == 3.0
    assert there.cpu().tolist() == [1.0, 1.0, 1.0]
    assert sum(device.waits.values()) == 2
    layer = torch.nn.Linear(3, 2).to("cuda")
    loss = layer(there).square().sum()
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == DEVICE


@pytest.mark.parametrize("n_vectors", [1, 4, 40])
def test_a_search_on_a_device(n_vectors: int, device: SimulatedDevice) -> None:
    generator = np.random.default_rng(n_vectors)
    contexts = generator.normal(size=(3, n_vectors, 16)).astype(np.float32) * 0.1 + 1
    vectors = generator.normal(size=(5000, 16)).astype(np.float32)
    block = SimpleNamespace(vectors=vectors, rows=np.arange(5000), alive=None)
    mask = np.ones((3, n_vectors), np.bool_)
    for ways in ([name for name in WAYS if name == "plain" or name.endswith("columns")], ["16 columns"], ["plain"]):
        on_device = search(contexts, mask, [block], 5, device="cuda", ways=ways)
        for one, other in zip(on_device, search(contexts, mask, [block], 5, ways=ways), strict=True):
            assert one.rows.tolist() == other.rows.tolist()
            assert one.scores.tolist() == other.scores.tolist()


QUEUE = "bi, queue and chunks"
# per step: loss and norm are read together; torch groups gradients by their real device, which counts as a wait
WAITS = {"mutual": 4, "distilled": 3, "bi, queue and chunks": 9, "convert": 12}


@pytest.mark.parametrize("name", ["poly", *(pytest.param(name, marks=pytest.mark.deep) for name in [*KINDS][1:])])
def test_a_training_on_a_device_equals_the_cpus(
    name: str,
    task: dict[str, Path],
    tiny_backbone: Path,
    tmp_path: Path,
    device: SimulatedDevice,
) -> None:
    """Losses equal bit for bit, and each step has at most the known number of waits for the device."""
    train(recipe("cross", task, tiny_backbone, tmp_path / "teacher", max_steps=1))
    waits = {}
    for place, n_steps in (("cpu", 5), ("cuda", 2), ("cuda", 5)):
        before = device.waits.total()
        folder = tmp_path / f"{place}{n_steps}"
        shutil.copytree(tmp_path / "teacher", folder / "teacher")
        train(recipe(name, task, tiny_backbone, folder / name, max_steps=n_steps, epochs=1), device=place)
        waits[place, n_steps] = device.waits.total() - before
    assert curve(tmp_path / "cuda5" / name) == curve(tmp_path / "cpu5" / name)
    assert waits["cpu", 5] == 0
    assert (waits["cuda", 5] - waits["cuda", 2]) / 3 <= WAITS.get(name, 2)


def test_adamw_is_fused_on_a_device_and_its_state_moves(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, device: SimulatedDevice
) -> None:
    """A training that moves from the device to the CPU and back has the CPU's losses, up to rounding."""
    for place, fused in (("cpu", None), ("cuda", True)):
        assert make_optimizer(make()[0].to(place), NetworkTraining()).defaults["fused"] is fused
    changes = {"optimizer": "adamw", "lr": 1e-3, "epochs": 1}
    train(recipe("poly", task, tiny_backbone, tmp_path / "cpu", max_steps=6, **changes), device="cpu")
    for place, n_steps in (("cuda", 4), ("cpu", 5), ("cuda", 6)):
        plan = recipe("poly", task, tiny_backbone, tmp_path / "moved", max_steps=n_steps, **changes)
        train(plan, device=place, resume=True)
    found, expected = dict(curve(tmp_path / "moved")), dict(curve(tmp_path / "cpu"))
    losses = [f" {step} " for step in range(1, 7)]
    assert [found[step] for step in losses] == pytest.approx([expected[step] for step in losses], rel=1e-6)
    train(recipe("poly", task, tiny_backbone, tmp_path / "whole", max_steps=6, **changes), device="cuda")
    for n_steps in (4, 6):
        plan = recipe("poly", task, tiny_backbone, tmp_path / "resumed", max_steps=n_steps, **changes)
        train(plan, device="cuda", resume=True)
    whole, resumed = (dict(curve(tmp_path / folder)) for folder in ("whole", "resumed"))
    assert [resumed[step] for step in losses] == [whole[step] for step in losses]


@pytest.mark.parametrize("name", [QUEUE, *(pytest.param(n, marks=pytest.mark.deep) for n in KINDS if n != QUEUE)])
def test_a_training_on_a_simulated_mac_equals_the_cpus(
    name: str, task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, mac: SimulatedDevice
) -> None:
    """ "auto" is fp32 on Apple's GPU; validation and mining run there as well."""
    with pytest.raises(TypeError, match="float64"):
        torch.ones(1, device="mps").double()
    train(recipe("cross", task, tiny_backbone, tmp_path / "teacher", max_steps=1), device="cpu")
    for place, precision in (("cpu", "fp32"), ("auto", "auto")):
        folder = tmp_path / place
        shutil.copytree(tmp_path / "teacher", folder / "teacher")
        changes = {"max_steps": 3, "epochs": 1, "precision": precision}
        train(recipe(name, task, tiny_backbone, folder / name, **changes), device=place)
        assert (mac.copies > 0) == (place == "auto")
    assert curve(tmp_path / "auto" / name) == curve(tmp_path / "cpu" / name)
