"""Low-rank adapters: they start at the loaded scores, learn, resume, and are merged into the saved model."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyrank
from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.config.train import TrainConfig
from polyrank.errors import ConfigError, MissingExtraError
from polyrank.models import new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.models.lora import add_adapters
from polyrank.scorers.exported import export_to_sentence_transformers
from train_settings import bi_tables

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from layouts import DOCUMENTS, LAYOUTS, QUERIES, theirs

POLICY = TextPolicy(max_context_tokens=120, max_candidate_tokens=120)


def recipe(task: dict[str, Path], folder: Path, output: Path, **train: Any) -> dict[str, Any]:
    tables = bi_tables(
        task, folder, output, batch_size=8, max_steps=12, lr=3e-3, lora_rank=4, evaluate_per_epoch=1, **train
    )
    tables["model"]["shared_towers"] = True
    tables["text"] = {"max_context_tokens": 120, "max_candidate_tokens": 120}
    return tables


@pytest.mark.deep
def test_a_decoder_is_trained_by_adapters(task: dict[str, Path], tmp_path: Path) -> None:
    folder = LAYOUTS["Qwen3-Embedding"](tmp_path)
    records: list[dict[str, Any]] = []
    (result,) = polyrank.train(
        recipe(task, folder, tmp_path / "run"), report=lambda _, record: records.append(record), device="cpu"
    )
    losses = [record["loss"] for record in records if "loss" in record]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    export_to_sentence_transformers(result.model, tmp_path / "out")
    found = np.stack(polyrank.load(result.model, device="cpu").score(QUERIES, [DOCUMENTS] * 4)) / 20
    np.testing.assert_allclose(found, theirs(tmp_path / "out"), atol=1e-5)
    start = new_model(BiConfig(backbone=str(folder), shared_towers=True), POLICY, seed=1, sample=DOCUMENTS)[0].stored()
    changed = load_model(result.model).model.stored()
    assert changed.keys() == start.keys()
    differ = {
        name.rpartition(".")[0].rpartition(".")[2] for name in start if not torch.equal(start[name], changed[name])
    }
    assert {"q_proj", "down_proj"} <= differ
    assert not differ & {"embed_tokens", "norm", "input_layernorm"}


@pytest.mark.parametrize("kind", [BiConfig, CrossConfig])
def test_adapters_start_at_the_loaded_scores_and_are_merged(kind: Any, tiny_backbone: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, texts, config = new_model(kind(backbone=str(tiny_backbone)), None, seed=1, sample=DOCUMENTS)
    tokens = texts.candidates(DOCUMENTS)
    compute = model.eval() if kind is CrossConfig else model.eval().encode_candidates  # type: ignore[operator]
    before = compute(tokens)  # type: ignore[operator]
    add_adapters(model, 2, seed=1)
    assert torch.equal(compute(tokens), before)  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (".lora_" in name or "head." in name), name
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter)
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    assert len(layers) == (12 if kind is CrossConfig else 24)  # of two layers of one or two towers
    for layer in layers:
        (a,), (b,) = layer.lora_A.values(), layer.lora_B.values()
        x = torch.randn(5, a.in_features)
        torch.testing.assert_close(
            layer(x), layer.base_layer(x) + 2 * x @ a.weight.T @ b.weight.T, atol=1e-4, rtol=1e-4
        )
    after = compute(tokens)  # type: ignore[operator]
    save_model(tmp_path / "m", model, texts, config)
    saved = load_model(tmp_path / "m").model
    compute = saved if kind is CrossConfig else saved.encode_candidates  # type: ignore[assignment]
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(compute(tokens), after, atol=1e-4, rtol=1e-4)  # type: ignore[operator]


def test_the_seed_draws_the_adapters_and_nothing_else(tiny_backbone: Path) -> None:
    def adapters(seed: int) -> dict[str, torch.Tensor]:
        model = new_model(BiConfig(backbone=str(tiny_backbone)), None, seed=1, sample=DOCUMENTS)[0]
        torch.manual_seed(seed + 9)
        before = torch.random.get_rng_state()
        add_adapters(model, 2, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        return {name: parameter for name, parameter in model.named_parameters() if ".lora_A." in name}

    one, again, other = map(adapters, (1, 1, 2))
    assert len({tuple(tensor.flatten().tolist()) for tensor in (*one.values(), *other.values())}) == 2 * len(one) == 48
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())


@pytest.mark.deep
def test_a_training_by_adapters_resumes_with_the_same_bits(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    schedule = {"kind": "constant", "warmup_steps": 0}
    tables = recipe(task, tiny_backbone, tmp_path / "whole", checkpoint_steps=1, schedule=schedule)
    tables["train"]["max_steps"] = 6
    weights = [(polyrank.train(tables)[0].model / "model.safetensors").read_bytes()]
    tables["output"], tables["train"]["max_steps"] = str(tmp_path / "parts"), 3
    polyrank.train(tables)
    tables["train"]["max_steps"] = 6
    weights.append((polyrank.train(tables, resume=True)[0].model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_what_adapters_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"lora_rank = 4 trains adapters in all layers; leave train_layers = 'top-1'"):
        TrainConfig(lora_rank=4, train_layers="top-1")
    folder = LAYOUTS["Static embeddings"](tmp_path)
    model = new_model(BiConfig(backbone=str(folder)), None, seed=1, sample=DOCUMENTS)[0]
    with pytest.raises(ConfigError, match="lora_rank = 4 needs linear layers"):
        add_adapters(model, 4, 1)
    monkeypatch.setitem(sys.modules, "peft", None)  # makes the import fail
    with pytest.raises(MissingExtraError, match=r'pip install "polyrank\[lora\]"'):
        add_adapters(model, 4, 1)
