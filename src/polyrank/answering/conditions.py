"""Which of the best candidates are returned: no repetition of a turn of the context, and each text once if required.

Stages apply this rule while they search, so that an exact search returns exactly the best ``k`` allowed replies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from polyrank.data.same_words import echoes
from polyrank.index import Filter
from polyrank.records import Context, Ranked

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on replies, see ``Replies.answer_all``."""

    k: int
    filter: Filter | None = None
    allow_echo: bool = False

    def of(self, ranked: Sequence[Ranked], context: Context, *, distinct: bool = False) -> list[Ranked]:
        """The allowed replies, in the same order.

        Args:
            ranked: best first.
            context: that they answer.
            distinct: each text once, with the id of its best candidate.

        >>> replies = [Ranked("a", "Hello!", 3.0), Ranked("b", "yes", 2.0), Ranked("c", "yes", 2.0)]
        >>> [reply.id for reply in Conditions(3).of(replies, Context("hello"), distinct=True)]
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


def search_until_kept(
    search: Callable[[int], tuple[Sequence[Ranked], R]], keep: Callable[[Sequence[Ranked]], list[Ranked]], k: int
) -> tuple[list[Ranked], R]:
    """The best ``k`` kept candidates, by searching for twice as many while too few are kept.

    Args:
        search: returns the n best, best first, and the result of the search; fewer than n if the index has fewer.
        keep: returns the allowed ones.
        k: how many.
    """
    n = k
    while True:
        ranked, result = search(n)
        kept = keep(ranked)
        if len(kept) >= k or len(ranked) < n:
            return kept[:k], result
        n *= 2
