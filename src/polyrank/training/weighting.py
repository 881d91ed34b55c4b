"""Correcting scores for the frequency of responses among the in-batch negatives.

The responses ``y`` of a batch follow their frequency in the data, ``p(y) = count(y) / n``. Cross-entropy with negatives
drawn from ``q`` is minimal at ``score(x, y) = log P(y | x) - log q(y)``, up to a constant per context. With ``q = p``
the score of a frequent response is therefore lower than its log-probability, by ``log p(y)``. The correction moves the
minimum to ``log P(y | x)``. Shapes: B contexts, K candidates of the batch.

Source of the minimum: Ma and Collins, Noise Contrastive Estimation and Negative Sampling for Conditional Models (2018),
section 3.2, https://arxiv.org/abs/1809.01812
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogQ:
    """``score(x, y) - log count(y)`` for every candidate of the batch, right or wrong.

    Args:
        counts: of each response in the training data.

    Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), eqs. 3
        and 4. A constant factor of ``q`` changes nothing, so counts replace probabilities.

    >>> LogQ({"yes": 4, "no": 1})(torch.zeros(1, 2), ["yes", "no"])  # log 4 and log 1 are subtracted
    tensor([[-1.3863,  0.0000]])
    """

    counts: Mapping[str, int]

    def __call__(self, values: Tensor, texts: Sequence[str]) -> Tensor:
        """The corrected scores ``[B, K]``."""
        return values - torch.tensor([log(self.counts[text]) for text in texts]).to(values)
