"""Trainings on devices compute real tokens only, or groups of similar length: the same vectors and gradients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyrank.models.backbone import DEVICE_GROUP, Backbone, load_backbone
from polyrank.models.packing import Packing
from polyrank.text import Tokens, pad
from simulated import SimulatedDevice

LENGTHS = [1 + 37 * i % 60 for i in range(150)]
ROWS = [[5 + (i * j) % 50 for j in range(n)] for i, n in enumerate(LENGTHS)]
SEGMENTS = [[int(j > n // 2) for j in range(n)] for n in LENGTHS]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with SimulatedDevice() as simulated:
        yield simulated


def own(folder: Path) -> Backbone:
    return load_backbone(folder, dropout=0.0)


def foreign(folder: Path) -> Backbone:
    from transformers import DistilBertConfig, DistilBertModel

    del folder
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=60, dim=16, n_heads=2, n_layers=2, hidden_dim=32, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    return Backbone(DistilBertModel(config))


def outputs_and_gradients(backbone: Backbone, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of real tokens, and gradients of a random function of them."""
    backbone.zero_grad()
    outputs = backbone(tokens)
    real = outputs * tokens.mask[:, :, None]
    weights = torch.randn(real.shape, generator=torch.Generator().manual_seed(1)).to(tokens.ids.device)
    (real * weights).sum().backward()
    found = {name: p.grad.cpu().clone() for name, p in backbone.named_parameters() if p.grad is not None}
    return real.detach().cpu(), found


@pytest.mark.parametrize("make", [own, foreign])
def test_outputs_and_gradients_equal_the_cpus(make: Any, tiny_backbone: Path, device: SimulatedDevice) -> None:
    backbone, tokens = make(tiny_backbone), pad(ROWS, SEGMENTS)
    assert tokens.ids.numel() > 2 * DEVICE_GROUP
    rows: list[int] = []
    for module in backbone.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[:-1].numel()))
    expected, gradients = outputs_and_gradients(backbone.train(), tokens)
    assert {*rows} == {tokens.ids.numel()}
    rows.clear()
    backbone.to("cuda")
    before = device.waits.total()
    backbone(tokens.to(torch.device("cuda")))
    if make is own:
        assert device.waits.total() == before
    rows.clear()
    found, others = outputs_and_gradients(backbone, tokens.to(torch.device("cuda")))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert others.keys() == gradients.keys() != set()
    for name, gradient in gradients.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(others[name], gradient, rtol=1e-5, atol=1e-5 * max(scale, 1.0), msg=name)
    if make is own:
        assert {*rows} == {sum(LENGTHS)}
    else:
        assert max(rows) <= DEVICE_GROUP
        n_layers = len(rows) / len({*rows})
        assert sum(rows) / n_layers < 0.8 * tokens.ids.numel()


def test_nothing_is_packed_in_inference_or_without_padding(tiny_backbone: Path, device: SimulatedDevice) -> None:
    backbone = own(tiny_backbone).to("cuda")
    full = pad([[5, 6], [7, 8]]).to(torch.device("cuda"))
    padded = pad([[5, 6], [7]]).to(torch.device("cuda"))
    seen: list[int] = []
    backbone.network.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dim()))  # type: ignore[union-attr,index]
    backbone.train()(full)
    backbone.eval()(padded)
    backbone.train()(padded)
    assert seen == [3, 3, 2]


def test_positions_from_the_hosts_lengths_are_those_of_the_mask() -> None:
    tokens = pad([[1, 2, 3], [4], [5, 6]])
    assert tokens.lengths is not None
    one, other = Packing.of(tokens.mask), Packing.of(tokens.mask, tokens.lengths)
    assert torch.equal(one.positions, other.positions)
    assert other.pack(tokens.ids).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(other.pad(other.pack(tokens.ids[:, :, None]))[:, :, 0], tokens.ids)
    assert np.array_equal(other.mask, tokens.mask)
