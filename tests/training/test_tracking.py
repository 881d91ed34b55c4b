"""Curves of a training in TensorBoard, written by the library itself to files."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyrank.errors import MissingExtraError
from polyrank.training import train
from polyrank.training.pretraining import pretrain
from polyrank.training.tracking import curves_of
from train_settings import bi_tables

Curves = dict[str, list[tuple[int, float]]]


def tables(task: dict[str, Path], backbone: Path, output: Path, **train: Any) -> dict[str, Any]:
    usual = {"batch_size": 24, "epochs": 2, "schedule": {"warmup_steps": 0}, "tensorboard": True}
    return bi_tables(task, backbone, output, **usual | train)


def drawn(folder: Path) -> Curves:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def written(folder: Path) -> Curves:
    """The same from metrics.jsonl."""
    curves: Curves = {}
    for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        for name, value in curves_of(record).items():
            curves.setdefault(name, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    return curves


@pytest.mark.deep
def test_a_run_and_its_resumption_draw_the_curves_of_metrics_jsonl(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    plan = tables(task, tiny_backbone, folder, max_steps=4)
    train(plan)
    assert drawn(folder) == written(folder)
    plan["train"]["max_steps"] = 6
    train(plan, resume=True)
    wanted = written(folder)
    assert [step for step, _ in wanted["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert {"train/lr", "valid/loss", "valid/R@1", "valid/MRR"} <= wanted.keys()
    assert drawn(folder) == wanted


@pytest.mark.deep
def test_steps_that_are_made_again_are_drawn_once(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    """A run that dies after its third step continues from a checkpoint of the second."""
    plan = tables(task, tiny_backbone, tmp_path / "run", max_steps=4, checkpoint_steps=2)

    def die(seed: int, record: dict[str, Any]) -> None:
        if "valid" in record and record["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, report=die)
    assert [step for step, _ in drawn(tmp_path / "run")["train/loss"]] == [1, 2, 3]
    train(plan, resume=True)
    assert [step for step, _ in drawn(tmp_path / "run")["train/loss"]] == [1, 2, 3, 4]
    assert drawn(tmp_path / "run") == written(tmp_path / "run")


def test_a_run_without_curves_has_no_event_files(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    train(tables(task, tiny_backbone, tmp_path / "run", max_steps=1, tensorboard=False))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_pretraining_draws_the_same_way(write_rows: Any, tmp_path: Path) -> None:
    rows = [{"context": [f"hello {i} there"], "response": f"good {i} day"} for i in range(40)]
    folder = tmp_path / "pretraining"
    plan = {
        "output": str(folder),
        "model": {"layers": 1, "hidden": 32, "heads": 2, "ffn": 48, "positions": 32},
        "vocabulary": {"size": 60},
        "data": {"train": str(write_rows("pairs.jsonl", rows)), "valid": str(write_rows("valid.jsonl", rows))},
        "text": {"max_tokens": 24, "max_response_tokens": 10},
        "train": {"steps": 4, "batch_tokens": 300, "evaluate_steps": 2, "tensorboard": True},
    }
    pretrain(plan)
    assert drawn(folder) == written(folder)
    assert {"train/masked_lm_loss", "train/next_utterance_accuracy", "valid/loss"} <= drawn(folder).keys()


def test_a_missing_library_names_its_extra(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.training.tracking.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tensorboard is not installed.*polyrank\[tensorboard\]"):
        train(tables(task, tiny_backbone, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
