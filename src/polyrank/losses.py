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
