"""Distributed processes give the results of one: the same losses, gradients, weights, figures and files."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import test_chunks
from attached import end_with_parent
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, LateConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Partner, Recipe, recipe_to_dict
from polyrank.devices import distributed
from polyrank.errors import LostProcessError, PolyrankError, UsageError
from polyrank.index import KnownVectors, open_index
from polyrank.models.losses import cross_entropy
from polyrank.models.scoring import scores
from polyrank.training import Imitation, MutualStep, exchange, train
from polyrank.training.checkpoints import read_progress
from polyrank.training.encoding import encode_in_parts
from polyrank.training.exchange import summed_gradients
from polyrank.training.inputs import InBatch, Lists
from polyrank.training.pretraining import pretrain
from polyrank.training.run_document import read_run_recipe
from polyrank.training.shares import Share, deal, share_of
from polyrank.training.steps import first_is_right
from processes import run, run_together, work_together
from test_golden import CONVERT
from test_pretraining import corpus
from train_settings import in_chunks, loss_of, losses_of, network_settings, train_config

POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)


# gradients


WHOLE, FEW, CHUNKS = (10, None), (2, None), (10, 3)  # sizes of a batch, and of its chunks
CASES: dict[str, list[tuple[int, int | None]]] = {  # all three sizes for one step of each method
    "Bi": [WHOLE, FEW, CHUNKS],
    "Bi, one tower": [FEW],
    "Bi, given negatives": [CHUNKS],
    "Poly": [CHUNKS],
    "Poly, last outputs": [FEW],
    "Poly, lists": [WHOLE, FEW, CHUNKS],
    "Cross, lists": [CHUNKS],
    "ConveRT": [WHOLE, FEW, CHUNKS],
    "ConveRT, one turn": [FEW],
}


def write_gradients(backbone: Path, folder: Path) -> None:
    """Loss and gradients of every kind of step in fp64, of batches of ten and of two, whole and in chunks."""
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    exchange.BUCKET = 2_000
    with distributed.process_group():
        for name, cases in CASES.items():
            step, model = test_chunks.STEPS[name](backbone, 0.0)
            model.double()
            for n, size in cases:
                model.zero_grad()
                loss = loss_of(in_chunks(step, size), test_chunks.BATCH[:n])
                keep_gradients(model, loss, folder / f"{name}-{n}-{size}-{distributed.rank()}")
        pair = [test_chunks.STEPS[name](backbone, 0.0) for name in ("Poly, lists", "Cross, lists")]
        both = torch.nn.ModuleList(model.double() for _, model in pair)
        losses = losses_of(MutualStep(pair[0][0], pair[1][0], Imitation()), test_chunks.BATCH)
        for number, loss in enumerate(losses):
            keep_gradients(both, loss, folder / f"mutual, phase {number}-10-None-{distributed.rank()}")
            both.zero_grad()
    distributed._destroy_group()  # as at the end of a process
    names = [path.read_text("utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"threads-{distributed.launched_as()[0]}.json").write_text(json.dumps(names), "utf-8")


def keep_gradients(model: torch.nn.Module, loss: Tensor, file: Path) -> None:
    with summed_gradients(model):
        loss.backward()  # type: ignore[no-untyped-call]
    found = {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}
    safetensors.torch.save_file({"loss": loss.detach(), **found}, file)


@pytest.fixture(scope="module")
def gradients(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A folder with the gradients of n processes."""

    @cache
    def of(n: int) -> Path:
        folder = tmp_path_factory.mktemp(f"gradients-{n}")
        assert work_together(n, write_gradients, tiny_backbone, folder) == [0] * n
        return folder

    return of


@pytest.mark.deep
def test_no_thread_of_a_group_outlives_it(gradients: Callable[[int], Path]) -> None:
    """A thread that frees a tensor when Python has ended aborts the process, after its work is done."""
    for rank in range(2):
        names = json.loads((gradients(2) / f"threads-{rank}.json").read_text("utf-8"))
        assert names
        assert not [name for name in names if name.startswith("pt_gloo")]


