"""Wrong candidates: given, random, or both one after the other: pure functions of (seed, epoch, position)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.records import Context, Example


def sample_negatives(n_pool: int, count: int, *, seed: int, epoch: int, index: int) -> NDArray[np.int64]:
    """Draw ``count`` distinct positions of a pool; fewer if the pool has fewer.

    Args:
        n_pool: size of the pool.
        count: how many to draw.
        seed, epoch, index: the draw is a function of these.

    >>> sorted(sample_negatives(4, 9, seed=0, epoch=0, index=0).tolist())
    [0, 1, 2, 3]
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch, index]))
    return generator.choice(n_pool, size=min(n_pool, count), replace=False).astype(np.int64)


RightAnswers = Mapping[Context, Collection[str]]
"""All right answers to each context in the data; see ``hard.collect_right_answers``."""


class Negatives(Protocol):
    """A source of wrong candidates for a context: a pure function of (seed, epoch, position), or kept on disk."""

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """Distinct texts without right answers; drawn and mined texts do not repeat a turn of the context either."""


@dataclass(frozen=True, slots=True)
class RandomNegatives:
    """Other responses of the data, drawn at random.

    Args:
        pool: responses to draw from; a response that occurs twice is drawn twice as often.
        n_negatives: per context.
        seed: of the draw.
        redraw: draw again in each epoch. False: the same texts for the whole run, as in Tao et al.
        rights: right answers to the same context in other examples, which are never drawn.
    """

    pool: Sequence[str]
    n_negatives: int
    seed: int
    redraw: bool = True
    rights: RightAnswers = field(default_factory=dict)

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """``n_negatives`` texts; fewer only if the pool has fewer."""
        right = right_answers(example, self.rights)
        epoch = epoch if self.redraw else 0
        # a few more than needed, because some of them may be right
        n_drawn = min(self.n_negatives + len(right), len(self.pool))
        while True:
            rows = sample_negatives(len(self.pool), n_drawn, seed=self.seed, epoch=epoch, index=position)
            drawn = dict.fromkeys(map(self.pool.__getitem__, rows.tolist()))
            # a turn of the context is never suggested as a reply, so it teaches nothing as a negative
            texts = [text for text in drawn if text not in right and text not in example.context][: self.n_negatives]
            if len(texts) == self.n_negatives or n_drawn == len(self.pool):
                return texts
            n_drawn = min(2 * n_drawn, len(self.pool))  # the pool repeats texts, so some were the same


@dataclass(frozen=True, slots=True)
class GivenNegatives:
    """The example's own wrong candidates, in order; if there are more than ``n_negatives``, a random draw of them.

    Args:
        n_negatives: the most per context.
        seed, redraw, rights: as for ``RandomNegatives``.
    """

    n_negatives: int
    seed: int
    redraw: bool = True
    rights: RightAnswers = field(default_factory=dict)

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """At most ``n_negatives`` texts; empty if the example has no wrong candidates."""
        right = right_answers(example, self.rights)
        wrong = [text for text in dict.fromkeys(example.candidates) if text not in right]
        if len(wrong) <= self.n_negatives:
            return wrong
        epoch = epoch if self.redraw else 0
        rows = sample_negatives(len(wrong), self.n_negatives, seed=self.seed, epoch=epoch, index=position)
        return [wrong[i] for i in sorted(rows.tolist())]


def right_answers(example: Example, rights: RightAnswers) -> set[str]:
    """The right candidates of an example, and those of other examples with the same context."""
    return {example.candidates[i] for i in example.relevant}.union(rights.get(example.query, ()))


def text_key(text: str) -> int:
    """64 bits of a hash of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True, slots=True)
class MixedNegatives:
    """Wrong candidates from several sources, in order, without duplicates.

    Args:
        sources: asked in order until there are enough.
        n_negatives: per context, from all sources together.
    """

    sources: Sequence[Negatives]
    n_negatives: int

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """``n_negatives`` texts; fewer if the sources have fewer."""
        wrong: dict[str, None] = {}
        for source in self.sources:
            if missing := self.n_negatives - len(wrong):
                new = (text for text in source(position, example, epoch) if text not in wrong)
                wrong |= dict.fromkeys(islice(new, missing))
        return list(wrong)
