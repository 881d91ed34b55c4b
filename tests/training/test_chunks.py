"""The gradient cache: the loss and the gradients of the whole batch, in the memory of one chunk."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from convert_models import BATCH as CONVERT_BATCH, make, step_of
from polyrank.config.methods import ConvertMethod, InBatchMethod, ListwiseMethod
from polyrank.config.models import BiConfig, CrossConfig, PolyConfig, TextPolicy
from polyrank.config.recipe import Recipe
from polyrank.config.train import NegativesConfig, TrainConfig
from polyrank.errors import ConfigError, ResourceError
from polyrank.models import new_model
from polyrank.models.losses import cross_entropy
from polyrank.negatives.hard import collect_right_answers
from polyrank.negatives.random import GivenNegatives, RandomNegatives
from polyrank.records import Example
from polyrank.text import Tokens, pad
from polyrank.training import InBatchStep, ListwiseStep, MutualStep, train
from polyrank.training.convert_step import ConvertStep
from polyrank.training.encoding import encode_in_parts
from polyrank.training.fitting import ExampleOrder
from polyrank.training.learner import explain_out_of_memory
from polyrank.training.mutual import DistillStep, Imitation
from polyrank.training.teacher import Teacher
from train_settings import in_chunks, loss_of, losses_of, toy_recipe
from word_models import PairScorer

CPU = torch.device("cpu")
POLICY = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
WORDS = ("wifi", "router", "red", "green", "bill", "too", "high", "restart", "it", "please", "thanks")
REPLIES = [" ".join(WORDS[i : i + 1 + i % 4]) for i in range(9)]
# lengths from 1 to 10 words; one response to two contexts, one context with two responses, given negatives
DATA = [
    *(Example(("hello", " ".join(WORDS[: 1 + 3 * i % 10])), (REPLIES[i], REPLIES[-1 - i]), (0,)) for i in range(7)),
    Example(("did it help",), (REPLIES[2],), (0,)),
    Example(("did it help",), (REPLIES[8],), (0,)),
    Example(("is",), (REPLIES[7], "my wifi is down", REPLIES[0]), (0, 2)),
]
BATCH = list(enumerate(DATA))
SMOOTHED = partial(cross_entropy, smoothing=0.2)
Start = Callable[[Path, float], tuple[Any, nn.Module]]
"""Makes a step and its network from a backbone's folder and a dropout rate."""


def encoder(config: Any, backbone: Path, dropout: float) -> tuple[Any, Any]:
    config = dataclasses.replace(config, backbone=str(backbone))
    model, texts, _ = new_model(config, POLICY, seed=1, sample=["hi"], dropout=dropout)
    return model.train(), texts


def in_batch(config: Any, **settings: Any) -> Start:
    def start(backbone: Path, dropout: float) -> tuple[InBatchStep, nn.Module]:
        model, texts = encoder(config, backbone, dropout)
        return InBatchStep(model, texts, CPU, rights=collect_right_answers(DATA), **settings), model

    return start


def listwise(config: Any) -> Start:
    def start(backbone: Path, dropout: float) -> tuple[ListwiseStep, nn.Module]:
        model, texts = encoder(config, backbone, dropout)
        return ListwiseStep(model, texts, CPU, RandomNegatives(REPLIES, 3, 1)), model

    return start


def convert(multi_context: bool) -> Start:
    def start(backbone: Path, dropout: float) -> tuple[ConvertStep, nn.Module]:
        model, texts, _ = make(multi_context=multi_context)
        model.dropout = dropout
        for layer in model.layers:
            layer.dropout = dropout  # type: ignore[assignment]
        rights, given = collect_right_answers(DATA), GivenNegatives(9, 1)
        step = ConvertStep(
            model, InBatchStep(model, texts, CPU, SMOOTHED, rights=rights, negatives=given), 4, range_steps=2
        )
        return step, model.train()

    return start