def test_a_process_without_texts_encodes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which gives it a graph; the others encode each text once."""
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    encoded, own = [], []
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", partial(int, rank))
        share = share_of([[5], [6, 7]], pad_id=0)
        encoded.append(share.tokens.ids.tolist())
        own.append(share.own.tolist())
    assert own == [[1], [0], [], []]
    assert encoded == [[[6, 7]], [[5]], [[6, 7]], [[6, 7]]]


@pytest.mark.parametrize(
    "case",
    [
        *(f"{name}-{n}-{size}" for name, cases in CASES.items() for n, size in cases),
        "mutual, phase 0-10-None",
        "mutual, phase 1-10-None",
    ],
)
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.deep
def test_several_processes_compute_the_gradients_of_one(case: str, n: int, gradients: Callable[[int], Path]) -> None:
    """With two texts the third and fourth process have none to encode."""
    assert CASES.keys() == test_chunks.STEPS.keys()
    expected = safetensors.torch.load_file(gradients(1) / f"{case}-0")
    assert len(expected) > 5
    for number in range(n):
        found = safetensors.torch.load_file(gradients(n) / f"{case}-{number}")
        torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-12, atol=0)
        assert test_chunks.difference(found, expected) < 1e-12


# rounding

LOSSES = ("Bi", "Poly", "Poly, lists", "Cross, lists")


def write_losses(backbone: Path, folder: Path) -> None:
    """First losses in fp32."""
    with distributed.process_group():
        for name in LOSSES:
            step, _ = test_chunks.STEPS[name](backbone, 0.0)
            loss = loss_of(step, test_chunks.BATCH).detach()
            if distributed.is_rank_zero():
                safetensors.torch.save_file({"loss": loss}, folder / name)


def write_losses_of_two(backbone: Path, folder: Path) -> None:
    """The same in one process that computes the share of rank 0, then that of rank 1; and the largest number."""
    for name in LOSSES:
        step, model = test_chunks.STEPS[name](backbone, 0.0)
        batch: Any = step.prepare(test_chunks.BATCH, 0)
        # with a graph, as in training: without one, other kernels may compute it
        loss, largest = in_lists(model, batch) if "lists" in name else in_batch(model, batch)
        safetensors.torch.save_file(
            {"loss": loss.detach(), "largest": torch.maximum(loss, largest).detach()}, folder / name
        )


def parts_of_two(encode: Any, share: Share) -> list[tuple[Tensor, Any]]:
    """The places of the texts of each of two processes, and their encodings."""
    parts = [torch.from_numpy(places) for places in deal([len(row) for row in share.rows], 2)]
    return [(own, encode_in_parts(encode, share.tokens.part(own))) for own in parts]


def in_order(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.cat([rows for _, rows in parts])[torch.cat([own for own, _ in parts]).argsort()]


def in_batch(model: Any, batch: InBatch) -> tuple[Tensor, Tensor]:
    candidates = in_order(parts_of_two(model.encode_candidates, batch.candidates))[batch.keys]
    total, largest = torch.zeros((), dtype=torch.float64), torch.zeros(())
    for own, (vectors, mask) in parts_of_two(model.encode_contexts, batch.contexts):
        values = scores(vectors, candidates[None], mask)
        total += cross_entropy(values, own, batch.allowed[own]).double() * (len(own) / len(batch.examples))
        largest = torch.maximum(largest, values.abs().max())
    return total.float(), largest


def in_lists(model: Any, batch: Lists) -> tuple[Tensor, Tensor]:
    if batch.candidates is None:
        values = in_order(parts_of_two(model, batch.inputs))[batch.keys]
    else:
        candidates = in_order(parts_of_two(model.encode_candidates, batch.candidates))
        contexts = parts_of_two(model.encode_contexts, batch.inputs)
        values = in_order(
            [(own, scores(vectors, candidates[batch.keys[own]], mask)) for own, (vectors, mask) in contexts]
        )
    return first_is_right(cross_entropy, values, batch.allowed), values.abs().max()


@pytest.mark.deep
def test_losses_differ_from_those_of_one_process_only_by_the_shapes_of_products(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    """Products of matrices of another shape add in another order. With the same shapes all bits are the same."""
    for folder, n, work in (("1", 1, write_losses), ("2", 2, write_losses), ("shapes", 1, write_losses_of_two)):
        (tmp_path / folder).mkdir()
        assert work_together(n, work, tiny_backbone, tmp_path / folder) == [0] * n
    for name in LOSSES:
        one, two, shapes = (safetensors.torch.load_file(tmp_path / folder / name) for folder in ("1", "2", "shapes"))
        assert torch.equal(two["loss"], shapes["loss"]), name
        assert abs(two["loss"] - one["loss"]) <= 5e-7 * shapes["largest"], name


# trainings

BI = BiConfig(reduction="mean", shared_towers=True)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "poly": (PolyConfig(n_codes=4, codes="last_h1"), {}),
    "bi, chunks": (BI, {"chunk_size": 4}),
    "bi, mined": (BI, {"method": "listwise", "remine_epochs": 1, "remine_ranks": (1, 3)}),
    "cross": (CrossConfig(), {"method": "listwise"}),
    "late": (LateConfig(joined_layers=1), {"method": "listwise", "train_layers": "all_but_embeddings"}),
    "convert": (CONVERT, {"method": "convert", "smoothing": 0.2, "scale_steps": 4}),
    "mutual": (BI, {"method": "mutual", "lr": 0.05}),  # mutual learning amplifies rounding
    "distilled": (BI, {"method": "distill"}),
}


def recipe(name: str, task: dict[str, Path], backbone: Path, output: Path, **changes: Any) -> Recipe:
    """Two epochs of seven batches without dropout; the last batch is shorter.

    With Adadelta, since Adam makes whole steps even for gradients of pure rounding noise, such as a key bias's.
    """
    model, own = KINDS[name]
    values: dict[str, Any] = {
        "batch_size": 11, "epochs": 2, "optimizer": "adadelta", "lr": 0.5, "warmup_steps": 2, "schedule": "constant",
        "train_layers": "all", "precision": "fp32", "n_negatives": 3, "dropout": 0.0, "evaluate_per_epoch": 1, **own,
        **changes,
    }  # fmt: skip
    if values.get("method") == "distill":
        values["teacher"] = str(output.parent / "teacher" / "model")
    settings = train_config(**values)
    return Recipe(
        model=model if isinstance(model, ConvertConfig) else dataclasses.replace(model, backbone=str(backbone)),
        text=ConvertText(min_count=1, n_buckets=10) if isinstance(model, ConvertConfig) else POLICY,
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=settings,
        output=str(output),
        reranker=Partner(
            model=CrossConfig(backbone=str(backbone)), train=network_settings(settings)
        ) if values.get("method") == "mutual" else None,
    )  # fmt: skip


def run_recipes(recipes: list[Recipe], resume: bool = False) -> None:
    for plan in recipes:
        train(plan, resume=resume)


def curve(folder: Path) -> list[tuple[str, float]]:
    """Losses and validation figures of a run."""
    rows = [
        (file.parent.name if file.parent != folder else "", json.loads(line))
        for file in sorted(folder.rglob("metrics.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    values = []
    for name, row in rows:
        figures = row.get("valid") or {"": row["loss"]}
        values += [(f"{name} {row['step']} {what}", value) for what, value in figures.items()]
    return values


def weights(folder: Path) -> dict[str, Tensor]:
    """Weights of all models of a run."""
    return {
        f"{file.parent.parent.name} {key}": value
        for file in sorted(folder.rglob("model.safetensors"))
        for key, value in safetensors.torch.load_file(file).items()
        if value.is_floating_point()
    }


def assert_alike(folder: Path, other: Path, rtol: float = 5e-5) -> None:
    expected, found = curve(other), curve(folder)
    assert [what for what, _ in found] == [what for what, _ in expected]
    # the loss of a learned pair is far below its logits, of which fp32 keeps about a millionth
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=rtol, abs=1e-6)
    own, others = weights(folder), {key.replace(other.name, folder.name): v for key, v in weights(other).items()}
    assert own.keys() == others.keys()
    stored = (
        2**-10 if "convert" in folder.name else rtol
    )  # a ConveRT's are in float16, whose last bit may change by rounding
    for name, value in own.items():
        torch.testing.assert_close(value, others[name], rtol=stored, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from shared_fixtures import WORDS

    folder, words = tmp_path_factory.mktemp("task"), WORDS[4:16]
    pairs = [{"context": [f"hello {a}", f"my {b}"], "response": f"{b} thanks"} for a in WORDS[:6] for b in words]
    replies = [f"{b} thanks" for b in words]
    lists = [{"context": ["hi", f"my {b}"], "candidates": replies, "relevant": [i]} for i, b in enumerate(words)]
    for name, rows in (("train", pairs), ("valid", lists)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "replies.jsonl").write_text("".join(json.dumps({"id": r, "text": r}) + "\n" for r in replies), "utf-8")
    dialogues = "".join(json.dumps(row) + "\n" for row in corpus())
    (folder / "dialogues.jsonl").write_text(dialogues, "utf-8")
    return {name: folder / f"{name}.jsonl" for name in ("train", "valid", "replies", "dialogues")}


@pytest.fixture(scope="module")
def runs(task: dict[str, Path], tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A folder with runs of each kind, by one process and by two."""
    folders = {n: tmp_path_factory.mktemp(f"runs-{n}") for n in (1, 2)}
    for n, folder in folders.items():
        plans = [recipe(name, task, tiny_backbone, folder / name) for name in KINDS]
        plans.insert(0, recipe("cross", task, tiny_backbone, folder / "teacher", max_steps=2))
        assert work_together(n, run_recipes, plans) == [0] * n
    return folders


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_two_processes_train_like_one(name: str, runs: dict[int, Path]) -> None:
    assert_alike(runs[2] / name, runs[1] / name)
    files = [sorted(path.name for path in (folder / name).iterdir()) for folder in runs.values()]
    assert files[0] == files[1]
    assert "run.lock" not in files[1]


