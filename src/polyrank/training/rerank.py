"""Training a Cross-encoder on the errors of a first stage: the loss of the sum of both scores.

Shapes: B contexts, K candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from polyrank.config.training import TrainConfig
from polyrank.records import Example
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.scorers.two_stage import TwoStageScorer
from polyrank.training.inputs import Positions
from polyrank.training.learner import Figures, Measured
from polyrank.training.steps import ListwiseStep, listwise_loss


@dataclass(frozen=True, slots=True)
class RerankStep:
    """Cross-entropy of lists by ``g + s``: the first stage's score, which is fixed, plus the Cross-encoder's.

    The lists are those of a search: the first stage's best of the response and the drawn candidates. A search that
    misses the response teaches nothing. If such lists were trained on too, with the response added, then a high g would
    be a sign of a wrong candidate, because only the wrong ones were chosen by it, and s would learn to undo g.

    Args:
        reranker: the Cross-encoder to train; its negatives are the candidates that are drawn.
        first_stage: an encoder that is already trained.
        n_negatives: wrong candidates of a list.

    Source: the sum is Eq. 10 of Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    reranker: ListwiseStep
    first_stage: Scorer
    n_negatives: int

    def length(self, example: Example) -> int:
        """Tokens of the context."""
        return self.reranker.length(example)

    def prepare(self, batch: Positions, epoch: int) -> tuple[Positions, list[list[str]]]:
        """The response and the drawn candidates of each context; no network is used."""
        return batch, self.reranker.lists(batch, epoch)

    def losses(self, prepared: tuple[Positions, list[list[str]]], number: int) -> Iterator[Measured]:
        """The mean loss of the searches that find the response; 0 if none does.

        Its figures are the number of these searches, and the first stage's own loss on them. The network has not seen
        them before in its first epoch, so the difference of both losses is its gain.
        """
        del number
        batch, drawn = prepared
        scored = self.first_stage.score([example.query for _, example in batch], drawn)
        shortlists = [shortlist(scores, self.n_negatives) for scores in scored]
        found = [row for row, columns in enumerate(shortlists) if len(columns) > 1]
        rows = found or [0]
        lists = [[drawn[row][column] for column in shortlists[row]] for row in rows]
        values, allowed = self.reranker.values(self.reranker.inputs([batch[row] for row in rows], lists))
        padded = torch.zeros(values.shape)
        for i, row in enumerate(rows):
            padded[i, : len(lists[i])] = torch.from_numpy(scored[row][shortlists[row]])
        fixed = padded.to(values.device)
        figures: Figures = {"first_stage_loss": listwise_loss(fixed, allowed), "n_found": float(len(found))}
        yield Measured(listwise_loss(values + fixed, allowed), figures, n_contexts=len(found))


def shortlist(scores: Floats, n_negatives: int) -> list[int]:
    """The response, which is column 0, and the best others; the response alone if it is not among so many.

    Args:
        scores: ``[K]``; ties count as found, and others keep their order.
        n_negatives: the most others.

    >>> shortlist(np.float32([3, 1, 4, 5, 2]), 2), shortlist(np.float32([3, 1, 4, 5, 2]), 1)
    ([0, 3, 2], [0])
    """
    if np.count_nonzero(scores > scores[0]) > n_negatives:
        return [0]
    others = 1 + np.argsort(-scores[1:], kind="stable")[:n_negatives]
    return [0, *others.tolist()]


def judged(step: object, scorer: Scorer, settings: TrainConfig) -> Scorer:
    """The scorer for validation: the network in training, or both stages if it corrects its first stage."""
    if not isinstance(step, RerankStep):
        return scorer
    assert settings.negatives is not None, "TrainConfig fills them in for methods that rank lists"
    return TwoStageScorer(step.first_stage, scorer, n_retrieved=1 + settings.negatives.n, combine=np.add)
