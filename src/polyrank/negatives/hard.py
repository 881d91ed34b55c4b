"""Which of the texts that a retriever finds may be called wrong: not the right ones, nor what says the same."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyrank.data.mapped_examples import StoredExamples
from polyrank.data.same_words import same_words
from polyrank.errors import UsageError
from polyrank.records import Context, Example


@dataclass(frozen=True, slots=True, kw_only=True)
class HardNegatives:
    """What to take from a ranking.

    Args:
        n_negatives: how many texts, if the ranks hold so many.
        first_rank, last_rank: from where, counted from 1 without the right answers and what says the same. The very
            first are the hardest and the likeliest to be right without anybody having said so.
        max_overlap: texts that share a larger part of their words with a right answer are taken for right as well;
            1.0: only texts with the same words in the same order are.
        seed: of the choice among these ranks, where they hold more than ``n_negatives``.

    Raises:
        UsageError: there are no such ranks.
    """

    n_negatives: int
    first_rank: int = 1
    last_rank: int = 50
    max_overlap: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_negatives < 1:
            raise UsageError(f"{self.n_negatives} negatives are none; ask for one at least")
        if not 1 <= self.first_rank <= self.last_rank:
            raise UsageError(
                f"ranks {self.first_rank} to {self.last_rank} hold nothing; count from 1 and give the lower rank first"
            )
        if not 0 < self.max_overlap <= 1:
            raise UsageError(f"max_overlap {self.max_overlap} is outside (0, 1]; 1.0 drops equal texts only")


def word_overlap(a: str, b: str) -> float:
    """Words that both texts have, as a part of those that either has (Jaccard).

    >>> word_overlap("restart the router", "Restart it!")
    0.25
    """
    first, second = set(same_words(a).split()), set(same_words(b).split())
    return len(first & second) / len(first | second) if first or second else 1.0


def candidates_for_wrong(
    ranked: Iterable[str], right: Collection[str], settings: HardNegatives, *, turns: Iterable[str] = ()
) -> list[str]:
    """Texts between the two ranks, best first, equal ones once.

    Args:
        ranked: what a retriever found, best first.
        right: the right answers.
        settings: the ranks, and what counts as right.
        turns: of the context, which no answer repeats.

    >>> ranked = ["Hello!", "hi", "hello", "bye", "Bye.", "no"]
    >>> candidates_for_wrong(ranked, ["hello"], HardNegatives(n_negatives=2, first_rank=2, last_rank=3))
    ['bye', 'no']
    """
    seen = {same_words(text) for text in (*right, *turns)}
    texts: list[str] = []
    for text in ranked:
        if len(texts) == settings.last_rank:
            break
        words = same_words(text)
        near = settings.max_overlap < 1 and any(word_overlap(text, other) > settings.max_overlap for other in right)
        if words not in seen and not near:
            seen.add(words)
            texts.append(text)
    return texts[settings.first_rank - 1 :]


def rights(examples: Sequence[Example]) -> Mapping[Context, list[str]]:
    """All right answers to each context: one that comes again with another answer has both."""
    if isinstance(examples, StoredExamples):
        return examples.rights
    answers: dict[Context, dict[str, None]] = {}
    for example in examples:
        right = [example.candidates[i] for i in example.relevant]
        answers.setdefault(example.query, {}).update(dict.fromkeys(right))
    return {context: list(texts) for context, texts in answers.items()}


def choose(texts: list[str], settings: HardNegatives, *key: int) -> list[str]:
    """``n_negatives`` of the texts in their order; which ones is a function of the seed and ``key``."""
    if len(texts) <= settings.n_negatives:
        return texts
    generator = np.random.Generator(np.random.PCG64([settings.seed, *key]))
    return [texts[i] for i in sorted(generator.choice(len(texts), settings.n_negatives, replace=False).tolist())]
