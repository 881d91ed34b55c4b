"""ConveRT's files have the paper's sizes, and training rounds weights like the file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from convert_models import ABLATIONS, BATCH, CONTEXTS, OTHERS, REPLIES, make, step_of
from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.models import Convert
from polyrank.models.artifacts import load_model, read_sizes, save_model
from polyrank.models.convert import build_convert
from polyrank.models.convert.quantization import (
    Linear,
    Norm,
    Rounding,
    SubwordEmbedding,
    Table,
    from_eight_bits,
    grid,
    to_eight_bits,
)
from polyrank.negatives.random import GivenNegatives
from polyrank.text import ConvertSubwords, ConvertTexts
from polyrank.training import InBatchStep, ListwiseStep
from polyrank.training.checkpoints import load_checkpoint, save_checkpoint
from train_settings import loss_of


def paper(**changes: Any) -> tuple[Convert, ConvertTexts, ConvertConfig]:
    """A ConveRT with the paper's sizes and number of subwords."""
    config = ConvertConfig(**changes)
    model = build_convert(config, 31_476 + 1_000)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
        model.scale.fill_(1.0)
        if config.quantization != "none":
            model.subwords.seen.copy_(torch.tensor([0.0, 1.0]))
    subwords = ConvertSubwords([f"w{i}" for i in range(31_476)])
    return model, ConvertTexts(subwords, ConvertText(), config.multi_context), config


def test_parameters_at_the_papers_sizes() -> None:
    """Table 2 counts 16 M parameters of embeddings and 13 M of the network, meaning the shared layers."""
    counts = {name: p.numel() for name, p in paper()[0].named_parameters()}
    assert counts.pop("subwords.weight") == 32_476 * 512  # 16.6 M
    layers = sum(n for name, n in counts.items() if name.startswith("layers."))
    per_layer = 2 * 512 * 64 + (512 * 2048 + 2048) + (2048 * 512 + 512) + 4 * 512
    biases = sum(2 * span + 1 for span in (3, 5, 48, 48, 48, 48))
    assert layers == 6 * per_layer + biases
    assert round(layers / 1e6) == 13
    side = 3 * (1024 * 1024 + 1024) + 3 * 2 * 1024 + (1024 * 512 + 512)
    assert sum(counts.values()) == layers + (47 + 11) * 512 + 2 * 512 * 2 * 64 + 2 * side


