"""An Encoder around another one, which reads the texts."""

from typing import Any

from polyrank.records import ContextLike
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.protocols import Encoder
from polyrank.text.cut import Cut


class WrappedEncoder(Encoder):
    """Reports what ``encoder``, the one inside, reads and truncates."""

    encoder: Encoder

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the inner encoder reads."""
        return self.encoder.n_context_tokens(context)

    @property
    def networks(self) -> tuple[NetworkScorer[Any], ...]:
        """The networks of the inner encoder."""
        return self.encoder.networks

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts that the inner encoder truncated."""
        return self.encoder.cut
