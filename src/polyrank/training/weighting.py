"""How often a response is a negative of the batch, taken out of the loss. Knows no network and no text policy.

Responses ``y`` of a batch are drawn as the data hold them, ``p(y) = count(y) / n``. Cross-entropy with negatives drawn
from ``q`` is least where ``score(x, y) = log P(y | x) - log q(y)``, up to a constant of the context. With ``q = p`` the
score of a frequent response is therefore lower than its log-probability, by ``log p(y)``. The two corrections below
move the minimum to ``log P(y | x)``. Shapes: B contexts, K candidates of the batch.

Source of the minimum: Ma and Collins, Noise Contrastive Estimation and Negative Sampling for Conditional Models (2018),
section 3.2, https://arxiv.org/abs/1809.01812
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import torch
from torch import Tensor


class Weighting(Protocol):
    """What corrects the scores of a batch, or which of its responses are negatives."""

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """Scores ``[B, K]`` and mask ``[B, K]`` that the loss takes instead of these, in update ``number``."""
        ...


@dataclass(frozen=True, slots=True)
class LogQ:
    """``score(x, y) - log count(y)`` for every candidate of the batch, right or wrong.

    Args:
        counts: of each response in the training data.

    Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), eqs. 3
        and 4. A constant factor of ``q`` changes nothing, so counts stand for it.

    >>> values, allowed = LogQ({"yes": 4, "no": 1})(torch.zeros(1, 2), torch.ones(1, 2).bool(), ["yes", "no"], 0)
    >>> values  # log 4 and log 1 are subtracted
    tensor([[-1.3863,  0.0000]])
    """

    counts: Mapping[str, int]

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """The scores corrected."""
        del number
        return values - torch.tensor([log(self.counts[text]) for text in texts]).to(values), allowed


@dataclass(frozen=True, slots=True)
class UniformDraws:
    """Each response of the batch stays a negative with the chance ``min(counts) / count(y)``, drawn for each update.

    A response is in a place of the batch with the chance ``count(y) / n``, and stays with ``min(counts) / count(y)``:
    those that stay are drawn uniformly from the distinct responses. There are fewer of them: ``n_distinct min(counts)
    / n`` of the batch's. The right answer always takes part.

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

    def __call__(self, values: Tensor, allowed: Tensor, texts: Sequence[str], number: int) -> tuple[Tensor, Tensor]:
        """The mask thinned."""
        least = min(self.counts.values())
        chance = torch.tensor([least / self.counts[text] for text in texts])
        generator = torch.Generator().manual_seed((self.seed << 32) + number)
        stays = torch.rand(len(texts), generator=generator) < chance
        return values, allowed & stays.to(allowed.device)


def count_responses(responses: Iterable[str]) -> Mapping[str, int]:
    """How often each text is there; the distinct texts are held in memory.

    >>> dict(count_responses(["yes", "no", "yes"]))
    {'yes': 2, 'no': 1}
    """
    return Counter(responses)
