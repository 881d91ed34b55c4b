"""Correcting an encoder for hubs: contexts to compare with, and a weight from validation lists."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyrank.errors import DataError
from polyrank.evaluation.models import Progress
from polyrank.evaluation.protocols import evaluate
from polyrank.frozen.sums import lists_to_fit, scores_of, weigh
from polyrank.ranking.metrics import placement_of
from polyrank.ranking.weights import fit_weights
from polyrank.records import Context, Example
from polyrank.scorers.hubs import HubEncoder
from polyrank.scorers.protocols import Encoder

TEXTS_AT_A_TIME = 256


def choose_contexts(examples: Sequence[Example], n: int, *, seed: int = 1) -> list[Context]:
    """At most ``n`` different contexts, at random.

    Raises:
        DataError: there are none.

    >>> pairs = [Example(("hi",), (str(i),), (0,)) for i in range(5)]
    >>> len(choose_contexts(pairs, 3))
    1
    """
    distinct = list(dict.fromkeys(example.query for example in examples))
    if not distinct:
        raise DataError("0 contexts to compare with; give examples")
    order = np.random.default_rng(seed).permutation(len(distinct))[:n]
    return [distinct[number] for number in order.tolist()]


def encode_hubs(
    encoder: Encoder,
    contexts: Sequence[Context],
    *,
    weight: float = 1.0,
    scale: float = 1.0,
    progress: Progress = lambda _, batches: batches,
) -> HubEncoder:
    """The encoder corrected with the scores that candidates have in these contexts; see HubEncoder.

    Args:
        encoder: frozen.
        contexts: like those that it will answer, such as those of training; right answers are not needed.
        weight: w; 1 fits an encoder whose scores, times ``scale``, are log-odds.
        scale: a.
        progress: called with a name and the list of batches, which it wraps.
    """
    encoded = [
        encoder.encode_contexts([contexts[number] for number in batch])
        for batch in progress("contexts", _batches(len(contexts)))
    ]
    width = max(mask.shape[1] for _, mask in encoded)
    vectors = np.concatenate([np.pad(each, ((0, 0), (0, width - each.shape[1]), (0, 0))) for each, _ in encoded])
    masks = np.concatenate([np.pad(mask, ((0, 0), (0, width - mask.shape[1]))) for _, mask in encoded])
    return HubEncoder(encoder, vectors, masks, weight=weight, scale=scale)


def fit_hubs(
    encoder: Encoder,
    contexts: Sequence[Context],
    valid: Sequence[Example],
    *,
    progress: Progress = lambda _, batches: batches,
) -> tuple[HubEncoder, dict[str, Any]]:
    """The encoder corrected for hubs, with the scale and the weight that fit validation lists best.

    Args:
        encoder, contexts, progress: see ``encode_hubs``.
        valid: candidate lists with a right answer.

    Returns:
        The corrected encoder; its weight is 0 if the correction adds nothing. And figures ready for JSON, as those of
        ``fit_sum`` for two parts, the encoder and its correction.

    Raises:
        DataError: no list has a right answer, or the encoder's scores do not help to find it.
    """
    lists = lists_to_fit(valid)
    alone = evaluate(encoder, lists, progress=lambda batches: progress("lists", batches)).answerable
    (scale,) = fit_weights([scores_of(alone)], [record.relevant for record in alone])
    if not scale:
        raise DataError(f"the encoder ranks {len(lists):,} lists no better than chance, so it cannot be corrected")
    scale = float(f"{scale:.4g}")
    hubs = encode_hubs(encoder, contexts, scale=scale, progress=progress)
    texts = list(dict.fromkeys(text for example in lists for text in example.candidates))
    values = [
        hubs.hubness(encoder.encode_candidates([texts[number] for number in batch]))
        for batch in progress("candidates", _batches(len(texts)))
    ]
    of_text = dict(zip(texts, -np.concatenate(values), strict=True))
    corrections = []
    for record, example in zip(alone, lists, strict=True):
        scores = np.array([of_text[text] for text in example.candidates], np.float32)
        corrections.append(replace(record, scores=scores, placement=placement_of(scores, record.relevant)))
    (own, of_hubs), figures = weigh([alone, corrections], over=0)
    if not own:
        raise DataError(f"the encoder adds nothing to its hubs on {len(lists):,} lists, so it cannot be corrected")
    weight = float(f"{of_hubs / own:.4g}")
    return HubEncoder(encoder, hubs.contexts, hubs.mask, weight=weight, scale=scale), figures


def _batches(n: int) -> list[range]:
    """The numbers below n, in batches.

    >>> _batches(300)
    [range(0, 256), range(256, 300)]
    """
    return [range(start, min(start + TEXTS_AT_A_TIME, n)) for start in range(0, n, TEXTS_AT_A_TIME)]
