"""What flows through polyrank: a Context to answer, an Example to learn from or be judged by, a Ranked reply.

Plain frozen dataclasses. This module knows nothing of files, tokens or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Context:
    """What a reply is chosen for.

    Args:
        turns: the conversation so far, oldest first.
        background: facts that hold throughout, such as persona lines.
    """

    turns: tuple[str, ...]
    background: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: "Context | str | Sequence[str]") -> "Context":
        """Take a Context, one turn, or a list of turns.

        >>> Context.of("hello"), Context.of(["hi", "hello?"])
        (Context(turns=('hello',), background=()), Context(turns=('hi', 'hello?'), background=()))
        """
        if isinstance(value, Context):
            return value
        return cls((value,)) if isinstance(value, str) else cls(tuple(value))


@dataclass(frozen=True, slots=True)
class Example:
    """A context with candidate replies, some of which may be right.

    Args:
        context: turns, oldest first.
        candidates: texts to rank. Training pairs hold just the response; pool examples may hold none.
        relevant: indices into ``candidates`` of the right ones; empty when there is none or nobody knows.
        id: names the example in reports.
        background: persona or other facts.
        relevant_ids: ids of the right candidates in a pool, for examples that are ranked against one.

    Raises:
        ValueError: an index in ``relevant`` points outside ``candidates``.
    """

    context: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    relevant: tuple[int, ...] = ()
    id: str = ""
    background: tuple[str, ...] = ()
    relevant_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for index in self.relevant:
            if not 0 <= index < len(self.candidates):
                raise ValueError(
                    f"relevant index {index} is outside the {len(self.candidates)} candidates of example {self.id!r};"
                    f" use 0 to {len(self.candidates) - 1}"
                )

    @property
    def query(self) -> Context:
        """The part that a scorer sees besides the candidates."""
        return Context(self.context, self.background)

    @property
    def response(self) -> str | None:
        """The first right candidate, or None when there is none.

        >>> Example(("hi",), ("no", "hello"), (1,)).response
        'hello'
        """
        return self.candidates[self.relevant[0]] if self.relevant else None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply in a catalogue or pool."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A reply that was chosen.

    Args:
        id, text, metadata: of the candidate.
        score: raw, higher is better; no probability.
        stages: the scores of each stage that it passed, such as ``{"retriever": 3.1, "reranker": 0.4}``.
    """

    id: str
    text: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
