"""Choosing the weights of a sum of encoders on validation lists, which each encoder scores once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polyrank.errors import DataError
from polyrank.evaluation.protocols import Evaluation, Record, evaluate
from polyrank.evaluation.tables import paired_test
from polyrank.ranking.ensembles import choose_weights, log_probability_scale
from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank
from polyrank.records import Example
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.summed import SumEncoder, attending_part, relative_weights

Progress = Callable[[str, list[range]], Iterable[range]]


def fit_sum(
    encoders: Sequence[Encoder], valid: Sequence[Example], *, progress: Progress = lambda _, batches: batches
) -> tuple[SumEncoder, dict[str, Any]]:
    """The sum of encoders with the weights that rank validation lists best, see ``choose_weights``.

    Their common scale, which does not change the order, is that of log-probabilities, see ``log_probability_scale``.
    If an encoder has several vectors per context, its weight is 1.

    Args:
        encoders: frozen.
        valid: candidate lists with a right answer.
        progress: called with the name of each encoder and the list of its batches, which it wraps.

    Returns:
        The sum, and figures ready for JSON.

    Raises:
        UsageError: two encoders have several vectors per context, or there is only one encoder.
        DataError: no validation list has a right answer.
    """
    unit = attending_part(encoders)
    lists = [example for example in valid if example.relevant and len(example.candidates) > 1]
    if not lists:
        raise DataError("no example has a right answer among candidates; choose weights on candidate lists")
    parts = [
        evaluate(encoder, lists, progress=partial(progress, encoder.name or f"encoder {number}")).answerable
        for number, encoder in enumerate(encoders, 1)
    ]
    scores = [[record.scores for record in records if record.scores is not None] for records in parts]
    relevant = [record.relevant for record in parts[0]]
    chosen = relative_weights(choose_weights(scores, relevant), unit)
    if unit is None:
        scale = log_probability_scale(_totals(chosen, scores), relevant)
        chosen = tuple(scale * weight for weight in chosen)
    weights = [float(f"{weight:.4g}") for weight in chosen]  # as they are printed, so users can give the same again
    totals = _totals(weights, scores)
    figures: dict[str, Any] = {
        "n_valid": len(relevant),
        "parts": [_figures(each, relevant) for each in scores],
        "sum": _figures(totals, relevant),
    }
    best = max(range(len(parts)), key=lambda number: figures["parts"][number]["MRR"])
    figures["gain"] = {"over": best, **_gain(parts[0], totals, scores[best])}
    return SumEncoder(encoders, weights), figures


def _totals(weights: Sequence[float], scores: Sequence[Sequence[Floats]]) -> list[Floats]:
    """The weighted sum for each list, from the scores of each encoder."""
    return [sum(w * x for w, x in zip(weights, row, strict=True)) for row in zip(*scores, strict=True)]


def _gain(records: Sequence[Record], totals: Sequence[Floats], alone: Sequence[Floats]) -> dict[str, Any]:
    """The gain in R@1 over the best part, on the lists that chose the weights; see ``paired_test``."""
    sides = [
        Evaluation(
            tuple(
                replace(record, scores=values, placement=placement_of(values, record.relevant))
                for record, values in zip(records, side, strict=True)
            ),
            "lists",
        )
        for side in (totals, alone)
    ]
    return paired_test(sides[0], sides[1], metric="R@1")


def _figures(lists: Sequence[Floats], relevant: Sequence[Sequence[int]]) -> dict[str, float]:
    placements = [placement_of(values, right) for values, right in zip(lists, relevant, strict=True)]
    return {
        "R@1": float(np.mean([hit_at(placement, 1) for placement in placements])),
        "MRR": float(np.mean([reciprocal_rank(placement) for placement in placements])),
    }
