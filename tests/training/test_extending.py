"""A run folder: its lock, what prevents a training, and when a finished run can be extended."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe, recipe_to_dict
from polyrank.config.schedules import ConstantSchedule, LinearSchedule, ScheduleConfig
from polyrank.config.train import NetworkTraining
from polyrank.errors import ConfigError, DataError, LockedError, UsageError
from polyrank.loading.recipes import resolve_recipe
from polyrank.records import Example
from polyrank.storage.document import read_document
from polyrank.storage.lock import hold
from polyrank.training import FitResult, train
from polyrank.training.checkpoints import CHECKPOINT
from polyrank.training.run import TRAINING, SeedRun
from polyrank.training.run_folder import LOCK
from processes import run, start
from train_settings import toy_recipe, train_config

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)


def recipe(
    task: dict[str, Path], backbone: Path, output: Path, partner: Partner | None = None, **changes: Any
) -> Recipe:
    """6 steps per epoch, with a schedule that does not depend on the end."""
    settings: dict[str, Any] = {
        "batch_size": 12, "epochs": 1, "lr": 1e-3, "warmup_steps": 2, "schedule": "plateau", "train_layers": "all",
        "precision": "fp32", "dropout": 0.1, **changes,
    }  # fmt: skip
    return toy_recipe(
        task, output, BiConfig(backbone=str(backbone), reduction="mean"), POLICY, partner=partner, **settings
    )


def unvalidated(task: dict[str, Path]) -> dict[str, Path]:
    """The toy task without validation, which takes much of a short training's time."""
    return {"train": task["train"]}


