"""8-bit weights: the arithmetic, the comparison of rankings and its record, and when "auto" uses them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from typer.testing import CliRunner

from polyrank import load
from polyrank.cli import app
from polyrank.config.models import (
    BiConfig,
    CrossConfig,
    LateConfig,
    ModelConfig,
    PolyConfig,
    TextPolicy,
)
from polyrank.devices import choice
from polyrank.devices.choice import Precision, choose_dtype, choose_weights, cpu_has_int8
from polyrank.errors import UsageError
from polyrank.models import new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.backbone import load_backbone
from polyrank.models.narrow_linear import Int8Linear, Rounded, quantize_linear_layers
from polyrank.records import Example
from polyrank.scorers.in_int8 import check_int8, read_record
from polyrank.scorers.load import make_scorer, ranks_in_int8, saved_scorer
from polyrank.text import Tokens
from shared_fixtures import WORDS

pytestmark = pytest.mark.skipif(not cpu_has_int8(), reason="torch or the processor cannot multiply 8-bit matrices")

CPU = torch.device("cpu")
CANDIDATES = [f"{a} {b}" for a in ("hello", "my", "the", "please") for b in ("wifi", "bill", "light", "router")]


def by_integers(x: Any, weight: Any) -> Any:
    """The products of a layer by numpy's integers."""
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(64)
    rounded = np.rint(weight / scale).astype(np.int64)
    low = x.min(1, keepdims=True)
    step = np.maximum(x.max(1, keepdims=True) - low, np.float32(1e-20)) / np.float32(255)
    middle = low + 128 * step
    signed = np.clip(np.rint((x - middle) / step), -128, 127).astype(np.int64)
    return (signed @ rounded.T) * (step.astype(np.float64) * scale[:, 0]) + middle * (rounded * scale).sum(1)


@given(
    n=st.integers(1, 40), n_inputs=st.integers(1, 130), n_outputs=st.integers(1, 70), seed=st.integers(0, 2**20),
    shift=st.sampled_from([0.0, -3.0, 100.0]), bias=st.booleans(),
)  # fmt: skip
def test_the_arithmetic_is_that_of_integers(
    n: int, n_inputs: int, n_outputs: int, seed: int, shift: float, bias: bool
) -> None:
    generator = np.random.default_rng(seed)
    layer = nn.Linear(n_inputs, n_outputs, bias=bias)
    x = (generator.integers(-127, 128, (n, n_inputs)) / 32 + shift).astype(np.float32)
    weight = generator.normal(size=(n_outputs, n_inputs)).astype(np.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    with torch.inference_mode():
        found = Int8Linear(layer)(torch.from_numpy(x)).numpy()
    known = layer.bias.detach().numpy() if bias else np.zeros(n_outputs, np.float32)
    step = (x.max(1, keepdims=True) - x.min(1, keepdims=True)) / 255
    # fp32 may round an input the other way if it lies at a half: up to two of them here
    limit = 2 * step * np.abs(weight).max(1)
    expected = by_integers(x, weight) + known
    assert (np.abs(found - expected) <= 1e-4 * (1 + np.abs(expected)) + limit).all()
    exact = x.astype(np.float64) @ weight.T.astype(np.float64) + known
    noise = np.abs(weight).max(1) / 128 * np.abs(x).sum(1, keepdims=True) + step / 2 * np.abs(weight).sum(1)
    assert (np.abs(found - exact) <= noise * 1.01 + 1e-4).all()  # what rounding both can change at most


@given(n=st.integers(1, 90), position=st.integers(0, 89), seed=st.integers(0, 99), largest=st.sampled_from([1.0, 1e4]))
def test_a_token_does_not_depend_on_its_batch(n: int, position: int, seed: int, largest: float) -> None:
    torch.manual_seed(seed)
    layer, x = Int8Linear(nn.Linear(48, 33)), torch.randn(n, 48)
    row = x[position % n].clone()
    with torch.inference_mode():
        alone = layer(row[None])
        x *= largest
        x[position % n] = row
        assert torch.equal(layer(x)[position % n][None], alone)
        assert torch.equal(layer(x[None, :, :])[0, position % n][None], alone)


@given(seed=st.integers(0, 10_000))
def test_extreme_inputs(seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(5, 3)
    with torch.no_grad():
        layer.weight[1] = 0
    rows = torch.stack(
        [torch.zeros(5), torch.full((5,), 7.0), torch.full((5,), -1e6), torch.tensor([0, 0, 0, 0, 1e-30])]
    )
    with torch.inference_mode():
        found, scale = Int8Linear(layer)(rows), layer.weight.abs().amax(1) / 64
        rounded = (layer.weight / scale.clamp_min(1e-20)[:, None]).round() * scale[:, None]
        # products of 1e6 may cancel, so that their rounding is larger than their sum
        limit = 1e-5 + 1e-6 * (rows.abs() @ rounded.abs().T)
        assert ((found - (rows @ rounded.T + layer.bias)).abs() <= limit).all()
        assert Int8Linear(layer)(torch.full((1, 5), torch.nan)).isnan().all()


def test_plain_linear_layers_are_replaced_and_no_others() -> None:
    class Odd(nn.Linear):
        """A subclass of a linear layer."""

    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), Odd(4, 4), nn.LayerNorm(4))
    quantize_linear_layers(network)
    kinds = [type(module) for module in network.modules() if not list(module.children())]
    assert kinds == [Int8Linear, Int8Linear, Odd, nn.LayerNorm]


