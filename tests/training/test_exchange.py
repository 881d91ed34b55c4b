"""Gradients are summed over processes while the backward pass runs: the same sums as after it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from convert_models import BATCH, make
from polyrank.config.models import LateConfig, TextPolicy
from polyrank.devices import distributed
from polyrank.models import new_model
from polyrank.negatives.random import GivenNegatives
from polyrank.records import Example
from polyrank.scorers.late import LateScorer
from polyrank.scorers.load import make_scorer
from polyrank.text import BackboneTexts, load_subwords, pad
from polyrank.training import ListwiseStep, exchange, inputs as prepared
from polyrank.training.encoding import encode_in_parts
from polyrank.training.exchange import accumulating, summed_gradients
from polyrank.training.shares import encode_in_shares, encode_own, share_of
from processes import work_together
from test_precision import Trained
from train_settings import update


class Layers(nn.Module):
    """Two layers that both sides share, one that is frozen, one that rank 0 alone uses, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.unused, self.of_rank_zero, self.frozen = (nn.Linear(3, 3) for _ in range(3))
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        self.frozen.requires_grad_(False)

    def loss(self) -> Tensor:
        """Of inputs that differ by process."""
        inputs = torch.arange(6.0).reshape(2, 3).sub(distributed.rank()).cos()
        values: Tensor = self.layers(self.frozen(inputs)) + self.layers(inputs)
        values = self.of_rank_zero(values) if distributed.is_rank_zero() else values
        return values.square().sum()


def sums_of(model: nn.Module, backward: Callable[[], None]) -> dict[str, Tensor | None]:
    model.zero_grad()
    with summed_gradients(model):
        backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def compare_sums() -> None:
    """Sums of one backward pass and of several, in buckets of several sizes, with the sums of gathered gradients."""
    torch.set_default_dtype(torch.float64)
    model = Layers()
    with distributed.process_group():
        model.loss().backward()  # type: ignore[no-untyped-call]
        own = {name: weight.grad for name, weight in model.named_parameters()}
        given: dict[str, list[Tensor]] = {
            name: [grad for each in distributed.all_gather(own) if (grad := each[name]) is not None] for name in own
        }
        assert [len(grads) for grads in given.values()] == [0] * 2 + [1] * 2 + [0] * 2 + [distributed.world_size()] * 4

        def in_parts() -> None:
            for _ in range(2):
                with accumulating():
                    (model.loss() / 4).backward()  # type: ignore[no-untyped-call]
            (model.loss() / 2).backward()  # type: ignore[no-untyped-call]

        for exchange.BUCKET in (1, 20, 2**22):
            for backward in (lambda: model.loss().backward(), in_parts):  # type: ignore[no-untyped-call]
                for name, found in sums_of(model, backward).items():
                    expected = sum(given[name], torch.zeros(())) if given[name] else None
                    if found is None or expected is None:
                        assert found is expected, name
                    elif distributed.world_size() == 2:  # a + b = b + a; halves and quarters are exact
                        assert torch.equal(found, expected), name
                    else:
                        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=name)
                        assert torch.equal(found, distributed.all_gather(found)[0]), name


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.deep)])
def test_sums_are_those_of_all_gradients(n: int) -> None:
    assert work_together(n, compare_sums) == [0] * n


def send_early() -> None:
    """The last layer's gradients are sent before the first layer's are computed; in chunks, after the backward pass."""
    exchange.BUCKET = 1
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    inputs = torch.ones(6, 4, requires_grad=True)
    events: list[str] = []
    start_sums = distributed.start_sums

    def recorded() -> Callable[[Tensor], Callable[[], None]]:
        start = start_sums()

        def note(values: Tensor) -> Callable[[], None]:
            events.append("sent")
            return start(values)

        return note

    distributed.start_sums = recorded
    inputs.register_hook(lambda _: events.append("end"))  # type: ignore[no-untyped-call]
    tokens = pad([[1, 2]] * 6)

    def loss(size: int | None) -> Tensor:
        vectors: Tensor = encode_in_parts(lambda part: layers(inputs[: len(part.ids)]), tokens, size)
        return vectors.sum()

    with distributed.process_group():
        sums_of(layers, lambda: loss(None).backward())  # type: ignore[no-untyped-call]
        assert events == [*["sent"] * 10, "end"]
        events.clear()
        sums_of(layers, lambda: loss(2).backward())  # type: ignore[no-untyped-call]
        assert events == [*["end"] * 3, *["sent"] * 10]


def test_gradients_are_sent_while_others_are_computed() -> None:
    assert work_together(2, send_early) == [0, 0]