def outcome(folder: Path) -> tuple[list[dict[str, Any]], bytes, dict[str, Any]]:
    """All observable results of a run except times and the planned length at each step."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    result = json.loads((folder / "result.json").read_bytes())
    for row in (*rows, result):
        for key in ("seconds", "n_steps", "checksum"):
            row.pop(key, None)
    return rows, (folder / "model" / "model.safetensors").read_bytes(), result


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(
            pytest.param(changes, marks=pytest.mark.deep)
            for changes in (
                {"schedule": "constant", "optimizer": "adamax"},
                {"schedule": "inverse_sqrt", "evaluate_per_epoch": 3},
                {"method": "listwise", "n_negatives": 2, "remine_epochs": 2},
            )
        ),
        {"early_stopping": 2, "lr": 0.0},
    ],
)
def test_an_extended_run_equals_one_that_was_longer_from_the_start(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    train(recipe(task, tiny_backbone, tmp_path / "whole", epochs=3, **changes))
    for epochs in (1, 2, 3):
        train(recipe(task, tiny_backbone, tmp_path / "grown", epochs=epochs, **changes), resume=True)
    assert outcome(tmp_path / "grown") == outcome(tmp_path / "whole")


@pytest.mark.deep
def test_two_networks_are_extended_together(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    def plan(name: str, epochs: int, schedule: ScheduleConfig) -> Recipe:
        own = NetworkTraining(lr=1e-3, schedule=schedule, dropout=0.1)
        partner = Partner(model=CrossConfig(backbone=str(tiny_backbone)), train=own)
        options = {"epochs": epochs, "method": "mutual", "n_negatives": 2}
        return recipe(task, tiny_backbone, tmp_path / name, partner, **options)

    constant = ConstantSchedule(warmup_steps=3)
    train(plan("whole", 2, constant))
    for epochs in (1, 2):
        train(plan("grown", epochs, constant), resume=True)
    for name in ("retriever", "reranker"):
        weights = [(tmp_path / run / name / "model" / "model.safetensors").read_bytes() for run in ("grown", "whole")]
        assert weights[0] == weights[1]
    assert list((tmp_path / "grown").glob("checkpoint*"))
    ended = plan("ended", 1, LinearSchedule(warmup_steps=1))  # of the second network alone
    train(dataclasses.replace(ended, train=dataclasses.replace(ended.train, max_steps=4)))
    assert not list((tmp_path / "ended").glob("checkpoint*"))


def test_a_validation_that_a_longer_run_would_lack_is_reported(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    said: list[str] = []
    for steps in (5, 6):
        plan = recipe(task, tiny_backbone, tmp_path / "run", max_steps=steps)
        assert train(plan, resume=True, notify=said.append)[0].fit.n_steps == steps
    assert f"{tmp_path / 'run'} continues after its 5 steps" in said
    assert "the run was validated after step 5; an uninterrupted run would not have been" in said


def test_a_finished_run_starts_again_and_its_time_limit_is_reported(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    said: list[str] = []
    for minutes, n_steps in ((None, 2), (1e-9, 1)):
        plan = recipe(unvalidated(task), tiny_backbone, tmp_path / "run", max_steps=2, minutes=minutes)
        assert train(plan, overwrite=True, notify=said.append)[0].fit.n_steps == n_steps
        stopped = "stopped after 1e-09 minutes (train.minutes) at step 1; continue with `resume=True`"
        assert (stopped in said) == (n_steps == 1)
        assert (tmp_path / "run" / "result.json").exists() == (n_steps == 2)


@pytest.mark.parametrize(
    ("first", "second"), [("constant", "constant"), ("constant", "linear"), ("linear", "constant")]
)
def test_a_finished_run_keeps_its_checkpoint_if_all_of_its_networks_can_be_extended(
    first: str, second: str, tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    kinds: dict[str, ScheduleConfig] = {
        "constant": ConstantSchedule(warmup_steps=1),
        "linear": LinearSchedule(warmup_steps=1),
    }
    partner = Partner(model=CrossConfig(backbone=str(tiny_backbone)), train=NetworkTraining(schedule=kinds[second]))
    plan = recipe(task, tiny_backbone, tmp_path, partner, method="mutual", n_negatives=2, schedule=first)
    run = SeedRun(
        plan=resolve_recipe(plan), seed=1, folder=tmp_path, examples=[Example(("hi",), ("hello",), (0,))] * 72,
        valid=[], test=[], parts=[], device="cpu", loss=None, resume=False, overwrite=False,
        report=lambda seed, record: None, notify=print,
    )  # fmt: skip
    files = [tmp_path / name for name in (CHECKPOINT, "mined-0123.npy")]
    for file in files:
        file.touch()
    fits = [FitResult(n_steps=6, best={}, best_step=6, seconds=float(n)) for n in (1, 2)]
    run._end(fits)
    assert [file.exists() for file in files] == [first == second] * 2
    result = read_document(tmp_path, TRAINING.result)
    assert [result[name]["seconds"] for name in ("retriever", "reranker")] == [1, 2]


@pytest.mark.deep
def test_a_schedule_with_a_fixed_end_is_not_extended(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    task = unvalidated(task)
    for schedule, warmup in (("linear", 2), ("cosine", 2), ("plateau", 100)):
        folder = tmp_path / f"{schedule}-{warmup}"
        changes: dict[str, Any] = {"schedule": schedule, "warmup_steps": warmup}
        train(recipe(task, tiny_backbone, folder, **changes))
        assert not list(folder.glob("checkpoint*"))
        with pytest.raises(ConfigError, match=r"ended at 6 steps and kept no checkpoint\.safetensors"):
            train(recipe(task, tiny_backbone, folder, epochs=2, **changes), resume=True)
        assert (folder / "result.json").exists()
    folder = tmp_path / "half"  # an interrupted run of another length
    stopped = recipe(task, tiny_backbone, folder, schedule="linear", checkpoint_steps=1)

    def stop(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise DataError("enough")

    with pytest.raises(DataError, match="enough"):
        train(stopped, report=stop)
    with pytest.raises(
        ConfigError,
        match=r'first 4 learning rates of .* would differ between 6 steps and 12: .* = "linear"',
    ):
        train(recipe(task, tiny_backbone, folder, schedule="linear", checkpoint_steps=1, epochs=2), resume=True)
    assert train(stopped, resume=True)[0].fit.n_steps == 6


@pytest.mark.deep
def test_a_run_cannot_become_shorter_than_it_is(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    train(recipe(unvalidated(task), tiny_backbone, tmp_path / "run", epochs=2))
    with pytest.raises(ConfigError, match="has made 12 steps already, more than 6"):
        train(recipe(unvalidated(task), tiny_backbone, tmp_path / "run", epochs=1), resume=True)


def test_each_key_that_differs_is_named_with_both_values(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    train(recipe(task, tiny_backbone, tmp_path / "run"))
    other = recipe(task, tiny_backbone, tmp_path / "run", lr=0.5, schedule="linear", epochs=2, checkpoint_steps=3)
    gone = tmp_path / "gone.jsonl"  # no longer read
    other = dataclasses.replace(other, data=DataConfig(train=str(gone), valid=str(task["valid"])))
    with pytest.raises(ConfigError) as caught:
        train(other, resume=True)
    text = str(caught.value)
    assert f"data.train = '{task['train']}' (now '{gone}')" in text
    assert "train.lr = 0.001 (now 0.5)" in text
    assert "train.schedule.kind = 'plateau' (now 'linear')" in text
    assert "epochs" not in text
    assert "checkpoint_steps" not in text


def test_a_resumed_run_may_change_its_length_and_its_reports_alone(tmp_path: Path) -> None:
    earlier = recipe_to_dict(Recipe(model=BiConfig(), text=POLICY, data=DataConfig(), train=train_config(), output="a"))
    may_differ: list[tuple[str, str, Any]] = [
        ("", "output", "b"), ("data", "cache", "cache"), ("train", "seeds", [4]), ("train", "epochs", 9),
        ("train", "max_steps", 9), ("train", "minutes", 9.0), ("train", "checkpoint_steps", 9),
        ("train", "tensorboard", True),
    ]  # fmt: skip
    other: list[tuple[str, str, Any]] = [
        ("train", "batch_size", 9), ("train", "precision", "fp16"), ("train", "early_stopping", 9),
        ("train", "evaluate_per_epoch", 9), ("data", "valid", "b"), ("data", "test", "b"), ("text", "background", "b"),
    ]  # fmt: skip
    for table, key, value in (*may_differ, *other):
        now = {**earlier, **({table: {**earlier[table], key: value}} if table else {key: value})}
        assert now != earlier
        if (table, key, value) in may_differ:
            TRAINING.check_same(tmp_path, earlier, now)
            continue
        with pytest.raises(
            ConfigError, match=rf"{tmp_path} was started with: {table}\.{key} = .* \(now {value!r}\); use"
        ):
            TRAINING.check_same(tmp_path, earlier, now)


def test_starting_again_removes_what_any_seed_would_resume_from(tmp_path: Path) -> None:
    names = ["checkpoint.safetensors", "result.json", "metrics.jsonl", "mined-0.npy", "teacher-scores-1.npy",
             "retriever/metrics.jsonl", "reranker/metrics.jsonl", "model/config.json", "thesis.tex"]  # fmt: skip
    files = [tmp_path / seed / name for seed in ("", "seed-1", "seed-12", "other") for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    TRAINING.clear(tmp_path)
    kept = [file for file in files if "other" in file.parts or file.name in ("config.json", "thesis.tex")]
    assert [file for file in files if file.exists()] == kept


@pytest.mark.deep
def test_seeds_are_added_and_a_run_may_be_moved(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    task = unvalidated(task)
    train(recipe(task, tiny_backbone, tmp_path / "run", seeds=(1, 2)))
    (tmp_path / "run").rename(tmp_path / "moved")
    said: list[str] = []
    train(recipe(task, tiny_backbone, tmp_path / "moved", seeds=(1, 2, 5)), resume=True, notify=said.append)
    assert sum("is finished" in line for line in said) == 2
    assert (tmp_path / "moved" / "seed-5" / "result.json").exists()


@pytest.mark.deep
def test_a_run_that_failed_before_its_first_step_can_be_replaced(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    folder, task = tmp_path / "run", unvalidated(task)
    with pytest.raises(DataError):
        train(recipe({**task, "train": tmp_path / "gone.jsonl"}, tiny_backbone, folder))
    assert not folder.exists()
    with pytest.raises(ConfigError, match="train_layers"):
        train(recipe(task, tiny_backbone, folder, train_layers="top-9"))
    assert (folder / "recipe.json").exists()
    assert train(recipe(task, tiny_backbone, folder))[0].fit.n_steps == 6
    other = tmp_path / "again"
    with pytest.raises(ConfigError, match="train_layers"):
        train(recipe(task, tiny_backbone, other, train_layers="top-9"))
    assert train(recipe(task, tiny_backbone, other, lr=0.5), resume=True)[0].fit.n_steps == 6


def test_a_folder_with_other_files_is_refused(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which is not from a training"):
        train(recipe(task, tiny_backbone, tmp_path / "run"))
    train(recipe(unvalidated(task), tiny_backbone, tmp_path / "run"), overwrite=True)
    assert (tmp_path / "run" / "thesis.tex").read_text() == "mine"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".DS_Store").write_text("of the desktop")
    TRAINING.check_folder(tmp_path / "hidden", resume=False, overwrite=False)


def test_the_folders_of_all_seeds_are_checked_before_any_work(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    earlier = tmp_path / "run" / "seed-2"
    earlier.mkdir(parents=True)
    (earlier / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"seed-2 holds an earlier run; pass `resume=True` to continue it"):
        train(recipe(task, tiny_backbone, tmp_path / "run", seeds=(1, 2)))
    assert not (tmp_path / "run" / "seed-1").exists()


@pytest.mark.parametrize("network", ["retriever", "reranker"])
def test_other_files_in_a_model_folder_of_either_network_are_not_lost(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path, network: str
) -> None:
    folder = tmp_path / "run" / network / "model"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    partner = Partner(model=CrossConfig(backbone=str(tiny_backbone)), train=NetworkTraining())
    plan = recipe(task, tiny_backbone, tmp_path / "run", partner, method="mutual", n_negatives=2, max_steps=1)
    with pytest.raises(UsageError, match=rf"{network}/model holds other files, which would be lost: thesis\.tex"):
        train(plan, overwrite=True)
    assert not list((tmp_path / "run").rglob("metrics.jsonl"))  # before any work


def train_and_wait(plan: Recipe, sending: Connection) -> None:
    """Train until the first record, and then wait for a kill."""

    def report(seed: int, record: dict[str, Any]) -> None:
        sending.send(record["step"])
        signal.pause()

    train(plan, report=report)


@pytest.mark.deep
def test_a_running_training_locks_its_folder(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    plan = recipe(unvalidated(task), tiny_backbone, tmp_path / "run", seeds=(1, 2))
    receiving, sending = Pipe(duplex=False)
    child = start(train_and_wait, plan, sending)
    try:
        assert receiving.recv() == 1
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(LockedError, match=f"is being trained in by process {child.pid}; wait until it has"):
                train(plan, **options)
    finally:
        child.kill()
        child.join()
    assert (tmp_path / "run" / LOCK).exists()  # the file stays after the kill, without its lock
    assert [result.fit.n_steps for result in train(plan, resume=True)] == [6, 6]
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_locked_folder_has_its_exit_code(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        f'output = "run"\n[model]\nkind = "bi"\nbackbone = "{tiny_backbone}"\n[text]\n'
        f'max_context_tokens = 24\nmax_candidate_tokens = 8\n[data]\ntrain = "{task["train"]}"\n'
    )
    (tmp_path / "run").mkdir()
    with hold(tmp_path / "run" / LOCK, "x"):
        done = run("train", tmp_path / "recipe.toml")
    assert done.returncode == 6, done.stderr
    assert f"is being trained in by process {os.getpid()}" in done.stderr


def test_the_holder_of_a_lock_is_named_with_its_machine(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with hold(file, "it is in use"):
        assert file.read_bytes().split() == [str(os.getpid()).encode(), socket.gethostname().encode()]
        for note, name in ((b"77 elsewhere", "process 77 on elsewhere"), (b"???", "another process")):
            with file.open("r+b") as stream:
                stream.write(note.ljust(96))
            with (
                pytest.raises(LockedError, match=f"it is in use by {name}; wait until it has finished"),
                hold(file, "it is in use"),
            ):
                pass
    with hold(file, "x"):  # released
        file.unlink()
        with hold(file, "x"):  # another file of the same name
            pass


def test_systems_without_file_locks_work(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["fcntl"] = None
import numpy as np
from pathlib import Path
from polyrank.index import LocalWriter, open_index, write_index
from polyrank.records import Candidate
from polyrank.storage.lock import hold
from polyrank.storage.durable import new_folder
with new_folder(Path("made")) as folder:
    (folder / "x").write_text("x")
with hold(Path("lock"), "in use"), hold(Path("lock"), "in use"):
    pass
write_index(Path("index"), [Candidate("a", "hi")], np.ones((1, 2), np.float32), fingerprint="f", model="m")
with LocalWriter("index") as writer:
    print(writer.remove(["a"]), len(writer), (Path("made") / "x").read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 0 x\n"), done.stderr
