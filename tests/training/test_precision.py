"""The precision of training: fp16 with a loss scale, and TF32 on CUDA around updates only."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from convert_models import make
from polyrank.config.train import NetworkTraining
from polyrank.devices.choice import choose_dtype, fast_products
from polyrank.training.learner import CPU, Learner, Loss, TrainState
from test_resume import CrashError, read, run, write
from train_settings import update


class Trained:
    """A small ConveRT in training, whose loss has one gradient everywhere."""

    def __init__(self, folder: Path, dtype: torch.dtype, clip_norm: float | None = None) -> None:
        self.model = make()[0]
        settings = NetworkTraining(lr=0.1, train_layers="all", optimizer="adadelta", clip_norm=clip_norm)
        learner = Learner(model=self.model, settings=settings, folder=folder, save_best=lambda _: None)
        self.state = TrainState(learner, 10, CPU, dtype)

    def loss(self, gradient: float) -> Tensor:
        """Sums in fp16, through which the gradient, times the scale, has to pass."""
        return torch.stack([(p.half() * gradient).float().sum() for p in self.model.parameters()]).sum()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def test_a_gradient_that_overflows_halves_the_scale_and_skips_one_update(tmp_path: Path) -> None:
    trained, exact = Trained(tmp_path, torch.float16), Trained(tmp_path, torch.float32)
    before = trained.weights()
    assert trained.state.scaler.get_scale() == 2**16
    assert math.isfinite(update(trained.state, trained.loss(1.0)))  # 65,536 is too large for fp16
    assert torch.equal(trained.weights(), before)
    assert (trained.state.n_bad, trained.state.scaler.get_scale()) == (0, 2**15)
    update(trained.state, trained.loss(1.0))
    update(exact.state, exact.loss(1.0))
    assert not torch.equal(trained.weights(), before)
    assert torch.equal(trained.weights(), exact.weights())  # a power of two rounds nothing
    assert all(parameter.grad is None for parameter in trained.model.parameters())


def test_gradients_are_clipped_without_their_scale(tmp_path: Path) -> None:
    """The norm of the gradients is far below the limit; times the scale, it is far above."""
    clipped, whole = Trained(tmp_path, torch.float16, 1000.0), Trained(tmp_path, torch.float16)
    for trained in (clipped, whole):
        for _ in range(2):  # at the first scale every gradient overflows
            update(trained.state, trained.loss(2.0**-4))
    assert torch.equal(clipped.weights(), whole.weights())
    assert not torch.equal(whole.weights(), Trained(tmp_path, torch.float16).weights())


def test_a_gradient_that_overflows_at_any_scale_counts_as_bad(tmp_path: Path) -> None:
    trained = Trained(tmp_path, torch.float16)
    first = next(trained.model.parameters())
    values = [update(trained.state, (first * 0).sum().abs().sqrt()) for _ in range(18)]  # infinite derivative
    assert [math.isfinite(value) for value in values] == [True] * 16 + [False] * 2
    assert trained.state.n_bad == 2


@pytest.mark.deep
def test_a_run_in_fp16_resumes_bit_for_bit_and_needs_its_scale(tmp_path: Path) -> None:
    whole, exact = run(tmp_path / "whole", precision="fp16"), run(tmp_path / "exact")
    losses, expected = (torch.tensor([row["loss"] for row in one.rows if "loss" in row]) for one in (whole, exact))
    assert 0 < (losses - expected).abs().max() < 0.05
    with pytest.raises(CrashError):
        run(tmp_path / "run", precision="fp16", crash_at=10)
    tensors, progress = read(tmp_path / "run")
    scaler = progress["learners"][""]["scaler"]
    assert scaler["_growth_tracker"] > 0
    assert run(tmp_path / "run", precision="fp16", resume=True) == whole
    scaler["scale"] = 2.0**40  # overflows
    write(tmp_path / "run", tensors, progress)
    assert run(tmp_path / "run", precision="fp16", resume=True) != whole


def test_fp16_is_never_chosen_but_may_be_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_PRECISION", "fp16")
    assert choose_dtype("auto", CPU) == choose_dtype("fp16", CPU) == torch.float16


@pytest.mark.parametrize(("dtype", "inside"), [(torch.float32, "tf32"), (torch.bfloat16, None)])
def test_products_are_in_tf32_during_updates_in_fp32(
    dtype: torch.dtype, inside: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only on CUDA, forward and backward, and the caller's setting is restored."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    # optimizers of torch's CUDA build ask the driver, which is not there
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    settings: Any = torch.backends.cuda.matmul
    before, seen = settings.fp32_precision, []
    trained = Trained(tmp_path, dtype)
    for device in ("cuda", "cpu"):
        trained.state.device = torch.device(device)
        loss = trained.loss(1.0)
        loss.register_hook(lambda _: seen.append(settings.fp32_precision))

        def losses(loss: Tensor = loss) -> Any:
            seen.append(settings.fp32_precision)
            yield Loss(loss)

        trained.state.update(losses())
    assert seen == [inside or before] * 2 + [before] * 2
    assert settings.fp32_precision == before != "tf32"
    with pytest.raises(KeyError), fast_products(torch.device("cuda")):
        raise KeyError
    assert settings.fp32_precision == before
