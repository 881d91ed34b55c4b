"""The scoring function of all encoders.

B contexts, M vectors each, G candidate groups (1: shared by all contexts; B: one for each), K candidates, D dimensions.
"""

import torch
from torch import Tensor

from polyrank.devices.choice import full_precision


def scores(contexts: Tensor, candidates: Tensor, mask: Tensor) -> Tensor:
    """Score candidates: the softmax-weighted mean of their dot products with the context's vectors.

    With s_i = y_i . c, the candidate attends over the context vectors with weights softmax(s), and the attended
    vector's product with the candidate is the same weighted sum of these products: ``score = sum_i softmax(s)_i s_i``.
    The attended vectors ``[B, K, D]`` are never computed. M = 1 is the Bi-encoder. Always
    ``max(s) - log M <= score <= max(s)``.

    Args:
        contexts: ``[B, M, D]``.
        candidates: ``[G, K, D]`` with G = 1 or B.
        mask: ``[B, M]``, true for real context vectors; each row has at least one.

    Returns:
        ``[B, K]`` raw fp32 scores, higher is better.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.4.

    >>> contexts = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> scores(contexts, torch.tensor([[[1.0, 0.0], [3.0, 0.0]]]), torch.tensor([[True, False]]))
    tensor([[1., 3.]])
    >>> scores(contexts, torch.tensor([[[0.0, 0.0], [2.0, 1.0]]]), torch.tensor([[True, True]]))
    tensor([[0., 2.]])
    """
    with full_precision(contexts):
        dots = candidates.float() @ contexts.float().transpose(1, 2)  # [B, K, M]
    return attended(dots, mask[:, None, :])


def attended(dots: Tensor, mask: Tensor) -> Tensor:
    """``sum_i softmax(s)_i s_i`` over the products of a candidate with a context's vectors; see ``scores``.

    Args:
        dots: ``[..., M]``.
        mask: ``[..., M]``, true for real context vectors; broadcasts to ``dots``.

    Returns:
        ``[...]``.

    >>> attended(torch.tensor([[0.0, 5.0], [2.0, 2.0]]), torch.tensor([[True, False], [True, True]]))
    tensor([0., 2.])
    """
    weights = torch.softmax(dots.masked_fill(~mask, -torch.inf), dim=-1)
    return (weights * dots.masked_fill(~mask, 0.0)).sum(-1)
