"""Averages of weights: between the models, of one shape and start, and stored like any model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrank.config.models import (
    BiConfig,
    ConvertConfig,
    ConvertText,
    CrossConfig,
    ModelConfig,
    PolyConfig,
    TextPolicy,
)
from polyrank.errors import UsageError
from polyrank.models import new_model
from polyrank.models.artifacts import Artifact, load_model, save_model
from polyrank.models.averaging import average
from polyrank.scorers.open import load
from processes import run

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
REPLIES = ["hello router", "my wifi is down", "thanks", "restart the router please"]
SMALL = ConvertConfig(embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8)
CONFIGS: dict[str, ModelConfig] = {
    "bi": BiConfig(reduction="mean", shared_towers=True),
    "two towers": BiConfig(reduction="mean", match_self_score=20.0),
    "poly": PolyConfig(n_codes=4),
    "cross": CrossConfig(),
    "convert": SMALL,
}


def trained(config: ModelConfig, backbone: Path, path: Path, *, noise: int, seed: int = 3) -> Artifact:
    """A model folder: the start of ``seed`` with small changes, which differ by ``noise``."""
    policy: TextPolicy | ConvertText = POLICY
    if isinstance(config, ConvertConfig):
        policy = ConvertText(min_count=1, n_buckets=5)
    else:
        config = dataclasses.replace(config, backbone=str(backbone))
    model, texts, resolved = new_model(config, policy, seed=seed, sample=REPLIES, corpus=REPLIES)
    generator = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    save_model(path, model, texts, resolved, metadata={"seed": noise, "data": "chats"})
    return load_model(path)


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_average_lies_between_its_models(kind: str, tiny_backbone: Path, tmp_path: Path) -> None:
    models = [trained(CONFIGS[kind], tiny_backbone, tmp_path / f"{i}", noise=i) for i in range(2)]
    states = [{name: value.clone() for name, value in each.model.state_dict().items()} for each in models]
    whole = average(models, [3, 1], ["a", "b"])
    for name, value in whole.model.state_dict().items():
        wanted = 0.75 * states[0][name] + 0.25 * states[1][name] if value.is_floating_point() else states[0][name]
        torch.testing.assert_close(value, wanted)
    assert whole.metadata == {
        "data": "chats",
        "average": [
            {"model": "a", "fingerprint": models[0].fingerprint, "share": 0.75},
            {"model": "b", "fingerprint": models[1].fingerprint, "share": 0.25},
        ],
    }


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_average_of_equal_models_is_that_model(kind: str, tiny_backbone: Path, tmp_path: Path) -> None:
    """Also after it is saved: bit for bit, with the same fingerprint."""
    models = [trained(CONFIGS[kind], tiny_backbone, tmp_path / "m", noise=1), load_model(tmp_path / "m")]
    whole = average(models, [1, 1], ["a", "b"])
    kept = save_model(tmp_path / "average", whole.model, whole.texts, whole.config, metadata=whole.metadata)
    assert kept == models[0].fingerprint
    one, both = (load(tmp_path / name).score(["my wifi"], [REPLIES])[0] for name in ("m", "average"))
    np.testing.assert_array_equal(one, both)


def test_the_output_scale_of_the_settings_is_that_of_the_weights(tiny_backbone: Path, tmp_path: Path) -> None:
    """Each training may have fitted its own."""
    models = [
        trained(BiConfig(reduction="mean", output_scale=scale), tiny_backbone, tmp_path / f"{scale}", noise=1)
        for scale in (1.0, 2.0)
    ]
    whole = average(models, [1, 1], ["a", "b"])
    assert isinstance(whole.config, BiConfig)
    assert whole.config.output_scale == float(whole.model.get_buffer("candidate_tower.scale")) == 1.5


@pytest.mark.parametrize(
    ("other", "changes", "seed", "reason"),
    [
        (CONFIGS["bi"], {}, 3, "b has other settings than a"),
        (CONFIGS["poly"], {}, 3, "b has other settings than a"),
        (
            CONFIGS["two towers"],
            {"policy": dataclasses.replace(POLICY, max_context_tokens=20)},
            3,
            "other text settings",
        ),
        (CONFIGS["two towers"], {"metadata": {"first_stage": "0f"}}, 3, "b has another first stage than a"),
    ],
    ids=["towers", "kind", "texts", "first stage"],
)
def test_models_that_differ_in_more_than_weights_are_refused(
    other: ModelConfig, changes: dict[str, object], seed: int, reason: str, tiny_backbone: Path, tmp_path: Path
) -> None:
    first = trained(CONFIGS["two towers"], tiny_backbone, tmp_path / "a", noise=1)
    second = trained(other, tiny_backbone, tmp_path / "b", noise=2, seed=seed)
    if "policy" in changes:
        second.texts.policy = changes["policy"]  # type: ignore[assignment]
    if "metadata" in changes:
        second = dataclasses.replace(second, metadata=changes["metadata"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=reason):
        average([first, second], [1, 1], ["a", "b"])


def test_models_of_different_starts_are_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    models = [trained(SMALL, tiny_backbone, tmp_path / f"{seed}", noise=1, seed=seed) for seed in (1, 2)]
    with pytest.raises(UsageError, match=r"weights of b and a have a cosine of 0\.\d\d, and their average would rank"):
        average(models, [1, 1], ["a", "b"])


@pytest.mark.parametrize(
    ("weights", "reason"),
    [([1.0], "weights 1 for 2 models"), ([1.0, 0.0], "weights 1,0 must be above 0"), ([1.0, float("nan")], "above 0")],
)
def test_wrong_weights_are_refused(weights: list[float], reason: str, tiny_backbone: Path, tmp_path: Path) -> None:
    models = [trained(CONFIGS["bi"], tiny_backbone, tmp_path / f"{i}", noise=i) for i in range(2)]
    with pytest.raises(UsageError, match=reason):
        average(models, weights, ["a", "b"])


def test_the_command_makes_a_model_folder(tiny_backbone: Path, tmp_path: Path) -> None:
    for i in range(2):
        trained(CONFIGS["bi"], tiny_backbone, tmp_path / f"{i}", noise=i)
    done = run("average", tmp_path / "0", tmp_path / "1", "-o", tmp_path / "whole", "--weights", "1,3")
    assert done.returncode == 0, done.stderr
    whole = load_model(tmp_path / "whole")
    assert f"fingerprint {whole.fingerprint[:12]}" in done.stderr
    parts = [load_model(tmp_path / f"{i}") for i in range(2)]
    shares = [(part["model"], part["share"]) for part in whole.metadata["average"]]
    assert shares == [("../0", 0.25), ("../1", 0.75)]
    wanted = average(parts, [1, 3], ["0", "1"]).model.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in whole.model.state_dict().items())
    again = run("average", tmp_path / "0", tmp_path / "1", "-o", tmp_path / "whole")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["model"], "an average of 1; give two models or more"),
        (["model", "untuned:embedded"], "untuned:embedded is not a model folder that has weights"),
        (["model", "bm25"], "bm25 is not a model folder that has weights"),
        (["model", "nowhere"], "nowhere is not a model folder"),
    ],
)
def test_the_command_refuses_what_has_no_weights(
    names: list[str], reason: str, tiny_backbone: Path, tmp_path: Path
) -> None:
    trained(CONFIGS["bi"], tiny_backbone, tmp_path / "model", noise=1)
    done = run("average", *names, "-o", "whole", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert reason in done.stderr
    assert not (tmp_path / "whole").exists()
