"""ConveRT: the network is its formula, rounding in training is rounding in the file, and runs repeat bit for bit."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from polyrank.artifacts import load_model, read_sizes, save_model
from polyrank.config import (
    CONVERT_TRAIN,
    BiConfig,
    ConvertConfig,
    ConvertText,
    DataConfig,
    Recipe,
    TextPolicy,
    TrainConfig,
    recipe_from_dict,
)
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError
from polyrank.inference import EncoderScorer, load_scorer, make_scorer
from polyrank.losses import cross_entropy
from polyrank.models import Convert, new_model
from polyrank.models.convert import empty_convert
from polyrank.models.convert.quantization import from_eight_bits, grid, to_eight_bits
from polyrank.records import Context, Example
from polyrank.text import ConvertSubwords, ConvertTexts, learn_subwords, pad
from polyrank.training import train
from polyrank.training.convert_step import ConvertStep, annealed_scale

CORPUS = ["my wifi is down", "the router light is red", "please restart it", "hello, did that help? thanks!"] * 3
TINY = ConvertConfig(
    embedding_dim=16,
    attention_dim=4,
    ffn_dim=24,
    spans=(1, 3, 48),
    position_periods=(5, 3),
    side_dim=20,
    output_dim=12,
    multi_context=True,
)
POLICY = ConvertText(min_count=3, n_buckets=4, max_earlier_tokens=20)
CONTEXTS = [
    Context(("hello", "my wifi is down, what should I do with the router?")),
    Context(("hi",)),
    Context(("the light is red", "did that help", "it is down")),
    Context(("thanks", "")),
]
REPLIES = ["please restart it", "thanks!", "is the light on the router red or did that help?", "", "猫"]
CPU = torch.device("cpu")
Array = NDArray[np.float64]

ABLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "A multi-head": ({"n_heads": 2}, {}),
    "B no relative bias": ({"relative_bias": False}, {}),
    "C equal spans": ({"spans": (48, 48, 48)}, {}),
    "D one bucket": ({}, {"n_buckets": 1}),
    "E one reduction": ({"reduction_heads": 1}, {}),
    "F no skips": ({"side_skips": False}, {}),
}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "mean": ({"combination": "mean"}, {}),
    "single": ({"multi_context": False}, {}),
    "fp32": ({"quantization": "none"}, {}),
    "bfloat16": ({"quantization": "bfloat16"}, {}),
    "no projection": ({"side_dim": 32, "output_dim": 32}, {}),
    "one layer": ({"spans": (2,), "side_layers": 1}, {}),
}


def make(seed: int = 1, policy: ConvertText = POLICY, **changes: Any) -> tuple[Convert, ConvertTexts, ConvertConfig]:
    config = dataclasses.replace(TINY, **changes)
    model, texts, resolved = new_model(config, policy, seed=seed, sample=(), corpus=CORPUS)
    assert isinstance(model, Convert)
    assert isinstance(texts, ConvertTexts)
    assert isinstance(resolved, ConvertConfig)
    with torch.no_grad():
        # biases and norms start at 0 and 1; elsewhere than that a mistake shows
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model, texts, resolved


class Formula:
    """The paper's network for one text, in float64, subword by subword where that is clearer."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: ConvertConfig) -> None:
        self.w = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        if config.quantization != "none":
            self.w["subwords.weight"] = from_eight_bits(tensors["subwords.weight"], tensors["subwords.seen"]).numpy()
        self.config = config

    def r(self, ids: list[int]) -> Array:
        c, w, n = self.config, self.w, len(ids)
        x = w["subwords.weight"][ids].astype(np.float64) * math.sqrt(c.embedding_dim)
        for table, period in enumerate(c.position_periods):
            x = x + w[f"positions.{table}.weight"][[place % period for place in range(n)]]
        for number, span in enumerate(c.spans):
            name = f"layers.{number}"
            queries, keys = x @ w[f"{name}.queries.weight"].T, x @ w[f"{name}.keys.weight"].T
            bias = w.get(f"{name}.bias.weight")
            attended = []
            for head in range(c.n_heads):
                part = slice(head * c.attention_dim, (head + 1) * c.attention_dim)
                a = np.zeros((n, n))
                for i in range(n):
                    near = [j for j in range(n) if abs(j - i) <= span]
                    dots = [queries[i, part] @ keys[j, part] / math.sqrt(c.attention_dim) for j in near]
                    if bias is not None:
                        dots = [dot + bias[j - i + span, head] for dot, j in zip(dots, near, strict=True)]
                    a[i, near] = np.exp(dots) / np.exp(dots).sum()
                values = x if c.n_heads == 1 else (x @ w[f"{name}.values.weight"].T)[:, part]
                attended.append(a @ values)
            y = attended[0] if c.n_heads == 1 else np.hstack(attended) @ w[f"{name}.output.weight"].T
            x = self.norm(x + y, f"{name}.attention_norm")
            x = self.norm(
                x + self.linear(gelu(self.linear(x, f"{name}.expand")), f"{name}.contract"), f"{name}.ffn_norm"
            )
        heads = []
        queries, keys = x @ w["reduction.queries.weight"].T, x @ w["reduction.keys.weight"].T
        for head in range(c.reduction_heads):
            part = slice(head * c.attention_dim, (head + 1) * c.attention_dim)
            dots = np.exp(queries[:, part] @ keys[:, part].T / math.sqrt(c.attention_dim))
            attended = (dots / dots.sum(1, keepdims=True)) @ x
            heads.append(attended.sum(0) / math.sqrt(n))
        return np.concatenate(heads)

    def side(self, r: Array, name: str) -> Array:
        x = r
        for number in range(self.config.side_layers):
            y = gelu(self.linear(x, f"{name}.layers.{number}"))
            if self.config.side_skips:
                y = y + (x if len(x) == len(y) else self.w[f"{name}.skip.weight"] @ x)
            x = self.norm(y, f"{name}.norms.{number}")
        h = self.linear(x, f"{name}.output")
        unit: Array = h / np.linalg.norm(h)
        return unit

    def context(self, immediate: list[int], earlier: list[int]) -> Array:
        h = self.side(self.r(immediate), "context_side")
        if not self.config.multi_context:
            return h
        mean = (h + self.side(self.r(earlier), "earlier_side")) / 2 if earlier else h
        if self.config.combination == "mean":
            unit: Array = mean / np.linalg.norm(mean)
            return unit
        return self.side(mean, "combined_side")

    def response(self, ids: list[int]) -> Array:
        return self.side(self.r(ids), "response_side")

    def linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]
        return y

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        y: Array = scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]
        return y


