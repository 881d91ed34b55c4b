"""Correcting the loss for the frequency of responses among the in-batch negatives.

The responses ``y`` of a batch follow their frequency in the data, ``p(y) = count(y) / n``. Cross-entropy with negatives
drawn from ``q`` is minimal at ``score(x, y) = log P(y | x) - log q(y)``, up to a constant per context. With ``q = p``
the score of a frequent response is therefore lower than its log-probability, by ``log p(y)``. The two corrections below
move the minimum to ``log P(y | x)``. Shapes: B contexts, K candidates of the batch.

Source of the minimum: Ma and Collins, Noise Contrastive Estimation and Negative Sampling for Conditional Models (2018),
section 3.2, https://arxiv.org/abs/1809.01812
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Protocol

import torch
from torch import Tensor


class Weighting(Protocol):
    """Corrects the scores of a batch, or selects which of its responses are negatives."""

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """The corrected scores ``[B, K]`` and mask ``[B, K]`` for the loss of update ``number``."""
        ...


@dataclass(frozen=True, slots=True)
class LogQ:
    """``score(x, y) - log count(y)`` for every candidate of the batch, right or wrong.

    Args:
        counts: of each response in the training data.

    Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), eqs. 3
        and 4. A constant factor of ``q`` changes nothing, so counts replace probabilities.

    >>> values, allowed = LogQ({"yes": 4, "no": 1})(torch.zeros(1, 2), torch.ones(1, 2).bool(), ["yes", "no"], 0)
    >>> values  # log 4 and log 1 are subtracted
    tensor([[-1.3863,  0.0000]])
    """

    counts: Mapping[str, int]

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """The corrected scores, and the mask unchanged."""
        del number
        return values - torch.tensor([log(self.counts[text]) for text in texts]).to(values), allowed


@dataclass(frozen=True, slots=True)
class UniformDraws:
    """Keep each response of the batch as a negative with probability ``min(counts) / count(y)``, drawn per update.

    A response fills a place of the batch with probability ``count(y) / n`` and is kept with ``min(counts) / count(y)``,
    so the negatives that remain are drawn uniformly from the distinct responses. They are fewer: the share ``n_distinct
    min(counts) / n`` of the batch. The right answer always takes part.

    Args:
        counts: of each response in the training data.
        seed: of the draws, which are a function of it and of the update's number.

    >>> draws = UniformDraws({"yes": 1000, "no": 1}, seed=1)
    >>> draws(torch.zeros(2, 2), torch.tensor([[False, True], [True, False]]), ["yes", "no"], 0)[1]
    tensor([[False,  True],
            [False, False]])
    """

    counts: Mapping[str, int]
    seed: int
    least: int = field(init=False)  # of all counts, which are too many to compare at every update

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", min(self.counts.values()))

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """The scores unchanged, and the mask with fewer negatives."""
        chance = torch.tensor([self.least / self.counts[text] for text in texts])
        generator = torch.Generator().manual_seed(((self.seed << 32) + number) % 2**63)
        stays = torch.rand(len(texts), generator=generator) < chance
        return values, allowed & stays.to(allowed.device)


def count_responses(responses: Iterable[str]) -> Mapping[str, int]:
    """The count of each text; the distinct texts are held in memory.

    >>> dict(count_responses(["yes", "no", "yes"]))
    {'yes': 2, 'no': 1}
    """
    return Counter(responses)
