"""Training a Cross-encoder on the errors of a first stage: the loss of the sum of both scores.

Shapes: B contexts, K candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from polyrank.config.train import TrainConfig
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.ranker import corrected
from polyrank.training.inputs import Positions
from polyrank.training.learner import Figures, Loss
from polyrank.training.steps import ListwiseStep, first_is_right


@dataclass(frozen=True, slots=True)
class RerankStep:
    """The loss of lists by ``g + s``: the first stage's score, which is fixed, plus the Cross-encoder's.

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
    first_stage: Encoder
    n_negatives: int

    def prepare(self, rows: Positions, epoch: int) -> tuple[Positions, list[list[str]]]:
        """The response and the drawn candidates of each context; no network is used."""
        return rows, self.reranker.lists(rows, epoch)

    def losses(self, batch: tuple[Positions, list[list[str]]], number: int) -> Iterator[Loss]:
        """The mean loss of the searches that find the response; 0 if none does.

        Its figures are the number of these searches, and the first stage's own loss on them. The network has not seen
        them before in its first epoch, so the difference of both losses is its gain.
        """
        rows, drawn = batch
        scored = self.first_stage.score([example.query for _, example in rows], drawn)
        shortlists = [shortlist(scores, self.n_negatives) for scores in scored]
        hits = [row for row, columns in enumerate(shortlists) if len(columns) > 1]
        kept = hits or [0]
        lists = [[drawn[row][column] for column in shortlists[row]] for row in kept]
        values, allowed = self.reranker.values(self.reranker.inputs([rows[row] for row in kept], lists))
        padded = torch.zeros(values.shape)
        for i, row in enumerate(kept):
            padded[i, : len(lists[i])] = torch.from_numpy(scored[row][shortlists[row]])
        fixed = padded.to(values.device)
        loss = first_is_right(self.reranker.loss, values + fixed, allowed)
        alone = first_is_right(self.reranker.loss, fixed, allowed)
        figures: Figures = {"loss": loss.detach(), "first_stage_loss": alone, "n_found": float(len(hits))}
        yield Loss(loss, len(hits), figures)


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
    return [0, *(1 + np.argsort(-scores[1:], kind="stable")[:n_negatives]).tolist()]


def judged(step: object, scorer: Scorer, settings: TrainConfig) -> Scorer:
    """The scorer for validation: the network in training, or both stages if it corrects its first stage."""
    if not isinstance(step, RerankStep):
        return scorer
    assert settings.negatives is not None, "TrainConfig fills them in for methods that rank lists"
    return corrected(step.first_stage, scorer, n_retrieved=1 + settings.negatives.n)