def test_layers_of_one_input_round_it_once(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = load_backbone(tiny_backbone)
    network.narrow(torch.int8)
    inputs: list[Tensor] = []
    of = Rounded.of

    def counted(x: Tensor) -> Rounded:
        inputs.append(x)
        return of(x)

    ids = torch.tensor([[2, 5, 6, 3]])
    tokens = Tokens(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids))
    with torch.inference_mode():
        monkeypatch.setattr(Rounded, "of", counted)
        network(tokens)
        layers = network.layers()
        assert len(inputs) == 4 * len(
            layers
        )  # of the projections, of attention's output, and two of the feed-forward part
        layer, x = Int8Linear(nn.Linear(7, 5)), torch.randn(3, 7)
        assert torch.equal(layer(of(x)), layer(x))


def saved(path: Path, config: ModelConfig, *, wild: bool = False) -> Path:
    model, texts, config = new_model(config, TextPolicy(max_context_tokens=48), seed=3, sample=())
    if wild:  # one weight of each row is so large that 8 bits round all the others to zero
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "dense" in name and weight.dim() == 2:
                    weight[:, 0] = 60 * weight.abs().max()
    save_model(path, model, texts, config, metadata={"note": "kept"})
    return path


def lists_of(path: Path, least: float = 0.1) -> list[Example]:
    """Lists whose right answer is the one that fp32 ranks first, if it does so clearly; others have none."""
    scorer = load(path, device="cpu", precision="fp32")
    contexts = [(" ".join(WORDS[(i + j) % len(WORDS)] for j in range(4)),) for i in range(24)]
    scores = np.array(scorer.score(contexts, [CANDIDATES] * len(contexts)))
    ordered = np.sort(scores)
    clear = ordered[:, -1] - ordered[:, -2] > least * scores.std(1)
    assert clear.sum() > 5
    return [
        Example(context, tuple(CANDIDATES), (int(row.argmax()),) if sure else ())
        for context, row, sure in zip(contexts, scores, clear, strict=True)
    ]


KINDS = {"bi": (BiConfig, {}), "poly": (PolyConfig, {"n_codes": 3}), "cross": (CrossConfig, {})}


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_every_network_scores_nearly_as_in_fp32(kind: str, tiny_backbone: Path, tmp_path: Path) -> None:
    make, more = KINDS[kind]
    path = saved(tmp_path / "m", make(backbone=str(tiny_backbone), **more))  # type: ignore[operator, arg-type]
    exact, rounded = (saved_scorer(path, device="cpu", precision=name) for name in ("fp32", "int8"))
    assert (exact.precision, rounded.precision) == ("fp32", "int8")
    assert exact.fingerprint == rounded.fingerprint
    contexts = [example.query for example in lists_of(path)]
    scores, other = (np.array(each.score(contexts, [CANDIDATES] * len(contexts))) for each in (exact, rounded))
    assert not np.array_equal(scores, other)
    assert np.corrcoef(scores.ravel(), other.ravel())[0, 1] > 0.99
    alone = np.array([rounded.score([context], [CANDIDATES])[0] for context in contexts])
    np.testing.assert_allclose(alone, other, rtol=1e-5, atol=1e-5)


def test_a_record_lets_auto_use_int8_where_bf16_is_slow(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m", BiConfig(backbone=str(tiny_backbone), shared_towers=True))
    before = load_model(path)
    monkeypatch.delenv("POLYRANK_PRECISION")
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: False)
    assert not ranks_in_int8(before)
    assert saved_scorer(path, device="cpu").precision == "fp32"  # folders without a record stay as they were
    lists = lists_of(path)
    alike = check_int8(path, lists, record=False)
    assert alike.kept
    rows = [{"context": one.context, "candidates": one.candidates, "relevant": one.relevant} for one in lists]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["export", str(path), "--to", "int8", "--check", "--valid", str(tmp_path / "lists.jsonl")]
    said = CliRunner().invoke(app, command).stderr
    assert said.endswith(f"{path}: {alike}; processors without bf16 instructions use 8-bit weights\n")
    assert read_record(path) is None
    alike = check_int8(path, lists)
    assert read_record(path) == alike
    after = load_model(path)
    assert (after.fingerprint, after.config) == (before.fingerprint, before.config)
    assert after.metadata["note"] == "kept"
    assert saved_scorer(path, device="cpu").precision == "int8"
    assert saved_scorer(path, device="cpu", precision="fp32").precision == "fp32"
    monkeypatch.setenv("POLYRANK_PRECISION", "fp32")
    assert saved_scorer(path, device="cpu").precision == "fp32"
    monkeypatch.delenv("POLYRANK_PRECISION")
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: True)
    assert saved_scorer(path, device="cpu").precision == "bf16"
    # a record of other weights does not count
    with torch.no_grad():
        next(after.model.parameters())[0] += 1
    save_model(tmp_path / "other", after.model, after.texts, after.config, metadata=after.metadata)
    assert read_record(tmp_path / "other") is None
    assert not ranks_in_int8(load_model(tmp_path / "other"))


