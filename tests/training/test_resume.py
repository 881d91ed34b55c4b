"""A resumed run equals an uninterrupted one, and needs every part of its checkpoint for that."""

import dataclasses
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

import polyrank
from convert_models import BATCH, CORPUS, POLICY, TINY, make
from polyrank.config.recipe import Recipe
from polyrank.config.schedules import ConstantSchedule, LinearSchedule
from polyrank.config.train import NetworkTraining, TrainConfig
from polyrank.errors import ArtifactError, ConfigError, DivergedError, UsageError
from polyrank.loading.recipes import resolve_recipe
from polyrank.models import Convert, new_model
from polyrank.models.artifacts import save_model
from polyrank.models.losses import cross_entropy
from polyrank.records import Example
from polyrank.storage.document import read_document, seal
from polyrank.storage.durable import write_file
from polyrank.storage.tensors import read_file
from polyrank.text import ConvertTexts
from polyrank.training import FitResult, fit_together, loop
from polyrank.training.batches import BatchOrder
from polyrank.training.checkpoints import load_checkpoint, read_progress, save_checkpoint
from polyrank.training.convert_step import ConvertStep
from polyrank.training.data import examples_digest
from polyrank.training.inputs import InBatch, Positions
from polyrank.training.learner import Learner, Loss
from polyrank.training.pretraining.run import PRETRAINING
from polyrank.training.run import TRAINING
from polyrank.training.run_document import (
    RECIPE,
    backbone_digest,
    check_same_inputs,
    read_run_recipe,
    run_document,
)
from polyrank.training.run_folder import RunKind
from polyrank.training.signals import InterruptedTraining, stop_on_signals
from polyrank.training.steps import InBatchStep
from train_settings import train_config

CPU = torch.device("cpu")
EXAMPLES = [
    *(example for _, example in BATCH),
    Example(("is it red",), ("the light is down",), (0,)),
    Example(("please", "help"), ("restart the router",), (0,)),
    Example(("did that help",), ("thanks! it did",), (0,)),
    Example(("hello",), ("my router is down",), (0,)),
]
# validation loss and R@1 by step, for 20 steps, 4 per epoch. With patience 1 the rate falls after steps 6 and 10.
# Step 2 is the best: training stops five checks later, after step 12.
FIGURES = {2: (1.0, 0.5), 4: (1.1, 0.4), 6: (1.2, 0.3), 8: (1.3, 0.3), 10: (1.05, 0.45), 12: (1.04, 0.2)}
LATER = (1.1, 0.1)
SMALL = dataclasses.replace(TINY, spans=(2,), side_layers=1, position_periods=(3,), reduction_heads=1)


class CrashError(Exception):
    """Ends a run from its report callback, like a crash."""


class Watched:
    """ConveRT's training that records its input, produces NaN on request, and validates from ``FIGURES``."""

    def __init__(self, step: ConvertStep, bad: Iterable[int], stop_in: int | None) -> None:
        self.step, self.bad, self.stop_in = step, set(bad), stop_in
        self.given: list[tuple[list[int], int, int]] = []
        self.scales: list[float] = []
        self.drawn: list[float] = []
        self.modes: list[bool] = []

    def prepare(self, rows: Positions, epoch: int) -> tuple[list[int], int, InBatch]:
        return [position for position, _ in rows], epoch, self.step.prepare(rows, epoch)

    def losses(self, batch: tuple[list[int], int, InBatch], number: int) -> Iterator[Loss]:
        positions, epoch, prepared = batch
        self.given.append((positions, epoch, number))
        self.modes.append(self.step.model.training)
        self.drawn.append(float(torch.rand(1)))
        if number == self.stop_in:
            signal.raise_signal(signal.SIGTERM)
        (loss,) = self.step.losses(prepared, number)
        self.scales.append(float(self.step.model.scale))
        yield loss._replace(mean=loss.mean * torch.nan) if number in self.bad else loss

    def figures(self) -> Mapping[str, float]:
        loss, recall = FIGURES.get(self.given[-1][2] + 1, LATER)
        self.step.model.eval()  # like a scorer
        return {"loss": loss, "R@1": recall, "MRR": recall}


@dataclass
class Outcome:
    """All observable results of a run except times."""

    rows: list[dict[str, Any]]
    weights: dict[str, Tensor]
    n_steps: int
    n_examples: int
    best: dict[str, float]
    best_step: int
    seconds: float

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        same = [torch.equal(value, other.weights[name]) for name, value in self.weights.items()]
        plain = [(run.rows, run.n_steps, run.n_examples, run.best, run.best_step) for run in (self, other)]
        return all(same) and plain[0] == plain[1]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def last_turn(example: Example) -> int:
    return len(example.context[-1])


def fresh(seed: int = 1) -> tuple[Convert, ConvertTexts]:
    model, texts, _ = new_model(SMALL, POLICY, seed=seed, sample=(), corpus=CORPUS, dropout=0.1)
    assert isinstance(model, Convert)
    assert isinstance(texts, ConvertTexts)
    return model, texts


