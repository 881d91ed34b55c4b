"""The term ``cross``: the score of a model that reads a context and a reply together, such as a Cross-encoder.

A late Cross-encoder is one too: it reads each side alone in its lower layers and takes over what the search computed.
"""

from collections.abc import Iterable
from typing import Self

from polyrank.scorers.lexical import LexicalScorer
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.terms.encoder import ScorerTerm
from polyrank.scorers.terms.protocol import Offer


class CrossTerm(ScorerTerm):
    """A model that reads context and reply together: the score re-ranks the best of the search."""

    kind = "cross"

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """Each re-ranker that the user named, and those that ship for one of the encoders."""
        return (cls(scorer) for scorer in offer.rerankers if not isinstance(scorer, LexicalScorer))

    def follow(self, first_stage: Scorer) -> None:
        """Let a late Cross-encoder take what the encoder computes of the same texts."""
        self.scorer.follow(first_stage)
