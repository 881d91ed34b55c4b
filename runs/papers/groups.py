"""Random groups of examples that share their responses as candidates: ConveRT's R100@1."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyrank.errors import DataError
from polyrank.records import Example
from polyrank.wording import counted


def group_candidates(
    examples: Sequence[Example], n_candidates: int = 100, *, seed: int = 0, what: str = "the examples"
) -> list[Example]:
    """Group the examples with a right answer at random; the candidates of each are the responses of its group.

    This is in-batch evaluation: ``n_candidates`` examples share each list. A copy of the right text in a group also
    counts as right. The examples of the last, incomplete group are left out.

    Args:
        examples: the examples; existing lists are replaced.
        n_candidates: number of examples in a group, and of candidates in each list.
        seed: random seed.
        what: name of the examples in errors.

    Raises:
        DataError: there are too few examples for one group.

    Source: Henderson et al., A Repository of Conversational Datasets (2019), 1-of-100 accuracy, which ConveRT (2020)
        calls R100@1.

    >>> pairs = [Example((f"hi {i}",), (f"reply {i}",), (0,)) for i in range(5)]
    >>> [(each.response, len(each.candidates)) for each in group_candidates(pairs, 2)]
    [('reply 2', 2), ('reply 4', 2), ('reply 3', 2), ('reply 0', 2)]
    """
    answered = [example for example in examples if example.relevant]
    if len(answered) < n_candidates:
        raise DataError(
            f"{what}: {counted(len(answered), 'example')} with a right answer cannot fill a group of {n_candidates};"
            " choose a smaller group, or give more examples"
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
