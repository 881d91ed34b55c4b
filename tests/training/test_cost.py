"""The cost of a training, measured before it begins: right sums, and no effect on the training."""

import dataclasses
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polyrank.cli import app
from polyrank.cli.training import TrainingDisplay
from polyrank.config.recipe import recipe_from_dict
from polyrank.data import read_examples
from polyrank.loading.recipes import resolve_recipe
from polyrank.training import train
from polyrank.training.cost import Cost, measure_cost
from processes import run
from train_settings import bi_tables

CPU = torch.device("cpu")
MUTUAL = {
    "reranker": {"kind": "cross"},
    "train": {"method": {"kind": "mutual"}, "negatives": {"n": 3, "sources": ["mined", "random"]}},
}


def tables(task: dict[str, Path], backbone: Path, output: Path, **train: Any) -> dict[str, Any]:
    """9 steps an epoch, validated twice an epoch on 12 lists of 12 candidates."""
    usual = {
        "batch_size": 8, "epochs": 5, "dropout": 0.3, "schedule": {"kind": "constant", "warmup_steps": 0},
        "method": {"kind": "in_batch"},
    }  # fmt: skip
    return bi_tables(task, backbone, output, **usual | train)


def outcome(folder: Path) -> tuple[bytes, list[Any]]:
    """The weights, and the records without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return (folder / "model" / "model.safetensors").read_bytes(), [{**line, "seconds": 0} for line in lines]


@pytest.mark.deep
def test_the_training_and_its_resumption_have_the_same_bits_with_a_forecast(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    train(tables(task, tiny_backbone, tmp_path / "plain", checkpoint_steps=22))
    said: list[str] = []
    train(tables(task, tiny_backbone, tmp_path / "run", max_steps=22), forecast=True, notify=said.append)
    plan = tables(task, tiny_backbone, tmp_path / "run")
    examples, valid = (list(read_examples(task[name]).examples) for name in ("train", "valid"))
    ticks = count()
    rest = measure_cost(
        resolve_recipe(plan),
        examples,
        valid,
        seed=1,
        device=CPU,
        run=tmp_path / "run",
        clock=lambda: float(next(ticks)),
    )
    assert rest is not None
    assert (rest.n_steps, rest.seconds) == (23, 23 + 5)  # validations after steps 27, 32, 36, 40 and 45
    # an extended run is validated at its first end, too, so both are compared by their last records
    train(plan, forecast=True, resume=True, notify=said.append)
    costs = [line.partition(" steps will take about")[0] for line in said if "examples/s" in line]
    assert costs == ["22", "23"]
    (weights, records), (again, repeated) = outcome(tmp_path / "plain"), outcome(tmp_path / "run")
    assert weights == again
    losses = [[record["loss"] for record in own if "loss" in record] for own in (records, repeated)]
    assert losses[0] == losses[1]


def test_the_cost_is_that_of_all_steps_and_validations(
    tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    """The first batch takes 4 seconds and the others 1, which makes 45 steps; 10 validations take 3 seconds each."""
    plan = resolve_recipe(tables(task, tiny_backbone, tmp_path / "run"))
    examples, valid = (list(read_examples(task[name]).examples) for name in ("train", "valid"))
    state = torch.random.get_rng_state()
    times = iter([0.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, 7.0, 7.0, 10.0])
    said: list[str] = []
    cost = measure_cost(plan, examples, valid, seed=1, device=CPU, progress=said.append, clock=times.__next__)
    assert cost is not None
    assert said == [*(f"timing batch {number} of 4" for number in (1, 2, 3, 4)), "timing the validation"]
    assert (cost.n_steps, cost.per_second, cost.seconds) == (45, 8, 45 + 10 * 3)
    assert cost.memory is None or cost.memory > 10_000_000
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not (tmp_path / "run").exists()
    many = [dataclasses.replace(valid[i % 12], context=(f"hi {i}",)) for i in range(96)]
    ticks = count(step=3)
    cost = measure_cost(plan, examples, many, seed=1, device=CPU, clock=lambda: float(next(ticks)))
    assert cost is not None
    assert cost.seconds == pytest.approx(45 * 3 + 10 * 3 * (96 + 12) / (32 + 12))  # contexts, and distinct candidates


def test_slow_batches_are_measured_once(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    plan = resolve_recipe(tables(task, tiny_backbone, tmp_path / "run"))
    ticks: list[float] = []

    def clock() -> float:
        ticks.append(20.0 * len(ticks))
        return ticks[-1]

    cost = measure_cost(plan, list(read_examples(task["train"]).examples), [], seed=1, device=CPU, clock=clock)
    assert cost is not None
    assert (len(ticks), cost.seconds) == (2, 45 * 20)


def test_short_trainings_are_not_measured(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    plan = resolve_recipe(tables(task, tiny_backbone, tmp_path / "run", max_steps=20))
    examples = list(read_examples(task["train"]).examples)
    assert measure_cost(plan, examples, [], seed=1, device=CPU, clock=lambda: pytest.fail("measured")) is None


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"method": {"kind": "listwise"}, "negatives": {"n": 3}}},
        {"model": {"kind": "cross"}, "train": {"method": {"kind": "listwise"}, "negatives": {"n": 3}}},
        {"train": {"chunk_size": 4}},
        {"train": {"negatives": {"sources": ["mined"], "n": 2, "remine_epochs": 2}, "method": {"kind": "in_batch"}}},
        MUTUAL,
    ],
    ids=["lists", "cross", "chunks", "mined", "mutual"],
)
def test_each_method_can_be_measured(
    change: dict[str, Any], tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    values = tables(task, tiny_backbone, tmp_path / "run")
    merged = {
        key: {**values.get(key, {}), **change.get(key, {})} if key not in ("output",) else values[key]
        for key in values.keys() | change.keys()
    }
    if "reranker" in merged:
        merged["reranker"]["backbone"] = str(tiny_backbone)
    plan = resolve_recipe(recipe_from_dict(merged))
    examples, valid = (list(read_examples(task[name]).examples) for name in ("train", "valid"))
    cost = measure_cost(plan, examples, valid, seed=1, device=CPU)
    assert cost is not None
    assert cost.seconds > 45 * 8 / cost.per_second


@pytest.mark.parametrize("sources", [["mined"], ["mined", "given"]])
def test_fewer_mined_negatives_than_requested_are_measured_too(
    sources: list[str], tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    """A training mines what there is, so its forecast must not refuse the data: 12 responses, 15 negatives."""
    negatives = {"n": 15, "sources": sources, "remine_epochs": 1}
    plan = tables(task, tiny_backbone, tmp_path / "run", method={"kind": "listwise"}, negatives=negatives)
    examples = list(read_examples(task["train"]).examples)
    cost = measure_cost(resolve_recipe(plan), examples, [], seed=1, device=CPU)
    assert cost is not None
    assert cost.n_steps == 45


def test_the_sentence_names_the_way_to_cut_a_long_training() -> None:
    def said(seconds: float, minutes: float | None = None) -> str:
        return Cost(n_steps=9, per_second=2.0, seconds=seconds, memory=None).describe(minutes)

    assert "train.minutes" not in said(1000)
    assert said(5000).endswith("train.minutes=20 ends the training earlier and keeps its best model")
    assert "train.minutes = 5 ends" in said(5000, 5.0)
    assert "train.minutes" not in said(5000, 100.0)


def test_the_command_says_what_training_costs(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'output = "run"\n[data]\ntrain = "{task["train"]}"\n[model]\nkind = "bi"\nbackbone = "{tiny_backbone}"\n'
        "[text]\nmax_context_tokens = 24\nmax_candidate_tokens = 8\n[train]\nbatch_size = 8\nepochs = 5\n"
        "max_steps = 25\n"
    )
    done = CliRunner().invoke(app, ["train", str(recipe)])
    assert done.exit_code == 0, done.output
    assert "25 steps will take about" in done.stderr


@pytest.mark.deep
def test_split_says_what_training_costs(
    write_rows: Callable[[str, list[dict[str, Any]]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"context": [f"my {i}"], "response": f"hello {i % 50}"} for i in range(1400)]
    file = write_rows("rows.jsonl", rows)
    done = run("split", file, "-o", tmp_path / "split")
    assert done.returncode == 0, done.stderr
    assert "timing a few batches of training: this takes seconds, or minutes if the machine is busy" in done.stderr
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    drawn = run("split", file, "-o", tmp_path / "drawn").stderr
    assert "loading the model" in drawn
    assert "timing the validation" in drawn
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("training: ")]
    assert "examples/s, validations included" in line


def test_the_display_shows_the_speed_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that another machine began at 1 example per second continues at 10."""
    with TrainingDisplay() as display:
        for n_more in range(3):
            record = {"step": 50 * (n_more + 1), "n_steps": 200, "loss": 1.0}
            display.report(1, record | {"n_examples": 1000 + 500 * n_more, "seconds": 1000.0 + 50 * n_more})
    speeds = [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()]
    assert speeds == ["1 examples/s", "10 examples/s", "10 examples/s"]
