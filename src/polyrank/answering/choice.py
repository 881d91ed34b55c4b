"""Which of the best candidates are given: no turn of the context again, and, where it is wanted, each text once.

Stages keep this rule while they search, so that an exact search gives exactly the best ``k`` that may be given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from polyrank.data.same_words import echoes
from polyrank.index import Filter
from polyrank.records import Context, Ranked

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Choice:
    """What is wanted of the candidates, see ``Answering.answer_all``."""

    k: int
    filter: Filter | None = None
    allow_echo: bool = False

    def of(self, ranked: Sequence[Ranked], context: Context, *, distinct: bool = False) -> list[Ranked]:
        """Those that may be given, in the same order.

        Args:
            ranked: best first.
            context: what they answer.
            distinct: each text once, with the id of its best.

        >>> replies = [Ranked("a", "Hello!", 3.0), Ranked("b", "yes", 2.0), Ranked("c", "yes", 2.0)]
        >>> [reply.id for reply in Choice(3).of(replies, Context("hello"), distinct=True)]
        ['b']
        """
        said = (lambda text: False) if self.allow_echo else echoes(context.turns)
        seen: set[str] = set()
        kept = []
        for reply in ranked:
            if not (distinct and reply.text in seen) and not said(reply.text):
                kept.append(reply)
            seen.add(reply.text)
        return kept


def widened(
    search: Callable[[int], tuple[Sequence[Ranked], R]], keep: Callable[[Sequence[Ranked]], list[Ranked]], k: int
) -> tuple[list[Ranked], R]:
    """The best ``k`` that are kept, by searches for more while what is left out leaves too few.

    Args:
        search: the best of so many, best first, and what is known of the search; fewer where there are no more.
        keep: those of them that may be given.
        k: how many.
    """
    n = k
    while True:
        ranked, known = search(n)
        kept = keep(ranked)
        if len(kept) >= k or len(ranked) < n:
            return kept[:k], known
        n *= 2
