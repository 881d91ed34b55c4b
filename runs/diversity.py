"""Compares the top three suggestions with three diverse ones: near-copies among them, and right answers.

    python runs/diversity.py EXAMPLES REPLIES [--model shipped:convert] [--limit 1000] | python runs/record.py NAME

builds an index of REPLIES and prints one JSON object with a row for each setting. A near-copy differs from an earlier
suggestion only in names and numbers, or shares four fifths of its words.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence

import numpy as np
from stages import is_right

import polyrank
from polyrank.answering.diversity import (
    N_BEST,
    RELEVANCE,
    Similarity,
    choose_diverse,
    near_copy_key,
    vector_similarity,
    word_similarity,
)
from polyrank.data.same_words import same_words
from polyrank.records import Ranked

K, NEAR = 3, 0.8


def word_overlap(a: str, b: str) -> float:
    """The Jaccard index of two texts' words: words in both, divided by words in either."""
    first, second = set(same_words(a).split()), set(same_words(b).split())
    return len(first & second) / len(first | second) if first or second else 1.0


def n_near_copies(replies: Sequence[Ranked]) -> int:
    """How many replies nearly repeat an earlier one."""
    texts = [reply.text for reply in replies]
    return sum(
        any(near_copy_key(text) == near_copy_key(other) or word_overlap(text, other) >= NEAR for other in texts[:i])
        for i, text in enumerate(texts)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("examples")
    parser.add_argument("replies")
    parser.add_argument("--model", default="shipped:convert")
    parser.add_argument("--limit", type=int, default=1000)
    arguments = parser.parse_args()
    examples = polyrank.read_examples(arguments.examples).examples[: arguments.limit]
    with tempfile.TemporaryDirectory() as folder:
        polyrank.build_index(f"{folder}/index", arguments.model, polyrank.read_pool(arguments.replies))
        with polyrank.open(f"{folder}/index") as opened:
            best = opened.respond([example.query for example in examples], N_BEST)
            stored = opened.vectors(list({reply.id for ranked in best for reply in ranked}))
            n_replies = len(opened)

    def by_vectors(ranked: Sequence[Ranked]) -> Similarity:
        return vector_similarity(np.stack([stored[reply.id] for reply in ranked]))

    def by_words(ranked: Sequence[Ranked]) -> Similarity:
        return word_similarity([reply.text for reply in ranked])

    def row(shown: Sequence[Sequence[Ranked]]) -> dict[str, float]:
        hits = np.array([any(is_right(e, reply) for reply in three) for e, three in zip(examples, shown, strict=True)])
        gained = hits.astype(float) - plain_hits
        error = 1.96 * gained.std() / len(gained) ** 0.5
        return {
            "near_copies": sum(map(n_near_copies, shown)) / sum(map(len, shown)),
            "with_near_copies": float(np.mean([n_near_copies(three) > 0 for three in shown])),
            "shown": float(np.mean([len(three) for three in shown])),
            "R@3": float(hits.mean()),
            "difference": float(gained.mean()),
            "interval": [float(gained.mean() - error), float(gained.mean() + error)],
        }

    plain = [ranked[:K] for ranked in best]
    plain_hits = np.array([any(is_right(e, r) for r in three) for e, three in zip(examples, plain, strict=True)], float)
    rows: dict[str, dict[str, float]] = {"as they rank": row(plain)}
    for name, similarity in (("vectors", by_vectors), ("words", by_words)):
        for relevance in (1.0, 0.9, 0.8, RELEVANCE, 0.6, 0.5):
            shown = [choose_diverse(ranked, K, similarity(ranked), relevance) for ranked in best]
            rows[f"{name}, lambda {relevance}"] = row(shown)
    about = {"model": arguments.model, "n_examples": len(examples), "n_replies": n_replies, "k": K}
    print(json.dumps({**about, "rows": rows}))


if __name__ == "__main__":
    main()