def run(
    folder: Path,
    *,
    resume: bool = False,
    crash_at: int | None = None,
    bad: Iterable[int] = (),
    stop_in: int | None = None,
    validate: bool = True,
    seed: int = 9,
    watch: Callable[[Watched], None] = lambda _: None,
    max_bad_steps: int = 10,
    **changes: Any,
) -> Outcome:
    """``fit_together`` of a small ConveRT whose 8-bit range and scale grow; a crash comes after the update's record."""
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "batch_size": 2, "epochs": 5, "lr": 0.05, "schedule": "plateau", "patience": 1, "factor": 0.5,
        "warmup_steps": 3, "train_layers": "all", "precision": "fp32", "evaluate_per_epoch": 2, "early_stopping": 5,
        "checkpoint_steps": 1, "length_window": 50, **changes,
    }  # fmt: skip
    model, texts = fresh()
    step = ConvertStep(
        model, InBatchStep(model, texts, CPU, partial(cross_entropy, smoothing=0.2)), scale_steps=15, range_steps=5
    )
    watched = Watched(step, bad, stop_in)

    def report(record: dict[str, Any]) -> None:
        if record["step"] == crash_at:
            raise CrashError

    patch = pytest.MonkeyPatch()
    patch.setattr(loop, "MAX_BAD_STEPS", max_bad_steps)
    try:
        settings = train_config(**values)
        learner = Learner(
            model=model, settings=settings, folder=folder, save_best=lambda _: None,
            evaluate=watched.figures if validate else None, report=report,
        )  # fmt: skip
        result: FitResult = fit_together(
            [learner], watched, EXAMPLES, settings, length=last_turn, seed=seed, folder=folder, device=CPU,
            resume=resume,
        )[0]  # fmt: skip
    finally:
        patch.undo()
        watch(watched)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Outcome(
        rows_of(folder), weights, result.n_steps, result.n_examples, result.best, result.best_step, result.seconds
    )


@dataclass
class Story:
    """A finished run, and the folder of one that crashed in its tenth update."""

    whole: Outcome
    broken: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    whole = run(folder / "whole")
    with pytest.raises(CrashError):
        run(folder / "broken", crash_at=10)
    return Story(whole, folder / "broken")


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safetensors.safe_open(str(folder / "checkpoint.safetensors"), framework="pt") as stream:
        progress = json.loads(stream.metadata()["progress"])
        return {name: stream.get_tensor(name) for name in stream.keys()}, progress  # noqa: SIM118  # has no __iter__


def write(folder: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    header = {"progress": json.dumps(progress)}
    safetensors.torch.save_file(tensors, folder / "checkpoint.safetensors", header)


def test_the_run_exercises_every_field(story: Story) -> None:
    """Rates fall at checks before and after the crash, early stopping counts across it, range and scale change."""
    whole = story.whole
    rates = [row["lr"] / 0.05 for row in whole.rows if "lr" in row]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25])
    assert (whole.n_steps, whole.best_step, whole.best["R@1"]) == (12, 2, 0.5)
    assert whole.n_examples == 3 * 7
    tensors, progress = read(story.broken)
    assert (progress["step"], progress["n_examples"]) == (9, 2 * 7 + 2)
    assert progress["learners"][""] == {
        "bad": 0, "stale": 3, "best": {"loss": 1.0, "R@1": 0.5, "MRR": 0.5}, "best_step": 2, "best_loss": 1.0,
        "stalls": 1, "decay": 0.5,
    }  # fmt: skip
    seen = [fresh()[0].subwords.seen, tensors["/buffer.subwords.seen"], whole.weights["subwords.seen"]]
    assert seen[0][1] < seen[1][1] < seen[2][1]
    assert seen[0][0] > seen[1][0] > seen[2][0]
    assert 1 < float(tensors["/buffer.scale"]) < float(whole.weights["scale"])


def test_resumed_equals_uninterrupted(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.broken, tmp_path / "run")
    assert run(tmp_path / "run", resume=True) == story.whole


@pytest.mark.deep
def test_the_model_of_a_time_limit_may_stay_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit's own validation replaces the model, so a resumed run must know it; the weights stay the same."""
    whole = run(tmp_path / "whole", early_stopping=None)
    monkeypatch.setitem(FIGURES, 3, (1.0, 0.9))
    with pytest.raises(CrashError):
        run(tmp_path / "cut", early_stopping=None, crash_at=3)
    cut = run(tmp_path / "cut", early_stopping=None, minutes=1e-9, resume=True)
    assert (cut.n_steps, cut.best_step, cut.best["R@1"]) == (3, 3, 0.9)
    ended = run(tmp_path / "cut", early_stopping=None, resume=True)
    assert (ended.n_steps, ended.best_step, ended.best["R@1"]) == (whole.n_steps, 3, 0.9)
    assert all(torch.equal(tensor, ended.weights[name]) for name, tensor in whole.weights.items())


def test_what_a_run_without_a_checkpoint_left_is_not_used(tmp_path: Path) -> None:
    for name in ("recipe.json", "mined-0.npy"):
        (tmp_path / name).write_text("{}")
    TRAINING.check_folder(tmp_path, resume=False, overwrite=False)
    assert TRAINING.begin(tmp_path, {}, longer=False, notify=print) is None
    assert not (tmp_path / "mined-0.npy").exists()


