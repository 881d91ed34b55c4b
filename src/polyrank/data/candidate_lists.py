"""Draw candidate lists for examples that have none: the response among responses of other examples.

The lists are a function of the examples and a seed. This module opens no file.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyrank.data.same_words import same_words
from polyrank.errors import DataError
from polyrank.records import Example
from polyrank.wording import counted

DEFAULT_N_CANDIDATES = 20


def have_lists(examples: Sequence[Example]) -> bool:
    """Whether some example has several candidates.

    >>> have_lists([Example(("hi",), ("hello",), (0,))])
    False
    """
    return any(len(example.candidates) > 1 for example in examples)


class Responses:
    """Draws candidate lists from the responses of examples.

    Args:
        examples: the examples; those without a right answer are ignored.
        what: name of the examples in errors.
        others: texts to draw from instead of the responses.
    """

    def __init__(self, examples: Sequence[Example], what: str = "the examples", others: Sequence[str] = ()) -> None:
        self.what = what
        self._answered = [(example, words_of(example)) for example in examples if example.relevant]
        text_of = {same_words(text): text for text in others}
        right_of: dict[tuple[str, ...], set[str]] = {}
        for example, context in self._answered:
            right = [example.candidates[i] for i in example.relevant]
            right_of.setdefault(context, set()).update(map(same_words, right))
            if not others:
                text_of.setdefault(same_words(right[0]), right[0])
        self._texts, row_of = list(text_of.values()), {form: row for row, form in enumerate(text_of)}
        self._right = {context: {row_of[form] for form in right & row_of.keys()} for context, right in right_of.items()}

    @property
    def max_candidates(self) -> int:
        """Length of the longest lists that are possible for every context."""
        return 1 + len(self._texts) - max(map(len, self._right.values()), default=0)

    @property
    def _count(self) -> str:
        return counted(len(self._texts), "different response")

    def lists(self, n_candidates: int, seed: int, limit: int | None = None) -> list[Example]:
        """The examples with lists of this length; see ``draw_candidates``."""
        if self.max_candidates < 2:
            raise DataError(f"{self.what}: {self._count}, too few for candidate lists; give more examples")
        if not 2 <= n_candidates <= self.max_candidates:
            raise DataError(
                f"{self.what}: {self._count} cannot fill lists of {n_candidates} candidates; choose 2 to"
                f" {self.max_candidates}, or give more examples"
            )
        result = []
        for position, (example, context) in enumerate(self._answered[:limit]):
            generator, right = np.random.Generator(np.random.PCG64([seed, position])), self._right[context]
            rows = generator.choice(len(self._texts), size=n_candidates - 1 + len(right), replace=False).tolist()
            texts = [self._texts[row] for row in rows if row not in right][: n_candidates - 1]
            place = int(generator.integers(n_candidates))
            texts.insert(place, example.candidates[example.relevant[0]])
            result.append(replace(example, candidates=tuple(texts), relevant=(place,), relevant_ids=(), grades=()))
        return result


def draw_candidates(
    examples: Sequence[Example],
    n_candidates: int | None = None,
    *,
    seed: int = 0,
    what: str = "the examples",
    limit: int | None = None,
    others: Sequence[str] = (),
) -> list[Example]:
    """Give each example with a right answer a list of candidates: its response and responses of other examples.

    The response is at a random position. No two candidates of a list have the same words, and no wrong candidate is a
    right answer to the same context in another example. Existing lists are replaced.

    Args:
        examples: the examples to draw for, and from.
        n_candidates: length of each list; None: 20, or the longest length that is possible for all lists.
        seed: random seed.
        what: name of the examples in errors.
        limit: draw only for this many examples, the first, but from all; None: for all.
        others: texts to draw the wrong candidates from instead of the responses.

    Raises:
        DataError: there are too few responses for lists of this length.

    >>> pairs = [Example((turn,), (text,), (0,)) for turn, text in (("hi", "Hello."), ("hi", "Hey!"), ("bye", "Bye."))]
    >>> [sorted(example.candidates) for example in draw_candidates(pairs)]
    [['Bye.', 'Hello.'], ['Bye.', 'Hey!'], ['Bye.', 'Hello.']]
    """
    responses = Responses(examples, what, others)
    return responses.lists(default_length(responses) if n_candidates is None else n_candidates, seed, limit)


def default_length(*parts: Responses) -> int:
    """20, or less if a part has too few responses for that; at least 2."""
    return max(2, min(DEFAULT_N_CANDIDATES, *(part.max_candidates for part in parts)))


def words_of(example: Example) -> tuple[str, ...]:
    """The normalized turns and background of a context, equal for contexts of the same words.

    >>> words_of(Example(("Is it open?",))) == words_of(Example(("is it OPEN",)))
    True
    """
    return (*map(same_words, example.context), "", *map(same_words, example.background))