def gelu(x: Array) -> Array:
    return x / (1 + np.exp(-1.702 * x))


@pytest.mark.parametrize("name", [*ABLATIONS, *OTHERS])
def test_the_network_is_the_formula(name: str) -> None:
    changes, text = {**ABLATIONS, **OTHERS}[name]
    model, texts, config = make(policy=dataclasses.replace(POLICY, **text), **changes)
    formula = Formula(model.stored(), config)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    contexts, replies = CONTEXTS[:3], REPLIES[:3]
    vectors, mask = scorer.encode_contexts(contexts)
    assert vectors.shape == (3, 1, config.output_dim)
    assert mask.all()
    scale = math.sqrt(config.output_dim)
    wanted = [formula.context(texts.immediate_ids(c), texts.earlier_ids(c)) * scale for c in contexts]
    np.testing.assert_allclose(vectors[:, 0], wanted, atol=2e-5)
    wanted = [formula.response(texts.candidate_ids(reply)) for reply in replies]
    np.testing.assert_allclose(scorer.encode_candidates(replies), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["default", "A multi-head", "single", "mean"])
def test_neither_padding_nor_batch_mates_matter(name: str) -> None:
    model, texts, _ = make(**{**ABLATIONS, **OTHERS}[name][0])
    model.eval()
    rows = [texts.context_ids(context) for context in CONTEXTS]
    with torch.inference_mode():
        together = model.encode_contexts(pad(rows, pad_id=0))[0]
        for row, found in zip(rows, together, strict=True):
            torch.testing.assert_close(model.encode_contexts(pad([row], pad_id=0))[0][0], found, atol=1e-5, rtol=0)
        tokens = texts.candidates(REPLIES)
        wide = dataclasses.replace(
            tokens,
            ids=torch.nn.functional.pad(tokens.ids, (0, 9), value=3),
            mask=torch.nn.functional.pad(tokens.mask, (0, 9)),
            segments=torch.nn.functional.pad(tokens.segments, (0, 9)),
        )
        torch.testing.assert_close(model.encode_candidates(tokens), model.encode_candidates(wide), atol=1e-5, rtol=0)


