"""How close an exported network is to the original in fp32."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.config.names import SAMPLE
from polyrank.data import read_examples, read_pool
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.protocols import Floats

MIN_COSINE = 0.999
N_TEXTS = 32


def sample_texts() -> tuple[list[Context], list[str]]:
    """Contexts and candidates of the shipped sample, short and long; one of each exceeds every budget."""
    contexts = [example.query for example in read_examples(SAMPLE / "test.jsonl").examples]
    candidates = [candidate.text for candidate in read_pool(SAMPLE / "replies.jsonl")]
    step = max(len(contexts) // N_TEXTS, 1)
    long = Context(tuple(turn for context in contexts[:200] for turn in context.turns))
    return [*contexts[::step][:N_TEXTS], long], [*candidates[:N_TEXTS], "ok", " ".join(candidates[:40])]


def worst_cosine(
    reference: EncoderScorer | CrossScorer,
    exported: EncoderScorer | CrossScorer,
    contexts: Sequence[Context],
    candidates: Sequence[str],
) -> float:
    """The least cosine between the outputs of two scorers of one model for the same texts.

    For encoders: between vectors of the same text; -1 if they disagree which context vectors are real. For
    Cross-encoders: between the scores of all candidates for a context, less their mean, which does not affect ranks.

    Args:
        reference: the model in fp32.
        exported: the export to judge.
        contexts: at least one.
        candidates: at least two.
    """
    if isinstance(reference, CrossScorer) or isinstance(exported, CrossScorer):
        lists = [list(candidates)] * len(contexts)
        pairs = zip(reference.score(contexts, lists), exported.score(contexts, lists), strict=True)
        return min(cosine((a - a.mean())[None], (b - b.mean())[None]) for a, b in pairs)
    expected, real = reference.encode_contexts(contexts)
    vectors, vectors_real = exported.encode_contexts(contexts)
    if (real.sum(1) != vectors_real.sum(1)).any():
        return -1.0
    # masks differ in width if a graph's number of codes is fixed
    worst = cosine(expected[real], vectors[vectors_real])
    return min(worst, cosine(reference.encode_candidates(candidates), exported.encode_candidates(candidates)))


def cosine(a: Floats, b: Floats) -> float:
    """The least cosine between rows of ``[N, D]``; NaN counts as -1.

    >>> cosine(np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]]))
    0.96
    """
    products: NDArray[np.float64] = (a.astype(np.float64) * b).sum(-1)
    norms = np.linalg.norm(a.astype(np.float64), axis=-1) * np.linalg.norm(b.astype(np.float64), axis=-1)
    return float(np.nan_to_num(products / np.maximum(norms, 1e-30), nan=-1.0).min())
