"""Chooses the threshold of an encoder on examples of a pool, and tests it on others; both lose some right answers.

    python runs/abstention.py MODEL POOL VALID TEST [--precision 0.6] [--plot FILE]

prints one JSON object; see ``try_threshold``. Every example is answered from the whole pool.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyrank import Example, read_examples, read_pool
from polyrank.evaluation.plots import new_figure, save
from polyrank.ranking.abstention import Point, area, confidence, coverage_curve
from polyrank.scorers.open import load_ranking
from polyrank.scorers.ranker import Ranker, as_ranker
from polyrank.tuning.threshold import NO_ANSWER, choose_hidden, choose_threshold, outcomes


def lists(path: Path, pool: Path) -> list[Example]:
    """The examples, each with the whole pool as its candidates."""
    replies = read_pool(pool)
    texts, number = tuple(reply.text for reply in replies), {reply.id: row for row, reply in enumerate(replies)}
    return [
        replace(one, candidates=texts, relevant=tuple(number[name] for name in one.relevant_ids), relevant_ids=())
        for one in read_examples(path).examples
    ]


def try_threshold(
    ranker: Ranker, lists: Sequence[Example], *, no_answer: float = NO_ANSWER, seed: int = 0
) -> tuple[dict[str, float], list[Point]]:
    """Test a threshold on other lists than those it was chosen on.

    Args:
        ranker: with a threshold.
        lists, no_answer, seed: see ``choose_threshold``.

    Returns:
        ``n_examples``; ``no_answer``, the share whose answer was hidden; ``coverage``, ``precision`` and ``low`` as in
        ``Point``; ``answered_without``, the share of hidden ones that got an answer nevertheless; ``area`` under the
        curve; and the curve.
    """
    rule = ranker.abstention
    assert rule is not None, "the ranker has no threshold"
    hidden = choose_hidden(len(lists), no_answer, seed)
    scores, right = outcomes(ranker, lists, hidden)
    confidences = np.array([confidence(row, rule.measure) for row in scores])
    curve = coverage_curve(confidences, right)
    answered = confidences >= rule.threshold
    # the point of the curve at this threshold, which need not be the confidence of an example
    point = next((p for p in reversed(curve) if p.threshold >= rule.threshold), Point(rule.threshold, 0, 0, 0))
    return {
        "n_examples": len(lists),
        "no_answer": float(hidden.mean()),
        "coverage": point.coverage,
        "precision": point.precision,
        "low": point.low,
        "answered_without": float(answered[hidden].mean()) if hidden.any() else 0.0,
        "area": area(curve),
    }, curve


def draw(curve: Sequence[Point], path: Path) -> None:
    """Precision against coverage, with the lower end of its 95% interval."""
    figure = new_figure()
    axes = figure.subplots()
    coverage = [100 * point.coverage for point in curve]
    (line,) = axes.plot(coverage, [100 * point.precision for point in curve])
    axes.plot(coverage, [100 * point.low for point in curve], color=line.get_color(), alpha=0.4, linewidth=0.8)
    axes.set(xlabel="contexts answered (%)", ylabel="answers that are right (%)", ylim=(0, 101), title="thin: 95% low")
    save(figure, path)


def main() -> None:
    """Choose, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pool", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--precision", type=float, default=0.6)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    ranker = as_ranker(load_ranking(options.model))
    rule, chosen = choose_threshold(ranker, lists(options.valid, options.pool), precision=options.precision)
    ranker.abstention = rule
    figures, curve = try_threshold(ranker, lists(options.test, options.pool))
    if options.plot is not None:
        draw(curve, options.plot)
    print(json.dumps({**figures, "threshold": rule.threshold, "measure": rule.measure, "chosen": chosen["chosen"]}))


if __name__ == "__main__":
    main()