def test_empty_texts_have_finite_vectors_of_length_one() -> None:
    model, texts, _ = make()
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    assert isinstance(scorer, EncoderScorer)
    np.testing.assert_allclose(np.linalg.norm(scorer.encode_candidates(["", "...", " \n"]), axis=1), 1, rtol=1e-5)
    vectors, _ = scorer.encode_contexts([Context(()), Context(("", "")), Context(("hi", ""))])
    np.testing.assert_allclose(np.linalg.norm(vectors[:, 0], axis=1), math.sqrt(12), rtol=1e-5)


def test_without_earlier_turns_the_immediate_context_decides() -> None:
    model, texts, _ = make()
    model.eval()
    found = model.context_encodings(texts.contexts([Context(("my wifi is down",)), Context(("hi", "my wifi is down"))]))
    assert found.has_earlier.tolist() == [False, True]
    torch.testing.assert_close(found.immediate[0], found.immediate[1])
    assert not found.earlier[0].any()
    assert model.combined_side is not None
    torch.testing.assert_close(found.both[0], model.combined_side(found.immediate[:1])[0])
    assert not torch.allclose(found.both[0], found.both[1])
    mean, texts, _ = make(combination="mean")
    found = mean.eval().context_encodings(texts.contexts([Context(("my wifi is down",))]))
    torch.testing.assert_close(found.both, found.immediate)


