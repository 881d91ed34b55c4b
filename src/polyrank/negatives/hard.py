"""Choosing hard negatives from a ranking: right answers, and texts with the same words as one, are left out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyrank.data.mapped_examples import StoredExamples
from polyrank.data.same_words import same_words
from polyrank.errors import UsageError
from polyrank.records import Context, Example

SPARE = 20  # texts ranked beyond the last rank, because copies and turns of the context are dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class HardNegatives:
    """Which texts of a ranking become negatives.

    Args:
        n_negatives: how many texts; fewer if the ranks hold fewer.
        first_rank, last_rank: the range of ranks, counted from 1 after right answers and texts with the same words
            are removed. The first ranks are the hardest, and the likeliest to be right without a label.
        seed: of the choice among these ranks, if they hold more than ``n_negatives``.

    Raises:
        UsageError: a value is out of range.
    """

    n_negatives: int
    first_rank: int = 1
    last_rank: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_negatives < 1:
            raise UsageError(f"n_negatives {self.n_negatives} is below 1; give at least 1")
        if not 1 <= self.first_rank <= self.last_rank:
            raise UsageError(
                f"ranks {self.first_rank} to {self.last_rank} are empty; count from 1 and give the lower rank first"
            )


def hard_candidates(
    ranked: Iterable[str], right: Collection[str], settings: HardNegatives, *, turns: Iterable[str] = ()
) -> list[str]:
    """The wrong texts between the two ranks, best first, without duplicates.

    Args:
        ranked: the texts that a retriever returned, best first.
        right: the right answers.
        settings: the ranks.
        turns: of the context; a text that repeats one is left out, because no answer does.

    >>> ranked = ["Hello!", "hi", "hello", "bye", "Bye.", "no"]
    >>> hard_candidates(ranked, ["hello"], HardNegatives(n_negatives=2, first_rank=2, last_rank=3))
    ['bye', 'no']
    """
    seen = {same_words(text) for text in (*right, *turns)}
    texts: list[str] = []
    for text in ranked:
        if len(texts) == settings.last_rank:
            break
        words = same_words(text)
        if words not in seen:
            seen.add(words)
            texts.append(text)
    return texts[settings.first_rank - 1 :]


def collect_right_answers(examples: Sequence[Example]) -> Mapping[Context, list[str]]:
    """All right answers to each context; a context of several examples has the answers of all of them."""
    if isinstance(examples, StoredExamples):
        return examples.rights
    answers: dict[Context, dict[str, None]] = {}
    for example in examples:
        right = [example.candidates[i] for i in example.relevant]
        answers.setdefault(example.query, {}).update(dict.fromkeys(right))
    return {context: list(texts) for context, texts in answers.items()}


def choose(texts: list[str], settings: HardNegatives, *key: int) -> list[str]:
    """Draw ``n_negatives`` of the texts, in their order, as a function of the seed and ``key``."""
    if len(texts) <= settings.n_negatives:
        return texts
    generator = np.random.Generator(np.random.PCG64([settings.seed, *key]))
    return [texts[i] for i in sorted(generator.choice(len(texts), settings.n_negatives, replace=False).tolist())]
