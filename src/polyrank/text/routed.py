"""Texts for two towers, each with its own vocabulary."""

from collections.abc import Sequence

from polyrank.config.models import Side
from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.texts import Texts


class RoutedTexts(Texts):
    """One text policy for contexts, and another one for candidates.

    Args:
        contexts: makes the ids of contexts; its vocabulary pads all batches.
        candidates: makes the ids of candidates.
    """

    def __init__(self, contexts: Texts, candidates: Texts) -> None:
        self.sides = {"context": contexts, "candidate": candidates}
        self.subwords, self.policy = contexts.subwords, contexts.policy
        self.max_positions = min(contexts.max_positions, candidates.max_positions)
        self.cut = contexts.cut = candidates.cut = Cut(
            contexts.cut.max_context_tokens, candidates.cut.max_candidate_tokens, contexts.cut.max_background_tokens
        )

    @property
    def key(self) -> str:
        """See ``Texts``."""
        return " ".join(texts.key for texts in self.sides.values())

    def of_side(self, side: Side) -> Texts:
        """See ``Texts``."""
        return self.sides[side]

    def context_ids(self, context: Context) -> list[int]:
        """The ids of the contexts' policy."""
        return self.sides["context"].context_ids(context)

    def candidate_ids(self, text: str) -> list[int]:
        """The ids of the candidates' policy."""
        return self.sides["candidate"].candidate_ids(text)

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the candidates' policy, encoded together."""
        return self.sides["candidate"].all_candidate_ids(texts)