def test_equal_sides_start_from_the_likeness_of_words() -> None:
    config = dataclasses.replace(TINY, equal_sides=True, combination="mean")
    model, texts, _ = new_model(config, POLICY, seed=1, sample=(), corpus=CORPUS)
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    for reply in REPLIES[:3]:
        other = [text for text in REPLIES[:3] if text != reply]
        values = scorer.score([Context((reply,))], [[reply, *other]])[0]
        assert values[0] == pytest.approx(math.sqrt(12), rel=1e-5)
        assert values[0] > values[1:].max()


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_changes_the_network_and_trains(name: str) -> None:
    changes, text = ABLATIONS[name]
    policy = dataclasses.replace(POLICY, **text)
    whole, (model, texts, _) = make()[0], make(policy=policy, **changes)
    if name.startswith("C"):  # as many weights of layers, but more offsets
        assert model.layers[0].span != whole.layers[0].span
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (whole, model)]
    assert shapes[0] != shapes[1]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step = step_of(model, texts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for number in range(12):
        optimizer.zero_grad()
        loss = step(BATCH, 0, number)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(before)  # every weight has a gradient


BATCH = [
    (0, Example(("hello", "my wifi is down"), ("please restart it",), (0,))),
    (1, Example(("the light is red", "it is down"), ("did that help?",), (0,))),
    (2, Example(("thanks",), ("hello",), (0,))),
]


def step_of(model: Convert, texts: ConvertTexts, **changes: Any) -> ConvertStep:
    settings: dict[str, Any] = {"smoothing": 0.2, "scale_steps": 4, "loss_weights": (1.0, 1.0, 1.0), "range_steps": 2}
    return ConvertStep(model, texts, CPU, **{**settings, **changes})


def test_the_loss_is_the_papers() -> None:
    model, texts, _ = make()
    model.eval()
    examples = [e for _, e in BATCH]
    with torch.no_grad():
        found = model.context_encodings(texts.contexts([e.query for e in examples]))
        y = model.encode_candidates(texts.candidates([e.candidates[0] for e in examples])).double()

        def loss(h: torch.Tensor, rows: list[int], scale: float) -> float:
            total = 0.0
            for row in rows:
                s = [scale * float(h[row].double() @ y[j]) for j in range(3)]
                logs = [x - math.log(sum(map(math.exp, s))) for x in s]
                total -= 0.8 * logs[row] + 0.2 / 2 * sum(logs[j] for j in range(3) if j != row)
            return total / len(rows)

        final = math.sqrt(12)
        for number, scale in ((0, 1.0), (2, 1 + (final - 1) / 2), (9, final)):
            parts = [loss(found.immediate, [0, 1, 2], scale), loss(found.earlier, [0, 1], scale)]
            parts.append(loss(found.both, [0, 1, 2], scale))
            for weights in ((1.0, 1.0, 1.0), (0.5, 0.0, 2.0)):
                step = step_of(model, texts, loss_weights=weights)
                wanted = sum(weight * part for weight, part in zip(weights, parts, strict=True))
                assert float(step(BATCH, 0, number)) == pytest.approx(wanted, rel=1e-5)
    single, texts, _ = make(multi_context=False)
    rows = [0, 1, 2]
    with torch.no_grad():
        single.eval()
        found = single.context_encodings(texts.contexts([e.query for e in examples]))
        y = single.encode_candidates(texts.candidates([e.candidates[0] for e in examples])).double()
        assert float(step_of(single, texts)(BATCH, 0, 9)) == pytest.approx(loss(found.immediate, rows, final), rel=1e-5)


def test_equal_responses_are_no_negatives_and_given_ones_are() -> None:
    model, texts, _ = make()
    model.eval()
    twice = [BATCH[0], (1, Example(("no light",), ("please restart it",), (0,)))]
    with torch.no_grad():
        assert float(step_of(model, texts, smoothing=0.0)(twice, 0, 9)) == pytest.approx(0.0, abs=1e-6)
        given = [BATCH[0], (1, Example(("no light",), ("thanks!", "please restart it"), (1,)))]
        assert float(step_of(model, texts, smoothing=0.0)(given, 0, 9)) > 0.01


def test_smoothing_spreads_over_the_wrong_ones_only() -> None:
    scores, allowed = torch.tensor([[2.0, 0.0, -1.0]]), torch.ones(1, 3, dtype=torch.bool)
    logs = torch.log_softmax(scores, 1)[0]
    wanted = -(0.8 * logs[0] + 0.1 * logs[1] + 0.1 * logs[2])
    assert cross_entropy(scores, torch.tensor([0]), allowed, 0.2) == pytest.approx(float(wanted))


def test_the_scale_grows_in_a_line() -> None:
    values = [annealed_scale(n, 10_000, math.sqrt(512)) for n in (0, 5_000, 10_000, 10**6)]
    assert values == pytest.approx([1.0, (1 + math.sqrt(512)) / 2, math.sqrt(512), math.sqrt(512)])


# sizes


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


# rounding


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


# runs


def recipe(task: dict[str, Path], output: Path, **changes: Any) -> Recipe:
    model = dataclasses.replace(TINY, **changes.pop("model", {}))
    settings = {
        **CONVERT_TRAIN,
        "batch_size": 8,
        "epochs": 1,
        "optimizer": "adamw",
        "lr": 0.01,
        "scale_steps": 5,
        "range_steps": 3,
        "precision": "fp32",
        **changes,
    }
    return Recipe(
        model=model,
        text=POLICY,
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=TrainConfig(**settings),
        output=str(output),
    )


def curve(folder: Path) -> list[Any]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(r["step"], r.get("loss"), r.get("lr"), r.get("valid")) for r in records]


class CrashError(Exception):
    """Ends a run from its report, as a crash would."""


def crash_at(step: int) -> Callable[[int, dict[str, Any]], None]:
    def report(_: int, record: dict[str, Any]) -> None:
        if record["step"] == step:
            raise CrashError

    return report


