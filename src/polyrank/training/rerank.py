"""Training a Cross-encoder on the errors of a first stage: the loss of the sum of both scores.

Shapes: B contexts, K candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from polyrank.config.training import TrainConfig
from polyrank.records import Example
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.two_stage import TwoStageScorer
from polyrank.training.inputs import Lists, Positions
from polyrank.training.steps import ListwiseStep, fixed_scores, listwise_loss


@dataclass(frozen=True, slots=True)
class RerankStep:
    """Cross-entropy of lists by ``g + s``: the first stage's score, which is fixed, plus the Cross-encoder's.

    Args:
        reranker: the Cross-encoder to train, with the lists.
        first_stage: scores the same lists.

    Source: the sum is Eq. 10 of Tao et al., Efficient and Effective Retrieval-based Dialogue via Mutual Learning.
    """

    reranker: ListwiseStep
    first_stage: Scorer

    def length(self, example: Example) -> int:
        """Tokens of the context."""
        return self.reranker.length(example)

    def prepare(self, batch: Positions, epoch: int) -> Lists:
        """The Cross-encoder's lists and tokens."""
        return self.reranker.prepare(batch, epoch)

    def losses(self, prepared: Lists, number: int) -> Iterator[Tensor]:
        """The mean loss of the batch."""
        del number
        values, allowed = self.reranker.values(prepared)
        yield listwise_loss(values + fixed_scores(self.first_stage, prepared).to(values.device), allowed)


def judged(step: object, scorer: Scorer, settings: TrainConfig) -> Scorer:
    """The scorer for validation: the network in training, or both stages if it corrects its first stage."""
    if not isinstance(step, RerankStep):
        return scorer
    assert settings.negatives is not None, "TrainConfig fills them in for methods that rank lists"
    return TwoStageScorer(step.first_stage, scorer, n_retrieved=1 + settings.negatives.n, ensemble="raw")
