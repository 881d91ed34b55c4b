"""Curves of a training in TensorBoard, Weights & Biases and MLflow, written by the libraries themselves to files."""

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polyrank.config.recipe import recipe_from_dict
from polyrank.config.schema import recipe_schema
from polyrank.errors import ConfigError, MissingExtraError, UsageError
from polyrank.training import train
from polyrank.training.pretraining import pretrain
from polyrank.training.tracking import curves_of, draw_curves
from train_settings import bi_tables

Curves = dict[str, list[tuple[int, float]]]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """wandb without network, and MLflow with files."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return tmp_path


def tables(task: dict[str, Path], backbone: Path, output: Path, **train: Any) -> dict[str, Any]:
    return bi_tables(task, backbone, output, **{"batch_size": 24, "epochs": 2, "schedule": {"warmup_steps": 0}} | train)


def of_tensorboard(folder: Path) -> Curves:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def of_wandb(folder: Path) -> Curves:
    """The curves of all offline files of a run, in the order of their names."""
    found: Curves = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for record in wandb_records(file):
            step = record.history.step.num
            for item in record.history.item:
                if not (name := item.key or "/".join(item.nested_key)).startswith("_"):
                    found.setdefault(name, []).append((step, float(item.value_json)))
    return found


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file: protocol buffers in the format of LevelDB's logs, after seven bytes."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = proto.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def of_mlflow(folder: Path) -> Curves:
    client = pytest.importorskip("mlflow").MlflowClient()
    run_id = (folder / "mlflow-run-id").read_text()
    names = client.get_run(run_id).data.metrics
    return {
        name.replace("_at_", "@"): [(m.step, m.value) for m in client.get_metric_history(run_id, name)]
        for name in names
    }


READERS = {"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}


def written(folder: Path) -> Curves:
    """The same from metrics.jsonl."""
    found: Curves = {}
    for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        for name, value in curves_of(record).items():
            found.setdefault(name, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    return found


@pytest.mark.parametrize("place", READERS)
def test_a_run_and_its_resumption_draw_the_curves_of_metrics_jsonl(
    place: str, tiny_backbone: Path, task: dict[str, Path], offline: Path
) -> None:
    pytest.importorskip(place)
    plan = tables(task, tiny_backbone, offline / "run", log_to=place, max_steps=4)
    first = [Path(run.model).parent for run in train(plan)]
    assert first == [offline / "run"]
    assert READERS[place](first[0]) == written(first[0])
    plan["train"]["max_steps"] = 6
    train(plan, resume=True)
    drawn = written(first[0])
    assert [step for step, _ in drawn["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert {"train/lr", "valid/loss", "valid/R@1", "valid/MRR"} <= drawn.keys()
    assert READERS[place](first[0]) == drawn


def test_mlflow_gets_the_settings_and_the_status(tiny_backbone: Path, task: dict[str, Path], offline: Path) -> None:
    client = pytest.importorskip("mlflow").MlflowClient()
    plan = tables(task, tiny_backbone, offline / "run", log_to=["mlflow"], seeds=[3, 4], max_steps=2)
    train(plan)
    runs = [client.get_run((offline / "run" / f"seed-{seed}" / "mlflow-run-id").read_text()) for seed in (3, 4)]
    assert [run.info.run_name for run in runs] == ["run/seed-3", "run/seed-4"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert runs[0].data.params["train.batch_size"] == "24"
    train(plan, overwrite=True)
    again = (offline / "run" / "seed-3" / "mlflow-run-id").read_text()
    assert again != runs[0].info.run_id


def test_pretraining_draws_the_same_way(write_rows: Any, offline: Path) -> None:
    pytest.importorskip("tensorboard")
    rows = [{"context": [f"hello {i} there"], "response": f"good {i} day"} for i in range(40)]
    folder = offline / "pretraining"
    plan = {
        "output": str(folder),
        "model": {"layers": 1, "hidden": 32, "heads": 2, "ffn": 48, "positions": 32},
        "vocabulary": {"size": 60},
        "data": {"train": str(write_rows("pairs.jsonl", rows)), "valid": str(write_rows("valid.jsonl", rows))},
        "text": {"max_tokens": 24, "max_response_tokens": 10},
        "train": {"steps": 4, "batch_tokens": 300, "evaluate_steps": 2, "log_to": "tensorboard"},
    }
    pretrain(plan)
    drawn = of_tensorboard(folder)
    assert drawn == written(folder)
    assert {"train/masked_lm_loss", "train/next_utterance_accuracy", "valid/loss"} <= drawn.keys()


def test_a_place_that_fails_later_ends_no_training(offline: Path) -> None:
    """MLflow's files become unwritable after the run has begun."""
    pytest.importorskip("mlflow")
    said: list[str] = []
    with draw_curves(["mlflow"], offline, "run", {}, said.append) as draw:
        (offline / "mlruns").rename(offline / "elsewhere")
        for step in range(1, 60):
            draw({"step": step, "loss": 0.5, "lr": 0.1})
    assert said
    assert all("mlflow has no further curves of this run" in line for line in said)


def test_a_place_that_cannot_start_is_an_error_before_the_training(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    with (
        pytest.raises(UsageError, match=r'train\.log_to = "mlflow" cannot start: .*nothing.*; correct its settings'),
        draw_curves(["mlflow"], offline, "run", {}, print),
    ):
        pass


def test_a_missing_library_names_its_extra(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.training.tracking.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"wandb is not installed.*polyrank\[wandb\]"):
        train(tables(task, tiny_backbone, tmp_path / "run", log_to="wandb"))
    assert not (tmp_path / "run").exists()


def test_one_word_or_a_list(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    def read(value: Any) -> tuple[str, ...]:
        return recipe_from_dict(tables(task, tiny_backbone, tmp_path, log_to=value)).train.log_to

    assert read("wandb") == read(["wandb"]) == ("wandb",)
    assert read(["mlflow", "tensorboard"]) == ("mlflow", "tensorboard")
    for wrong in ("neptune", ["neptune"]):
        with pytest.raises(ConfigError, match="neptune"):
            read(wrong)
    options = recipe_schema()["properties"]["train"]["properties"]["log_to"]["anyOf"]
    assert [option.get("type", "enum") for option in options] == ["enum", "array"]


def test_an_interrupted_training_sends_its_curves_and_ends_as_failed(offline: Path) -> None:
    client = pytest.importorskip("mlflow").MlflowClient()
    with suppress(KeyboardInterrupt), draw_curves(["mlflow"], offline, "run", {}, print) as draw:
        draw({"step": 1, "loss": 0.5, "lr": 0.1})
        raise KeyboardInterrupt
    assert client.get_run((offline / "mlflow-run-id").read_text()).info.status == "FAILED"
    assert of_mlflow(offline)["train/loss"] == [(1, 0.5)]
