"""How close an exported network is to the original in fp32, and whether a quantized one still ranks like it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from polyrank.config.names import SAMPLE
from polyrank.data import read_examples, read_pool
from polyrank.errors import DataError
from polyrank.ranking.top import top_rows
from polyrank.records import Context, Example
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoded import score_row
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.protocols import Floats

MIN_COSINE = 0.999
N_TEXTS = 32
MAX_LOSS = 0.005  # of R@1
MIN_OVERLAP = 0.9
TOP = 10


@dataclass(frozen=True, slots=True)
class Agreement:
    """How similarly two scorers rank.

    Args:
        n: ranked lists.
        reference_r1, exported_r1: share of lists whose best candidate is right.
        overlap: share of the reference's ten best (or best half of a shorter list) that are also among the exported
            network's, as a mean over lists.
    """

    n: int
    reference_r1: float
    exported_r1: float
    overlap: float

    @property
    def kept(self) -> bool:
        """Whether the ranking is kept: R@1 falls by at most half a point, and nine of the ten best are the same."""
        return self.reference_r1 - self.exported_r1 < MAX_LOSS + 1e-9 and self.overlap >= MIN_OVERLAP

    def __str__(self) -> str:
        """The figures in words.

        >>> str(Agreement(200, 0.5, 0.495, 0.97))
        'on 200 lists R@1 50.0% -> 49.5%, and 97.0% of the best ten stay'
        """
        r1 = f"{self.reference_r1:.1%} -> {self.exported_r1:.1%}"
        return f"on {self.n:,} lists R@1 {r1}, and {self.overlap:.1%} of the best ten stay"


def sample_lists() -> list[Example]:
    """The validation lists of the shipped sample."""
    return read_examples(SAMPLE / "valid.jsonl").examples


def agreement(
    reference: EncoderScorer | CrossScorer, exported: EncoderScorer | CrossScorer, examples: Sequence[Example]
) -> Agreement:
    """Rank lists by both scorers.

    For encoders, the exported network encodes contexts. The worse result of both networks' candidate vectors counts,
    because either network may have made an index.

    Args:
        reference: the network in fp32.
        exported: the network to judge.
        examples: with candidates; those without a right one count only for the overlap.

    Raises:
        DataError: no example has two candidates.
    """
    lists = [example for example in examples if len(example.candidates) > 1]
    if not lists:
        raise DataError("no example has two or more candidates to rank; give lists, or draw them with draw_candidates")
    contexts, texts = [example.query for example in lists], [list(example.candidates) for example in lists]
    expected = reference.score(contexts, texts)
    ways = [exported.score(contexts, texts)]
    if isinstance(reference, EncoderScorer) and isinstance(exported, EncoderScorer):
        vectors, mask = exported.encode_contexts(contexts)
        ways.append(
            [score_row(vectors[i], mask[i], reference.encode_candidates(listed)) for i, listed in enumerate(texts)]
        )
    judged = [example for example in lists if example.relevant]
    return Agreement(
        len(lists),
        _r1(judged, lists, expected),
        min(_r1(judged, lists, scores) for scores in ways),
        min(float(np.mean([_overlap(a, b) for a, b in zip(expected, scores, strict=True)])) for scores in ways),
    )


def _r1(judged: Sequence[Example], lists: Sequence[Example], scores: Sequence[Floats]) -> float:
    if not judged:
        return 0.0
    best = [top_rows(row, 1)[0] in example.relevant for example, row in zip(lists, scores, strict=True)]
    return sum(best) / len(judged)


def _overlap(a: Floats, b: Floats) -> float:
    k = min(TOP, ceil(len(a) / 2))
    return len({*top_rows(a, k)} & {*top_rows(b, k)}) / k


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
