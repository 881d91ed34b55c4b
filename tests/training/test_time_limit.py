"""Durations of trainings: step times, the estimate of the rest, and train.minutes, which ends a resumable run."""

import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyrank.config.models import BiConfig
from polyrank.config.recipe import Recipe
from polyrank.config.train import NetworkTraining, TrainConfig
from polyrank.errors import ConfigError, DivergedError
from polyrank.loading.recipes import load_recipe
from polyrank.models import Network
from polyrank.training import RunResult, train
from polyrank.training.checkpoints import CHECKPOINT, read_progress
from polyrank.training.learner import Learner, Loss
from polyrank.training.loop import FitResult, duration, fit
from train_settings import toy_recipe


class Line(Network):
    """One weight per input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.5]))

    def shape(self) -> dict[str, Any]:
        return {}

    def trunks(self) -> list[Any]:
        return []

    def new_parameters(self) -> list[nn.Parameter]:
        return []


class Steps:
    """50 updates that take 3 seconds each, and the first one a minute; validated after steps 10 and 50."""

    n_steps, ahead = 50, False

    def __init__(self, seconds: float = 3) -> None:
        self.network, self.time, self.seconds = Line(), 0.0, seconds

    def rows(self, number: int) -> tuple[list[float], int]:
        self.time += self.seconds if number else 60
        return [1.0, float(number)], number // 20

    def counts(self, rows: list[float]) -> dict[str, int]:
        return {"n_examples": len(rows)}

    def check(self, done: int) -> dict[str, float] | None:
        return {"epoch": done / 50} if done in (10, 50) else None

    def too_large(self, rows: list[float]) -> str:
        return "too large"

    def prepare(self, rows: list[float], epoch: int) -> Tensor:
        assert epoch == rows[1] // 20  # which decides what is drawn for these rows
        return torch.tensor(rows)

    def losses(self, batch: Tensor, number: int) -> Iterator[Loss]:
        yield Loss((self.network.weight * batch).sum().square())

    def clock(self) -> float:
        return self.time

    def fit(
        self, folder: Path, lines: list[str], *, minutes: float | None = None, resume: bool = False
    ) -> tuple[FitResult, list[float], list[int]]:
        """The result, the weights, and the steps after which a model was saved."""
        saved: list[int] = []
        folder.mkdir(exist_ok=True)
        learner = Learner(
            model=self.network,
            settings=NetworkTraining(train_layers="all"),
            folder=folder,
            save_best=lambda figures: saved.append(len((folder / "metrics.jsonl").read_text().splitlines())),
            evaluate=lambda: {"loss": 1.0, "R@1": self.time},
        )
        (own,) = fit(
            [learner], self, self, TrainConfig(precision="fp32", minutes=minutes), seed=1, folder=folder,
            device=torch.device("cpu"), resume=resume, notify=lines.append, clock=self.clock,
        )  # fmt: skip
        return own, self.network.weight.tolist(), saved


def test_the_remaining_time_is_estimated_without_the_first_step(tmp_path: Path) -> None:
    """30 steps of 3 seconds, by hand."""
    lines: list[str] = []
    own, _, _ = Steps().fit(tmp_path, lines)
    assert lines == ["training for 50 steps", "the remaining 30 steps take about 90 s, validations not included"]
    assert (own.finished, own.n_steps, own.seconds) == (True, 50, 60 + 49 * 3)


def test_a_long_training_names_the_setting_that_ends_it_earlier(tmp_path: Path) -> None:
    """30 steps of 60 seconds are more than 20 minutes."""
    lines: list[str] = []
    Steps(seconds=60).fit(tmp_path, lines)
    assert lines[1].endswith("; train.minutes = 20 ends the training earlier and keeps its best model")
    Steps(seconds=60).fit(tmp_path / "limited", lines, minutes=600)
    assert lines[-1].endswith("validations not included")


def test_a_time_limit_keeps_the_best_model_and_the_run_resumes_exactly(tmp_path: Path) -> None:
    """60 seconds and 20 steps of 3 seconds are two minutes: training ends after step 21, with another validation."""
    lines: list[str] = []
    whole, weights, saved = Steps().fit(tmp_path / "whole", [])
    assert (whole.best_step, len(saved)) == (50, 2)
    part, _, saved = Steps().fit(tmp_path / "run", lines, minutes=2)
    assert (part.finished, part.n_steps, part.best_step, len(saved)) == (False, 21, 21, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "more")
    more, _, _ = Steps().fit(tmp_path / "more", [], minutes=1, resume=True)
    assert (more.finished, more.n_steps, more.seconds) == (False, 41, 180)  # the limit is of each call's own time
    rest = Steps()
    own, resumed, _ = rest.fit(tmp_path / "run", lines, minutes=60, resume=True)
    assert lines[-2:] == [
        "continuing after step 21 of 50",
        "the remaining 9 steps take about 27 s, validations not included",
    ]
    assert (own.finished, own.n_steps, resumed) == (True, 50, weights)
    assert own.n_examples == whole.n_examples


class Pair(Steps):
    """The same with two networks: the R@1 of the first one rises with the time, that of the second one falls.

    Args:
        bad: the place of a network and the 0-based update in which its loss is not finite.
    """

    def __init__(self, bad: tuple[int, int] = (0, -1)) -> None:
        super().__init__()
        self.networks, self.bad = (Line(), Line()), {bad}

    def losses(self, batch: Tensor, number: int) -> Iterator[Loss]:
        for place, network in enumerate(self.networks):
            loss = (network.weight * batch).sum().square()
            yield Loss(loss * math.nan if (place, number) in self.bad else loss)

    def figures(self, place: int) -> dict[str, float]:
        return {"loss": 1.0, "R@1": 1 / self.time if place else self.time}

    def fit_both(self, folder: Path, *, resume: bool = False, **changes: Any) -> list[FitResult]:
        learners = []
        for place, name in enumerate(("retriever", "reranker")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            learner = Learner(
                model=self.networks[place],
                settings=NetworkTraining(train_layers="all"),
                folder=folder / name,
                save_best=lambda figures: None,
                evaluate=partial(self.figures, place),
                name=name,
            )
            learners.append(learner)
        return fit(
            learners, self, self, TrainConfig(precision="fp32", **changes), seed=1, folder=folder,
            device=torch.device("cpu"), resume=resume, clock=self.clock,
        )  # fmt: skip


def test_a_time_limit_keeps_the_best_version_of_each_network(tmp_path: Path) -> None:
    stopped = Pair().fit_both(tmp_path, minutes=2)
    assert [(own.n_steps, own.best_step) for own in stopped] == [(21, 21), (21, 10)]
    saved = read_progress(tmp_path / CHECKPOINT)["learners"]
    assert [saved[name]["best_step"] for name in ("retriever", "reranker")] == [21, 10]
    rest = Pair()
    rest.time = 120
    resumed = rest.fit_both(tmp_path, resume=True)
    assert [(own.n_steps, own.best_step) for own in resumed] == [(50, 50), (50, 10)]


@pytest.mark.parametrize("place", [0, 1])
def test_a_time_limit_keeps_only_a_model_that_replaced_an_earlier_one(tmp_path: Path, place: int) -> None:
    """The first validation of one network is not finite, so the limit saves its first model; a resumed run does not."""
    steps = Pair()

    def figures(of: int) -> dict[str, float]:
        return {"loss": 1.0, "R@1": math.nan if of == place and steps.time < 90 else steps.time}

    steps.figures = figures  # type: ignore[method-assign,assignment]
    stopped = steps.fit_both(tmp_path, minutes=2)
    assert [(own.n_steps, own.best_step) for own in stopped] == [(21, 21), (21, 21)]
    saved = read_progress(tmp_path / CHECKPOINT)["learners"]
    kept = [saved[name]["best_step"] for name in ("retriever", "reranker")]
    assert (kept[place], kept[1 - place]) == (0, 21)


@pytest.mark.parametrize("place", [0, 1])
def test_no_checkpoint_follows_a_bad_update_of_either_network(tmp_path: Path, place: int) -> None:
    """It is due after every step, and step 20 is the last one."""
    steps = Pair(bad=(place, 19))
    steps.n_steps = 20
    steps.fit_both(tmp_path, checkpoint_steps=1)
    assert read_progress(tmp_path / CHECKPOINT)["step"] == 19


def test_two_networks_end_early_when_neither_gains(tmp_path: Path) -> None:
    """Validated after every step, the second one never gains after the first step; the first one always or never."""
    gains, still = Pair(), Pair()
    still.figures = lambda place: {"loss": 1.0, "R@1": 0.5}  # type: ignore[method-assign,assignment]
    for steps, ended in ((gains, 6), (still, 3)):
        steps.n_steps = 6
        steps.check = lambda done: {}  # type: ignore[method-assign,assignment]
        results = steps.fit_both(tmp_path / str(ended), early_stopping=2)
        assert [own.n_steps for own in results] == [ended, ended]


@pytest.mark.parametrize("place", [0, 1])
def test_either_network_can_diverge(tmp_path: Path, place: int) -> None:
    """By eleven bad updates in a row, or by bad ones only until a model is due."""
    for every, kept in ((5, "checkpoint.safetensors is from before them"), (None, "no checkpoint was saved yet")):
        steps = Pair()
        steps.bad = {(place, number) for number in range(5, 16)}
        with pytest.raises(DivergedError, match=f"not finite for 11 steps in a row, more than 10; .*{kept}; lower"):
            steps.fit_both(tmp_path / str(every), checkpoint_steps=every)
    steps = Pair()
    steps.bad, steps.n_steps = {(place, number) for number in range(3)}, 3
    steps.figures = lambda of: {"loss": 1.0, "R@1": math.nan if of == place else 1.0}  # type: ignore[method-assign]
    steps.check = lambda done: {} if done == 3 else None  # type: ignore[method-assign,assignment]
    with pytest.raises(
        DivergedError, match=r"no loss was finite when a model was due to be saved, so .*short has none"
    ):
        steps.fit_both(tmp_path / "short")


def test_a_limit_reached_at_the_last_step_has_no_effect(tmp_path: Path) -> None:
    own, _, saved = Steps().fit(tmp_path, [], minutes=(60 + 49 * 3) / 60)
    assert (own.finished, own.n_steps, len(saved)) == (True, 50, 2)


def test_a_short_training_is_not_estimated(tmp_path: Path) -> None:
    steps, lines = Steps(), list[str]()
    steps.n_steps = 20
    steps.fit(tmp_path, lines)
    assert lines == ["training for 20 steps"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119.4, "119 s"), (120, "2 min"), (3600 * 30, "30 h 0 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# by a recipe


def recipe(task: dict[str, Path], backbone: Path, output: Path, **changes: Any) -> Recipe:
    """9 steps, validated after the last one."""
    settings: dict[str, Any] = {
        "batch_size": 8, "lr": 1e-3, "warmup_steps": 2, "schedule": "plateau", "train_layers": "all",
        "precision": "fp32", "evaluate_per_epoch": 1, **changes,
    }  # fmt: skip
    return toy_recipe(task, output, BiConfig(backbone=str(backbone), reduction="mean"), **settings)


@pytest.mark.deep
def test_a_run_out_of_time_has_a_model_but_no_result_and_resumes(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    (whole,) = train(recipe(task, tiny_backbone, tmp_path / "whole", batch_size=24))
    folder, lines = tmp_path / "run", list[str]()

    def result(**changes: Any) -> RunResult:
        (own,) = train(recipe(task, tiny_backbone, folder, batch_size=24, **changes), resume=True, notify=lines.append)
        return own

    stopped = result(minutes=1e-9)
    assert (stopped.fit.finished, stopped.fit.n_steps, stopped.fit.best_step) == (False, 1, 1)
    assert "training for 3 steps" in lines
    assert "stopped after 1e-09 minutes (train.minutes) at step 1; continue with `resume=True`" in lines
    assert stopped.load(device="cpu").rank("hello", ["a", "b"])
    assert not (folder / "result.json").exists()
    assert "stopped by train.minutes before 3" in (folder / "model" / "README.md").read_text("utf-8")
    assert result(minutes=1e-9).fit.n_steps == 2
    own = result()
    assert (own.fit.finished, own.fit.n_steps, own.fit.best) == (True, 3, whole.fit.best)
    assert json.loads((folder / "result.json").read_bytes())["finished"]
    for name in ("model.safetensors", "config.json"):
        first, second = ((path / "model" / name).read_bytes() for path in (folder, tmp_path / "whole"))
        assert first == second or name == "config.json"  # it contains the output's path
    assert "stopped" not in (folder / "model" / "README.md").read_text("utf-8")


def test_minutes_are_above_0(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"minutes = 0\.0 must be above 0"):
        load_recipe({"model": {"kind": "bi"}, "output": "run", "train": {"minutes": 0}})
