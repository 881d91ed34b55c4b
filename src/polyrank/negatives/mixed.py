"""Wrong candidates from several sources, each filling up what those before it left open."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from polyrank.negatives.random import Negatives
from polyrank.records import Example


@dataclass(frozen=True, slots=True)
class MixedNegatives:
    """Wrong candidates of several sources, in their order, equal texts once.

    Args:
        sources: where they come from.
        n_negatives: per context, in all.
    """

    sources: Sequence[Negatives]
    n_negatives: int

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """Fewer where the sources have no more."""
        wrong: dict[str, None] = {}
        for source in self.sources:
            if missing := self.n_negatives - len(wrong):
                new = (text for text in source(position, example, epoch) if text not in wrong)
                wrong |= dict.fromkeys(islice(new, missing))
        return list(wrong)
