"""The gain of a second stage on pairs that no stage has seen, which a training in one pass measures.

    python runs/unseen.py RUN/metrics.jsonl ...

A training with ``method.kind = "rerank"`` records, before each update, the first stage's mean loss on the lists of the
batch, and that of both stages. Prints one JSON object: the lists that hold the right answer in the second half of all
files' updates, both mean losses there, and the 95% interval of their difference over batches.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(files: list[Path]) -> dict[str, float | int | list[float]]:
    """Both losses over the later updates of some trainings."""
    rows = []
    for file in files:
        steps = [
            row for line in file.read_text("utf-8").splitlines() if "first_stage_loss" in (row := json.loads(line))
        ]
        rows += [row for row in steps[len(steps) // 2 :] if row["n_found"]]
    if not rows:
        raise SystemExit("no list of the later updates holds the right answer; train for more updates")
    n, first, both = (np.array([row[key] for row in rows]) for key in ("n_found", "first_stage_loss", "loss"))
    mean = [float(np.average(values, weights=n)) for values in (first, both)]
    error = 1.96 * float(np.sqrt((n**2 * (both - first - (mean[1] - mean[0])) ** 2).sum()) / n.sum())
    difference = mean[1] - mean[0]
    return {
        "n": int(n.sum()),
        "first_stage_loss": mean[0],
        "loss": mean[1],
        "interval": [difference - error, difference + error],
    }


if __name__ == "__main__":
    print(json.dumps(main([Path(name) for name in sys.argv[1:]])))
