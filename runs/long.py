"""Compares replies with documents of 500 words that contain them, on the same lists.

    python runs/long.py [MODEL ...] [--data ../shared/data] [--lists 60]

A document has one reply, as a paragraph, at a random place between sentences about bananas, the same in all documents.
Lists have 20 candidates. Stores long/MODEL/SET with runs/record.py: R@1 of the replies alone, of the documents
(`polyrank evaluate` reads them in chunks), of documents without paragraphs, and of what a model reads without chunks.
"""

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import record

from polyrank.data import read_examples
from polyrank.evaluation import evaluate, summarise
from polyrank.ranking.metrics import with_duplicates
from polyrank.records import Example
from polyrank.scorers.open import load

MODELS = ("shipped:convert", "shipped:rerank")
SETS = ("star", "sgd", "self-dialogue")
N_CANDIDATES, N_WORDS = 20, 500
FILLER = (
    "Bananas grow in warm countries.",
    "They are picked while they are green, and ripen on the way.",
    "A bunch holds ten to twenty fruits.",
    "The plant is not a tree but a large herb, whose trunk consists of leaves.",
    "Most of the fruit in shops is of one kind, which is called Cavendish.",
    "It is shipped in boxes of eighteen kilograms at thirteen degrees.",
    "Farmers cover the bunches with bags against insects.",
    "After the harvest the plant is cut down, and a new shoot grows from the root.",
    "The peel turns brown when it is cold.",
)


def document(reply: str, generator: random.Random) -> str:
    """A reply at a random place in a text of N_WORDS words."""
    sentences: list[str] = []
    while sum(len(sentence.split()) for sentence in sentences) + len(reply.split()) < N_WORDS:
        sentences.append(FILLER[len(sentences) % len(FILLER)])
    place = generator.randrange(len(sentences) + 1)
    return "\n".join(filter(None, [" ".join(sentences[:place]), reply, " ".join(sentences[place:])]))


def main() -> None:
    """Measure each model on each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lists", type=int, default=60)
    options = parser.parse_args()
    for name in options.models:
        scorer = load(name)
        for one in SETS:
            generator = random.Random(0)
            examples = generator.sample(
                list(read_examples(options.data / one / "test.jsonl.gz").examples), options.lists
            )
            alone = [shortened(example) for example in examples]
            long = [replace(e, candidates=tuple(document(text, generator) for text in e.candidates)) for e in alone]
            running = [replace(e, candidates=tuple(text.replace("\n", " ") for text in e.candidates)) for e in long]
            truncated = scorer.score([e.query for e in long], [e.candidates for e in long])
            figures = {
                "n_lists": len(alone),
                "alone": summarise(evaluate(scorer, alone))["metrics"]["R@1"],
                "documents": summarise(evaluate(scorer, long))["metrics"]["R@1"],
                "running": summarise(evaluate(scorer, running))["metrics"]["R@1"],
                "truncated": float(np.mean([row.argmax() == 0 and row[0] > row[1:].max() for row in truncated])),
            }
            record.write(f"long/{name.removeprefix('shipped:')}/{one}", figures)
            print(name, one, json.dumps(figures), flush=True)


def shortened(example: Example) -> Example:
    """The example with its first right reply and its first wrong ones."""
    right = with_duplicates(example.candidates, example.relevant)
    wrong = [place for place in range(len(example.candidates)) if place not in right]
    places = [example.relevant[0], *wrong[: N_CANDIDATES - 1]]
    return replace(example, candidates=tuple(example.candidates[place] for place in places), relevant=(0,))


if __name__ == "__main__":
    main()
