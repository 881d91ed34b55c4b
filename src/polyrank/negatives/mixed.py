"""Wrong candidates from several sources: each source adds what the earlier ones lack."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from polyrank.negatives.random import Negatives
from polyrank.records import Example


@dataclass(frozen=True, slots=True)
class MixedNegatives:
    """Wrong candidates from several sources, in order, without duplicates.

    Args:
        sources: asked in order until there are enough.
        n_negatives: per context, from all sources together.
    """

    sources: Sequence[Negatives]
    n_negatives: int

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """``n_negatives`` texts; fewer if the sources have fewer."""
        wrong: dict[str, None] = {}
        for source in self.sources:
            if missing := self.n_negatives - len(wrong):
                new = (text for text in source(position, example, epoch) if text not in wrong)
                wrong |= dict.fromkeys(islice(new, missing))
        return list(wrong)