@pytest.mark.parametrize(
    ("kind", "begun", "other"),
    [
        (
            TRAINING,
            ["checkpoint.safetensors", "metrics.jsonl", "model", "result.json", "retriever/metrics.jsonl",
             "retriever/model", "reranker/metrics.jsonl", "reranker/model"],
            ["recipe.json", "run.lock", "tensorboard", "teacher-scores-1.npy", "mined-0.npy"],
        ),
        (
            PRETRAINING,
            ["checkpoint.safetensors", "metrics.jsonl", "model", "pretrained.json"],
            ["pretraining.json", "run.lock", "tensorboard", "tokens", "tokenizer.json"],
        ),
    ],
    ids=["training", "pre-training"],
)  # fmt: skip
def test_any_file_of_a_run_protects_its_folder(
    tmp_path: Path, kind: RunKind, begun: Sequence[str], other: Sequence[str]
) -> None:
    """A run that died early, or whose other files were removed, has only one; without these nothing is lost."""
    cleared = [name for name in (*begun, *other) if not name.endswith(("model", "run.lock", "recipe.json"))]
    for number, name in enumerate((*begun, *other, "notes.txt")):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")
        assert kind.has_begun(folder) == (name in begun), name
        for resume, overwrite in ((True, False), (False, True)):
            kind.check_folder(folder, resume=resume, overwrite=overwrite)
        refused = {"notes.txt": "which is not from a training"}.get(name, "holds an earlier run; pass `resume=True`")
        with nullcontext() if name in other else pytest.raises(UsageError, match=refused):
            kind.check_folder(folder, resume=False, overwrite=False)
        kind.clear(folder)
        assert (folder / name).exists() == (name not in cleared), name


@pytest.mark.parametrize("kind", [TRAINING, PRETRAINING], ids=["training", "pre-training"])
def test_a_finished_run_that_gets_more_steps_is_unfinished_until_it_ends_again(
    story: Story, tmp_path: Path, kind: RunKind
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(story.broken, folder)
    begin, said = partial(kind.begin, folder, notify=lambda text: said.append(text)), list[str]()
    assert begin({"steps": 9}, longer=False) is None
    kind.end(folder, {"reached": 1})
    assert begin({"steps": 9}, longer=False) == {"reached": 1}
    assert begin({"steps": 20}, longer=True) is None
    assert said == [f"{folder} is finished", f"{folder} continues after its 9 steps"]
    assert begin({"steps": 20}, longer=False) is None  # it was interrupted
    assert (read_document(folder, kind.recipe)["steps"], said[2:]) == (20, [])
    kind.end(folder, {"reached": 2})
    assert begin({"steps": 20}, longer=False) == {"reached": 2}
    assert begin({"steps": 20}, longer=None) is None
    assert not kind.has_begun(folder)


@pytest.mark.parametrize("change", ["one more", "another order", "another text"])
def test_other_examples_are_not_resumed(tmp_path: Path, change: str) -> None:
    model = {"kind": "convert", "embedding_dim": 8, "attention_dim": 4, "ffn_dim": 8, "spans": [2], "side_dim": 8}
    recipe = {
        "model": {**model, "side_layers": 1, "output_dim": 8}, "output": str(tmp_path / "run"),
        "text": {"min_count": 1}, "train": {"batch_size": 4, "max_steps": 1},
    }  # fmt: skip
    rows = [{"context": [f"question {i}"], "response": f"answer {i}"} for i in range(8)]
    first = polyrank.train(recipe, rows)
    assert polyrank.train(recipe, rows, resume=True) == first
    other = {"one more": [*rows, rows[0]], "another order": rows[::-1]}.get(
        change, [*rows[1:], {**rows[0], "response": "no"}]
    )
    with pytest.raises(ConfigError, match=r"the training examples changed since .*run was started"):
        polyrank.train(recipe, other, resume=True)


def test_validation_data_that_were_changed_in_place_are_refused(tmp_path: Path) -> None:
    def listed(right: str) -> None:
        row = {"context": ["question 0"], "candidates": [right, "answer 1"], "relevant": [0]}
        (tmp_path / "valid.jsonl").write_text(json.dumps(row) + "\n", "utf-8")

    model = {"kind": "convert", "embedding_dim": 8, "attention_dim": 4, "ffn_dim": 8, "spans": [2], "side_dim": 8}
    recipe = {
        "model": {**model, "side_layers": 1, "output_dim": 8}, "data": {"valid": str(tmp_path / "valid.jsonl")},
        "text": {"min_count": 1}, "train": {"batch_size": 4, "max_steps": 1}, "output": str(tmp_path / "run"),
    }  # fmt: skip
    rows = [{"context": [f"question {i}"], "response": f"answer {i}"} for i in range(8)]
    listed("answer 0")
    first = polyrank.train(recipe, rows)
    assert polyrank.train(recipe, rows, resume=True) == first
    listed("answer 7")
    with pytest.raises(ConfigError, match=r"the validation examples changed since .*run was started"):
        polyrank.train(recipe, rows, resume=True)


@pytest.mark.parametrize(
    ("train_layers", "change", "mixes"),
    [("all_but_embeddings", "weights", True), ("all", "weights", False), ("all", "words", True)],
)
def test_a_run_does_not_mix_two_models_that_it_starts_from(
    tmp_path: Path, train_layers: str, change: str, mixes: bool
) -> None:
    def put(name: str, seed: int, corpus: Sequence[str] = CORPUS) -> Path:
        save_model(tmp_path / name, *new_model(SMALL, POLICY, seed=seed, sample=(), corpus=corpus), replace=True)
        return tmp_path / name

    def document(resumed: Path | None = None) -> dict[str, Any]:
        train = {"train_layers": train_layers, "init_from": str(start)}
        plan = resolve_recipe({"model": {"kind": "convert"}, "output": str(tmp_path / "run"), "train": train})
        return run_document(plan, examples, resumed=resumed)

    start, examples = put("start", 2), [example for _, example in BATCH]
    write_file(tmp_path / "run" / RECIPE.file, seal(document(), RECIPE))
    put("start", 3, ("entirely other words",) * 9) if change == "words" else put("start", 3)
    refusal = pytest.raises(ConfigError, match=rf"{start} changed since .*run was started")
    with refusal if mixes else nullcontext():
        document(tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "train", "file", "mixes"),
    [
        ("bi", {"train_layers": "all"}, "tokenizer.json", True),
        ("bi", {"train_layers": "all"}, "model.safetensors", False),
        ("bi", {"train_layers": "all_but_embeddings"}, "model.safetensors", True),
        ("bi", {"train_layers": "all", "lora_rank": 2}, "model.safetensors", True),
        ("late", {"train_layers": "all", "method": {"kind": "listwise"}}, "model.safetensors", True),
    ],
)
def test_a_run_does_not_mix_two_backbones(
    tmp_path: Path, tiny_backbone: Path, kind: str, train: dict[str, Any], file: str, mixes: bool
) -> None:
    """A later pre-training may have replaced the folder, and checkpoints hold the weights that are trained only."""
    backbone, examples = tmp_path / "backbone", [example for _, example in BATCH]
    shutil.copytree(tiny_backbone, backbone)

    def document(resumed: Path | None = None) -> dict[str, Any]:
        plan = resolve_recipe(
            {
                "model": {"kind": kind, "backbone": str(backbone)},
                "output": str(tmp_path / "run"),
                "train": train,
            },
            resume=True,
        )
        return run_document(plan, examples, resumed=resumed)

    write_file(tmp_path / "run" / RECIPE.file, seal(document(), RECIPE))
    (backbone / file).write_bytes((backbone / file).read_bytes() + b" ")
    refusal = pytest.raises(ConfigError, match=rf"{backbone} changed since .*run was started")
    with refusal if mixes else nullcontext():
        document(tmp_path / "run")
    shutil.rmtree(backbone)
    document(tmp_path / "run")  # checkpoints hold what a finished run needs


