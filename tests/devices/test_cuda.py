"""On a real NVIDIA GPU: trainings, scores, indexes and searches agree with those of the CPU.

    POLYRANK_TEST_GPU=1 pytest -n 2 tests/devices/test_cuda.py

Products of fp32 are in TF32 there, with 10 bits of mantissa, and sums have another order.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polyrank.answering.build import build_index
from polyrank.answering.replies import Replies
from polyrank.cli import app
from polyrank.config.checked import to_dict
from polyrank.index import Block, open_index
from polyrank.records import Candidate
from polyrank.scorers.open import load, load_encoder
from polyrank.storage.quantized import Precision, pack
from polyrank.training import train
from polyrank.training.pretraining import pretrain
from shared_fixtures import WORDS
from test_ranks import KINDS, curve, recipe
from test_simulated_device import assert_searched_as_by_the_cpu, blocks_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or POLYRANK_TEST_GPU is not set")

CONTEXTS = [["hello", "my wifi is down"], ["my bill is too high"], [" ".join(WORDS)], ["hi"]]
REPLIES = [f"{word} {' '.join(WORDS[: number % 5])}" for number, word in enumerate(WORDS)]
TF32, BF16 = 5e-3, 5e-2


def losses(folder: Path) -> list[float]:
    return [value for what, value in curve(folder) if not what.endswith(("R@1", "MRR"))]


@pytest.mark.parametrize("name", KINDS)
def test_a_training_and_its_scores_agree_with_the_cpus(
    name: str, uneven_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    for folder, place, precision in (("cpu", "cpu", "fp32"), ("gpu", "cuda", "fp32"), ("half", "cuda", "bf16")):
        work = tmp_path / folder
        train(recipe("cross", uneven_task, tiny_backbone, work / "teacher", max_steps=1), device="cpu")
        plan = recipe(
            name, uneven_task, tiny_backbone, work / name, max_steps=4, epochs=1, precision=precision, lr=0.05
        )
        train(plan, device=place)
    expected = losses(tmp_path / "cpu" / name)
    assert losses(tmp_path / "gpu" / name) == pytest.approx(expected, rel=TF32)
    assert losses(tmp_path / "half" / name) == pytest.approx(expected, rel=BF16)
    for model in sorted((tmp_path / "gpu" / name).rglob("model")):
        on_cpu, on_gpu, half = (
            load(str(model), device=place, precision=precision)
            for place, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16"))
        )
        scores = on_cpu.score_pool(CONTEXTS, REPLIES)
        size = np.abs(scores).max()
        np.testing.assert_allclose(on_gpu.score_pool(CONTEXTS, REPLIES), scores, atol=TF32 * size)
        np.testing.assert_allclose(half.score_pool(CONTEXTS, REPLIES), scores, atol=BF16 * size)
        for row, context in enumerate(CONTEXTS):  # a row's scores do not depend on its batch
            np.testing.assert_allclose(on_gpu.score_pool([context], REPLIES)[0], scores[row], atol=TF32 * size)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_training_resumed_equals_a_whole_one(
    precision: str, uneven_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    """With dropout; a few of the GPU's sums have no fixed order."""
    changes = {"optimizer": "adamw", "lr": 1e-3, "epochs": 1, "dropout": 0.3, "precision": precision}
    train(recipe("poly", uneven_task, tiny_backbone, tmp_path / "whole", max_steps=6, **changes), device="cuda")
    for n_steps in (4, 6):
        plan = recipe("poly", uneven_task, tiny_backbone, tmp_path / "resumed", max_steps=n_steps, **changes)
        train(plan, device="cuda", resume=True)
    whole, resumed = (dict(curve(tmp_path / folder)) for folder in ("whole", "resumed"))
    steps = [f" {step} " for step in range(1, 7)]
    assert [resumed[step] for step in steps] == pytest.approx([whole[step] for step in steps], rel=1e-3)