def change_after_sending() -> None:
    layers = nn.Linear(2, 2)

    def twice() -> None:
        for _ in range(2):
            layers(torch.ones(1, 2)).sum().backward()

    with distributed.process_group(), pytest.raises(AssertionError, match="changed after it was sent"):
        sums_of(layers, twice)


@pytest.mark.deep
def test_gradients_that_change_after_they_were_sent_are_noticed() -> None:
    assert work_together(2, change_after_sending) == [0, 0]


def scale_together(folder: Path) -> None:
    """In fp16 a gradient overflows on rank 1 only, then on none; only rank 0 keeps the best version and the record."""
    with distributed.process_group():
        trained, exact = Trained(folder, torch.float16), Trained(folder, torch.float32)
        before = trained.weights()
        update(trained.state, trained.loss(1.0 if distributed.rank() else 0.25))
        assert trained.state.scaler.get_scale() == 2**15
        assert torch.equal(trained.weights(), before)
        update(trained.state, trained.loss(0.5))
        update(exact.state, exact.loss(0.5))
        assert not torch.equal(trained.weights(), before)
        assert torch.equal(trained.weights(), exact.weights())  # a power of two rounds nothing
        saved: list[dict[str, float]] = []
        figures = {"loss": 1.0, "R@1": 0.5}
        exact.state.learner = dataclasses.replace(exact.state.learner, save_best=saved.append, evaluate=lambda: figures)
        exact.state.validate(2, {"epoch": 1.0})
        assert exact.state.best_step == 2
        distributed.barrier()
        assert saved == ([figures] if distributed.is_rank_zero() else [])
        assert len((folder / "metrics.jsonl").read_text("utf-8").splitlines()) == 1


def test_an_overflow_in_one_process_skips_the_update_of_all(tmp_path: Path) -> None:
    assert work_together(2, scale_together, tmp_path) == [0, 0]


def compare_shares(backbone: Path) -> None:
    """The texts of a process, of different lengths, and their masks; rank 1 has none of the second batch."""
    config, policy = LateConfig(backbone=str(backbone), joined_layers=1), TextPolicy(max_context_tokens=24)
    late, late_texts, _ = new_model(config, policy, seed=1, sample=["hi"], dropout=0.0)
    scorer = make_scorer(late.eval(), late_texts, precision="fp32")
    assert isinstance(scorer, LateScorer)
    step = ListwiseStep(late, late_texts, torch.device("cpu"), GivenNegatives(9, 1), late=scorer)
    texts = make()[1]
    batch = [*enumerate([*(example for _, example in BATCH), Example(("hi", "", "it is"), ("thanks!",), (0,))])]
    lists = [["please restart it", "hello"], ["did that help?"], ["hello", "hi", "thanks!"], ["thanks!", "hello"]]
    factor = torch.ones((), requires_grad=True)
    for n in (4, 1):
        rows = [[5, 6], [7], [8, 9, 10], [11, 12, 13, 14]][:n]
        segments = [[0, 1], [1], [0, 0, 1], [0, 1, 1, 1]][:n]
        whole = prepared.in_batch(batch[:n], ["hi"], texts=texts, rights={})
        whole_lists = prepared.in_lists(batch[:n], lists[:n], texts=texts)
        whole_values, _ = step.values(step.inputs(batch[:n], lists[:n]))
        with distributed.process_group():
            share = share_of(rows, segments, pad_id=0)
            assert share.counts == ((2, 2) if n == 4 else (1, 0))
            own = share.own.tolist()
            assert own == ([[3, 0], [2, 1]] if n == 4 else [[0], []])[distributed.rank()]  # in turns, by length
            for line, place in enumerate(own or [0]):
                length = len(rows[place])
                assert share.tokens.ids[line, :length].tolist() == rows[place]
                assert share.tokens.segments[line, :length].tolist() == segments[place]
                assert int(share.tokens.mask[line].sum()) == length
            sums = encode_in_shares(lambda tokens: factor * (tokens.ids * tokens.mask).sum(1).float(), share, None)
            assert sums.tolist() == [sum(row) for row in rows]
            (sums * torch.tensor([1.0, 10.0, 100.0, 1000.0])[:n] / 2).sum().backward()  # of two equal losses
            weighed = sum(10**place * sum(rows[place]) for place in own)
            assert factor.grad is not None
            assert float(factor.grad) == weighed
            factor.grad = None
            part = prepared.in_batch(batch[:n], ["hi"], texts=texts, rights={})
            assert part.targets.tolist() == part.contexts.own.tolist()
            assert torch.equal(part.allowed, whole.allowed[part.contexts.own])
            given = prepared.in_lists(batch[:n], lists[:n], texts=texts)
            assert torch.equal(given.keys, whole_lists.keys[given.inputs.own])
            assert torch.equal(given.allowed, whole_lists.allowed)
            values, _ = step.values(step.inputs(batch[:n], lists[:n]))
            torch.testing.assert_close(values, whole_values)


