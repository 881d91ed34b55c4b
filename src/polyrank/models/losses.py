"""Losses as pure functions of score matrices, and a correction of scores for the frequency of responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class LossFunction(Protocol):
    """A loss of scores, for ``polyrank.train``: the mean over contexts of a loss that depends on its own row alone."""

    def __call__(self, scores: Tensor, target: Tensor, allowed: Tensor, /) -> Tensor:
        """The loss of a batch, a scalar with a gradient.

        Args:
            scores: ``[B, K]``, raw.
            target: ``[B]``, the column of the right candidate.
            allowed: ``[B, K]``, false for columns that are neither right nor wrong: padding, and further right answers.
        """


def cross_entropy(scores: Tensor, target: Tensor, allowed: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over contexts of ``-log softmax(scores)[target]`` among the allowed candidates.

    With smoothing s the target probability of the right candidate is 1 - s, and that of each of n wrong ones s / n:
    ``-(1 - s) log p[target] - s mean(log p[wrong])``. (PyTorch's own option spreads s over all, the right one too.)

    Args:
        scores: ``[B, K]``, raw.
        target: ``[B]``, the column of the right candidate.
        allowed: ``[B, K]``, false for columns that are left out. The target is never left out.
        smoothing: s, from 0 to 1. It has no effect on a context without a wrong candidate.

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
    return -((1 - share) * logs.gather(1, target[:, None])[:, 0] + share * spread).mean()


def imitation(student: Tensor, teacher: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    """``KL(softmax(teacher / T) || softmax(student / T))``, mean over contexts; never below 0.

    A temperature T above 1 raises the teacher's probabilities of wrong candidates, so that they can be compared. It
    also makes the gradient smaller, by T^2 if scores are small compared with T. As in Tao et al., the weight of the
    loss has to compensate for that (Hinton et al. multiply by T^2).

    No gradient reaches the teacher.

    Args:
        student, teacher: ``[B, K]``, raw; their softmax is computed in fp32.
        allowed: ``[B, K]``, false for columns that are left out; each row keeps at least one.
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
    # columns that are left out hold -inf in both, and 0 * (-inf + inf) is NaN
    terms = torch.where(allowed, q.exp() * (q.masked_fill(~allowed, 0.0) - p.masked_fill(~allowed, 0.0)), 0.0)
    return terms.sum(1).mean()


def _log_probabilities(scores: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    return F.log_softmax((scores.float() / temperature).masked_fill(~allowed, -torch.inf), dim=1)


@dataclass(frozen=True, slots=True)
class LogQ:
    """``score(x, y) - log count(y)`` for every candidate of the batch, right or wrong.

    The responses ``y`` of a batch follow their frequency in the data, ``p(y) = count(y) / n``. Cross-entropy with
    negatives drawn from ``q`` is minimal at ``score(x, y) = log P(y | x) - log q(y)``, up to a constant per context.
    With ``q = p`` the score of a frequent response is therefore lower than its log-probability, by ``log p(y)``. The
    correction moves the minimum to ``log P(y | x)``.

    Args:
        counts: of each response in the training data.

    Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), eqs. 3
        and 4. A constant factor of ``q`` changes nothing, so counts replace probabilities. Of the minimum: Ma and
        Collins, Noise Contrastive Estimation and Negative Sampling for Conditional Models (2018), section 3.2.

    >>> LogQ({"yes": 4, "no": 1})(torch.zeros(1, 2), ["yes", "no"])  # log 4 and log 1 are subtracted
    tensor([[-1.3863,  0.0000]])
    """

    counts: Mapping[str, int]

    def __call__(self, values: Tensor, texts: Sequence[str]) -> Tensor:
        """The corrected scores ``[B, K]``."""
        return values - torch.tensor([log(self.counts[text]) for text in texts]).to(values)