def test_a_run_does_not_mix_two_teachers(tmp_path: Path, tiny_backbone: Path) -> None:
    """Examples on disk have another digest than in memory, so these two are not compared."""

    def document(resumed: Path | None = None, examples: Any = EXAMPLES, **data: Any) -> dict[str, Any]:
        plan = resolve_recipe(
            {
                "model": {"kind": "bi", "backbone": str(tiny_backbone)},
                "output": str(tmp_path / "run"),
                "train": {"method": {"kind": "distill", "teacher": str(teacher)}},
                "data": data,
            },
            resume=True,
        )
        return run_document(plan, examples, resumed=resumed)

    teacher = tmp_path / "teacher"
    save_model(teacher, *new_model(SMALL, POLICY, seed=2, sample=(), corpus=CORPUS))
    first = document()
    assert first["inputs"]["the loss"] == "polyrank's"
    write_file(tmp_path / "run" / RECIPE.file, seal(first, RECIPE))
    document(tmp_path / "run", EXAMPLES[1:], train="train.jsonl", cache=str(tmp_path / "cache"))
    save_model(teacher, *new_model(SMALL, POLICY, seed=3, sample=(), corpus=CORPUS), replace=True)
    with pytest.raises(ConfigError, match=rf"{teacher} changed since .*run was started"):
        document(tmp_path / "run")


@pytest.mark.parametrize(("network", "mixes"), [("retriever", False), ("reranker", True)])
def test_the_layers_of_each_network_decide_about_its_own_backbone(
    tmp_path: Path, tiny_backbone: Path, network: str, mixes: bool
) -> None:
    """Checkpoints hold all weights of the first network, and those of some layers of the second."""
    backbones = {name: shutil.copytree(tiny_backbone, tmp_path / name) for name in ("retriever", "reranker")}
    examples = [example for _, example in BATCH]

    def document(resumed: Path | None = None) -> dict[str, Any]:
        second = {"kind": "cross", "backbone": str(backbones["reranker"])}
        plan = resolve_recipe(
            {
                "model": {"kind": "bi", "backbone": str(backbones["retriever"])},
                "output": str(tmp_path / "run"),
                "train": {"train_layers": "all", "method": {"kind": "mutual"}},
                "reranker": {**second, "train": {"train_layers": "all_but_embeddings"}},
            },
            resume=True,
        )
        return run_document(plan, examples, resumed=resumed)

    write_file(tmp_path / "run" / RECIPE.file, seal(document(), RECIPE))
    weights = backbones[network] / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    refusal = pytest.raises(ConfigError, match=rf"{backbones[network]} changed since .*run was started")
    with refusal if mixes else nullcontext():
        document(tmp_path / "run")