@pytest.mark.deep
def test_the_work_of_a_batch_is_shared_by_length(tiny_backbone: Path) -> None:
    assert work_together(2, compare_shares, tiny_backbone) == [0, 0]


@pytest.mark.parametrize("n", [4, 1])
def test_three_processes_have_each_text_of_a_batch_once(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one text, two of them have none."""
    texts = make()[1]
    batch = [*enumerate([*(example for _, example in BATCH), Example(("hi", "", "it is"), ("thanks!",), (0,))])][:n]
    lists = [["please restart it", "hello"], ["did that help?"], ["hello", "hi", "thanks!"], ["thanks!", "hello"]][:n]
    whole = prepared.in_batch(batch, ["hi"], texts=texts, rights={})
    whole_lists = prepared.in_lists(batch, lists, texts=texts)
    rows, segments = [[7], [5, 6], [11, 12, 13, 14], [8, 9, 10]][:n], [[1], [0, 1], [0, 1, 1, 1], [0, 0, 1]][:n]
    owned, shares = [[2, 0], [3], [1]] if n == 4 else [[0], [], []], []
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    for rank, own in enumerate(owned):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(share := share_of(rows, segments, pad_id=0))
        assert (share.own.tolist(), share.counts) == (own, tuple(map(len, owned)))  # in turns, by length
        for line, place in enumerate(own or [0]):
            length = len(rows[place])
            assert share.tokens.ids[line, :length].tolist() == rows[place]
            assert share.tokens.segments[line, :length].tolist() == segments[place]
            assert int(share.tokens.mask[line].sum()) == length
        part = prepared.in_batch(batch, ["hi"], texts=texts, rights={})
        given = prepared.in_lists(batch, lists, texts=texts)
        assert part.targets.tolist() == part.contexts.own.tolist()
        assert torch.equal(part.allowed, whole.allowed[part.contexts.own])
        assert torch.equal(given.keys, whole_lists.keys[given.inputs.own])
        assert torch.equal(given.allowed, whole_lists.allowed)
        encode: Any = lambda tokens: (tokens.ids, tokens.mask.sum(1))  # noqa: E731
        ids, lengths = encode_own(encode, share, None)
        assert torch.equal(ids, share.tokens.ids[: len(own)])
        assert torch.equal(ids, encode_own(lambda tokens: tokens.ids, share, None))
        assert lengths.tolist() == [len(rows[place]) for place in own]
    together = torch.cat([share.own for share in shares])
    assert all(together[share.back].tolist() == [*range(n)] for share in shares)


def parts_of(values: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a dataclass and of its fields that are dataclasses, each with the name of its field."""
    fields = [(field.name, getattr(values, field.name)) for field in dataclasses.fields(values)]
    own = [(name, value) for name, value in fields if isinstance(value, Tensor)]
    return own + [part for _, value in fields if dataclasses.is_dataclass(value) for part in parts_of(value)]


@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_moves_to_the_device_of_the_step(n: int, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the places of a process's texts stay in host memory. Of several processes, their order moves as well."""
    texts, pairs = make()[1], BackboneTexts(load_subwords(tiny_backbone), TextPolicy(), 512)
    monkeypatch.setattr(distributed, "world_size", lambda: n)
    lists = [["please restart it", "hello"]] * len(BATCH)
    for batch, n_parts in (
        (prepared.in_batch(BATCH, ["hi"], texts=texts, rights={}), 11),
        (prepared.in_lists(BATCH, lists, texts=texts), 10),
        (prepared.in_pairs(BATCH, lists, pairs), 6),
    ):
        parts = parts_of(batch.to(torch.device("meta")))
        assert {name for name, part in parts if part.device.type != "meta"} == {"own"}
        assert len(parts) == n_parts + (n > 1) * sum(name == "own" for name, _ in parts)


def test_a_single_process_exchanges_nothing() -> None:
    layers = nn.Linear(2, 2)
    with summed_gradients(layers):
        layers(torch.ones(1, 2)).sum().backward()
        kept = layers.weight.grad
    assert layers.weight.grad is kept