@pytest.mark.parametrize("optimizer", ["adadelta", "adamw"])
def test_resumed_equals_uninterrupted(task: dict[str, Path], tmp_path: Path, optimizer: str) -> None:
    def plan(name: str) -> Recipe:
        return recipe(task, tmp_path / name, optimizer=optimizer, checkpoint_steps=2, dropout=0.1)

    train(plan("whole"), device="cpu")
    for step in (3, 7):
        with pytest.raises(CrashError):
            train(plan("broken"), device="cpu", resume=True, report=crash_at(step))
    train(plan("broken"), device="cpu", resume=True)
    assert curve(tmp_path / "broken") == curve(tmp_path / "whole")
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]


def test_a_trained_model_scores_as_its_last_validation_said(task: dict[str, Path], tmp_path: Path) -> None:
    result = train(recipe(task, tmp_path / "run", epochs=4), device="cpu")[0]
    assert result.fit.best["R@1"] > 2 / 12  # chance is 1/12
    scorer = load_scorer(result.model, device="cpu", precision="fp32")
    valid = read_examples(task["valid"]).examples
    lists = scorer.score([e.query for e in valid], [e.candidates for e in valid])
    hits = [int(np.argmax(values)) == e.relevant[0] for values, e in zip(lists, valid, strict=True)]
    assert np.mean(hits) == pytest.approx(result.fit.best["R@1"])


def test_fine_tuning_starts_from_weights_and_vocabulary(task: dict[str, Path], tmp_path: Path) -> None:
    first = train(recipe(task, tmp_path / "first"), device="cpu")[0]
    start = str(first.model)
    second = train(
        recipe(task, tmp_path / "second", init_from=start, max_steps=1, lr=1e-9, scale_steps=0), device="cpu"
    )
    made, before = load_model(second[0].model), load_model(first.model)
    assert made.texts.subwords.to_bytes() == before.texts.subwords.to_bytes()
    for name, tensor in before.model.named_parameters():
        torch.testing.assert_close(dict(made.model.named_parameters())[name], tensor, atol=1e-3, rtol=1e-2)


def test_the_papers_training_is_the_default() -> None:
    plan = recipe_from_dict({"model": {"kind": "convert"}, "data": {"train": "x"}, "output": "y"})
    assert plan.train.optimizer == "adadelta"
    assert (plan.train.lr, plan.train.final_lr, plan.train.batch_size) == (1.0, 0.001, 512)
    assert plan.train.smoothing == 0.2
    assert plan.train.clip_embeddings_norm == 1.0
    assert plan.model == ConvertConfig()


# bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim = 0"),
        ({"spans": ()}, "spans"),
        ({"spans": (3, 0)}, "spans"),
        ({"position_periods": ()}, "position_periods"),
        ({"reduction_heads": 0}, "reduction_heads = 0"),
        ({"dropout": 1.5}, "dropout = 1.5"),
    ],
)
def test_impossible_sizes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_weights": (1.0, 1.0)}, "loss_weights"),
        ({"loss_weights": (1.0, -1.0, 1.0)}, "loss_weights"),
        ({"range_steps": 0}, "range_steps = 0"),
        ({"smoothing": 1.5}, "smoothing = 1.5"),
        ({"train_layers": "top-9"}, "top-9"),
        ({"init_from": "nowhere"}, "nowhere"),
    ],
)
def test_impossible_trainings_are_named(
    task: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ArtifactError), match=message):
        train(recipe(task, tmp_path / "run", **changes), device="cpu")


def test_text_settings_of_another_kind_are_refused(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="ConvertText"):
        new_model(TINY, TextPolicy(), seed=1, sample=())
    with pytest.raises(ConfigError, match="ConveRT"):
        new_model(BiConfig(backbone=str(tiny_backbone)), POLICY, seed=1, sample=())


def test_a_vocabulary_with_other_buckets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(learn_subwords(CORPUS, min_count=3, n_buckets=9).to_bytes())
    with pytest.raises(ConfigError, match="n_buckets = 4"):
        make(policy=dataclasses.replace(POLICY, vocabulary=str(path)))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_folders_are_refused(tmp_path: Path, name: str) -> None:
    model, texts, config = make()
    save_model(tmp_path / "m", model, texts, config)
    path = tmp_path / "m" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=name):
        load_model(tmp_path / "m")
