"""Losses: pure functions of score matrices. They hold no model and know nothing of text."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(scores: Tensor, target: Tensor, allowed: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over contexts of ``-log softmax(scores)[target]`` among the allowed candidates.

    With smoothing s the right candidate is asked to have the probability 1 - s, and the n wrong ones s / n each:
    ``-(1 - s) log p[target] - s mean(log p[wrong])``. (PyTorch's own option spreads s over all, the right one too.)

    Args:
        scores: ``[B, K]``, raw.
        target: ``[B]``, the column of the right candidate.
        allowed: ``[B, K]``, false where a column takes no part. The target takes part always.
        smoothing: s, from 0 to 1. A context without a wrong candidate has nothing to smooth.

    Source of smoothing: Henderson et al., ConveRT (2020), footnote 10.

    >>> s = torch.tensor([[0.0, 0.0, 9.0]])
    >>> cross_entropy(s, torch.tensor([0]), torch.tensor([[True, True, False]]))
    tensor(0.6931)
    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([0]), torch.ones(1, 4, dtype=torch.bool), 0.3)  # log 4
    tensor(1.3863)
    """
    right = F.one_hot(target, scores.shape[1]).bool()
    hidden = ~(allowed | right)
    if smoothing == 0.0:
        return F.cross_entropy(scores.float().masked_fill(hidden, -torch.inf), target)
    logs = F.log_softmax(scores.float().masked_fill(hidden, -torch.inf), dim=1)
    wrong = allowed & ~right
    n_wrong = wrong.sum(1)
    spread = logs.masked_fill(~wrong, 0.0).sum(1) / n_wrong.clamp(min=1)
    share = torch.where(n_wrong > 0, smoothing, 0.0)
    return -((1 - share) * logs[right] + share * spread).mean()


def distinct(keys: Tensor, n_contexts: int) -> Tensor:
    """Which candidates may be negatives of which context: those whose text is not the right response's.

    In a batch the same response may follow two contexts ("thanks!"); counting it as wrong would teach nonsense.

    Args:
        keys: ``[K]``, equal for equal texts; the first ``n_contexts`` are the responses in order.
        n_contexts: B.

    Returns:
        ``[B, K]``, true where texts differ.

    >>> distinct(torch.tensor([7, 7, 8]), 2)
    tensor([[False, False,  True],
            [False, False,  True]])
    """
    return keys[:n_contexts, None] != keys[None, :]


def imitation(student: Tensor, teacher: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    """``KL(softmax(teacher / T) || softmax(student / T))``, mean over contexts; never below 0.

    A temperature T above 1 shows what the teacher thinks of the wrong candidates beside each other. It also makes the
    gradient smaller, by T^2 where scores are small beside it: as in Tao et al. that is left to the weight of this
    loss (Hinton et al. multiply by T^2).

    No gradient reaches the teacher.

    Args:
        student, teacher: ``[B, K]``, raw; their softmax is made in fp32.
        allowed: ``[B, K]``, false where a column takes no part; each row has one that does.
        temperature: T, above 0.

    Source: Hinton et al., Distilling the Knowledge in a Neural Network (2015); Tao et al., Efficient and Effective
        Retrieval-based Dialogue via Mutual Learning, eqs. 6 to 9 (on sigmoids there; on raw scores here).

    >>> s, t, everyone = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log(), torch.ones(1, 2, dtype=torch.bool)
    >>> imitation(s, t, everyone, 1.0)  # 3/4 log(3/4 : 1/2) + 1/4 log(1/4 : 1/2)
    tensor(0.1308)
    >>> imitation(2 * s, 2 * t, everyone, 2.0)  # the same probabilities
    tensor(0.1308)
    """
    p = _log_probabilities(student, allowed, temperature)
    q = _log_probabilities(teacher.detach(), allowed, temperature)
    # columns that take no part hold -inf in both, and 0 * (-inf + inf) is no number
    terms = torch.where(allowed, q.exp() * (q.masked_fill(~allowed, 0.0) - p.masked_fill(~allowed, 0.0)), 0.0)
    return terms.sum(1).mean()


def _log_probabilities(scores: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    return F.log_softmax((scores.float() / temperature).masked_fill(~allowed, -torch.inf), dim=1)


def margin_mse(student: Tensor, teacher: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
    """Mean square error of ``score(right) - score(wrong)`` against the teacher's, over all pairs of right and wrong.

    Scores of two networks need not be on one level, only their differences. No gradient reaches the teacher.

    Args:
        student, teacher: ``[B, K]``, raw.
        target: ``[B]``, the column of the right candidate.
        allowed: ``[B, K]``, false where a column takes no part.

    Source: Hofstätter et al., Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
        Distillation (2020), eq. 6.

    >>> s, t = torch.tensor([[5.0, 4.0, 1.0]]), torch.tensor([[0.0, -3.0, -4.0]])  # margins 1, 4 and 3, 4
    >>> margin_mse(s, t, torch.tensor([0]), torch.ones(1, 3, dtype=torch.bool))
    tensor(2.)
    """
    wrong = allowed & ~F.one_hot(target, student.shape[1]).bool()
    error = _margins(student, target) - _margins(teacher.detach(), target)
    return torch.where(wrong, error.square(), 0.0).sum() / wrong.sum().clamp(min=1)


def _margins(scores: Tensor, target: Tensor) -> Tensor:
    raw = scores.float()
    return raw.gather(1, target[:, None]) - raw
