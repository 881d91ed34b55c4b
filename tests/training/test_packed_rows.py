"""Trainings on devices compute real tokens only, or groups of similar length: the same vectors and gradients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyrank.devices.varlen import varlen_attention, varlen_kernel
from polyrank.models.backbone import GROUP_PADDING, Backbone, load_backbone
from polyrank.models.bert import BertModel
from polyrank.models.packing import PackedAttention, Packing
from polyrank.text import Tokens, pad
from polyrank.text.tokens import like_lengths
from simulated import DEVICE, SimulatedDevice
from varlen_kernels import varlen_kernels

LENGTHS = [1 + 37 * i % 60 for i in range(75)]
ROWS = [[5 + (i * j) % 50 for j in range(n)] for i, n in enumerate(LENGTHS)]
SEGMENTS = [[int(j > n // 2) for j in range(n)] for n in LENGTHS]
N_DRAWS = 400


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


@pytest.fixture
def counted() -> Iterator[list[int]]:
    """The number of rows of each call of a linear layer."""
    rows: list[int] = []
    counter = nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: rows.append(inputs[0].shape[:-1].numel()) if isinstance(module, nn.Linear) else None
    )
    yield rows
    counter.remove()


def assert_like_the_cpus(backbone: Backbone, tokens: Tokens) -> None:
    """On the device, outputs equal the CPU's to 1e-5 in fp32; they and the gradients to 1e-9 in fp64."""
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        expected, gradients = outputs_and_gradients(backbone.to("cpu", dtype).train(), tokens)
        backbone.to("cuda")
        found, others = outputs_and_gradients(backbone, tokens.to(torch.device("cuda")))
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)
        assert others.keys() == gradients.keys() != set()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.deep
@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_attention_without_padding_equals_the_cpus(
    kernel: str,
    tiny_backbone: Path,
    device: SimulatedDevice,
    counted: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone, tokens = own(tiny_backbone), pad([*ROWS, []], [*SEGMENTS, []])
    with varlen_kernels(monkeypatch, kernel) as attended:
        assert_like_the_cpus(backbone, tokens)
        assert {*attended} == {sum(LENGTHS)}
        there = tokens.to(torch.device("cuda"))
        before = device.waits.total()
        counted.clear()
        backbone(there)
        assert device.waits.total() == before
        assert {*counted} == {sum(LENGTHS)}


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_attention_without_padding_has_its_own_dropout(
    kernel: str, tiny_backbone: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the other dropouts at 0, two passes differ in training as soon as attention has a dropout."""
    backbone, tokens = own(tiny_backbone).to("cuda").train(), pad(ROWS[:9], SEGMENTS[:9]).to(torch.device("cuda"))
    attentions: Any = [layer.attention.self for layer in backbone.layers()]  # type: ignore[union-attr]
    with varlen_kernels(monkeypatch, kernel) as attended:
        for number, attention in enumerate(attentions):
            for share in (0.0, 0.5):
                attention.dropout.p = share
                one, other = backbone(tokens).cpu(), backbone(tokens).cpu()
                assert torch.equal(one, other) == (share == 0.0), (number, share)
            attention.dropout.p = 0.0
    assert attended


@pytest.mark.deep
@pytest.mark.parametrize("make", [own, foreign])
def test_groups_of_similar_length_equal_the_cpus(
    make: Any, tiny_backbone: Path, device: SimulatedDevice, counted: list[int]
) -> None:
    backbone, tokens = make(tiny_backbone), pad(ROWS, SEGMENTS)
    assert_like_the_cpus(backbone, tokens)
    there = tokens.to(torch.device("cuda"))
    before = device.waits.total()
    counted.clear()
    backbone(there)
    if make is own:
        assert device.waits.total() == before
    groups = like_lengths(LENGTHS, GROUP_PADDING)
    sizes = {len(group) * LENGTHS[group[0]] for group in groups}
    assert {*counted} == sizes
    assert sum(sizes) <= sum(LENGTHS) + GROUP_PADDING * len(groups) < 0.7 * tokens.ids.numel()


@pytest.mark.deep
def test_attention_weights_are_dropped_in_training_only(
    tiny_backbone: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of many draws approaches the outputs without dropout, and a seed repeats them."""
    network = own(tiny_backbone).network
    assert isinstance(network, BertModel)
    layer = network.encoder.layer[0].attention.self
    layer.dropout.p = 0.3
    hidden, lengths = torch.randn(9, layer.query.in_features), np.array([4, 5])
    mask = torch.arange(5) < torch.tensor([[4], [5]])
    with varlen_kernels(monkeypatch), torch.no_grad():
        packed = PackedAttention.of(mask, lengths, "flash")
        expected = layer.eval()(hidden, None, packed)
        torch.manual_seed(1)
        draws = torch.stack([layer.train()(hidden, None, packed) for _ in range(N_DRAWS)])
        torch.manual_seed(1)
        assert torch.equal(layer(hidden, None, packed), draws[0])
    assert draws.std(0).min() > 0
    torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=5 * float(draws.std(0).max()) / N_DRAWS**0.5)


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_torchs_operators_accept_the_arguments(kernel: Any) -> None:
    """Their shapes, and the derivative of one, on the device without data, where torch lacks the other's."""
    heads = [torch.ones(9, 4, 8, device="meta", requires_grad=True) for _ in range(3)]
    starts = torch.zeros(3, dtype=torch.int32, device="meta")
    attended = varlen_attention(kernel, *heads, starts, 5, dropout=0.1, scale=0.5)
    assert attended.shape == (9, 4, 8)
    if kernel == "flash":
        gradients = torch.autograd.grad(attended.sum(), heads)
        assert [each.shape for each in gradients] == 3 * [(9, 4, 8)]


def test_a_kernel_is_used_where_torch_reports_it(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, there = torch.ones(2), torch.ones(2, device="cuda")
    assert varlen_kernel(there, 64) is None  # torch's CPU build has none
    asked: list[Any] = []

    def reports(name: str, *types: torch.dtype) -> None:
        def can_use(question: Any) -> bool:
            heads = question.query, question.key, question.value
            assert [(each.device, each.dtype, each.shape) for each in heads] == 3 * [
                (DEVICE, question.query.dtype, (1, 1, 8, question.query.shape[-1]))
            ]
            assert (question.attn_mask, question.is_causal, question.enable_gqa) == (None, False, False)
            asked.append((question.query.dtype, question.query.shape[-1], question.dropout))
            return question.query.dtype in types

        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", can_use)

    reports("flash", torch.bfloat16, torch.float16)
    reports("efficient", torch.float32)
    assert varlen_kernel(there, 64) == "efficient"
    assert asked == 2 * [(torch.float32, 64, 0.0)]
    assert varlen_kernel(there.bfloat16(), 64) == "flash"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with torch.autocast("cuda", torch.bfloat16):
        assert varlen_kernel(there, 64) == "flash"
    assert varlen_kernel(there.double(), 64) is None
    assert [varlen_kernel(there, size) for size in (12, 136)] == [None, None]
    assert varlen_kernel(on_cpu, 64) is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert varlen_kernel(there, 64) is None


def test_nothing_is_packed_in_inference_or_without_padding(
    tiny_backbone: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = own(tiny_backbone).to("cuda")
    full = pad([[5, 6], [7, 8]]).to(torch.device("cuda"))
    padded = pad([[5, 6], [7]]).to(torch.device("cuda"))
    seen: list[int] = []
    backbone.network.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dim()))  # type: ignore[union-attr,index]
    with varlen_kernels(monkeypatch):
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