@pytest.mark.parametrize(("multi", "megabytes"), [(False, 59), (True, 73)])
def test_files_have_the_papers_sizes(tmp_path: Path, multi: bool, megabytes: int) -> None:
    model, texts, config = paper(multi_context=multi)
    save_model(tmp_path / "m", model, texts, config)
    sizes = read_sizes(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    assert tensors["subwords.weight"].dtype == torch.int8
    assert {
        t.dtype for name, t in tensors.items() if name.endswith((".weight", ".bias")) and "subwords" not in name
    } == {torch.float16}
    n_buffers = 1 + 2  # the scale, and the range of the embeddings
    assert sum(part.n_parameters for part in sizes) == sum(p.numel() for p in model.parameters()) + n_buffers
    n_bytes = sum(part.n_bytes for part in sizes)
    assert n_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    written = (tmp_path / "m" / "model.safetensors").stat().st_size
    assert 0 <= written - n_bytes < 20_000  # the header
    assert written / 1e6 == pytest.approx(megabytes, rel=0.03)
    assert 4 * sum(part.n_parameters for part in sizes) > 1.9 * n_bytes


def test_eight_bits_cover_all_values_so_far_with_a_margin() -> None:
    seen = torch.tensor([-1.0, 3.0])
    low, step = grid(seen)
    assert float(low) == pytest.approx(-1.4)
    assert float(low + 255 * step) == pytest.approx(3.4)
    low, step = grid(torch.tensor([0.0, 0.02]))
    assert float(low) == pytest.approx(-0.01)
    values = torch.linspace(-1.4, 3.4, 999)
    codes = to_eight_bits(values, seen)
    assert codes.dtype == torch.int8
    assert (codes.min(), codes.max()) == (-128, 127)
    assert float((from_eight_bits(codes, seen) - values).abs().max()) <= float(grid(seen)[1]) / 2 + 1e-6
    assert torch.equal(to_eight_bits(from_eight_bits(codes, seen), seen), codes)


def test_the_range_grows_now_and_then_and_never_shrinks() -> None:
    model, texts, _ = make()
    start = model.subwords.seen.clone()
    step = step_of(model, texts, range_steps=2)
    with torch.no_grad():
        model.subwords.weight[0, 0] = 9.0
        loss_of(step, BATCH, 0, 1)
        assert torch.equal(model.subwords.seen, start)
        loss_of(step, BATCH, 0, 2)
        assert model.subwords.seen[1] == 9.0
        model.subwords.weight[0, 0] = 0.0
        loss_of(step, BATCH, 0, 4)
        assert model.subwords.seen[1] == 9.0


def test_the_range_grows_in_every_training_and_in_training_only() -> None:
    device = torch.device("cpu")
    for kind in ("lists", "batch"):
        model, texts, _ = make()
        lists = ListwiseStep(model, texts, device, GivenNegatives(9, 1))
        step: Any = lists if kind == "lists" else InBatchStep(model, texts, device)
        with torch.no_grad():
            model.subwords.weight[0, 0] = 9.0
            model.eval()
            lists.values(lists.prepare(BATCH, 0))
            assert model.subwords.seen[1] < 9.0
            model.train()
            loss_of(step, BATCH)
            assert model.subwords.seen[1] == 9.0


def test_gradients_go_straight_through_the_rounding() -> None:
    model, _, _ = make()
    ids = torch.tensor([1, 2, 2])
    model.train()
    model.subwords(ids).sum().backward()
    assert model.subwords.weight.grad is not None
    assert model.subwords.weight.grad[:3, 0].tolist() == [0.0, 1.0, 2.0]
    with torch.no_grad():
        used = model.subwords(ids)
    assert not torch.equal(used, model.subwords.weight[ids])
    assert len(torch.unique(model.subwords(torch.arange(len(model.subwords.weight))))) <= 256


@pytest.mark.parametrize("name", [*OTHERS, "A multi-head", "B no relative bias"])
def test_saved_scores_are_the_quantized_forward_of_training(tmp_path: Path, name: str) -> None:
    model, texts, config = make(**{**ABLATIONS, **OTHERS}[name][0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    step = step_of(model, texts)
    for number in range(3):
        loss_of(step, BATCH, 0, number).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    model.train()  # without dropout this is the forward pass of training
    with torch.no_grad():
        h, _ = model.encode_contexts(texts.contexts(CONTEXTS))
        y = model.encode_candidates(texts.candidates(REPLIES))
    save_model(tmp_path / "m", model, texts, config)
    found = load_model(tmp_path / "m")
    assert isinstance(found.model, Convert)
    assert isinstance(found.texts, ConvertTexts)
    with torch.inference_mode():
        assert torch.equal(found.model.encode_contexts(found.texts.contexts(CONTEXTS))[0], h)
        assert torch.equal(found.model.encode_candidates(found.texts.candidates(REPLIES)), y)
    assert save_model(tmp_path / "again", found.model, found.texts, found.config) == found.fingerprint


def test_quantization_changes_scores_slightly() -> None:
    exact, rounded = (make(quantization=kind)[0].eval() for kind in ("none", "float16"))
    texts = make()[1]
    with torch.inference_mode():
        a, b = (m.encode_candidates(texts.candidates(REPLIES)) for m in (exact, rounded))
    assert not torch.equal(a, b)
    assert float((a * b).sum(1).min()) > 0.99


@pytest.mark.parametrize(
    ("low", "high", "room"),
    [
        (-1.0, 3.0, 0.4),  # 10% of 4
        (0.0, 0.2, 0.02),
        (0.0, 0.1, 0.01),  # 10% equals the minimal margin
        (0.0, 0.05, 0.01),
        (-0.02, -0.02, 0.01),
        (0.0, 0.0, 0.01),
    ],
)
def test_the_range_has_a_margin_of_a_tenth_or_a_hundredth(low: float, high: float, room: float) -> None:
    start, step = (float(value) for value in grid(torch.tensor([low, high])))
    assert start == pytest.approx(low - room, abs=1e-7)
    assert start + 255 * step == pytest.approx(high + room, abs=1e-6)


def test_eight_bits_by_hand() -> None:
    """From -1.5 to 24 in steps of a tenth: the nearest step; values outside map to the ends."""
    seen = torch.tensor([-1.5 + 2.125, 24 - 2.125])  # with 10% of 21.25 on both sides
    low, step = grid(seen)
    assert (float(low), float(step)) == (pytest.approx(-1.5), pytest.approx(0.1))
    values = torch.tensor([-1.5, -1.46, -1.44, 0.0, 11.3, 11.34, 11.36, 23.96, 24.0, -9.0, 99.0])
    wanted = [0, 0, 1, 15, 128, 128, 129, 255, 255, 0, 255]
    codes = to_eight_bits(values, seen)
    assert codes.tolist() == [number - 128 for number in wanted]
    assert codes.dtype == torch.int8
    torch.testing.assert_close(from_eight_bits(codes, seen), torch.tensor([-1.5 + 0.1 * n for n in wanted]))
    ends = from_eight_bits(torch.tensor([-128, 0, 127], dtype=torch.int8), seen)
    torch.testing.assert_close(ends, torch.tensor([-1.5, 11.3, 24.0]))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 10), (torch.bfloat16, 7)])
