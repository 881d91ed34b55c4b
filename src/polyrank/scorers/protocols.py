"""What can rank, as narrow protocols. A Cross-encoder cannot honestly encode, so it is a Scorer only."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyrank.records import Context, ContextLike, Ranked

Floats = NDArray[np.float32]


@runtime_checkable
class Scorer(Protocol):
    """Scores candidates for contexts. Raw fp32 scores, higher is better."""

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Score each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        ...

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """Score one shared pool for every context: ``[B, N]``."""
        ...


@runtime_checkable
class Encoder(Scorer, Protocol):
    """A Scorer whose two sides can be computed apart, so that candidates are encoded once and searched."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of weights, configuration and tokenizer: what an index must match."""
        ...

    @property
    def dimension(self) -> int:
        """D, the length of each vector."""
        ...

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        ...

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""
        ...


class Responds(Protocol):
    """Finds replies: a Retriever over an index, a LexicalRetriever, or a TwoStage."""

    def respond(self, contexts: Sequence[ContextLike], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first."""
        ...
