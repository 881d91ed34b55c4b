"""Compares two networks trained together with the same two trained apart, over several seeds.

    python runs/mutual_seeds.py FOLDER SEED ...

reads FOLDER/ALPHA-SEED-NETWORK.scores.jsonl, which runs/mutual_seeds.sh writes, and prints one JSON object: for each
network its figures apart (ALPHA = 0) and together (ALPHA = 1), and their paired differences, tested over dialogues and
over seeds; for the retriever also the gain of each over the first one.
"""

import json
import sys
from pathlib import Path
from typing import Any

from polyrank.evaluation import Evaluation, paired_test, paired_tests, read_scores, summarise
from polyrank.ranking.statistics import paired_t

METRICS = ("R@1", "MRR")


def main() -> None:
    """Print the comparison."""
    folder, seeds = Path(sys.argv[1]), sys.argv[2:]

    def read(name: str) -> Evaluation:
        return read_scores(folder / f"{name}.scores.jsonl")

    first = read("first")
    found: dict[str, Any] = {"seeds": [int(seed) for seed in seeds], "first": summarise(first)}
    for network in ("retriever", "reranker"):
        apart, together = ([read(f"{alpha}-{seed}-{network}") for seed in seeds] for alpha in (0, 1))
        tests = {test["metric"]: test for test in paired_tests(together, apart, METRICS)}
        for metric, test in tests.items():
            each = [paired_test(a, b, metric=metric)["difference"] for a, b in zip(together, apart, strict=True)]
            test["over_seeds"] = paired_t(each)
        found[network] = {"apart": summarise(apart), "together": summarise(together), "tests": tests}
        if network == "retriever":
            found["gain"] = {"apart": paired_test(apart, first), "together": paired_test(together, first)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
