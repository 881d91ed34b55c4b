"""Count texts that were too long for their token budget."""

import logging
from dataclasses import dataclass, field

log = logging.getLogger("polyrank")


@dataclass(slots=True)
class Cut:
    """Texts that lost tokens. Each text counts once, however often it is encoded.

    Args:
        max_context_tokens, max_candidate_tokens, max_background_tokens, max_earlier_tokens: the budgets of the text
            policy; the last is of the turns before the newest one, where they have a budget apart.
        contexts, candidates, backgrounds, earlier: hashes of the texts that exceeded them.
        warned: whether the warning was logged.
    """

    max_context_tokens: int
    max_candidate_tokens: int
    max_background_tokens: int = 0
    max_earlier_tokens: int = 0
    contexts: set[int] = field(default_factory=set)
    candidates: set[int] = field(default_factory=set)
    backgrounds: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    warned: bool = False

    def warn(self) -> None:
        """Log a warning once if a text was cut: to stderr, unless the application configures logging."""
        if self and not self.warned:
            self.warned = True
            log.warning("%s; its scorer counts them in cut", str(self))

    @property
    def texts(self) -> tuple[set[int], ...]:
        """The hashes of each kind."""
        return self.contexts, self.candidates, self.backgrounds, self.earlier

    def clear(self) -> None:
        """Forget the texts."""
        for texts in self.texts:
            texts.clear()

    def __bool__(self) -> bool:
        return any(self.texts)

    def __str__(self) -> str:
        """A sentence about the cut texts; empty if there are none.

        >>> str(Cut(360, 72, candidates={1, 2}))
        '2 candidates did not fit into 72 tokens, so their ends were not read'
        """
        parts = []
        for noun, end, texts, budget in (
            ("candidate", "end", self.candidates, self.max_candidate_tokens),
            ("context", "start", self.contexts, self.max_context_tokens),
            ("background", "end", self.backgrounds, self.max_background_tokens),
            ("earlier part", "start", self.earlier, self.max_earlier_tokens),
        ):
            what, rest = f"{len(texts):,} {noun}s", f"their {end}s were"
            if len(texts) == 1:
                what, rest = f"1 {noun}", f"its {end} was"
            if texts:
                parts.append(f"{what} did not fit into {budget:,} tokens, so {rest} not read")
        return "; ".join(parts)
