"""Fits the relevance of shipped models on validation lists, writes it into their folders, and measures it on others.

    python runs/relevance.py [MODEL ...] [--data ../shared/data] [--lists 60]

Models are names such as shipped:rerank; by default all that ship. Four sets give as many lists each: for the fit, the
right reply and the first 39 wrong ones of each list; for the measurement, all 100. Stores relevance/MODEL/SET with
runs/record.py: the expected calibration error, R@1, and the shares of right and of wrong replies at 0.5 or above.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import record

from polyrank.config.models import MODEL
from polyrank.config.names import model_folder
from polyrank.data import read_examples
from polyrank.loading.folders import RANKER
from polyrank.ranking.metrics import with_duplicates
from polyrank.ranking.relevance import RELEVANCE, Relevance, calibration_error, fit_relevance
from polyrank.records import Example
from polyrank.scorers.open import load
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.storage.document import has_document, read_document, seal

MODELS = ("shipped:convert", "shipped:minilm", "shipped:late", "shipped:rerank")
SETS = ("star", "sgd", "self-dialogue", "ubuntu-irc")
N_FITTED = 40  # candidates of a list: the probabilities are those of one right reply among so many
BATCH = 8


def shortened(example: Example) -> Example:
    """The example with its first right reply and its first wrong ones."""
    right = with_duplicates(example.candidates, example.relevant)
    wrong = [place for place in range(len(example.candidates)) if place not in right]
    places = [example.relevant[0], *wrong[: N_FITTED - 1]]
    return replace(example, candidates=tuple(example.candidates[place] for place in places), relevant=(0,))


def lists_of(file: Path, n: int) -> list[Example]:
    """Some of the lists of a file, the same in every call."""
    examples = list(read_examples(file).examples)
    return random.Random(0).sample(examples, min(n, len(examples)))


def scores_of(scorer: Scorer, lists: Sequence[Example]) -> list[Floats]:
    """The raw scores of each list."""
    batches = [lists[start : start + BATCH] for start in range(0, len(lists), BATCH)]
    return [row for part in batches for row in scorer.score([e.query for e in part], [e.candidates for e in part])]


def write(name: str, relevance: Relevance) -> None:
    """Store it in the document of a shipped model or ranker; the fingerprint does not depend on it."""
    folder = model_folder(name)
    kind = RANKER if has_document(folder, RANKER) else MODEL
    document = read_document(folder, kind)
    holder = document if kind is RANKER else document["metadata"]
    holder[RELEVANCE] = asdict(relevance)
    (folder / kind.file).write_bytes(seal(document, kind))


def main() -> None:
    """Fit, write and measure each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lists", type=int, default=60)
    options = parser.parse_args()
    for name in options.models:
        scorer = load(name)
        fitted = [shortened(e) for one in SETS for e in lists_of(options.data / one / "dev.jsonl.gz", options.lists)]
        relevance = fit_relevance(scores_of(scorer, fitted), [(0,)] * len(fitted))
        write(name, relevance)
        print(name, relevance, flush=True)
        for one in SETS:
            lists = lists_of(options.data / one / "test.jsonl.gz", options.lists)
            scores = np.concatenate(scores_of(scorer, lists))
            right = np.concatenate(
                [np.isin(np.arange(len(e.candidates)), with_duplicates(e.candidates, e.relevant)) for e in lists]
            )
            p = relevance.of(scores)
            first = np.split(scores, np.cumsum([len(e.candidates) for e in lists])[:-1])
            hits = [
                int(row.argmax()) in with_duplicates(e.candidates, e.relevant)
                for row, e in zip(first, lists, strict=True)
            ]
            figures = {
                "n_lists": len(lists),
                "n_candidates": len(lists[0].candidates),
                "fit": asdict(relevance),
                "ece": calibration_error(p, right),
                "R@1": float(np.mean(hits)),
                "right": float((p[right] >= 0.5).mean()),
                "wrong": float((p[~right] >= 0.5).mean()),
            }
            record.write(f"relevance/{name.removeprefix('shipped:')}/{one}", figures)
            print(one, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
