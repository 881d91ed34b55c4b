"""Measures the gain of a second stage that compares words, with numbers chosen on few lists, for several priors.

    python runs/few_lists.py DATA [--encoder shipped:minilm] [--limit 1500] [--repeats 12]

Numbers are chosen on random development lists and judged on up to 700 others. Stores repetition/few with
runs/record.py: for each number of lists, prior (see NUMBER_DEVIATION) and set, the mean gain in R@1 over the encoder.
"""

import argparse
from pathlib import Path

import numpy as np
import record
from polyrank.scorers.repetition import NUMBERS, Repetition, Words
from polyrank.tuning.sums import lists_to_fit, scores_of

from polyrank.data import read_examples
from polyrank.evaluation.protocols import evaluate
from polyrank.ranking.metrics import hit_at, placement_of
from polyrank.ranking.weights import PRIOR_DEVIATION, fit_weights, weighted_totals
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder, Floats

SETS = ("star", "sgd", "ubuntu-irc", "self-dialogue", "convai2-valid")
N_LISTS, N_JUDGED = (30, 100, 300), 700
PRIORS = (PRIOR_DEVIATION, 1.0, 0.5, 0.3, 0.2, 0.1)

Scores = list[list[Floats]]
"""Of each term, for each list."""


def terms(encoder: Encoder, path: Path, limit: int) -> tuple[Scores, list[tuple[int, ...]]]:
    """The encoder's scores, each term of the comparison with both signs, and the right candidates."""
    lists = lists_to_fit(read_examples(path).examples[:limit])
    first = evaluate(encoder, lists).answerable
    words = Words.of(text for example in lists for text in example.candidates)
    scores = [scores_of(first)]
    for name in NUMBERS:
        one = Repetition(words=words, **{name: 1.0})  # type: ignore[arg-type]  # a number by its name
        found = scores_of(evaluate(one, lists).answerable)
        scores += [found, [-values for values in found]]
    return scores, [one.relevant for one in first]


def gain(scores: Scores, relevant: list[tuple[int, ...]], n: int, prior: float, order: list[int]) -> float:
    """The gain in R@1 over the encoder, the first term, on lists after the n to choose on."""
    chosen, judged = order[:n], order[n : n + N_JUDGED]
    priors = [PRIOR_DEVIATION] + [prior] * (len(scores) - 1)
    weights = fit_weights([[x[i] for i in chosen] for x in scores], [relevant[i] for i in chosen], priors)
    totals = weighted_totals(weights, [[x[i] for i in judged] for x in scores])
    hits = [
        hit_at(placement_of(total, relevant[i]), 1) - hit_at(placement_of(scores[0][i], relevant[i]), 1)
        for total, i in zip(totals, judged, strict=True)
    ]
    return float(np.mean(hits))


def main() -> None:
    """Measure all sets and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", default="shipped:minilm")
    parser.add_argument("--limit", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=12)
    options = parser.parse_args()
    encoder, rows = load_encoder(options.encoder), []
    for name in SETS:
        scores, relevant = terms(encoder, options.data / name / "dev.jsonl.gz", options.limit)
        rng = np.random.default_rng(0)
        orders = [rng.permutation(len(relevant)).tolist() for _ in range(options.repeats)]
        for n in N_LISTS:
            for prior in PRIORS:
                gains = [gain(scores, relevant, n, prior, order) for order in orders]
                row = {"set": name, "n": n, "prior": prior, "gain": np.mean(gains), "least": min(gains)}
                rows.append({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()})
                print(rows[-1], flush=True)
    record.write("repetition/few", {"encoder": options.encoder, "repeats": options.repeats, "rows": rows})


if __name__ == "__main__":
    main()
