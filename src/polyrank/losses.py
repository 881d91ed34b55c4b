"""Losses: pure functions of score matrices. They hold no model and know nothing of text."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(scores: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
    """Mean over contexts of ``-log softmax(scores)[target]`` among the allowed candidates.

    Args:
        scores: ``[B, K]``, raw.
        target: ``[B]``, the column of the right candidate.
        allowed: ``[B, K]``, false where a column takes no part. The target takes part always.

    >>> s = torch.tensor([[0.0, 0.0, 9.0]])
    >>> cross_entropy(s, torch.tensor([0]), torch.tensor([[True, True, False]]))
    tensor(0.6931)
    """
    keep = allowed | F.one_hot(target, scores.shape[1]).bool()
    return F.cross_entropy(scores.float().masked_fill(~keep, -torch.inf), target)


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