def test_a_network_that_ranks_differently_is_refused(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "wild", BiConfig(backbone=str(tiny_backbone), shared_towers=True), wild=True)
    lists = lists_of(path, 0.0)
    rows = [{"context": one.context, "candidates": one.candidates, "relevant": one.relevant} for one in lists]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ["export", str(path), "--to", "int8", "--valid", str(tmp_path / "lists.jsonl")]
    said = CliRunner().invoke(app, [*run, "--check"])
    assert read_record(path) is None
    said = CliRunner().invoke(app, run)
    assert said.exit_code == 0, said
    assert "do not use 8-bit weights" in said.stderr
    alike = read_record(path)
    assert alike is not None
    assert alike.n == len(lists)
    assert not alike.kept
    monkeypatch.delenv("POLYRANK_PRECISION")
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: False)
    assert saved_scorer(path, device="cpu").precision == "fp32"


def test_int8_is_only_for_inference_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="8-bit weights are not possible on this mps"):
        choose_weights("int8", torch.device("mps"))
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: False)
    monkeypatch.setenv("POLYRANK_PRECISION", "int8")
    assert choose_weights("auto", CPU) == torch.int8
    assert choose_weights("fp32", CPU) == choose_dtype("auto", CPU) == torch.float32
    monkeypatch.setattr(choice, "cpu_has_int8", lambda: False)
    with pytest.raises(UsageError, match="8-bit weights are not possible on this cpu"):
        choose_weights("auto", CPU)
    monkeypatch.setenv("POLYRANK_PRECISION", "auto")
    assert choose_weights("auto", CPU, ranks_in_int8=True) == torch.float32


def test_a_convert_has_no_weights_to_round() -> None:
    plain, same = (load("shipped:convert", device="cpu", precision=name) for name in ("fp32", "int8"))  # type: ignore[arg-type]
    assert same.networks[0].precision == "fp32"
    context = [["my wifi is down"]]
    np.testing.assert_array_equal(plain.score(context, [CANDIDATES]), same.score(context, [CANDIDATES]))


def test_a_network_in_training_is_never_in_int8(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_PRECISION", "int8")
    monkeypatch.setattr(choice, "cpu_has_bf16", lambda: False)
    model, texts, _ = new_model(BiConfig(backbone=str(tiny_backbone)), None, seed=0, sample=())
    assert make_scorer(model, texts, device="cpu").precision == "fp32"


@pytest.mark.parametrize("precision", ["int8", "bf16"])
@pytest.mark.parametrize("config", [BiConfig, PolyConfig, CrossConfig, partial(LateConfig, joined_layers=1)])
def test_a_score_does_not_depend_on_longer_texts_of_its_batch(
    config: Any, precision: Precision, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Padding changes the last bits of attention, which rounding to few bits would turn into a percent."""
    path = saved(tmp_path / "model", config(backbone=str(tiny_backbone)))
    words = sorted(WORDS)
    texts = [" ".join(words[i : i + n]) for i in range(4) for n in (1, 2, 3, 7, 11)]

    def scores(contexts: list[str], candidates: list[str]) -> NDArray[np.float32]:
        scorer = saved_scorer(path, device="cpu", precision=precision)  # which keeps no vectors of earlier texts
        return np.array(scorer.score(contexts, [candidates] * len(contexts)))

    together = scores(texts, texts)
    for i in range(0, len(texts), 3):
        np.testing.assert_allclose(scores([texts[i]], texts[:2])[0], together[i, :2], rtol=1e-5, atol=1e-5)


def test_a_text_is_padded_by_its_own_length_and_never_beyond_the_network(tiny_backbone: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "model", BiConfig(backbone=str(tiny_backbone)))
    scorer = saved_scorer(path, device="cpu", precision="bf16")
    scorer.texts.max_positions = 50
    assert [scorer.width(n) for n in (0, 1, 8, 9, 48, 49, 50)] == [0, 8, 8, 16, 48, 50, 50]
    rows = [[1] * n for n in (3, 20, 9, 7, 49, 16)]
    groups = scorer.groups(rows)
    assert sorted(map(sorted, groups)) == [[0, 3], [1], [2, 5], [4]]
    assert [batch.ids.shape[1] for batch in scorer.padded(groups, rows)] == [50, 24, 16, 8]
    exact = saved_scorer(path, device="cpu", precision="fp32")
    assert len(exact.groups(rows)) == 1
    assert exact.width(49) == 49
