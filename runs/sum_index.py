"""Compares an index of a sum of encoders with adding the two encoders' scores: the ten best, and the speed.

    python runs/sum_index.py DATA [-n 100000] [--contexts 1000] [--sum FOLDER]

Candidates are distinct turns of self-dialogue; contexts come from star's test part. The default sum is of
shipped:minilm and shipped:convert. Prints JSON: for how many contexts the index returns the ten best by the two
encoders' scores, computed separately and added in fp64; and median search times of the sum, of its largest part, and of
random vectors of the sum's dimension, measured in alternation.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from polyrank.scorers.summed import SumEncoder, save_sum

import polyrank
from polyrank.bench.machine import describe_machine
from polyrank.data.rows import rows
from polyrank.index import open_index
from polyrank.scorers.open import load_encoder
from polyrank.search import search

K, BATCH = 10, 50


class Whole:
    """Vectors in memory as candidates to search."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors, self.rows, self.alive = vectors, np.arange(len(vectors)), None


def turns(data: Path, n: int) -> list[str]:
    """The first ``n`` distinct turns, in the order of the file."""
    texts: dict[str, None] = {}
    for _, row in rows(data / "self-dialogue/train.dialogues.jsonl.gz"):
        assert isinstance(row, dict)
        texts.update(dict.fromkeys(turn["text"] if isinstance(turn, dict) else turn for turn in row["turns"]))
        if len(texts) >= n:
            break
    return list(texts)[:n]


def timed(pools: dict[str, Whole], contexts: dict[str, NDArray[np.float32]]) -> dict[str, float]:
    """Median milliseconds to find one context's ten best."""
    times: dict[str, list[float]] = {name: [] for name in pools}
    for number in range(len(next(iter(contexts.values())))):
        for name, pool in pools.items():
            started = perf_counter()
            search(contexts[name][[number]], np.ones((1, 1), bool), [pool], K)  # type: ignore[list-item]
            times[name].append(1e3 * (perf_counter() - started))
    return {name: round(median(values[3:]), 2) for name, values in times.items()}


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", type=Path)
    parser.add_argument("-n", type=int, default=100_000)
    parser.add_argument("--contexts", type=int, default=1000)
    parser.add_argument("--sum")
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = turns(options.data, options.n)
    test = polyrank.read_examples(options.data / "star/test.jsonl.gz").examples[: options.contexts]
    contexts = [example.query for example in test]
    with tempfile.TemporaryDirectory() as folder:
        parts = [load_encoder(name) for name in ("shipped:minilm", "shipped:convert")]
        save_sum(Path(folder, "sum"), SumEncoder(parts, [1, 1]))
        encoder = load_encoder(options.sum or str(Path(folder, "sum")))
        assert isinstance(encoder, SumEncoder)
        polyrank.build_index(Path(folder, "index"), encoder, texts)
        index = open_index(Path(folder, "index"))
        whole = Whole(np.concatenate([np.asarray(block.vectors) for block in index.view()[0]]))
        own, mask = encoder.encode_contexts(contexts)
        found = [result for i in range(0, len(own), BATCH)
                 for result in search(own[i : i + BATCH], mask[i : i + BATCH], index.view()[0], K)]  # fmt: skip
        apart = [(part.encode_contexts(contexts)[0][:, 0], part.encode_candidates(texts)) for part in encoder.parts]
        position = {text: number for number, text in enumerate(texts)}
        same, worst = 0, 0.0
        for number, result in enumerate(found):
            pairs = zip(encoder.weights, apart, strict=True)
            total = sum(w * (them.astype(np.float64) @ us[number].astype(np.float64)) for w, (us, them) in pairs)
            best = np.argsort(-total, kind="stable")[:K]
            ranked = [position[candidate.text] for candidate in index.candidates(result.rows.tolist())]
            same += best.tolist() == ranked
            worst = max(worst, float(np.abs(total[best] - total[ranked]).max() / np.abs(total[best]).max()))
        largest = max(range(len(apart)), key=lambda i: apart[i][1].shape[1])
        generator = np.random.default_rng(1)
        pools = {"sum": whole, "largest part": Whole(apart[largest][1])}
        pools["random"] = Whole(generator.standard_normal(whole.vectors.shape, np.float32))
        some = {"sum": own[:100], "largest part": apart[largest][0][:100, None]}
        some["random"] = generator.standard_normal(some["sum"].shape, np.float32)
        result: dict[str, Any] = {
            "machine": describe_machine(), "load": os.getloadavg(), "n_candidates": len(texts),
            "n_contexts": len(contexts), "dimensions": {name: pool.vectors.shape[1] for name, pool in pools.items()},
            "same_ten": same, "largest_relative_difference": worst, "ms": timed(pools, some),
        }  # fmt: skip
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
