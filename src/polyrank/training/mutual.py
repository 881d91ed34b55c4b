"""Learning from another network's scores: two networks from each other, or one network from a fixed teacher.

Both methods rank lists: the response and the same wrong candidates for every network.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrank.devices.random_state import restored_random_state
from polyrank.models.losses import LossFunction, cross_entropy, imitation
from polyrank.models.network import without_dropout
from polyrank.training.inputs import Lists, Positions
from polyrank.training.learner import Loss
from polyrank.training.steps import ListwiseStep, first_is_right
from polyrank.training.teacher import Teacher


@dataclass(frozen=True, slots=True)
class Imitation:
    """How the loss combines labels with another network's scores.

    Args:
        alpha: weight of the imitation (``losses.imitation``); with 0 the other network's scores are not computed.
        temperature: of the imitation.
        label_weight: weight of the loss against the labels.
        labels: the loss against the labels.
    """

    alpha: float = 1.0
    temperature: float = 3.0
    label_weight: float = 1.0
    labels: LossFunction = cross_entropy

    def loss(self, values: Tensor, teacher: Tensor, allowed: Tensor) -> Tensor:
        """``label_weight * labels + alpha * imitation`` of lists ``[B, K]`` whose first candidate is right.

        No gradient reaches the teacher.

        >>> values, everyone = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
        >>> Imitation(alpha=2.0).loss(values, values, everyone)  # log 2, and equal scores add 0
        tensor(0.6931)
        """
        labels = self.label_weight * first_is_right(self.labels, values, allowed)
        return labels + self.alpha * imitation(values, teacher, allowed, self.temperature) if self.alpha else labels


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

    def prepare(self, rows: Positions, epoch: int) -> tuple[Lists, Lists]:
        """The first network's lists with the tokens of both networks."""
        lists = self.first.lists(rows, epoch)
        return self.first.inputs(rows, lists), self.second.inputs(rows, lists)

    def losses(self, batch: tuple[Lists, Lists], number: int) -> Iterator[Loss]:
        """The first network's loss and, after its update, the second's."""
        first, second = batch
        # each network draws its dropout as if it were alone, so with alpha 0 it is trained as if it were alone
        with restored_random_state(self.first.device):
            self.second.model.train()
            of_second, allowed = self.second.values(second)
        yield Loss(self.imitation.loss(self.first.values(first)[0], of_second.detach(), allowed), len(first.examples))
        refreshed = torch.zeros_like(of_second)
        if self.imitation.alpha:
            with without_dropout(self.first.model), torch.no_grad():
                refreshed, _ = self.first.values(first)
        yield Loss(self.imitation.loss(of_second, refreshed, allowed), len(first.examples))


@dataclass(frozen=True, slots=True)
class DistillStep:
    """One network on lists that a trained teacher scores, which does not change.

    Args:
        student: the network to train.
        teacher: scores the same lists.
        imitation: how the student learns from these scores.

    Source: Hinton et al., Distilling the Knowledge in a Neural Network (2015).
    """

    student: ListwiseStep
    teacher: Teacher
    imitation: Imitation

    def prepare(self, rows: Positions, epoch: int) -> tuple[list[int], Lists]:
        """The positions of the examples, and the student's lists and tokens."""
        return [position for position, _ in rows], self.student.prepare(rows, epoch)

    def losses(self, batch: tuple[list[int], Lists], number: int) -> Iterator[Loss]:
        """The loss of the batch."""
        positions, lists = batch
        values, allowed = self.student.values(lists)
        targets = torch.zeros_like(values)
        if self.imitation.alpha:
            targets = self.teacher.scores(positions, lists).to(values.device)
        yield Loss(self.imitation.loss(values, targets, allowed), len(lists.examples))
