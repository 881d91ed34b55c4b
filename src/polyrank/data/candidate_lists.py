"""Lists to rank for examples that have none: the response among responses of the other examples.

What is drawn is a function of the examples and a seed. Knows no file.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyrank.data.read_report import counted
from polyrank.data.same_words import same_words
from polyrank.errors import DataError
from polyrank.records import Example

USUAL = 20
"""Candidates of a list, where nobody asks for a number."""


def have_lists(examples: Sequence[Example]) -> bool:
    """Whether there is anything to choose from in the examples themselves.

    >>> have_lists([Example(("hi",), ("hello",), (0,))])
    False
    """
    return any(len(example.candidates) > 1 for example in examples)


class Responses:
    """The responses of examples, to draw lists from.

    Args:
        examples: those without a right answer are passed over.
        what: they are, for errors.
        others: texts to draw from in place of the responses; none: the responses.
    """

    def __init__(self, examples: Sequence[Example], what: str = "the examples", others: Sequence[str] = ()) -> None:
        self.what = what
        self._answered = [(example, _words(example)) for example in examples if example.relevant]
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
    def most(self) -> int:
        """Candidates of the longest lists that every context can have."""
        return 1 + len(self._texts) - max(map(len, self._right.values()), default=0)

    @property
    def _count(self) -> str:
        return counted(len(self._texts), "different response")

    def lists(self, n_candidates: int, seed: int, limit: int | None = None) -> list[Example]:
        """The examples with lists of that length; see ``draw_candidates``."""
        if self.most < 2:
            raise DataError(f"{self.what}: {self._count}, which leaves nothing to choose from; give more examples")
        if not 2 <= n_candidates <= self.most:
            raise DataError(
                f"{self.what}: {self._count} do not make lists of {n_candidates} candidates; ask for 2 to"
                f" {self.most}, or give more examples"
            )
        result = []
        for position, (example, context) in enumerate(self._answered[:limit]):
            generator, right = np.random.Generator(np.random.PCG64([seed, position])), self._right[context]
            rows = generator.choice(len(self._texts), size=n_candidates - 1 + len(right), replace=False).tolist()
            candidates = [self._texts[row] for row in rows if row not in right][: n_candidates - 1]
            place = int(generator.integers(n_candidates))
            candidates.insert(place, example.candidates[example.relevant[0]])
            result.append(replace(example, candidates=tuple(candidates), relevant=(place,), relevant_ids=()))
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
    """The examples with a right answer, each with a list of candidates: its response and others' responses.

    The response stands at a random position. No two candidates of a list have the same words, and none of the wrong
    ones is a right answer to the same context elsewhere among the examples. Lists that the examples had are replaced.

    Args:
        examples: what to draw from, and for.
        n_candidates: of each list; None: 20, or as many as all lists can have where that is fewer.
        seed: of the draw.
        what: the examples are, for errors.
        limit: draw for the first so many, from all; None: for all.
        others: texts to draw the wrong candidates from; none: the responses.

    Raises:
        DataError: there are too few responses for lists of that length.

    >>> pairs = [Example((turn,), (text,), (0,)) for turn, text in (("hi", "Hello."), ("hi", "Hey!"), ("bye", "Bye."))]
    >>> [sorted(example.candidates) for example in draw_candidates(pairs)]
    [['Bye.', 'Hello.'], ['Bye.', 'Hey!'], ['Bye.', 'Hello.']]
    """
    responses = Responses(examples, what, others)
    return responses.lists(usual_length(responses) if n_candidates is None else n_candidates, seed, limit)


def group_candidates(
    examples: Sequence[Example], n_candidates: int = 100, *, seed: int = 0, what: str = "the examples"
) -> list[Example]:
    """The examples with a right answer in random groups, each to be ranked against the responses of its own group.

    This is how the figures of in-batch evaluation are made: as many examples as candidates share each list. A copy of
    the right text in a group is as right. Examples that fill no whole group are left out.

    Args:
        examples: what to group; lists that they had are replaced.
        n_candidates: examples in a group, and so candidates of each.
        seed: of the groups.
        what: the examples are, for errors.

    Raises:
        DataError: they do not fill one group.

    Source: Henderson et al., A Repository of Conversational Datasets (2019), 1-of-100 accuracy, which ConveRT (2020)
        calls R100@1.

    >>> pairs = [Example((f"hi {i}",), (f"reply {i}",), (0,)) for i in range(5)]
    >>> [(each.response, len(each.candidates)) for each in group_candidates(pairs, 2)]
    [('reply 2', 2), ('reply 4', 2), ('reply 3', 2), ('reply 0', 2)]
    """
    answered = [example for example in examples if example.relevant]
    if len(answered) < n_candidates:
        raise DataError(
            f"{what}: {counted(len(answered), 'example')} with a right answer make no group of {n_candidates}; ask for"
            " a smaller one, or give more examples"
        )
    order = np.random.Generator(np.random.PCG64([seed])).permutation(len(answered)).tolist()
    result = []
    for start in range(0, len(order) - n_candidates + 1, n_candidates):
        group = [answered[i] for i in order[start : start + n_candidates]]
        responses = tuple(example.candidates[example.relevant[0]] for example in group)
        result += [
            replace(example, candidates=responses, relevant=(place,), relevant_ids=())
            for place, example in enumerate(group)
        ]
    return result


def usual_length(*parts: Responses) -> int:
    """20, or where a part has too few responses for that, as many as it can have; 2 at least."""
    return max(2, min(USUAL, *(part.most for part in parts)))


def _words(example: Example) -> tuple[str, ...]:
    return (*map(same_words, example.context), "", *map(same_words, example.background))
