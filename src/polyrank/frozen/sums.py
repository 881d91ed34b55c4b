"""Choosing the weights of a sum of encoders on validation lists, which each encoder scores once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polyrank.errors import DataError
from polyrank.evaluation.models import Progress
from polyrank.evaluation.protocols import Evaluation, Record, evaluate
from polyrank.evaluation.tables import dialogues_of, paired_test
from polyrank.ranking.metrics import hit_at, placement_of, reciprocal_rank, with_duplicates
from polyrank.ranking.weights import deviation, fit_weights, totals_by_halves, weighted_totals
from polyrank.records import Example
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.summed import SumEncoder, attending_part, relative_weights

IDLE = 0.001
"""Weight of an encoder that adds nothing, times the standard deviation of its scores within lists."""


def fit_sum(
    encoders: Sequence[Encoder], valid: Sequence[Example], *, progress: Progress = lambda _, batches: batches
) -> tuple[SumEncoder, dict[str, Any]]:
    """The sum of encoders with the weights that fit validation lists best, see ``fit_weights``.

    An encoder that adds nothing gets a weight too small to matter, see ``IDLE``. If an encoder has several vectors per
    context, its weight is 1.

    Args:
        encoders: frozen.
        valid: candidate lists with a right answer.
        progress: called with the name of each encoder and the list of its batches, which it wraps.

    Returns:
        The sum, and figures ready for JSON. Among them, ``idle``, the positions of encoders that add nothing; and
        ``gain``, that in R@1 over the best encoder alone, whose position is ``over``. For it, each half of the
        dialogues is ranked with the weights that fit the other half.

    Raises:
        UsageError: two encoders have several vectors per context, or there is only one encoder.
        DataError: no validation list has a right answer.
    """
    unit = attending_part(encoders)
    lists = lists_to_fit(valid)
    parts = [
        evaluate(encoder, lists, progress=partial(progress, encoder.name or f"encoder {number}")).answerable
        for number, encoder in enumerate(encoders, 1)
    ]
    fitted, figures = weigh(parts)
    weights = tuple(
        weight or IDLE / deviation(scores_of(records)) for weight, records in zip(fitted, parts, strict=True)
    )
    weights = weights if unit is None else relative_weights(weights, unit)
    weights = tuple(float(f"{weight:.4g}") for weight in weights)  # as printed, so users can give the same again
    idle = [number for number, weight in enumerate(fitted) if not weight]
    return SumEncoder(encoders, weights), {**figures, "idle": idle}


def weigh(
    parts: Sequence[Sequence[Record]], *, over: int | None = None, priors: Sequence[float] | None = None
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The weights that fit the scores of several scorers for the same lists, see ``fit_weights``, and their figures.

    Args:
        parts: for each scorer, the result of each list.
        over: the scorer with which the sum is compared; None: the best one.
        priors: see ``fit_weights``.

    Returns:
        A weight of 0 or more for each scorer; and figures ready for JSON: those of each part and of the sum, and the
        ``gain`` over one part, see ``fit_sum``.
    """
    scores = [scores_of(records) for records in parts]
    relevant = [record.relevant for record in parts[0]]
    fitted = fit_weights(scores, relevant, priors)
    figures = [_figures(each, relevant) for each in scores]
    dialogues = dialogues_of([record.id for record in parts[0]])
    if over is None:
        over = max(range(len(parts)), key=lambda number: figures[number]["MRR"])
    return fitted, {
        "n_valid": len(relevant),
        "parts": figures,
        "sum": _figures(weighted_totals(fitted, scores), relevant),
        "gain": {"over": over, **_gain(parts[0], totals_by_halves(scores, relevant, dialogues, priors), scores[over])},
    }


def lists_to_fit(valid: Sequence[Example]) -> list[Example]:
    """The examples with a right and a wrong candidate.

    Raises:
        DataError: there are none.
    """
    lists = [e for e in valid if 0 < len(with_duplicates(e.candidates, e.relevant)) < len(e.candidates)]
    if not lists:
        raise DataError("no example has a right answer among candidates; choose weights on candidate lists")
    return lists


def scores_of(records: Sequence[Record]) -> list[Floats]:
    """The scores of each list."""
    return [record.scores for record in records if record.scores is not None]


def _gain(records: Sequence[Record], totals: Sequence[Floats], alone: Sequence[Floats]) -> dict[str, Any]:
    """The gain in R@1 over the best part; see ``paired_test``."""
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
