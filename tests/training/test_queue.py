"""Negatives from earlier batches: the queue's content, the loss, and resuming."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from convert_models import BATCH, make, step_of
from polyrank.config.methods import ConvertMethod, InBatchMethod
from polyrank.config.models import BiConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.training import TrainConfig
from polyrank.errors import ConfigError
from polyrank.models import new_model
from polyrank.models.scoring import scores
from polyrank.negatives.hard import collect_right_answers
from polyrank.records import Example
from polyrank.training import InBatchStep, train
from polyrank.training.queue import CandidateQueue
from train_settings import train_config

CPU = torch.device("cpu")
POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=8)
DATA = [
    Example(("my wifi",), ("thanks",), (0,)),
    Example(("the bill",), ("too high",), (0,)),
    Example(("hello",), ("hi", "did that"), (0,)),
    Example(("red light",), ("restart it",), (0,)),
    Example(("the light",), ("please", "too high"), (0, 1)),  # two right answers; one is in the queue
    Example(("my wifi",), ("is it down",), (0,)),  # the first one's context: "thanks" is right for it, too
]


def encoder(backbone: Path, config: Any) -> tuple[Any, Any]:
    model, texts, _ = new_model(dataclasses.replace(config, backbone=str(backbone)), POLICY, seed=1, sample=["hi"])
    return model.eval(), texts


def test_the_queue_holds_the_latest_distinct_candidates() -> None:
    generator = np.random.default_rng(1)
    queue, expected = CandidateQueue(7, 2, CPU), dict[str, list[float]]()
    for _ in range(30):
        texts = [f"reply {i}" for i in generator.choice(12, size=generator.integers(1, 10), replace=False)]
        vectors = torch.from_numpy(generator.normal(size=(len(texts), 2))).float()
        queue.push(texts, vectors)
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            expected.pop(text, None)
            expected[text] = vector
        expected = dict(list(expected.items())[-7:])
        assert sorted(queue.vectors.tolist()) == sorted(expected.values())
        columns = [next(text for text, own in expected.items() if own == vector) for vector in queue.vectors.tolist()]
        right = [["reply 1"], ["reply 2", "reply 3", "unknown"], []]
        wrong = queue.wrong(["reply 0"], right)
        assert wrong.tolist() == [[text != "reply 0" and text not in own for text in columns] for own in right]
        again = CandidateQueue(7, 2, CPU)
        again.restore(queue.state())
        queue = again  # continues as if nothing had happened


def test_a_step_writes_only_its_own_vectors() -> None:
    queue = CandidateQueue(5, 1, CPU)
    queue.push(list("abcde"), torch.arange(5.0)[:, None])
    memory = queue.vectors.data_ptr()
    queue.push(list("cf"), torch.tensor([[7.0], [8.0]]))
    assert queue.vectors.data_ptr() == memory
    assert queue.vectors.flatten().tolist() == [8.0, 1.0, 7.0, 3.0, 4.0]  # "f" replaces "a", the oldest
    queue.push([f"new {i}" for i in range(9)], torch.arange(9.0)[:, None])
    assert sorted(queue.vectors.flatten().tolist()) == [4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_queue_of_an_earlier_version_is_restored() -> None:
    queue = CandidateQueue(3, 1, CPU)
    queue.push(list("abc"), torch.arange(3.0)[:, None])
    old = {name: tensor for name, tensor in queue.state().items() if name != "times"}
    queue = CandidateQueue(3, 1, CPU)
    queue.restore(old)
    queue.push(["d"], torch.tensor([[9.0]]))
    assert sorted(queue.vectors.flatten().tolist()) == [1.0, 2.0, 9.0]


def test_infinite_vectors_are_left_out() -> None:
    queue = CandidateQueue(4, 1, CPU)
    queue.push(["a"], torch.ones(1, 1))
    queue.push(["b", "c"], torch.tensor([[1.0], [torch.nan]]))
    assert queue.vectors.tolist() == [[1.0]]


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_loss_equals_its_formula(chunk_size: int | None, tiny_backbone: Path) -> None:
    model, texts = encoder(tiny_backbone, PolyConfig(n_codes=3, code_init="normal", reduction="mean"))
    queue = CandidateQueue(3, model.dimension, CPU)
    step = InBatchStep(model, texts, CPU, rights=collect_right_answers(DATA), queue=queue, chunk_size=chunk_size)
    alone = InBatchStep(model, texts, CPU, rights=collect_right_answers(DATA))
    first, second = list(enumerate(DATA))[:3], list(enumerate(DATA))[3:]
    torch.testing.assert_close(step(first, 0, 0), alone(first, 0, 0))  # an empty queue has no effect

    earlier = ["thanks", "too high", "hi"]
    with torch.no_grad():
        then = model.encode_candidates(texts.candidates(earlier))
        for parameter in model.parameters():
            parameter *= 1.01  # an update does not change queued vectors
    columns = ["restart it", "please", "is it down"]
    right = [{"restart it"}, {"please", "too high"}, {"is it down", "thanks"}]
    vectors, mask = model.encode_contexts(texts.contexts([e.query for _, e in second]))
    candidates = torch.cat([model.encode_candidates(texts.candidates(columns)), then])
    values = scores(vectors, candidates[None], mask)
    expected = []
    for i, own in enumerate(right):
        others = [j for j, text in enumerate([*columns, *earlier]) if text not in own]
        expected.append(torch.logsumexp(values[i, [i, *others]], 0) - values[i, i])
    loss = step(second, 0, 0)
    torch.testing.assert_close(loss, torch.stack(expected).mean(), atol=1e-5, rtol=1e-5)
    gradients = gradients_of(model, loss)
    for name, gradient in gradients_of(model, torch.stack(expected).mean()).items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4)


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_a_repeated_text_is_a_negative_only_once(tiny_backbone: Path) -> None:
    model, texts = encoder(tiny_backbone, BiConfig(reduction="mean"))
    step = InBatchStep(model, texts, CPU, queue=CandidateQueue(9, model.dimension, CPU))
    batch = list(enumerate(DATA[:3]))
    torch.testing.assert_close(step(batch, 0, 0), step(batch, 1, 1))


def test_convert_applies_its_current_scale_to_queued_vectors() -> None:
    """Like given negatives of the batch, since weights have not changed; only the scale has grown."""
    model, texts, _ = make(dropout=0.0)
    queue = CandidateQueue(9, model.dimension, CPU)
    step = step_of(model.eval(), texts, queue=queue, loss_weights=(1.0, 0.5, 2.0))
    step(BATCH[:1], 0, 0)
    given = step_of(model, texts, loss_weights=(1.0, 0.5, 2.0), negatives=lambda *_: ["please restart it"])
    torch.testing.assert_close(step(BATCH[1:], 0, 3), given(BATCH[1:], 0, 3))
    alone = step_of(model, texts, loss_weights=(1.0, 0.5, 2.0))
    assert float(alone(BATCH[1:], 0, 3).detach()) < float(step(BATCH[1:], 0, 3).detach())


def recipe(task: dict[str, Path], backbone: Path, output: Path, **changes: Any) -> Recipe:
    settings = {"batch_size": 4, "epochs": 1, "lr": 1e-3, "train_layers": "all", "precision": "fp32", **changes}
    return Recipe(
        model=BiConfig(reduction="mean", backbone=str(backbone)),
        text=POLICY,
        data=DataConfig(train=str(task["train"]), valid=str(task["valid"])),
        train=train_config(**settings),
        output=str(output),
    )


def losses(folder: Path) -> list[Any]:
    return [json.loads(line).get("loss") for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


class CrashError(Exception):
    """Ends a run from its report callback, like a crash."""


def test_a_resumed_run_restores_the_queue(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    plan = recipe(task, tiny_backbone, tmp_path / "whole", queue=6, dropout=0.1, checkpoint_steps=2)
    train(plan)
    again = dataclasses.replace(plan, output=str(tmp_path / "again"))

    def crash(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 7:
            raise CrashError

    with pytest.raises(CrashError):
        train(again, report=crash)
    train(again, resume=True)
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("again", "whole")]
    assert files[0] == files[1]
    without = dataclasses.replace(plan, output=str(tmp_path / "without"))
    train(dataclasses.replace(without, train=dataclasses.replace(plan.train, method=InBatchMethod())))
    assert losses(tmp_path / "without") != losses(tmp_path / "whole")


@pytest.mark.parametrize("kind", [InBatchMethod, ConvertMethod])
def test_a_size_below_zero_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="queue = -1 must be at least 0"):
        kind(queue=-1)
    assert TrainConfig(method=kind()).method.queue == 0  # type: ignore[union-attr]
