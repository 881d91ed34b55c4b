"""The vector that a Cross-encoder's head reads, from the outputs of a pair.

Shapes: P pairs, T tokens, D dimensions.
"""

import torch
from torch import Tensor, nn

from polyrank.config.models import PairReduction
from polyrank.devices.choice import full_precision
from polyrank.models.reductions import reduce


class Pooling(nn.Module):
    """The "first" output, the "mean" of all, or their "learnt" mean: weighted by softmax(h_t . q), with q trained.

    q starts at zero, so "learnt" starts as "mean".

    Args:
        reduction: one of the three.
        dimension: D.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.4: a single code.

    >>> pool = Pooling("learnt", 1); h = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> real = torch.tensor([[True, True, False]])
    >>> pool(h, real).item()
    2.0
    >>> _ = pool.code.data.fill_(50.0)  # weights exp(50) and exp(150)
    >>> pool(h, real).item()
    3.0
    """

    def __init__(self, reduction: PairReduction, dimension: int) -> None:
        super().__init__()
        self.reduction = reduction
        self.code = nn.Parameter(torch.zeros(dimension)) if reduction == "learnt" else None

    def forward(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """``[P, D]``, in fp32, from ``outputs`` ``[P, T, D]`` and ``mask`` ``[P, T]``, true on real tokens."""
        if self.code is None:
            assert self.reduction != "learnt", "it has a code"
            return reduce(outputs, mask, self.reduction, 1)
        with full_precision(outputs):
            weights = (outputs @ self.code).masked_fill(~mask, -torch.inf).softmax(1)  # [P, T]
            return (weights[:, None] @ outputs)[:, 0]
