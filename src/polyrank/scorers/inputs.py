"""Validation of a scorer's arguments, of which each context has its own list of texts, and of the scores it returns."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.records import Candidate, Context, ContextLike, contexts_of
from polyrank.wording import brief, counted


def matched_lists(
    contexts: Iterable[ContextLike], candidates: Iterable[Iterable[str]]
) -> tuple[list[Context], list[Sequence[str]]]:
    """Contexts, and one list of texts for each of them.

    Raises:
        TypeError: a context or a candidate has another type.
        UsageError: the numbers of contexts and lists differ.

    >>> matched_lists(["hi", ["hi", "hello?"]], [["a"], []])[1]
    [['a'], []]
    >>> matched_lists(["hi"], [["a"], ["b"]])
    Traceback (most recent call last):
    polyrank.errors.UsageError: 1 context and 2 lists of candidates; give each context its own list, or use score_pool
    """
    queries = contexts_of(contexts)
    if isinstance(candidates, str):
        raise TypeError(f"candidates = {brief(candidates)} is one text; write a list of texts for each context")
    lists = [as_texts(listed, f"candidates[{i}]") for i, listed in enumerate(candidates)]
    if len(queries) != len(lists):
        raise UsageError(
            f"{counted(len(queries), 'context')} and {counted(len(lists), 'list')} of candidates; give each context"
            " its own list, or use score_pool"
        )
    return queries, lists


def as_texts(values: Iterable[str], name: str) -> Sequence[str]:
    """A list of texts.

    Args:
        values: the texts.
        name: of the argument, for errors.

    Raises:
        TypeError: it is one text, or an item is not a text.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} = {brief(values)} is not a list of texts; write [{brief(values)}]")
    listed = values if isinstance(values, list | tuple) else list(values)
    if not {*map(type, listed)} <= {str}:  # the fast check, before the slow one
        for i, value in enumerate(listed):
            if not isinstance(value, str):
                raise TypeError(f"{name}[{i}] = {brief(value)} is not a text; write a string")
    return listed


def checked_scores(values: object, shape: tuple[int, ...], scorer: object) -> NDArray[np.float32]:
    """Scores as an array.

    Args:
        values: that a scorer returned, maybe one of a user.
        shape: one number for each candidate.
        scorer: for the error.

    Raises:
        UsageError: they have another shape.

    >>> checked_scores([1, 2], (3,), "it")
    Traceback (most recent call last):
    polyrank.errors.UsageError: 'it' returned scores of shape [2] for [3] candidates; return one for each
    """
    try:
        scores = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{scorer!r} returned {type(values).__name__}, not an array of scores; return one") from error
    if scores.shape != shape:
        returned = list(scores.shape)
        raise UsageError(
            f"{scorer!r} returned scores of shape {returned} for {list(shape)} candidates; return one for each"
        )
    return scores


def spread(scores: NDArray[np.float32], distinct: Sequence[str], texts: Sequence[str]) -> NDArray[np.float32]:
    """The scores ``[len(texts)]`` of texts, from those ``[len(distinct)]`` of the distinct ones.

    >>> spread(np.array([2, 1], np.float32), ["a", "b"], ["a", "b", "a"])
    array([2., 1., 2.], dtype=float32)
    """
    if len(distinct) == len(texts):
        return scores
    row = {text: i for i, text in enumerate(distinct)}
    return scores[[row[text] for text in texts]]


def as_candidates(values: Iterable[str | Candidate]) -> list[Candidate]:
    """Candidates; those made from texts have their positions as ids.

    Raises:
        TypeError: it is one text, or an item is neither a text nor a Candidate.

    >>> as_candidates(["a"])
    [Candidate(id='0', text='a', metadata={})]
    """
    if isinstance(values, str | Candidate):
        raise TypeError(f"candidates = {brief(values)} is one candidate; write [{brief(values)}]")
    candidates = [value if isinstance(value, Candidate) else Candidate(str(i), value) for i, value in enumerate(values)]
    as_texts([candidate.text for candidate in candidates], "candidates")
    return candidates
