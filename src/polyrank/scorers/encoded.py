"""Scores from context and candidate vectors: each context's own candidates, or one pool for all.

Every context is computed alone, so a score does not depend on the other contexts; on the other candidates it depends
only by rounding.

Shapes: B contexts, K candidates of each, N rows of a pool, M vectors per context, D dimensions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.models.scoring import scores

CANDIDATES_AT_A_TIME = 8192
Floats = NDArray[np.float32]


def score_lists(contexts: Floats, mask: NDArray[np.bool_], candidates: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Each context's own candidates: one array of length ``sizes[i]`` per context.

    Args:
        contexts: vectors ``[B, M, D]``.
        mask: ``[B, M]``, true where a vector is real.
        candidates: of all contexts, concatenated: ``[sum of sizes, D]``.
        sizes: how many candidates each context has.
    """
    ends = np.cumsum(sizes).tolist()
    return [
        score_row(contexts[row], mask[row], candidates[end - size : end])
        for row, (end, size) in enumerate(zip(ends, sizes, strict=True))
    ]


def score_shared(contexts: Floats, mask: NDArray[np.bool_], pool: Floats) -> Floats:
    """One shared pool ``[N, D]`` for every context ``[B, M, D]``: ``[B, N]``."""
    result = np.empty((len(contexts), len(pool)), np.float32)
    for start in range(0, len(pool), CANDIDATES_AT_A_TIME):
        part = slice(start, start + CANDIDATES_AT_A_TIME)
        for row in range(len(contexts)):
            result[row, part] = score_row(contexts[row], mask[row], pool[part])
    return result


def score_row(context: Floats, mask: NDArray[np.bool_], candidates: Floats) -> Floats:
    """Scores ``[K]`` of one context ``[M, D]`` with its mask ``[M]`` and candidates ``[K, D]``."""
    values = scores(torch.from_numpy(context)[None], torch.from_numpy(candidates)[None], torch.from_numpy(mask)[None])
    row: Floats = values[0].numpy()
    return row
