"""In-batch losses in chunks of contexts: the same loss and gradients in less memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import test_chunks
from polyrank.models.losses import cross_entropy
from polyrank.models.scoring import scores
from polyrank.training import row_losses
from polyrank.training.row_losses import mean_loss
from train_settings import loss_of

NAMES = [name for name in test_chunks.STEPS if not name.endswith("lists")]


@pytest.mark.deep
@pytest.mark.usefixtures("fp64")
@pytest.mark.parametrize("name", NAMES)
def test_chunks_have_the_loss_and_gradients_of_the_whole(
    name: str, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (row_losses.MOST_SCORES, 40, 1):
        monkeypatch.setattr(row_losses, "MOST_SCORES", most)
        step, model = test_chunks.STEPS[name](tiny_backbone, 0.0)
        model.double()
        loss = loss_of(step, test_chunks.BATCH)
        loss.backward()
        gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for key, value in found[0].items():
            torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-9, msg=key)


def test_contexts_of_several_vectors_are_fewer_in_a_chunk(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 contexts with 4 vectors and some candidates, the products of 3 at a time fit."""
    step, _ = test_chunks.STEPS["Poly"](tiny_backbone, 0.0)
    shapes: list[tuple[int, ...]] = []

    def loss(scores: torch.Tensor, target: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(scores.shape))
        return cross_entropy(scores, target, allowed)

    n_candidates = len(step.prepare(test_chunks.BATCH, 0).columns)
    monkeypatch.setattr(row_losses, "MOST_SCORES", 3 * 4 * n_candidates)
    loss_of(replace(step, loss=loss), test_chunks.BATCH)
    assert shapes == [(3, n_candidates)] * 3 + [(1, n_candidates)]


def test_a_process_adds_its_share_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 contexts it has 3, whose losses are 1, 2 and 6: also in chunks of two contexts."""
    for most in (row_losses.MOST_SCORES, 4):
        monkeypatch.setattr(row_losses, "MOST_SCORES", most)
        own, candidates = torch.tensor([1.0, 2.0, 6.0], requires_grad=True), torch.ones(2, 1, requires_grad=True)
        loss = row_losses.mean_loss(
            lambda rows, shared: rows.mean() * shared[0, 0], own, candidates=candidates, n_contexts=12
        )
        (2 * loss).backward()
        assert float(loss.detach()) == pytest.approx(9 / 12)
        torch.testing.assert_close(own.grad, torch.full((3,), 2 / 12))
        torch.testing.assert_close(candidates.grad, torch.tensor([[2 * 9 / 12], [0.0]]))


def test_a_process_without_contexts_adds_nothing() -> None:
    """It still has gradients, which are zero: the other processes wait for them."""
    own, candidates = torch.empty(0, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    loss = mean_loss(lambda rows, shared: (rows @ shared.T).mean(), own, candidates=candidates, n_contexts=12)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert candidates.grad is not None
    assert not candidates.grad.any()
    assert own.grad is not None


def test_memory_does_not_grow_with_the_scores_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 contexts with 64 vectors: 4 MB of products at once, or 0.5 MB per chunk."""
    torch.manual_seed(0)
    contexts, candidates = torch.randn(128, 64, 8), torch.randn(128, 8)
    mask, rows, allowed = torch.ones(128, 64).bool(), torch.arange(128), torch.ones(128, 128).bool()

    def loss(
        rows: torch.Tensor, allowed: torch.Tensor, mask: torch.Tensor, own: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return cross_entropy(scores(own, weights[None], mask), rows, allowed)

    peaks, gradients = [], []
    for most in (2**26, 2**17):
        monkeypatch.setattr(row_losses, "MOST_SCORES", most)
        own, weights = contexts.clone().requires_grad_(), candidates.clone().requires_grad_()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            mean_loss(loss, rows, allowed, mask, own, candidates=weights, n_contexts=128, n_vectors=64).backward()
        held = peak = 0
        for event in record.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.name() == "[memory]":
                held += event.nbytes()
                peak = max(peak, held)
        peaks.append(peak)
        gradients.append(own.grad)
    assert peaks[1] < peaks[0] / 3
    torch.testing.assert_close(gradients[0], gradients[1])
