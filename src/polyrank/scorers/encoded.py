"""Scores from an encoder's two sides: each context's own candidates, or one pool for all.

Every row is computed alone, so a score does not depend on what else is asked.

Shapes: B contexts, K candidates of each, N rows of a pool, M vectors per context, D dimensions.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.models.scoring import scores
from polyrank.records import ContextLike
from polyrank.scorers.inputs import paired

if TYPE_CHECKING:  # which call this
    from polyrank.scorers.protocols import Encoder, Floats

CANDIDATES_AT_A_TIME = 8192


def score_lists(
    encoder: "Encoder", contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]
) -> "list[Floats]":
    """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
    queries, lists = paired(contexts, candidates)
    vectors, mask = encoder.encode_contexts(queries)
    encoded = encoder.encode_candidates([text for texts in lists for text in texts])
    ends = np.cumsum([len(texts) for texts in lists]).tolist()
    return [
        score_row(vectors[row], mask[row], encoded[end - len(texts) : end])
        for row, (end, texts) in enumerate(zip(ends, lists, strict=True))
    ]


def score_shared(encoder: "Encoder", contexts: Sequence[ContextLike], pool: Sequence[str]) -> "Floats":
    """One shared pool for every context: ``[B, N]``."""
    vectors, mask = encoder.encode_contexts(contexts)
    encoded = encoder.encode_candidates(pool)
    result = np.empty((len(vectors), len(encoded)), np.float32)
    for start in range(0, len(encoded), CANDIDATES_AT_A_TIME):
        part = slice(start, start + CANDIDATES_AT_A_TIME)
        for row in range(len(vectors)):
            result[row, part] = score_row(vectors[row], mask[row], encoded[part])
    return result


def score_row(context: "Floats", mask: NDArray[np.bool_], candidates: "Floats") -> "Floats":
    """Scores ``[K]`` of one context ``[M, D]`` with its mask ``[M]`` and candidates ``[K, D]``."""
    values = scores(torch.from_numpy(context)[None], torch.from_numpy(candidates)[None], torch.from_numpy(mask)[None])
    row: Floats = values[0].numpy()
    return row
