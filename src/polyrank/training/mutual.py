"""Learning from another network's scores: two networks from each other, or one network from a fixed teacher.

Both methods rank lists: the response and the same wrong candidates for every network.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from polyrank.devices.random_state import restored_random_state
from polyrank.models.losses import imitation, margin_mse
from polyrank.records import Example
from polyrank.scorers.protocols import Scorer
from polyrank.training.inputs import Lists, Positions
from polyrank.training.steps import ListwiseStep, fixed_scores, listwise_loss


@dataclass(frozen=True, slots=True)
class Imitation:
    """How the loss combines labels with another network's scores.

    Args:
        kind: "kl" (``losses.imitation``) or "margin_mse".
        alpha: weight of the imitation; with 0 the other network's scores are not computed.
        temperature: for "kl".
        label_weight: weight of the cross-entropy.
    """

    kind: Literal["kl", "margin_mse"] = "kl"
    alpha: float = 1.0
    temperature: float = 3.0
    label_weight: float = 1.0

    def loss(self, values: Tensor, teacher: Tensor, allowed: Tensor) -> Tensor:
        """``label_weight * cross-entropy + alpha * imitation`` of lists ``[B, K]`` whose first candidate is right.

        No gradient reaches the teacher.

        >>> values, everyone = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
        >>> Imitation(alpha=2.0).loss(values, values, everyone)  # log 2, and equal scores add 0
        tensor(0.6931)
        """
        labels = self.label_weight * listwise_loss(values, allowed)
        if self.alpha == 0.0:
            return labels
        if self.kind == "kl":
            return labels + self.alpha * imitation(values, teacher, allowed, self.temperature)
        target = torch.zeros(len(values), dtype=torch.int64, device=values.device)
        return labels + self.alpha * margin_mse(values, teacher, target, allowed)


@dataclass(frozen=True, slots=True)
class MutualStep:
    """Two networks on the same lists, each learning from the labels and from the other's latest predictions.

    The first network learns from the second's predictions. Then the first predicts again, and the second learns from
    those predictions. The second's own predictions are computed once, with dropout, because it has not changed between.

    Args:
        first: the retriever; its negatives make the lists of both.
        second: the re-ranker.
        imitation: how they learn from each other.

    Source: Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning, Algorithm 1; Zhang et
        al., Deep Mutual Learning (2018).
    """

    first: ListwiseStep
    second: ListwiseStep
    imitation: Imitation

    def length(self, example: Example) -> int:
        """Tokens of the context, by the first network's vocabulary."""
        return self.first.length(example)

    def prepare(self, batch: Positions, epoch: int) -> tuple[Lists, Lists]:
        """The first network's lists with the tokens of both networks."""
        lists = self.first.lists(batch, epoch)
        return self.first.inputs(batch, lists), self.second.inputs(batch, lists)

    def losses(self, prepared: tuple[Lists, Lists], number: int) -> Iterator[Tensor]:
        """The first network's loss and, after its update, the second's."""
        del number
        own, others = prepared
        # each network draws its dropout as if it were alone, so with alpha 0 it is trained as if it were alone
        with restored_random_state(self.first.device):
            self.second.model.train()
            theirs, allowed = self.second.values(others)
        yield self.imitation.loss(self.first.values(own)[0], theirs.detach(), allowed)
        refreshed = torch.zeros_like(theirs)
        if self.imitation.alpha:
            with without_dropout(self.first.model), torch.no_grad():
                refreshed, _ = self.first.values(own)
        yield self.imitation.loss(theirs, refreshed, allowed)


@dataclass(frozen=True, slots=True)
class DistillStep:
    """One network on lists that a trained teacher scores, which does not change.

    Args:
        student: the network to train.
        teacher: scores the same lists; its scores may come from a file.
        imitation: how the student learns from these scores.

    Source: Hinton et al., Distilling the Knowledge in a Neural Network (2015).
    """

    student: ListwiseStep
    teacher: Scorer
    imitation: Imitation

    def length(self, example: Example) -> int:
        """Tokens of the context, by the student's vocabulary."""
        return self.student.length(example)

    def prepare(self, batch: Positions, epoch: int) -> Lists:
        """The student's lists and tokens."""
        return self.student.prepare(batch, epoch)

    def losses(self, prepared: Lists, number: int) -> Iterator[Tensor]:
        """The mean loss of the batch."""
        del number
        values, allowed = self.student.values(prepared)
        teacher = torch.zeros_like(values)
        if self.imitation.alpha:
            teacher = fixed_scores(self.teacher, prepared).to(values.device)
        yield self.imitation.loss(values, teacher, allowed)

    def __call__(self, batch: Positions, epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        return next(self.losses(self.prepare(batch, epoch), number))


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, and restore the model's mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