STEPS: dict[str, Start] = {
    "Bi": in_batch(BiConfig(reduction="mean")),
    "Bi, one tower": in_batch(BiConfig(reduction="mean", shared_towers=True), loss=SMOOTHED),
    "Bi, given negatives": in_batch(BiConfig(reduction="first", projection_dim=8), negatives=GivenNegatives(9, 1)),
    "Poly": in_batch(PolyConfig(n_codes=4, code_init="near_zero", reduction="mean")),
    "Poly, last outputs": in_batch(PolyConfig(n_codes=9, codes="last", reduction="mean")),
    "Poly, lists": listwise(PolyConfig(n_codes=4, code_init="near_zero", reduction="mean")),
    "Cross, lists": listwise(CrossConfig()),
    "ConveRT": convert(multi_context=True),
    "ConveRT, one turn": convert(multi_context=False),
}
RARE = ("Bi", "Poly, last outputs", "ConveRT, one turn")  # others share their parts
each_step = pytest.mark.parametrize(
    "start",
    [pytest.param(start, id=name, marks=pytest.mark.deep if name in RARE else ()) for name, start in STEPS.items()],
)


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The norm of the difference of two gradients, relative to that of the second."""
    assert one.keys() == other.keys()
    squares = [((one[name] - other[name]).double().square().sum(), other[name].double().square().sum()) for name in one]
    error, size = (torch.stack(values).sum().sqrt() for values in zip(*squares, strict=True))
    return float(error / size)


@each_step
@pytest.mark.usefixtures("fp64")
def test_loss_and_gradients_equal_those_of_the_whole_batch(start: Start, tiny_backbone: Path) -> None:
    step, model = start(tiny_backbone, 0.0)
    model.double()
    plain = loss_of(step, BATCH)
    expected = gradients_of(model, plain)
    for size in (1, 3, 7):
        cached = loss_of(in_chunks(step, size), BATCH)
        torch.testing.assert_close(cached, plain, rtol=1e-13, atol=0, msg=f"in chunks of {size}")
        assert difference(gradients_of(model, cached), expected) < 1e-12, size


@pytest.mark.deep
@each_step
@pytest.mark.usefixtures("fp64")
def test_three_updates_equal_those_of_plain_steps(start: Start, tiny_backbone: Path) -> None:
    (plain, model), (step, other) = (start(tiny_backbone, 0.0) for _ in range(2))
    before = weights(start(tiny_backbone, 0.0)[1])
    cached = in_chunks(step, 2)
    for number in range(3):
        losses = []
        for work, network in ((plain, model.double()), (cached, other.double())):
            losses.append(loss_of(work, BATCH, 0, number))
            gradients_of(network, losses[-1])
            torch.optim.SGD(network.parameters(), lr=0.01).step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    assert difference(weights(other), weights(model)) < 1e-12
    assert difference(weights(model), before) > 1e-5  # the weights changed


@pytest.mark.parametrize("name", ["Bi", "Bi, one tower"])
def test_in_fp32_only_the_last_bits_differ(name: str, tiny_backbone: Path) -> None:
    step, model = STEPS[name](tiny_backbone, 0.0)
    plain, cached = loss_of(step, BATCH), loss_of(in_chunks(step, 3), BATCH)
    torch.testing.assert_close(cached, plain, rtol=1e-6, atol=0)
    expected = gradients_of(model, plain)
    assert difference(gradients_of(model, cached), expected) < 1e-6


@each_step
def test_a_batch_that_fits_into_a_chunk_equals_a_plain_one(start: Start, tiny_backbone: Path) -> None:
    step, model = start(tiny_backbone, 0.3)
    torch.manual_seed(5)
    plain = gradients_of(model, loss_of(step, BATCH))
    torch.manual_seed(5)
    cached = gradients_of(model, loss_of(in_chunks(step, 40), BATCH))
    assert all(torch.equal(cached[name], plain[name]) for name in plain)


@each_step
def test_with_dropout_the_gradient_belongs_to_the_drawn_loss(start: Start, tiny_backbone: Path) -> None:
    """If both passes use the same dropout, central differences of the loss agree with the gradient."""
    step, model = start(tiny_backbone, 0.3)
    if isinstance(step, ConvertStep):
        for module in model.modules():
            module.dtype = None  # type: ignore[assignment]  # a straight-through gradient differs from differences
    work = in_chunks(step, 3)

    def loss() -> Tensor:
        torch.manual_seed(7)
        return loss_of(work, BATCH, 0, 0)

    gradients = gradients_of(model, loss())
    size = float(torch.stack([g.double().square().sum() for g in gradients.values()]).sum())
    width = 2e-3 / size**0.5
    named = dict(model.named_parameters())
    ends = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for name, gradient in gradients.items():
                named[name] += sign * width * gradient
            ends.append(float(loss()))
            for name, gradient in gradients.items():
                named[name] -= sign * width * gradient
    assert (ends[0] - ends[1]) / (2 * width) == pytest.approx(size, rel=0.02)


def test_the_second_pass_does_not_change_later_random_numbers(tiny_backbone: Path) -> None:
    step, model = STEPS["Bi"](tiny_backbone, 0.3)
    torch.manual_seed(5)
    loss = loss_of(in_chunks(step, 3), BATCH)
    state = torch.get_rng_state()
    gradients_of(model, loss)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("size", [2, 5])
def test_in_bf16_both_passes_use_bf16_with_equal_accuracy(size: int, tiny_backbone: Path) -> None:
    """With size 5 the nine candidates are split into chunks, and the contexts of the same tower are not."""
    step, model = in_batch(BiConfig(reduction="mean", shared_towers=True), negatives=GivenNegatives(9, 1))(
        tiny_backbone, 0.0
    )
    exact = gradients_of(model, loss_of(step, BATCH[:5]))
    with torch.autocast("cpu", torch.bfloat16):
        plain = loss_of(step, BATCH[:5])
        cached = loss_of(in_chunks(step, size), BATCH[:5])
    error = difference(gradients_of(model, plain), exact)
    assert error > 1e-3
    assert 0.5 * error < difference(gradients_of(model, cached), exact) < 1.5 * error


def test_a_frozen_side_stays_without_gradients(tiny_backbone: Path) -> None:
    step, model = STEPS["Bi"](tiny_backbone, 0.0)
    model.candidate_tower.requires_grad_(False)  # type: ignore[union-attr, operator]
    expected = gradients_of(model, loss_of(step, BATCH))
    gradients = gradients_of(model, loss_of(in_chunks(step, 3), BATCH))
    assert all(name.startswith("context_tower") for name in gradients)
    assert difference(gradients, expected) < 1e-5


def test_a_weight_that_no_loss_uses_stays_without_a_gradient() -> None:
    """An optimizer leaves it as it is, but would decay a weight whose gradient is zero."""
    tokens = pad([[1, 2, 3]] * 5)
    for size in (None, 2):
        used, unused = (torch.ones(3, requires_grad=True) for _ in range(2))

        def encode(part: Tokens, a: Tensor = used, b: Tensor = unused) -> tuple[Tensor, Tensor]:
            return part.ids * a, part.ids * b

        encode_in_parts(encode, tokens, size)[0].sum().backward()  # type: ignore[no-untyped-call]
        assert used.grad is not None
        assert used.grad.tolist() == [5, 10, 15]
        assert unused.grad is None


def test_without_a_graph_only_the_result_is_computed(tiny_backbone: Path) -> None:
    step, _ = STEPS["Poly, last outputs"](tiny_backbone, 0.0)
    with torch.no_grad():
        assert not loss_of(in_chunks(step, 2), BATCH).requires_grad


def test_chunks_hold_texts_of_similar_length_in_the_original_order() -> None:
    lengths = torch.tensor([1, 9, 3, 9, 2])
    mask = torch.arange(9) < lengths[:, None]
    ids = torch.arange(5)[:, None].expand(5, 9) * mask
    shapes = []

    def encode(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        shapes.append(tuple(tokens.ids.shape))
        return tokens.ids.float(), tokens.mask, tokens.mask.sum(1)

    values, real, counts = encode_in_parts(encode, Tokens(ids, mask, torch.zeros_like(ids)), 2)
    assert shapes == [(2, 9), (2, 3), (1, 1)]
    assert torch.equal(values, ids.float())
    assert torch.equal(real, mask)
    assert torch.equal(counts, lengths)


def test_mutual_learning_in_chunks_trains_both_as_without(tiny_backbone: Path) -> None:
    """The second network's chunks are encoded again after the first one's update, and stay unaffected by it."""
    outcomes = []
    for size in (None, 3):
        pair = [STEPS[name](tiny_backbone, 0.0) for name in ("Poly, lists", "Cross, lists")]
        first, second = (in_chunks(step, size) for step, _ in pair)
        phases = losses_of(MutualStep(first, second, Imitation()), BATCH)
        for _, model in pair:
            gradients_of(model, next(phases))
            torch.optim.SGD(model.parameters(), lr=0.01).step()
        outcomes.append([weights(model) for _, model in pair])
    for plain, cached in zip(*outcomes, strict=True):
        assert difference(cached, plain) < 1e-5


@each_step
def test_a_summed_loss_is_of_all_contexts_of_a_batch(start: Start, tiny_backbone: Path) -> None:
    """With ``train.loss = "sum"`` the loop multiplies each loss by its number of contexts."""
    step, _ = start(tiny_backbone, 0.0)
    steps = [step]
    if isinstance(step, ListwiseStep):
        teacher = Teacher(PairScorer(), None, n_examples=len(BATCH), n_candidates=4)
        steps += [MutualStep(step, step, Imitation()), DistillStep(step, teacher, Imitation())]
    for one in steps:
        assert {loss.n_contexts for loss in one.losses(one.prepare(BATCH[2:6], 0), 0)} == {4}


# memory


def peak_of(step: Any, model: nn.Module, n: int) -> int:
    """Peak bytes of torch's allocator in an update of n pairs of full length."""
    pairs = [Example((" ".join([f"{i}", *WORDS * 2]),), (f"reply {i} {' '.join(WORDS)}",), (0,)) for i in range(n)]
    loss_of(step, list(enumerate(pairs))).backward()  # allocates the gradients
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        loss_of(step, list(enumerate(pairs))).backward()
    recorded: Any = record.profiler
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    assert events
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