def test_every_field_of_an_example_counts_for_its_digest() -> None:
    one = Example(("hi", "my wifi"), ("yes", "no"), (0,), background=("a fact",))
    others = [
        dataclasses.replace(one, **{name: value})
        for name, values in {
            "context": [("hi",), ("my wifi", "hi"), ("hi my wifi",)],
            "candidates": [("yes",), ("no", "yes"), ("yes", "no", "")],
            "relevant": [(1,), (0, 1)],
            "background": [(), ("another fact",), ("a fact", "")],
        }.items()
        for value in values
    ]
    lists = [[one], *([other] for other in others), [one, one], [one, others[0]], [others[0], one]]
    digests = [examples_digest(each) for each in lists]
    assert len({*digests}) == len(lists)
    assert examples_digest([dataclasses.replace(one)]) == digests[0]


@pytest.mark.parametrize(
    ("file", "of_words", "of_all"),
    [
        ("tokenizer.json", True, True),
        ("vocab.txt", True, True),
        ("model-1.safetensors", False, True),
        ("model-2.safetensors", False, True),
        ("README.md", False, False),
    ],
)
def test_a_backbones_digest_is_of_its_vocabulary_and_perhaps_of_all_weights(
    tmp_path: Path, file: str, of_words: bool, of_all: bool
) -> None:
    for name in ("tokenizer.json", "vocab.txt", "model-1.safetensors", "model-2.safetensors", "README.md"):
        (tmp_path / name).write_text(name)
    before = [backbone_digest(tmp_path, with_weights=all_) for all_ in (False, True)]
    (tmp_path / file).write_text("another")
    after = [backbone_digest(tmp_path, with_weights=all_) for all_ in (False, True)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [of_words, of_all]


def test_only_two_known_digests_can_differ(tmp_path: Path) -> None:
    """Some models have none before they are opened."""
    check_same_inputs({"a": "1", "b": "", "c": "3"}, {"a": "", "b": "2", "d": "4"}, tmp_path)
    with pytest.raises(ConfigError, match=r"b changed since .* was started: from 1 to 2;"):
        check_same_inputs({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, tmp_path)


def test_a_runs_recipe_has_the_defaults_of_newer_settings_and_must_be_valid(tmp_path: Path) -> None:
    plan = resolve_recipe({"model": {"kind": "convert"}, "output": str(tmp_path), "train": {"lr": 0.25, "epochs": 7}})
    tables = run_document(plan, EXAMPLES, resumed=None)
    assert read_written(tmp_path, tables) == plan.recipe
    older = {name: value for name, value in tables["train"].items() if name not in ("epochs", "minutes")}
    assert read_written(tmp_path, {**tables, "train": older}).train.epochs == TrainConfig().epochs
    message = r"recipe\.json is not valid in this version \(train\.lr = -1\.0 must be at least 0\); start again with"
    with pytest.raises(ConfigError, match=message):
        read_written(tmp_path, {**tables, "train": {**older, "lr": -1}})


def read_written(folder: Path, tables: dict[str, Any]) -> Recipe:
    write_file(folder / RECIPE.file, seal(tables, RECIPE))
    return read_run_recipe(folder)


def test_a_start_inside_the_run_is_replaced_by_the_run(tmp_path: Path) -> None:
    start, examples = tmp_path / "run" / "model", [example for _, example in BATCH]
    for seed in (1, 2):
        save_model(start, *new_model(SMALL, POLICY, seed=seed, sample=(), corpus=CORPUS), replace=True)
        train = {"init_from": str(start), "train_layers": "all_but_embeddings"}
        plan = resolve_recipe({"model": {"kind": "convert"}, "output": str(tmp_path / "run"), "train": train})
        document = run_document(plan, examples, resumed=None if seed == 1 else tmp_path / "run")
        write_file(tmp_path / "run" / RECIPE.file, seal(document, RECIPE))


def test_the_clock_continues_from_the_checkpoint(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.broken, tmp_path / "run")
    tensors, progress = read(tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    written = [row["seconds"] for row in map(json.loads, lines) if row["step"] == 9 and "seconds" in row]
    assert 0 < written[0] <= progress["seconds"]
    write(tmp_path / "run", tensors, {**progress, "seconds": 7200.0})
    outcome = run(tmp_path / "run", resume=True)
    assert outcome == story.whole
    assert 7200 < outcome.seconds < 7200 + 600
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    clock = [row["seconds"] for row in map(json.loads, lines) if "seconds" in row]
    assert clock == sorted(clock)
    assert [seconds > 7200 for seconds in clock] == [False] * 9 + [True] * 3


AS_AT_THE_START = {
    "step": 7, "n_examples": 0, "stale": 0, "best": {}, "best_step": 4, "best_loss": None, "stalls": 0, "decay": 1.0,
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("field", AS_AT_THE_START)
def test_every_number_of_a_checkpoint_is_needed(story: Story, tmp_path: Path, field: str) -> None:
    shutil.copytree(story.broken, tmp_path / "run")
    tensors, progress = read(tmp_path / "run")
    place = progress if field in progress else progress["learners"][""]
    assert place[field] != AS_AT_THE_START[field]
    place[field] = AS_AT_THE_START[field]
    write(tmp_path / "run", tensors, progress)
    assert run(tmp_path / "run", resume=True) != story.whole


def without(tensors: dict[str, Tensor], kind: str, begun: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors with one kind reset to its start; the optimiser's to zero."""
    found = {
        name: (begun[name.partition(".")[2]] if not name.startswith("/optimizer.") else torch.zeros_like(value))
        if kind in name
        else value
        for name, value in tensors.items()
    }
    assert any(not torch.equal(found[name], value) for name, value in tensors.items())
    return found


@pytest.mark.parametrize(
    "kind", ["model.subwords.weight", "model.layers.0", "model.earlier_side", "buffer.subwords.seen"]
)
def test_every_weight_and_buffer_of_a_checkpoint_is_needed(story: Story, tmp_path: Path, kind: str) -> None:
    tensors, progress = read(story.broken)
    shutil.copytree(story.broken, tmp_path / "run")
    write(tmp_path / "run", without(tensors, kind, fresh()[0].state_dict()), progress)
    assert run(tmp_path / "run", resume=True) != story.whole


@pytest.mark.deep
@pytest.mark.parametrize(
    ("optimizer", "kinds"),
    [
        ("adamw", ["exp_avg", "exp_avg_sq", "step"]),
        ("adamax", ["exp_avg", "exp_inf", "step"]),
        ("adadelta", ["square_avg", "acc_delta"]),  # its step is only a counter
    ],
)
def test_every_tensor_of_an_optimiser_is_needed(tmp_path: Path, optimizer: str, kinds: list[str]) -> None:
    changes = {"optimizer": optimizer, "max_steps": 6, "checkpoint_steps": 5}
    whole = run(tmp_path / "whole", **changes)
    with pytest.raises(CrashError):
        run(tmp_path / "broken", crash_at=6, **changes)
    tensors, progress = read(tmp_path / "broken")
    for kind in [None, *kinds]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(tmp_path / "broken", tmp_path / "run")
        if kind is not None:
            endings = {name: f"{name}." for name in tensors}  # exp_avg is not exp_avg_sq
            ended = without({endings[name]: value for name, value in tensors.items()}, f".{kind}.", {})
            write(tmp_path / "run", {name: ended[endings[name]] for name in tensors}, progress)
        assert (run(tmp_path / "run", resume=True, **changes) == whole) == (kind is None), kind


def test_crashes_anywhere_do_not_change_the_result(story: Story, tmp_path: Path) -> None:
    """Crashes before a checkpoint, in the first step of an epoch, just after a check, and twice at one step."""
    for step in (1, 5, 5, 9, 12):
        with pytest.raises(CrashError):
            run(tmp_path / "run", resume=True, crash_at=step, checkpoint_steps=3)
    assert run(tmp_path / "run", resume=True, checkpoint_steps=3) == story.whole


@pytest.mark.deep
@pytest.mark.parametrize(("every", "saved"), [(1, [3, 5]), (3, [3, 4]), (None, [2, 4])])
def test_checkpoints_are_written_at_validations_and_at_an_interval(
    tmp_path: Path, every: int | None, saved: list[int]
) -> None:
    for crash_at, step in zip((4, 6), saved, strict=True):
        with pytest.raises(CrashError):
            run(tmp_path / str(crash_at), crash_at=crash_at, checkpoint_steps=every)
        assert read(tmp_path / str(crash_at))[1]["step"] == step


def test_a_longer_run_keeps_the_steps_so_far_and_the_rates_of_every_network(story: Story) -> None:
    """Nine steps are made."""
    constant, linear = (NetworkTraining(schedule=kind(warmup_steps=2)) for kind in (ConstantSchedule, LinearSchedule))
    assert TRAINING.is_longer(story.broken, [constant, constant], 20, 40)
    for both in ([linear, constant], [constant, linear]):
        with pytest.raises(ConfigError, match=r'the first 9 learning rates of .*schedule\.kind = "linear"'):
            TRAINING.is_longer(story.broken, both, 20, 40)
    assert not TRAINING.is_longer(story.broken, [constant], 20, 9)
    with pytest.raises(ConfigError, match="has made 9 steps already, more than 8"):
        TRAINING.is_longer(story.broken, [constant], 20, 8)


@pytest.mark.deep
def test_a_run_without_resume_starts_again(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.broken, tmp_path / "run")
    assert run(tmp_path / "run", resume=False) == story.whole


def test_resuming_must_be_requested(story: Story, tmp_path: Path) -> None:
    """The folder's checkpoint has nine steps, and this run makes one."""
    folder = tmp_path / "run"
    shutil.copytree(story.broken, folder)
    model, texts = fresh()
    step = ConvertStep(
        model, InBatchStep(model, texts, CPU, partial(cross_entropy, smoothing=0.2)), scale_steps=9, range_steps=5
    )
    plan = train_config(batch_size=2, max_steps=1, precision="fp32")
    learner = Learner(model=model, settings=plan, folder=folder, save_best=lambda _: None)
    result = fit_together([learner], step, EXAMPLES, plan, seed=3, folder=folder, device=CPU)[0]
    assert (result.n_steps, result.n_examples) == (1, 2)
    assert [row["step"] for row in rows_of(folder)] == [1]


def test_records_after_the_checkpoint_are_made_again(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.broken, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"step": 11, "loss": 99.0}) + '\n{"step": 12, "lo')
    assert run(tmp_path / "run", resume=True) == story.whole


# NaN steps


def test_nan_steps_are_counted_across_an_interruption(tmp_path: Path) -> None:
    """Three in a row are too many, also if the first two came before the interruption."""
    bad, changes = (4, 5, 6), {"max_bad_steps": 2}
    with pytest.raises(DivergedError, match="for 3 steps in a row"):
        run(tmp_path / "whole", bad=bad, **changes)
    with pytest.raises(InterruptedTraining):
        run(tmp_path / "stopped", bad=bad, stop_in=5, **changes)
    assert read(tmp_path / "stopped")[1]["learners"][""]["bad"] == 2
    with pytest.raises(DivergedError, match="for 3 steps in a row"):
        run(tmp_path / "stopped", resume=True, bad=bad, **changes)
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")
    assert [row["loss"] is None for row in rows_of(tmp_path / "whole") if "loss" in row] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("limit", "diverges"), [(0, True), (1, True), (2, False)])
def test_the_maximal_number_of_nan_steps_in_a_row(tmp_path: Path, limit: int, diverges: bool) -> None:
    bad = (0, 1, 3, 4, 6) if limit else (3,)
    if diverges:
        with pytest.raises(DivergedError, match=rf"for {limit + 1} steps in a row, more than {limit};"):
            run(tmp_path / "run", bad=bad, max_bad_steps=limit)
        assert rows_of(tmp_path / "run")[-1]["step"] == (2 if limit else 4)
    else:
        assert run(tmp_path / "run", bad=bad, max_bad_steps=limit, max_steps=8).n_steps == 8


@pytest.mark.deep
def test_the_last_good_checkpoint_survives_nan_steps(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", bad=(3, 4), max_steps=6)
    with pytest.raises(CrashError):
        run(tmp_path / "broken", bad=(3, 4), max_steps=6, crash_at=6)
    assert read(tmp_path / "broken")[1]["step"] == 3
    assert run(tmp_path / "broken", bad=(3, 4), max_steps=6, resume=True) == whole
    with pytest.raises(DivergedError, match=r"checkpoint.safetensors is from before them"):
        run(tmp_path / "lost", bad=range(2, 20), max_bad_steps=1)
    with pytest.raises(DivergedError, match="no checkpoint was saved yet"):
        run(tmp_path / "never", bad=range(20), max_bad_steps=1)


def test_no_model_is_kept_from_nan_steps(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="no loss was finite when a model was due"):
        run(tmp_path / "run", bad=range(20), max_bad_steps=99, epochs=1, validate=False)


# order and randomness


@pytest.mark.deep
def test_batches_depend_on_seed_and_epoch_and_hold_each_example_once(tmp_path: Path) -> None:
    found: list[Watched] = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(tmp_path / name, seed=seed, early_stopping=None, epochs=2, length_window=2, watch=found.append)
    given = found[0].given
    assert given == found[1].given != found[2].given
    lengths = [len(example.context[-1]) for example in EXAMPLES]
    wanted = [
        (batch.tolist(), epoch, 4 * epoch + place)
        for epoch in range(2)
        for place, batch in enumerate(BatchOrder(7, lengths, 2, seed=3, window=2).epoch(epoch))
    ]
    assert given == wanted
    for epoch in range(2):
        assert sorted(position for batch, of, _ in given if of == epoch for position in batch) == list(range(7))
    assert all(found[0].modes)  # dropout is on, also after a validation


@pytest.mark.deep
def test_randomness_depends_on_seed_and_step(story: Story, tmp_path: Path) -> None:
    """Each step has other random numbers; a resumed run has those of the uninterrupted one."""
    found: list[Watched] = []
    run(tmp_path / "whole", watch=found.append)
    shutil.copytree(story.broken, tmp_path / "broken")
    torch.manual_seed(99)
    run(tmp_path / "broken", resume=True, watch=found.append)
    run(tmp_path / "other", seed=4, max_steps=4, watch=found.append)
    drawn = found[0].drawn
    assert len(set(drawn)) == len(drawn) == 12
    assert found[1].drawn == drawn[9:]
    assert not set(drawn) & set(found[2].drawn)
    assert found[1].given == found[0].given[9:]
    final = np.sqrt(12)
    assert found[0].scales == pytest.approx([1 + (final - 1) * number / 15 for number in range(12)])


@pytest.mark.parametrize(("most", "steps"), [(1, 1), (3, 3), (99, 4), (None, 4)])
def test_a_training_has_the_requested_steps_and_ends_with_a_validation(
    tmp_path: Path, most: int | None, steps: int
) -> None:
    result = run(tmp_path / "run", epochs=1, max_steps=most, validate=False)
    rows = [row for row in result.rows if "loss" in row]
    assert (result.n_steps, result.best_step) == (steps, steps)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert {row["n_steps"] for row in rows} == {steps}
    assert rows[-1]["n_examples"] == result.n_examples
    assert read(tmp_path / "run")[1]["step"] == steps


# signals


def test_a_signal_saves_after_the_step_and_is_reported(story: Story, tmp_path: Path) -> None:
    with pytest.raises(InterruptedTraining) as caught:
        run(tmp_path / "run", stop_in=6, checkpoint_steps=None)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert f"stopped by SIGTERM; saved in {tmp_path / 'run'}" in str(caught.value)
    assert read(tmp_path / "run")[1]["step"] == 7
    assert run(tmp_path / "run", resume=True) == story.whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals() as request:
        assert request.signal_number is None
        assert all(signal.getsignal(each) not in before for each in (signal.SIGINT, signal.SIGTERM))
        signal.raise_signal(number)
        assert request.signal_number == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path / "thread", max_steps=2)))
    thread.start()
    thread.join(60)
    assert [outcome.n_steps for outcome in found] == [2]