def test_other_weights_are_rounded_to_the_nearest_of_sixteen_bits(dtype: torch.dtype, digits: int) -> None:
    """Binary fractions between 1 and 2: ties go to the even neighbour."""
    unit = 2.0**-digits
    values = torch.tensor([1 + 0.4 * unit, 1 + 0.6 * unit, 1 + 0.5 * unit, 1 + 1.5 * unit, -1 - 0.6 * unit, 0.1])
    table = Table(1, 6, dtype)
    with torch.no_grad():
        table.weight[0] = values
    found = table(torch.tensor([0])).detach()[0]
    assert found.dtype == torch.float32
    assert found[:5].tolist() == [1.0, 1 + unit, 1.0, 1 + 2 * unit, -1 - unit]
    assert 0 < abs(float(found[5]) - 0.1) < 0.1 * unit


def rounded_parts(dtype: torch.dtype | None) -> list[tuple[str, Rounding, torch.Tensor]]:
    """One module of each kind with weights that 16 bits cannot represent, and an input for it."""
    torch.manual_seed(0)
    linear, norm, table, embedding = (
        Linear(4, 3, dtype),
        Norm(4, dtype),
        Table(5, 4, dtype),
        SubwordEmbedding(6, 4, dtype),
    )
    with torch.no_grad():
        for module in (linear, norm, table, embedding):
            for parameter in module.parameters():
                parameter.copy_(torch.rand(parameter.shape) + 0.1)
    embedding.update_range()
    x, places = torch.randn(2, 4), torch.tensor([4, 1, 4])
    return [("linear", linear, x), ("norm", norm, x), ("table", table, places), ("embedding", embedding, places)]


