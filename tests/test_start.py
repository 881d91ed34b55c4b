"""Models that start from a trained one: what they inherit, and what they no longer need."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from polyrank.config.models import BiConfig, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.errors import PolyrankError
from polyrank.models import Network, new_model
from polyrank.models.artifacts import save_model
from polyrank.models.start import start_model, transfer_weights

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
OTHER_TURNS = TextPolicy(max_context_tokens=24, max_candidate_tokens=8, new_tokens=("[TURN]",), turn_separator="[TURN]")
REPLIES = ["hello router", "my wifi is down", "thanks", "restart the router please"]
STARTS = {
    "bi": BiConfig(reduction="mean", match_self_score=20.0),
    "two towers": BiConfig(reduction="mean", shared_towers=False),
    "cross": CrossConfig(),
}
GOALS: dict[str, ModelConfig] = {"bi": STARTS["bi"], "poly": PolyConfig(n_codes=4), "cross": CrossConfig()}


def on(config: ModelConfig, backbone: Path) -> ModelConfig:
    return dataclasses.replace(config, backbone=str(backbone))  # type: ignore[call-arg]


def trained(config: ModelConfig, backbone: Path, path: Path, policy: TextPolicy = POLICY) -> Network:
    """A folder with a model whose weights differ from any backbone's."""
    model, texts, resolved = new_model(on(config, backbone), policy, seed=3, sample=REPLIES)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(4)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    save_model(path, model, texts, resolved)
    return model


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("start", STARTS)
def test_a_start_provides_its_transformer(tiny_backbone: Path, tmp_path: Path, start: str, goal: str) -> None:
    """The weights equal those of a new model with the transformer copied into it, and its backbone is not needed."""
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    source = trained(STARTS[start], backbone, tmp_path / "model")
    config = on(GOALS[goal], backbone)
    fresh = new_model(config, POLICY, seed=1, sample=REPLIES)[0]
    transfer_weights(fresh, source, "the start")
    if start != "cross" or goal == "cross":  # a Cross-encoder has no reduction
        shutil.rmtree(backbone)
    model = start_model(config, POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")[0]
    wanted, weights = fresh.state_dict(), model.state_dict()
    assert weights.keys() == wanted.keys()
    for name in wanted.keys() - {"codes"}:  # their start depends on the transformer's training
        if start != "cross" or not name.endswith("scale"):  # fitted to the current outputs
            assert torch.equal(weights[name], wanted[name]), name


def test_a_start_on_another_backbone_needs_the_requested_one(tiny_backbone: Path, tmp_path: Path) -> None:
    trained(STARTS["bi"], tiny_backbone, tmp_path / "model")
    with pytest.raises(PolyrankError, match="nowhere"):
        start_model(
            BiConfig(backbone=str(tmp_path / "nowhere")), POLICY, seed=1, sample=REPLIES, start=tmp_path / "model"
        )


def test_a_start_provides_its_added_tokens(tiny_backbone: Path, tmp_path: Path) -> None:
    source = trained(STARTS["bi"], tiny_backbone, tmp_path / "model", OTHER_TURNS)
    config = CrossConfig(backbone=str(tiny_backbone))
    model, texts, _ = start_model(config, POLICY, seed=1, sample=REPLIES, start=tmp_path / "model")
    assert texts.subwords.id_of("[TURN]") == len(texts.subwords) - 1  # type: ignore[union-attr, attr-defined]
    embeddings = "backbone.network.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[embeddings], source.state_dict()[f"context_tower.{embeddings}"])
