"""A count of the texts that were too long to be read whole."""

import logging
from dataclasses import dataclass, field

log = logging.getLogger("polyrank")


@dataclass(slots=True)
class Cut:
    """Which texts lost tokens. Each counts once, however often it is read.

    Args:
        max_context_tokens, max_candidate_tokens: the budgets, as whoever set them counts.
        contexts, candidates: hashes of those that were longer.
        said: whether a warning was given.
    """

    max_context_tokens: int
    max_candidate_tokens: int
    contexts: set[int] = field(default_factory=set)
    candidates: set[int] = field(default_factory=set)
    said: bool = False

    def warn(self) -> None:
        """Log once that something was cut: to stderr, unless the program sends it elsewhere."""
        if self and not self.said:
            self.said = True
            log.warning("%s; its scorer counts them in cut", str(self))

    def __bool__(self) -> bool:
        return bool(self.contexts or self.candidates)

    def __str__(self) -> str:
        """What was cut, in words; empty if nothing was.

        >>> str(Cut(360, 72, candidates={1, 2}))
        '2 candidates did not fit into 72 tokens, so their ends were not read'
        """
        parts = []
        if n := len(self.candidates):
            what = "1 candidate" if n == 1 else f"{n:,} candidates"
            rest = "its end was" if n == 1 else "their ends were"
            parts.append(f"{what} did not fit into {self.max_candidate_tokens:,} tokens, so {rest} not read")
        if n := len(self.contexts):
            what = "1 context" if n == 1 else f"{n:,} contexts"
            rest = "its start was" if n == 1 else "their starts were"
            parts.append(f"{what} did not fit into {self.max_context_tokens:,} tokens, so {rest} not read")
        return "; ".join(parts)