@pytest.mark.deep
@pytest.mark.parametrize("name", ["Bi", "Poly", "ConveRT"])
def test_memory_does_not_grow_with_the_batch(name: str, tiny_backbone: Path) -> None:
    step, model = STEPS[name](tiny_backbone, 0.1)
    cached = in_chunks(step, 8)
    small, large = (peak_of(cached, model, n) for n in (32, 128))
    plain = peak_of(step, model, 128)
    assert large < 1.6 * small  # with vectors and scores of four times the batch
    assert plain > 10 * large


# in a training


def recipe(task: dict[str, Path], backbone: Path, output: Path, model: Any, **changes: Any) -> Recipe:
    settings = {"batch_size": 24, "epochs": 2, "lr": 1e-3, "train_layers": "all", "precision": "fp32", **changes}
    return toy_recipe(task, output, dataclasses.replace(model, backbone=str(backbone)), POLICY, **settings)


def outcome(folder: Path) -> tuple[list[Any], bytes]:
    """The losses of a run and its best model."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    rows = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
    return rows, (folder / "model" / "model.safetensors").read_bytes()


class CrashError(Exception):
    """Ends a run from its report callback, like a crash."""


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(BiConfig(reduction="mean"), marks=pytest.mark.deep),
        PolyConfig(n_codes=3, code_init="near_zero"),
    ],
)
def test_runs_in_chunks_are_reproducible_and_resume_exactly(
    model: Any, tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    plan = recipe(task, tiny_backbone, tmp_path / "whole", model, chunk_size=5, dropout=0.2, checkpoint_steps=2)
    train(plan)
    again = dataclasses.replace(plan, output=str(tmp_path / "again"))

    def crash(seed: int, record: dict[str, Any]) -> None:
        if record["step"] == 4:  # in the second epoch, after the checkpoint of step 2
            raise CrashError

    with pytest.raises(CrashError):
        train(again, report=crash)
    train(again, resume=True)
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")


@pytest.mark.deep
def test_a_training_in_chunks_has_the_same_losses(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    losses = []
    for size in (None, 4):
        plan = recipe({"train": task["train"]}, tiny_backbone, tmp_path / f"{size}", BiConfig(reduction="mean"),
                      dropout=0.0, lr=1e-4, chunk_size=size, negatives={"sources": ["random"], "n": 2})  # fmt: skip
        train(plan)
        losses.append([record["loss"] for record in outcome(tmp_path / f"{size}")[0] if "loss" in record])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_size": 64}, "chunk_size = 64 is not below the 64 texts of a batch"),
        ({"batch_size": 8, "chunk_size": 9}, "chunk_size = 9 is not below the 8 texts of a batch"),
        ({"chunk_size": 0}, "chunk_size = 0 must be at least 1"),
        ({"method": ConvertMethod(), "chunk_size": 99}, "99 is not below the 64 texts of a batch.* leave it out"),
        ({"method": ListwiseMethod(), "batch_size": 4, "chunk_size": 64}, "not below the 64 texts"),
        ({"negatives": NegativesConfig(n=1), "batch_size": 4, "chunk_size": 8}, "not below the 8 texts"),
    ],
)
def test_a_chunk_as_large_as_the_batch_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


def test_a_chunk_may_be_larger_than_a_batch_of_lists() -> None:
    assert TrainConfig(method=ListwiseMethod(), batch_size=4, chunk_size=63).chunk_size == 63
    assert TrainConfig(method=InBatchMethod(), negatives=NegativesConfig(n=3), batch_size=4, chunk_size=15).chunk_size


@pytest.mark.parametrize(("chunk_size", "next_one"), [(None, 32), (16, 8), (1, 1)])
def test_out_of_memory_suggests_half_of_the_chunk(chunk_size: int | None, next_one: int) -> None:
    settings = TrainConfig(batch_size=64, chunk_size=chunk_size)
    order = ExampleOrder(DATA[:1] * 64, lambda _: 1, settings, seed=1)
    with (
        pytest.raises(ResourceError, match=rf"a batch of 64 does not .* train\.chunk_size={next_one} "),
        explain_out_of_memory(order.too_large(order.rows(0)[0])),
    ):
        raise MemoryError


def test_the_loss_of_earlier_turns_is_of_the_contexts_that_have_any() -> None:
    model, texts, _ = make()
    rows, summed = CONVERT_BATCH, step_of(model, texts, summed=True, smoothing=0.0)
    mean = step_of(model, texts, summed=False, smoothing=0.0)
    of_some = [number for number, (_, example) in enumerate(rows) if len(example.context) > 1]
    assert 0 < len(of_some) < len(rows)
    both, weighted = loss_of(mean, rows).item(), loss_of(summed, rows).item()
    with torch.no_grad():  # at the first update the scale is 1
        encodings = model.context_encodings(texts.contexts([example.query for _, example in rows]))
        values = encodings.earlier @ model.encode_candidates(texts.candidates([e.candidates[0] for _, e in rows])).T
    earlier = torch.nn.functional.cross_entropy(values[of_some], torch.tensor(of_some)).item()
    assert both - weighted == pytest.approx((1 - len(of_some) / len(rows)) * earlier, rel=1e-4)
    alike = [rows[number] for number in of_some]
    assert loss_of(mean, alike).item() == loss_of(summed, alike).item()