def test_a_training_moves_between_the_gpu_and_the_cpu(
    uneven_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    changes = {"optimizer": "adamw", "lr": 1e-3, "epochs": 1}
    train(recipe("poly", uneven_task, tiny_backbone, tmp_path / "cpu", max_steps=6, **changes), device="cpu")
    for place, n_steps in (("cuda", 4), ("cpu", 5), ("cuda", 6)):
        plan = recipe("poly", uneven_task, tiny_backbone, tmp_path / "moved", max_steps=n_steps, **changes)
        train(plan, device=place, resume=True)
    steps = [f" {step} " for step in range(1, 7)]
    found, expected = (dict(curve(tmp_path / folder)) for folder in ("moved", "cpu"))
    assert [found[step] for step in steps] == pytest.approx([expected[step] for step in steps], rel=TF32)


def test_a_network_that_does_not_fit_is_explained(
    uneven_task: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    plan = recipe("poly", uneven_task, tiny_backbone, tmp_path / "run", max_steps=1)
    # in its own process, which holds no memory that earlier tests have reserved
    done = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY, json.dumps(to_dict(plan))], capture_output=True, text=True
    )
    assert "ResourceError" in done.stderr, done.stderr
    assert "the network does not fit" in done.stderr
    train(plan, device="cuda", resume=True)


IN_LITTLE_MEMORY = """
import json, sys, torch
from polyrank.training import train
torch.cuda.set_per_process_memory_fraction(1e-9)
train(json.loads(sys.argv[1]), device="cuda")
"""


def test_a_pretraining_agrees_with_the_cpus(task: dict[str, Path], tmp_path: Path) -> None:
    for place, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "bf16")):
        tables = {
            "output": str(tmp_path / f"{place}-{precision}"),
            "model": {"layers": 1, "hidden": 32, "heads": 2, "ffn": 64, "positions": 32},
            "vocabulary": {"size": 100},
            "text": {"max_tokens": 24, "max_response_tokens": 8},
            "data": {"train": str(task["train"])},
            "train": {
                "steps": 6, "batch_tokens": 200, "lr": 1e-3, "dropout": 0.0, "precision": precision,
                "checkpoint_steps": 6, "schedule": {"warmup_steps": 2},
            },
        }  # fmt: skip
        pretrain(tables, device=place)
    found = {
        folder.name: [
            value for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()
            for key, value in json.loads(line).items() if key.endswith("_loss")
        ]
        for folder in tmp_path.iterdir() if (folder / "metrics.jsonl").exists()
    }  # fmt: skip
    assert [len(values) for values in found.values()] == [6, 6, 6]
    assert found["cuda-fp32"] == pytest.approx(found["cpu-fp32"], rel=TF32)
    assert found["cuda-bf16"] == pytest.approx(found["cpu-fp32"], rel=BF16)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(("n", "d", "n_vectors"), [(6000, 16, 1), (6000, 16, 40), (100_000, 384, 4)])
def test_a_search_returns_the_cpus_answer(n: int, d: int, n_vectors: int, precision: Precision) -> None:
    if n > 6000:
        vectors = np.random.default_rng(1).normal(size=(n, d)).astype(np.float32)
        blocks = [Block(pack(vectors, precision), np.arange(n))]
    else:
        blocks = blocks_of(precision, n=n, d=d)
    assert_searched_as_by_the_cpu(blocks, n_vectors)


def test_an_index_answers_as_the_cpus(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    pool = [Candidate(f"c{i}", " ".join(WORDS[(i * j) % 20] for j in range(1, 6))) for i in range(5000)]
    answers = {}
    for place in ("cpu", "cuda"):
        encoder = load_encoder(str(tiny_encoders["bi"]), device=place, precision="fp32")
        build_index(tmp_path / place, encoder, pool, name="m")
        with open_index(tmp_path / place) as index:
            answers[place] = Replies(encoder, index, device=place).answer_all(CONTEXTS, 10)
    for found, expected in zip(answers["cuda"], answers["cpu"], strict=True):
        values = [[one.score for one in answer.ranked] for answer in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=TF32, abs=TF32)


def test_commands_run_on_the_gpu(task: dict[str, Path], tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "replies.txt").write_text("\n".join(REPLIES), "utf-8")
    model, index, mined = str(tiny_encoders["poly"]), str(tmp_path / "index"), str(tmp_path / "mined.jsonl")
    for command in (
        ["evaluate", model, str(task["valid"]), "--device", "cuda", "--json"],
        ["index", "build", model, str(tmp_path / "replies.txt"), "-o", index, "--device", "cuda"],
        ["mine", str(task["train"]), "--from", model, "-n", "2", "-o", mined, "--device", "cuda"],
        ["respond", index, "my wifi is down", "--device", "cuda"],
    ):  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    assert len(Path(mined).read_text("utf-8").splitlines()) == 72
