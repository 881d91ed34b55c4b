"""Wrong candidates that a trained encoder ranks highest among many."""

from dataclasses import dataclass

import numpy as np

from polyrank.negatives.random import Negatives
from polyrank.records import Example
from polyrank.scorers.protocols import Scorer


@dataclass(frozen=True, slots=True)
class ShortlistNegatives:
    """The candidates of another source that the first stage of a search ranks highest.

    Args:
        source: of more candidates than needed.
        first_stage: scores them.
        n_negatives: per context.
    """

    source: Negatives
    first_stage: Scorer
    n_negatives: int

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """``n_negatives`` texts, best first; ties in the order of the source."""
        drawn = self.source(position, example, epoch)
        (scores,) = self.first_stage.score([example.query], [drawn])
        return [drawn[row] for row in np.argsort(-scores, kind="stable")[: self.n_negatives].tolist()]
