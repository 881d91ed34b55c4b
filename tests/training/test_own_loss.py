"""A loss of the caller's own in place of the cross-entropy, in every training method."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polyrank
from polyrank.errors import ConfigError
from polyrank.models.artifacts import read_config
from polyrank.models.losses import cross_entropy
from polyrank.storage.document import read_document
from polyrank.training.run_document import RECIPE
from train_settings import bi_tables


class Margin:
    """Each wrong candidate scores at least ``margin`` below the right one."""

    def __init__(self, margin: float) -> None:
        self.margin, self.shapes = margin, set[tuple[int, ...]]()

    def __call__(self, scores: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        self.shapes.add(tuple(scores.shape))
        right = scores.gather(1, target[:, None])
        wrong = allowed.scatter(1, target[:, None], False)
        return ((self.margin + scores - right).clamp(min=0) * wrong).sum(1).mean()


def tables(task: dict[str, Path], backbone: Path, output: Path, **train: Any) -> dict[str, Any]:
    """Without validation, which would add only time."""
    unvalidated = {"train": task["train"]}
    return bi_tables(unvalidated, backbone, output, batch_size=8, max_steps=3, lr=1e-3, checkpoint_steps=1, **train)


def weights(result: polyrank.RunResult) -> bytes:
    return (result.model / "model.safetensors").read_bytes()


METHODS = {
    "in_batch": {},
    "listwise": {"negatives": {"n": 3}},
    "mutual": {"negatives": {"n": 3}},
}


@pytest.mark.deep
@pytest.mark.parametrize("method", METHODS)
def test_the_built_in_loss_as_the_callers_trains_bit_for_bit_alike(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, method: str
) -> None:
    found = []
    for name, loss in (("usual", None), ("own", lambda *values: cross_entropy(*values))):
        recipe = tables(task, tiny_backbone, tmp_path / name, method={"kind": method}, **METHODS[method])
        if method == "mutual":
            recipe["reranker"] = {"kind": "cross", "backbone": str(tiny_backbone)}
        found.append([weights(result) for result in polyrank.train(recipe, loss=loss)])
    assert found[0] == found[1]


@pytest.mark.deep
@pytest.mark.parametrize("train", [{}, {"chunk_size": 3}, {"method": {"kind": "listwise"}, "negatives": {"n": 3}}])
def test_another_loss_is_trained_on(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path, train: dict[str, Any]
) -> None:
    loss, records = Margin(0.5), list[dict[str, Any]]()
    recipe = tables(task, tiny_backbone, tmp_path / "own", **train)
    (own,) = polyrank.train(recipe, loss=loss, report=lambda _, record: records.append(record))
    (usual,) = polyrank.train(recipe | {"output": str(tmp_path / "usual")})
    assert weights(own) != weights(usual)
    named = [read_config(result.model)["metadata"].get("loss") for result in (own, usual)]
    assert named == [f"{Margin.__module__}.Margin", None]
    assert {rows for rows, _ in loss.shapes} == {8}
    assert all(record["loss"] >= 0 for record in records if "loss" in record)


def test_a_run_resumes_only_with_its_loss(task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    recipe = tables(task, tiny_backbone, tmp_path / "run", schedule={"kind": "constant", "warmup_steps": 0})
    polyrank.train(recipe, loss=Margin(0.5))
    assert read_document(tmp_path / "run", RECIPE)["inputs"]["the loss"].endswith("test_own_loss.Margin")
    recipe["train"]["max_steps"] = 5
    with pytest.raises(ConfigError, match=r"the loss changed since .*run was started: from .*Margin to polyrank's"):
        polyrank.train(recipe, resume=True)
    (longer,) = polyrank.train(recipe, loss=Margin(0.5), resume=True)
    assert longer.fit.n_steps == 5


def test_the_loss_of_a_batch_is_that_of_the_function() -> None:
    scores, target = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([0])
    assert float(Margin(0.5)(scores, target, torch.tensor([[True, True, False]]))) == 1.5