@pytest.mark.deep
def test_a_run_resumes_with_another_number_of_processes(
    runs: dict[int, Path], task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    for n, steps in ((1, 5), (2, 9), (1, 14)):
        plan = recipe("poly", task, tiny_backbone, tmp_path / "run", max_steps=steps)
        assert work_together(n, run_recipes, [plan], True) == [0] * n
    expected = curve(runs[1] / "poly")
    found = dict(curve(tmp_path / "run"))
    assert all(found[what] == pytest.approx(value, rel=5e-5, abs=1e-6) for what, value in expected)
    assert len(set(found) - dict(expected).keys()) == 6  # three figures after steps 5 and 9


@pytest.mark.deep
def test_dropout_differs_by_process_and_is_reproducible(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    """Rank 0 uses a single process's random numbers, rank 1 others: the loss differs, but is reproducible."""
    for name, n in (("one", 1), ("two", 2), ("again", 2)):
        plan = recipe("poly", task, tiny_backbone, tmp_path / name, dropout=0.3, max_steps=3)
        assert work_together(n, run_recipes, [plan]) == [0] * n
    one, two, again = (dict(curve(tmp_path / name)) for name in ("one", "two", "again"))
    assert two == again
    assert abs(two[" 1 "] - one[" 1 "]) > 1e-3


@pytest.mark.deep
def test_in_bf16_curves_agree_within_bf16(task: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    changes = {"precision": "bf16", "evaluate_per_epoch": 1, "max_steps": 4, "lr": 0.05}
    for name, n, own in (("one", 1, {}), ("two", 2, {}), ("exact", 1, {"precision": "fp32"})):
        plan = recipe("poly", task, tiny_backbone, tmp_path / name, **{**changes, **own})
        assert work_together(n, run_recipes, [plan]) == [0] * n
    one, two, exact = (
        np.array([value for what, value in curve(tmp_path / name) if not what.endswith(("R@1", "MRR"))])  # by step
        for name in ("one", "two", "exact")
    )
    error = np.abs(one / exact - 1).max()
    assert error > 1e-5  # bf16 was in use
    assert np.abs(two / exact - 1).max() < max(5 * error, 0.01)


# pre-training


def run_pretraining(settings: list[dict[str, Any]]) -> None:
    for tables in settings:
        pretrain(tables)


@pytest.mark.deep
def test_two_processes_pretrain_like_one(task: dict[str, Path], tmp_path: Path) -> None:
    """Losses of words and pairs alternate; one process in one part masks the same tokens."""
    for n in (1, 2):
        tables = {
            "output": str(tmp_path / str(n)),
            "model": {"layers": 1, "hidden": 32, "heads": 2, "ffn": 64, "positions": 32},
            "vocabulary": {"size": 100},
            "text": {"max_tokens": 24, "max_response_tokens": 8},
            "data": {"train": str(task["dialogues"]), "valid": str(task["dialogues"])},
            "train": {
                "steps": 12, "batch_tokens": 200, "lr": 1e-3, "dropout": 0.0, "precision": "fp32",
                "evaluate_steps": 6, "checkpoint_steps": 6, "schedule": {"warmup_steps": 2},
            },
        }  # fmt: skip
        assert work_together(n, run_pretraining, [tables]) == [0] * n
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()]
        for name in ("1", "2")
    ]
    assert len(rows[0]) == len(rows[1]) == 14
    for one, two in zip(*rows, strict=True):
        for own, others in ((one.get("valid", one), two.get("valid", two)),):
            plain = {key for key in own if not key.startswith(("seconds", "tokens_per_s"))}
            assert {key: others[key] for key in plain} == pytest.approx({key: own[key] for key in plain}, rel=1e-5)


# ends


def train_until(plan: Recipe, at: int, number: int, folder: Path) -> None:
    """Train; after ``n`` steps rank 0 sends the last rank a signal. Each process writes its outcome to a file."""
    own, count = distributed.launched_as()
    (folder / f"{own}.pid").write_text(str(os.getpid()))

    def report(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == at and "loss" in record:
            os.kill(int((folder / f"{count - 1}.pid").read_text()), number)

    try:
        train(plan, report=report)
    except PolyrankError as error:
        (folder / f"{own}.txt").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(error.exit_code) from None


@pytest.mark.deep
def test_a_killed_process_ends_the_other_with_an_error_and_the_run_resumes(
    runs: dict[int, Path], task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    plan = recipe("poly", task, tiny_backbone, tmp_path / "run")
    assert work_together(2, train_until, plan, 9, signal.SIGKILL, tmp_path) == [LostProcessError.exit_code, -9]
    said = (tmp_path / "0.txt").read_text()
    assert said.startswith("LostProcessError: another process of this run has ended")
    assert read_progress(tmp_path / "run" / "checkpoint.safetensors")["step"] == 7
    assert not (tmp_path / "run" / "run.lock").exists()
    assert work_together(2, run_recipes, [plan], True) == [0, 0]
    assert_alike(tmp_path / "run", runs[1] / "poly")
    assert curve(tmp_path / "run") == curve(runs[2] / "poly")


@pytest.mark.deep
def test_a_signal_to_one_process_ends_all_after_the_same_step(
    runs: dict[int, Path], task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    plan = recipe("poly", task, tiny_backbone, tmp_path / "run")
    assert work_together(2, train_until, plan, 4, signal.SIGTERM, tmp_path) == [143, 143]
    for number in range(2):
        assert "stopped by SIGTERM; saved in" in (tmp_path / f"{number}.txt").read_text()
    assert read_progress(tmp_path / "run" / "checkpoint.safetensors")["step"] in (4, 5)
    assert work_together(1, run_recipes, [plan], True) == [0]
    assert_alike(tmp_path / "run", runs[1] / "poly")


@pytest.mark.deep
def test_errors_of_rank_0_are_raised_on_all_ranks(runs: dict[int, Path], tmp_path: Path) -> None:
    """With rank 0's message, since only rank 0 has checked."""
    assert work_together(2, refuse, read_run_recipe(runs[1] / "poly"), tmp_path) == [2, 2]
    said = [(tmp_path / f"{number}.txt").read_text() for number in range(2)]
    assert said[0] == said[1]
    assert "holds an earlier run; pass `resume=True`" in said[0]


def refuse(plan: Recipe, folder: Path) -> None:
    try:
        train(plan)
    except PolyrankError as error:
        (folder / f"{distributed.launched_as()[0]}.txt").write_text(str(error))
        raise SystemExit(error.exit_code) from None


# commands


@pytest.fixture
def as_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.deep
@pytest.mark.usefixtures("as_torchrun")
@pytest.mark.parametrize("name", ["poly", "cross"])
def test_distributed_evaluations_are_bit_equal(
    name: str, runs: dict[int, Path], task: dict[str, Path], tmp_path: Path
) -> None:
    command = ["evaluate", runs[1] / name / "model", task["valid"], "--json", "--scores"]
    alone = run(*command, tmp_path / "1.jsonl")
    first, second = run_together(2, *command, tmp_path / "2.jsonl")
    assert (alone.returncode, first.returncode, second.returncode) == (0, 0, 0), first.stderr + second.stderr
    assert json.loads(first.stdout) == json.loads(alone.stdout)
    assert second.stdout == second.stderr == ""
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()


@pytest.mark.usefixtures("as_torchrun")
@pytest.mark.deep
def test_a_distributed_index_is_bit_equal(runs: dict[int, Path], task: dict[str, Path], tmp_path: Path) -> None:
    command = ["index", "build", runs[1] / "poly" / "model", task["replies"], "-o"]
    assert run(*command, tmp_path / "1").returncode == 0
    assert [each.returncode for each in run_together(2, *command, tmp_path / "2")] == [0, 0]
    vectors = []
    for folder in ("1", "2"):
        with open_index(tmp_path / folder) as index:
            known = KnownVectors(index)
            vectors.append({c.id: known[c.text] for _, c in index.iter_candidates()})
    assert vectors[0].keys() == vectors[1].keys()
    assert len(vectors[0]) == 12
    assert all(np.array_equal(vectors[0][name], vectors[1][name]) for name in vectors[0])


@pytest.mark.deep
@pytest.mark.usefixtures("as_torchrun")
def test_mined_negatives_are_the_same(runs: dict[int, Path], task: dict[str, Path], tmp_path: Path) -> None:
    command = ["mine", task["train"], "--from", runs[1] / "poly" / "model", "-n", "3", "-o"]
    assert run(*command, tmp_path / "1.jsonl").returncode == 0
    results = run_together(2, *command, tmp_path / "2.jsonl")
    assert [each.returncode for each in results] == [0, 0], results
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    again = run_together(2, *command, tmp_path / "2.jsonl")
    assert [each.returncode for each in again] == [2, 2]
    assert "--overwrite" in again[0].stderr
    assert again[1].stderr.startswith("process 2 of 2: error: ")


@pytest.mark.deep
def test_other_commands_refuse_several_processes(tmp_path: Path) -> None:
    for command in (["respond", tmp_path], ["index", "info", tmp_path]):
        for result in run_together(2, *command):
            assert result.returncode == 2
            assert "in one process, and 2 were started; start it without torchrun" in result.stderr


def test_a_launchers_variables_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed.launched_as() == (0, 1)
    for number, count, good in (("1", "3", True), ("3", "3", False), ("-1", "3", False), ("a", "3", False)):
        for name, value in (("RANK", number), ("WORLD_SIZE", count), ("MASTER_ADDR", "127.0.0.1")):
            monkeypatch.setenv(name, value)
        if good:
            assert distributed.launched_as() == (1, 3)
            assert (distributed.rank(), distributed.world_size()) == (0, 1)  # no process group
        else:
            with pytest.raises(UsageError, match="is not a rank; start with torchrun"):
                distributed.launched_as()


# torchrun itself


def two_processes(logs: Path) -> list[str]:
    """The torchrun command, with a folder for its logs; otherwise it leaves a temporary folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*command, "--log-dir", str(logs)]


def torchrun(logs: Path, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*two_processes(logs), "-m", "polyrank", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def toml(plan: Recipe, path: Path) -> Path:
    """A recipe's tables as TOML, with JSON values."""
    values = recipe_to_dict(plan)
    lines = [f"output = {json.dumps(values['output'])}"]
    for table in ("model", "text", "data", "train"):
        lines += _table(table, values[table])
    path.write_text("\n".join(lines), "utf-8")
    return path


def _table(name: str, values: dict[str, Any]) -> list[str]:
    plain = [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None and not isinstance(v, dict)]
    nested = [line for k, v in values.items() if isinstance(v, dict) for line in _table(f"{name}.{k}", v)]
    return [f"[{name}]", *plain, *nested]


def by_torchrun(logs: Path, *arguments: str | Path) -> tuple[str, str]:
    launcher = torchrun(logs, *arguments)
    out, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, err
    return out, err


def as_by_torchrun(_logs: Path, *arguments: str | Path) -> tuple[str, str]:
    """Run distributed warm processes; returns the output of all of them."""
    results = run_together(2, *arguments)
    assert [each.returncode for each in results] == [0, 0], results
    return "".join(each.stdout for each in results), "".join(each.stderr for each in results)


@pytest.mark.slow
@pytest.mark.usefixtures("as_torchrun")
@pytest.mark.parametrize("launch", [as_by_torchrun, pytest.param(by_torchrun, marks=pytest.mark.deep)])
def test_a_distributed_command_trains_like_one_process_and_logs_once(
    launch: Any, task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    assert work_together(1, run_recipes, [recipe("poly", task, tiny_backbone, tmp_path / "one" / "run")]) == [0]
    file = toml(recipe("poly", task, tiny_backbone, tmp_path / "run"), tmp_path / "recipe.toml")
    out, err = launch(tmp_path / "logs", "train", file, "--json")
    assert [row["n_steps"] for row in json.loads(out)] == [14]
    assert err.count("parameters on cpu, 2 processes") == 1
    assert_alike(tmp_path / "run", tmp_path / "one" / "run")


@pytest.mark.deep
@pytest.mark.slow
def test_an_interrupted_torchrun_leaves_a_resumable_run(
    task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    file = toml(recipe("poly", task, tiny_backbone, tmp_path / "run", epochs=10_000), tmp_path / "recipe.toml")
    launcher = torchrun(tmp_path / "logs", "train", file)
    said = []
    assert launcher.stderr is not None
    # a process that hangs is ended, and the test fails below
    guard = threading.Timer(240, launcher.kill)
    guard.start()
    for line in launcher.stderr:
        said.append(line)
        if "step 50/" in line:
            launcher.send_signal(signal.SIGINT)
            break
    said.append(launcher.communicate(timeout=300)[1])
    guard.cancel()
    assert launcher.returncode == 1
    text = "".join(said)
    assert "stopped by SIGINT; saved in" in text
    done = read_progress(tmp_path / "run" / "checkpoint.safetensors")["step"]
    assert done >= 50
    assert not (tmp_path / "run" / "run.lock").exists()
    plan = recipe("poly", task, tiny_backbone, tmp_path / "run", epochs=10_000, max_steps=done + 1)
    assert work_together(1, run_recipes, [plan], True) == [0]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["n_steps"] == done + 1


RESTARTED = r"""
import os
from polyrank.devices import distributed

with distributed.process_group():
    assert distributed.all_reduce_max(distributed.rank()) == 1
    if distributed.rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)
    distributed.barrier()
    # one write, since both processes share the file
    os.write(1, f"together {distributed.rank()} again {os.environ['TORCHELASTIC_RESTART_COUNT']}\n".encode())
"""


@pytest.mark.deep
@pytest.mark.slow
def test_processes_that_torchrun_restarts_find_each_other(tmp_path: Path) -> None:
    program = tmp_path / "restarted.py"
    program.write_text(RESTARTED, "utf-8")
    line = [*two_processes(tmp_path / "logs"), "--max-restarts", "1", "--monitor-interval", "0.5", str(program)]
    with (tmp_path / "said").open("wb") as said:
        launcher = subprocess.Popen(line, stdout=said, stderr=said, preexec_fn=end_with_parent)
        try:
            assert launcher.wait(120) == 0, (tmp_path / "said").read_text("utf-8")
        finally:
            launcher.terminate()  # which ends its processes
            launcher.wait(60)
    lines = (tmp_path / "said").read_text("utf-8").splitlines()
    assert sorted(line for line in lines if "together" in line) == ["together 0 again 1", "together 1 again 1"]