# the file


def parts(seed: int) -> list[tuple[str, Convert, torch.optim.Optimizer]]:
    """Two networks whose optimisers hold tensors and numbers that depend on the seed."""
    found = []
    for name, own in (("retriever", seed), ("reranker", seed + 1)):
        model = make(own)[0]
        generator = torch.Generator().manual_seed(own)
        model.positions.requires_grad_(False)
        with torch.no_grad():
            model.scale.fill_(own + 0.5)
            model.subwords.seen.copy_(torch.tensor([-own, own + 2.0]))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        for number, parameter in enumerate(trained):
            moments = torch.rand(parameter.shape, generator=generator)
            turned = moments.clone().permute(*reversed(range(moments.ndim)))  # not contiguous
            optimizer.state[parameter] = {"moments": moments, "of.two": turned, "count": number + own}
        found.append((name, model, optimizer))
    return found


def test_a_checkpoint_of_two_networks_restores_everything(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    saved, loaded = parts(5), parts(7)
    progress = {"step": 4, "n_examples": 9, "learners": {"retriever": {"best": {"R@1": 0.5}}, "reranker": {}}}
    positions = [model.positions[0].weight.detach().clone() for _, model, _ in loaded]  # type: ignore[operator, union-attr]
    save_checkpoint(path, saved, progress)
    assert load_checkpoint(path, loaded) == progress
    for (_, model, optimizer), (_, wanted, of_wanted), kept in zip(loaded, saved, positions, strict=True):
        state = wanted.state_dict()
        for name, value in model.state_dict().items():
            if "positions." not in name:
                torch.testing.assert_close(value, state[name], rtol=0, atol=0)
        assert torch.equal(model.positions[0].weight, kept)  # frozen weights are not in the checkpoint
        states = [each.state_dict()["state"] for each in (optimizer, of_wanted)]
        assert states[0].keys() == states[1].keys()
        for number, values in states[1].items():
            assert states[0][number].keys() == values.keys()
            assert states[0][number]["count"] == values["count"]
            assert torch.equal(states[0][number]["moments"], values["moments"])
            assert torch.equal(states[0][number]["of.two"], values["of.two"])


@pytest.mark.parametrize("change", ["names", "one", "trained", "shape"])
def test_a_checkpoint_of_other_networks_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, parts(5), {"learners": {}})
    others = parts(5)
    if change == "names":
        others = [("bi", *others[0][1:]), ("cross", *others[1][1:])]
    if change == "one":
        others = others[:1]
    if change == "trained":
        others[1][1].positions.requires_grad_(True)
    if change == "shape":
        others[1] = ("reranker", make(5, multi_context=False)[0], others[1][2])
    with pytest.raises(ArtifactError, match="belongs to another model or recipe; delete it"):
        load_checkpoint(path, others)


