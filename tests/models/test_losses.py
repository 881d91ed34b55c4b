"""Losses equal independent implementations (torch, SciPy, NumPy written out) in value and gradient."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, rel_entr, softmax
from torch import Tensor

from polyrank.models.losses import cross_entropy, imitation

Array = NDArray[np.float64]


def lists(seed: int, n_contexts: int = 4, width: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of a student and a teacher, right columns, and allowed columns: never all, always the right one."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (4 * torch.randn(n_contexts, width, generator=generator) for _ in range(2))
    target = torch.randint(width, (n_contexts,), generator=generator)
    allowed = torch.rand(n_contexts, width, generator=generator) < 0.6
    allowed[torch.arange(n_contexts), (target + 1) % width] = False
    allowed[torch.arange(n_contexts), (target + 2) % width] = True
    allowed[torch.arange(n_contexts), target] = True
    return student, teacher, target, allowed


def smoothed(scores: Array, target: Array, allowed: Array, smoothing: float) -> tuple[float, Array]:
    """Loss and gradient from the target probabilities: 1 - s for the right column, s / n for each wrong one."""
    total, gradient = 0.0, np.zeros_like(scores)
    for row, right in enumerate(target.astype(int)):
        part = [i for i in range(scores.shape[1]) if allowed[row, i] or i == right]
        wrong = [i for i in part if i != right]
        wanted = {i: smoothing / len(wrong) for i in wrong}
        wanted[right] = 1 - smoothing if wrong else 1.0
        logs = dict(zip(part, log_softmax(scores[row, part]), strict=True))
        total -= sum(wanted[i] * logs[i] for i in part)
        for i in part:
            gradient[row, i] = math.exp(logs[i]) - wanted[i]
    return total / len(scores), gradient / len(scores)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2, 0.75, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_cross_entropy_and_its_gradient_follow_from_the_target_probabilities(seed: int, smoothing: float) -> None:
    scores, _, target, allowed = lists(seed)
    scores.requires_grad_(True)
    loss = cross_entropy(scores, target, allowed, smoothing)
    loss.backward()
    value, gradient = smoothed(scores.detach().double().numpy(), target.numpy(), allowed.numpy(), smoothing)
    assert float(loss.detach()) == pytest.approx(value, rel=1e-5)
    assert scores.grad is not None
    np.testing.assert_allclose(scores.grad.numpy(), gradient, atol=1e-6)


def test_cross_entropy_equals_torchs_if_every_column_is_allowed() -> None:
    scores, _, target, _ = lists(7)
    everyone = torch.ones_like(scores, dtype=torch.bool)
    torch.testing.assert_close(
        cross_entropy(scores, target, everyone), torch.nn.functional.cross_entropy(scores, target)
    )
    # torch spreads s over all K columns, which leaves 1 - s (K - 1) / K for the right one
    width = scores.shape[1]
    own = cross_entropy(scores, target, everyone, 0.3 * (width - 1) / width)
    torch.testing.assert_close(own, torch.nn.functional.cross_entropy(scores, target, label_smoothing=0.3))


def test_smoothing_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/4 among the allowed: -(0.7 ln 1/2 + 0.15 ln 1/4 + 0.15 ln 1/4) = 1.3 ln 2."""
    scores = torch.tensor([[0.0, math.log(2), 0.0, 50.0]])
    allowed = torch.tensor([[True, True, True, False]])
    loss = cross_entropy(scores, torch.tensor([1]), allowed, 0.3)
    assert float(loss.detach()) == pytest.approx(1.3 * math.log(2), rel=1e-6)


def test_the_right_column_always_counts() -> None:
    """In a batch, a response's own column is the target and not among its negatives."""
    scores = torch.tensor([[math.log(3), 0.0]])
    loss = cross_entropy(scores, torch.tensor([0]), torch.tensor([[False, True]]))
    assert float(loss.detach()) == pytest.approx(math.log(4 / 3), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_a_context_without_a_wrong_candidate_has_no_loss_and_counts_in_the_mean(smoothing: float) -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 0.0]], requires_grad=True)
    allowed = torch.tensor([[True, False], [True, True]])
    loss = cross_entropy(scores, torch.tensor([0, 0]), allowed, smoothing)
    assert float(loss.detach()) == pytest.approx(math.log(2) / 2, rel=1e-6)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [0.0, 0.0]
    assert scores.grad[1].tolist() == pytest.approx([(0.5 - (1 - smoothing)) / 2, (0.5 - smoothing) / 2])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_imitation_equals_scipys_divergence_of_the_allowed_columns(seed: int, temperature: float) -> None:
    student, teacher, _, allowed = lists(seed)
    student.requires_grad_(True)
    loss = imitation(student, teacher, allowed, temperature)
    loss.backward()
    values, gradient = [], np.zeros(student.shape)
    for row, part in enumerate(allowed.numpy()):
        p = softmax(student.detach().double().numpy()[row, part] / temperature)
        q = softmax(teacher.double().numpy()[row, part] / temperature)
        values.append(rel_entr(q, p).sum())
        gradient[row, part] = (p - q) / temperature / len(student)
    assert float(loss.detach()) == pytest.approx(float(np.mean(values)), rel=1e-5)
    assert student.grad is not None
    np.testing.assert_allclose(student.grad.numpy(), gradient, atol=1e-6)


def test_imitation_equals_torchs_divergence_of_the_student_from_the_teacher() -> None:
    """Not the divergence of the teacher from the student, which differs."""
    student, teacher, _, _ = lists(5)
    everyone = torch.ones_like(student, dtype=torch.bool)
    p, q = (torch.distributions.Categorical(logits=scores / 2) for scores in (student, teacher))
    wanted = torch.distributions.kl_divergence(q, p).mean()
    torch.testing.assert_close(imitation(student, teacher, everyone, 2.0), wanted)
    assert float(torch.distributions.kl_divergence(p, q).mean()) != pytest.approx(float(wanted), rel=0.01)


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher, _, allowed = lists(2)
    teacher.requires_grad_(True)
    assert not imitation(student, teacher, allowed, 2.0).requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_scores_in_bf16_have_the_loss_of_the_same_numbers_in_fp32(smoothing: float) -> None:
    student, teacher, target, allowed = lists(3)
    low, other = student.bfloat16(), teacher.bfloat16()
    for found, wanted in (
        (cross_entropy(low, target, allowed, smoothing), cross_entropy(low.float(), target, allowed, smoothing)),
        (imitation(low, other, allowed, 3.0), imitation(low.float(), other.float(), allowed, 3.0)),
    ):
        assert found.dtype == torch.float32
        assert float(found) == float(wanted)
