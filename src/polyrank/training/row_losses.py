"""The loss of contexts that share candidates, in chunks of contexts: their scores never are in memory all at once.

Shapes: B contexts of the batch, n of them in this process, K candidates, M vectors per context.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyrank.training.shares import sum_of_parts

MOST_SCORES = 2**26
"""Dot products ``n K M`` per chunk: 256 MB, and about four times as much with what the gradient needs."""


def mean_loss(
    loss: Callable[..., Tensor], *parts: Tensor, candidates: Tensor, n_contexts: int, n_vectors: int = 1
) -> Tensor:
    """The mean loss over all contexts of a batch, of which this process has some.

    With several chunks the scores of each are computed again in the backward pass.

    Args:
        loss: the mean loss of some contexts, from their rows of ``parts``.
        parts: what the loss needs of each context, ``[n, ...]``.
        candidates: ``[K, D]``; processes without contexts take part in summing their gradients.
        n_contexts: of all processes; above 0.
        n_vectors: M.

    >>> scores = torch.tensor([1.0, 2.0, 6.0])
    >>> mean_loss(lambda rows: rows.mean(), scores, candidates=torch.ones(2, 1), n_contexts=3)
    tensor(3.)
    """
    n = len(parts[0])
    size = max(1, MOST_SCORES // (max(len(candidates), 1) * n_vectors))
    if n == 0:
        own = parts[-1].sum() + candidates[:0].sum()
    elif n <= size:
        own = loss(*parts) if n == n_contexts else loss(*parts) * (n / n_contexts)
    else:
        chunks = [tuple(part[at : at + size] for part in parts) for at in range(0, n, size)]
        means = [checkpoint(loss, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        shares = [len(chunk[0]) / n_contexts for chunk in chunks]
        own = torch.stack([mean * share for mean, share in zip(means, shares, strict=True)]).sum()
    return sum_of_parts(own)
