"""ConveRT's files have the papers' sizes, and rounding in training is rounding in the file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from convert_models import ABLATIONS, BATCH, CONTEXTS, OTHERS, REPLIES, make, step_of
from polyrank.config.models import ConvertConfig, ConvertText
from polyrank.models import Convert
from polyrank.models.artifacts import load_model, read_sizes, save_model
from polyrank.models.convert import empty_convert
from polyrank.models.convert.quantization import from_eight_bits, grid, to_eight_bits
from polyrank.text import ConvertSubwords, ConvertTexts


def paper(**changes: Any) -> tuple[Convert, ConvertTexts, ConvertConfig]:
    """At the paper's sizes, with as many rows as its vocabulary has."""
    config = ConvertConfig(**changes)
    model = empty_convert(config, 31_476 + 1_000)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
        model.scale.fill_(1.0)
        if config.quantization != "none":
            model.subwords.seen.copy_(torch.tensor([0.0, 1.0]))
    subwords = ConvertSubwords([f"w{i}" for i in range(31_476)])
    return model, ConvertTexts(subwords, ConvertText(), config.multi_context), config


def test_parameters_at_the_papers_sizes() -> None:
    """Table 2 counts 16 M parameters of embeddings and 13 M of the network, which is that of the shared layers."""
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
    assert sizes.n_parameters == sum(p.numel() for p in model.parameters()) + n_buffers
    assert sizes.n_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    written = (tmp_path / "m" / "model.safetensors").stat().st_size
    assert 0 <= written - sizes.n_bytes < 20_000  # the header
    assert written / 1e6 == pytest.approx(megabytes, rel=0.03)
    assert sizes.n_bytes_fp32 > 1.9 * sizes.n_bytes


def test_eight_bits_hold_all_values_so_far_with_room() -> None:
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
        step(BATCH, 0, 1)
        assert torch.equal(model.subwords.seen, start)
        step(BATCH, 0, 2)
        assert model.subwords.seen[1] == 9.0
        model.subwords.weight[0, 0] = 0.0
        step(BATCH, 0, 4)
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
        step(BATCH, 0, number).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    model.train()  # no dropout here: this is the forward pass that training makes
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


def test_quantization_is_no_small_thing_and_no_large_one() -> None:
    exact, rounded = (make(quantization=kind)[0].eval() for kind in ("none", "float16"))
    texts = make()[1]
    with torch.inference_mode():
        a, b = (m.encode_candidates(texts.candidates(REPLIES)) for m in (exact, rounded))
    assert not torch.equal(a, b)
    assert float((a * b).sum(1).min()) > 0.99