def test_a_checkpoint_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    for seed in (5, 7):
        save_checkpoint(path, parts(seed), {"step": seed, "learners": {}})
    loaded = parts(1)
    assert load_checkpoint(path, loaded) == {"step": 7, "learners": {}}
    assert float(loaded[0][1].scale) == 7.5
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_half_a_checkpoint_or_one_without_progress_is_damaged(tmp_path: Path) -> None:
    path, loaded = tmp_path / "checkpoint.safetensors", parts(5)
    save_checkpoint(path, loaded, {})
    whole = path.read_bytes()
    foreign = [safetensors.torch.save({"a": torch.zeros(1)}, notes) for notes in (None, {}, {"progress": "{"})]
    for content in (whole[:-10], whole[:50], b"", *foreign):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="is damaged"):
            load_checkpoint(path, loaded)
        if content != whole[:-10]:  # it reads the header alone
            with pytest.raises(ArtifactError, match="is damaged"):
                read_progress(path)


def test_a_checkpoint_that_lacks_a_part_is_damaged(tmp_path: Path) -> None:
    path, loaded = tmp_path / "checkpoint.safetensors", parts(5)
    save_checkpoint(path, loaded, {"step": 4, "seconds": 1.0, "learners": {}})
    mapped, notes = read_file(path)
    tensors, progress = {name: tensor.clone() for name, tensor in mapped.items()}, json.loads(notes["progress"])
    plain = progress["optimizer_plain"]
    buffer = next(name for name in tensors if name.startswith("reranker/buffer."))
    for missing, changes, has_buffers in (
        ("optimizer_plain", {"optimizer_plain": None}, True),
        ("reranker", {"optimizer_plain": {"retriever": plain["retriever"]}}, True),
        (buffer.partition("/")[2], {}, False),
    ):
        edited = {name: value for name, value in (progress | changes).items() if value is not None}
        some = {name: value for name, value in tensors.items() if has_buffers or name != buffer}
        path.write_bytes(safetensors.torch.save(some, {"progress": json.dumps(edited)}))
        with pytest.raises(ArtifactError, match=rf"checkpoint\.safetensors is damaged \('{missing}'\); delete it"):
            load_checkpoint(path, loaded)
    for step in ({}, {"step": None}, {"step": "many"}):
        edited = {name: value for name, value in progress.items() if name != "step"} | step
        path.write_bytes(safetensors.torch.save(tensors, {"progress": json.dumps(edited)}))
        with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors is damaged .*; delete it to start"):
            read_progress(path)