@pytest.mark.parametrize("number", range(4))
def test_a_module_rounds_weights_that_are_off_the_grid(number: int) -> None:
    name, module, x = rounded_parts(torch.float16)[number]
    with torch.no_grad():
        for _ in range(2):
            before = {key: parameter.clone() for key, parameter in module.named_parameters()}
            if name == "embedding":
                by_hand = {"weight": from_eight_bits(to_eight_bits(before["weight"], module.seen), module.seen)}  # type: ignore[arg-type]
            else:
                by_hand = {key: weight.half().float() for key, weight in before.items()}
            with_rounding = module(x)
            for key, parameter in module.named_parameters():
                assert torch.equal(parameter, before[key])  # trained weights are not changed
            plain = rounded_parts(None)[number][1]
            plain.load_state_dict(by_hand)
            assert torch.equal(with_rounding, plain(x))
            plain.load_state_dict(before)
            exact = plain(x)
            assert not torch.equal(with_rounding, exact)
            module.on_grid = True
            assert torch.equal(module(x), exact)  # weights from a file are used unchanged
            module.eval()
            assert torch.equal(module(x), exact)
            module.train()
            assert torch.equal(module(x), with_rounding)  # after an update they may be off the grid
            module.eval()
            assert torch.equal(module(x), with_rounding)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize("number", range(4))
def test_gradients_are_computed_with_rounded_weights(number: int, dtype: torch.dtype | None) -> None:
    """As if the rounded weights were the parameters: rounding itself is not differentiated."""
    name, module, x = rounded_parts(dtype)[number]
    plain = rounded_parts(None)[number][1]
    with torch.no_grad():
        for (_, parameter), (_, other) in zip(module.named_parameters(), plain.named_parameters(), strict=True):
            if dtype is not None and name == "embedding":
                seen: Any = module.seen
                other.copy_(from_eight_bits(to_eight_bits(parameter, seen), seen))
            else:
                other.copy_(parameter if dtype is None else parameter.to(dtype).float())
    for one in (module, plain):
        one.train()
        (one(x).square().sum() + one(x).sum()).backward()
    for (_, parameter), (_, other) in zip(module.named_parameters(), plain.named_parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
        torch.testing.assert_close(parameter.grad, other.grad)


def test_positions_beyond_a_tables_last_row_start_again() -> None:
    table = Table(3, 2, None)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    assert table(torch.tensor([0, 2, 3, 7])).tolist() == [[0, 1], [4, 5], [0, 1], [2, 3]]


def test_the_range_contains_zero_and_all_earlier_values() -> None:
    embedding = SubwordEmbedding(2, 2, torch.float16)
    assert embedding.seen.tolist() == [0, 0]
    for values, range_ in (
        ([[1.0, 2.0], [0.5, 1.0]], [0, 2]),
        ([[-3.0, 0.0], [0.5, 1.0]], [-3, 2]),
        ([[-1.0, 0.0], [0.5, 1.5]], [-3, 2]),
        ([[-1.0, 0.0], [0.5, 4.0]], [-3, 4]),
    ):
        with torch.no_grad():
            embedding.weight.copy_(torch.tensor(values))
        embedding.update_range()
        assert embedding.seen.tolist() == range_
    assert "seen" in embedding.state_dict()
    exact = SubwordEmbedding(2, 2, None)
    exact.update_range()
    assert "seen" not in exact.state_dict()


def test_a_norm_is_computed_in_fp32() -> None:
    norm = Norm(4, None)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.0, 1.0, -1.0]))
    found = norm(torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    deviation = (3.5 + 1e-5) ** 0.5  # of -2, -1, 0 and 3
    wanted = [[-2 / deviation, -2 / deviation, 1.0, 12 / deviation - 1]]
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_restored_weights_are_rounded_though_the_network_was_read_from_a_file(tmp_path: Path) -> None:
    trained, texts, config = paper(embedding_dim=16, attention_dim=8, ffn_dim=16, side_dim=16, output_dim=16)
    save_model(tmp_path / "m", trained, texts, config)
    model = load_model(tmp_path / "m").model
    assert all(module.on_grid for module in model.modules() if isinstance(module, Rounding))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    save_checkpoint(tmp_path / "c", [("one", model, optimizer)], {"learners": {}})
    load_checkpoint(tmp_path / "c", [("one", model, optimizer)])
    assert not any(module.on_grid for module in model.eval().modules() if isinstance(module, Rounding))
