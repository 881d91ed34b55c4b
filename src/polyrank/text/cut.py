"""A count of the texts that were too long to be read whole."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Cut:
    """Which texts lost tokens. Each counts once, however often it is read.

    Args:
        max_context_tokens, max_candidate_tokens: the budgets, as whoever set them counts.
        contexts, candidates: hashes of those that were longer.
    """

    max_context_tokens: int
    max_candidate_tokens: int
    contexts: set[int] = field(default_factory=set)
    candidates: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.contexts or self.candidates)

    def __str__(self) -> str:
        """What was cut, in words; empty if nothing was.

        >>> str(Cut(360, 72, candidates={1, 2}))
        '2 candidates were longer than 72 tokens, and their ends were not read'
        """
        parts = []
        if n := len(self.candidates):
            parts.append(f"{_were(n, 'candidate')} longer than {self.max_candidate_tokens:,} tokens, and {_ends(n)}")
        if n := len(self.contexts):
            parts.append(f"{_were(n, 'context')} longer than {self.max_context_tokens:,} tokens, and {_starts(n)}")
        return "; ".join(parts)


def _were(n: int, noun: str) -> str:
    return f"{n:,} {noun} was" if n == 1 else f"{n:,} {noun}s were"


def _ends(n: int) -> str:
    return "its end was not read" if n == 1 else "their ends were not read"


def _starts(n: int) -> str:
    return "its start was not read" if n == 1 else "their starts were not read"
