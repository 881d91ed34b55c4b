"""Loss curves of small trainings do not change: golden/NAME.txt holds step, network and loss, also of validation.

For an intended change delete the files; the next run writes them again, for review.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe
from polyrank.training import train
from train_settings import network_settings, train_config

GOLDEN = Path(__file__).parent / "golden"
BI = BiConfig(reduction="mean", shared_towers=True)
CONVERT = ConvertConfig(
    embedding_dim=16, attention_dim=8, ffn_dim=32, side_dim=32, output_dim=16, spans=(3, 5), position_periods=(7, 3),
    multi_context=True,
)  # fmt: skip
CURVES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bi": (BI, {}),
    "bi-adamax-plateau": (BI, {"optimizer": "adamax", "schedule": "plateau", "lr": 4e-3}),
    "poly-learnt": (PolyConfig(n_codes=4, reduction="mean"), {}),
    "poly-last-h1": (PolyConfig(n_codes=4, codes="last_h1"), {}),
    "cross": (CrossConfig(), {"method": "listwise"}),
    "convert": (CONVERT, {"method": "convert", "smoothing": 0.2, "scale_steps": 4}),
    "mutual": (BI, {"method": "mutual"}),
}


def recipe(name: str, task: dict[str, Path], backbone: Path, output: Path) -> Recipe:
    model, changes = CURVES[name]
    values: dict[str, Any] = {
        "batch_size": 12, "epochs": 2, "lr": 2e-3, "warmup_steps": 2, "schedule": "linear", "train_layers": "all",
        "precision": "fp32", "n_negatives": 3, "dropout": 0.0, "evaluate_per_epoch": 1, **changes,
    }  # fmt: skip
    settings = train_config(**values)
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
    cross = CrossConfig(backbone=str(backbone))
    return Recipe(
        model=model if isinstance(model, ConvertConfig) else dataclasses.replace(model, backbone=str(backbone)),
        text=ConvertText(min_count=1, n_buckets=10) if isinstance(model, ConvertConfig) else policy,
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=settings,
        output=str(output),
        reranker=Partner(model=cross, train=network_settings(settings)) if settings.method.kind == "mutual" else None,
    )


@pytest.mark.parametrize("name", CURVES)
def test_curves_do_not_change(name: str, tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    train(recipe(name, task, tiny_backbone, tmp_path / "run"))
    curve = []
    for file in sorted((tmp_path / "run").rglob("metrics.jsonl")):
        network = file.parent.name
        for row in map(json.loads, file.read_text("utf-8").splitlines()):
            if "loss" in row:
                curve.append((f"{row['step']} {network} loss", row["loss"]))
            if "valid" in row:
                curve.append((f"{row['step']} {network} validation", row["valid"]["loss"]))
    golden = GOLDEN / f"{name}.txt"
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("".join(f"{what} {value:.5f}\n" for what, value in curve), "utf-8")
        pytest.fail(f"{golden} was written; review it and run again")
    was = [line.rsplit(" ", 1) for line in golden.read_text("utf-8").splitlines()]
    assert [what for what, _ in curve] == [what for what, _ in was]
    assert [value for _, value in curve] == pytest.approx([float(value) for _, value in was], rel=5e-3, abs=5e-3)
