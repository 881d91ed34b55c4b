"""Two stages for given candidates: one scores everything, the other the best of it again.

Shapes: K candidates of a context, n candidates of a shortlist.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from polyrank.ranking.top import top_rows_with_ties
from polyrank.scorers.protocols import Floats

SHORTLIST = 100
Combine = Callable[[Floats, Floats], Floats]
"""The total ``[n]`` of both stages' scores ``[n]`` of a shortlist."""


def rerank(
    first: Sequence[Floats],
    lists: Sequence[Sequence[str]],
    n: int,
    second: Callable[[Sequence[Sequence[str]]], Sequence[Floats]],
    combine: Combine,
    excluded: Sequence[Collection[int]] = (),
) -> list[Floats]:
    """The scores of each list after its best have been scored again: ``[K]`` per list.

    Equal texts count once in a shortlist: they tie, and a copy must not displace another reply.

    Args:
        first: of the first stage, ``[K]`` per list.
        lists: the texts.
        n: the length of a shortlist.
        second: scores the texts of the shortlists.
        combine: makes one score of both.
        excluded: rows of each list that are not in its shortlist; empty: none.
    """
    without = excluded or [()] * len(lists)
    shortlists = [shortlist_of(*row) for row in zip(first, lists, [n] * len(lists), without, strict=True)]
    texts = [[texts[i] for i in rows] for texts, rows in zip(lists, shortlists, strict=True)]
    results = []
    for values, candidates, rows, shown, scores in zip(first, lists, shortlists, texts, second(texts), strict=True):
        total = dict(zip(shown, combine(values[rows], scores) if rows else scores, strict=True))
        rest = below(min(total.values(), default=np.float32(0)), values)
        results.append(np.array([total.get(text, low) for text, low in zip(candidates, rest, strict=True)], np.float32))
    return results


def shortlist_of(values: Floats, texts: Sequence[str], n: int, excluded: Collection[int] = ()) -> list[int]:
    """Rows of the best n distinct texts, without the excluded rows; ties by text, in any order of the candidates.

    >>> shortlist_of(np.array([1, 3, 3, 2], np.float32), ["yes", "no", "no", "hi"], 2)
    [2, 3]
    """
    out = set(excluded)
    last = {text: row for row, text in enumerate(texts) if row not in out}
    rows = np.fromiter(last.values(), np.intp, len(last))
    return sorted(rows[top_rows_with_ties(values[rows], n)].tolist(), key=lambda i: (-values[i], texts[i]))[:n]


def below(worst: np.float32, values: Floats) -> Floats:
    """Scores ``[n]`` below ``worst`` in the order of ``values``, with the same ties however close they are.

    >>> below(np.float32(3), np.array([0.5, 0.50000006, 0.5, -np.inf, np.nan], np.float32))
    array([ 1.,  2.,  1.,  0., nan], dtype=float32)
    """
    ranks = np.unique(-values, return_inverse=True)[1]
    step = max(1.0, 2.0 * float(np.spacing(np.abs(worst))))
    result: Floats = (float(worst) - step * (ranks + 1)).astype(np.float32)
    result[np.isnan(values)] = np.nan
    return result
