"""How much wider are intervals over dialogues than over examples? Writes runs/results/intervals.jsonl.

    python runs/intervals.py DATA [SET ...]

BM25 and shipped:convert rank all test lists of each set. Their intervals of R@1, and that of the paired difference, are
bootstrapped both ways. The older figures of docs/results.md have intervals over examples only.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import record

from polyrank.evaluation.scores_file import read_scores
from polyrank.evaluation.tables import dialogues_of, mean_with_interval
from polyrank.ranking.metrics import metric_values

SETS = ("star", "sgd", "ubuntu-irc", "self-dialogue", "convai2-valid")
MODELS = ("bm25", "shipped:convert")


def main() -> None:
    """Measure each set."""
    data, sets = Path(sys.argv[1]), sys.argv[2:] or SETS
    for name in sets:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{number}.jsonl" for number in range(len(MODELS))]
            for model, file in zip(MODELS, files, strict=True):
                command = ["polyrank", "evaluate", model, data / name / "test.jsonl.gz", "--scores", file]
                subprocess.run([*command, "--threads", "1", "--json"], check=True, stdout=subprocess.DEVNULL)
            evaluations = [read_scores(file) for file in files]
        ids = [one.id for one in evaluations[0].answerable]
        hits = [metric_values([one.placement for one in each.answerable], (1,))["R@1"] for each in evaluations]
        wider = {}
        for what, values in zip([*MODELS, "difference"], [*hits, hits[1] - hits[0]], strict=True):
            ends = [mean_with_interval(values, dialogues_of(ids, unit)) for unit in ("auto", "none")]
            wider[what] = (ends[0]["high"] - ends[0]["low"]) / (ends[1]["high"] - ends[1]["low"])
        n_dialogues = len(np.unique(dialogues_of(ids)))
        record.write(f"intervals/{name}", {"n_examples": len(ids), "n_dialogues": n_dialogues, "wider": wider})
        print(name, len(ids), n_dialogues, {what: round(ratio, 2) for what, ratio in wider.items()}, flush=True)


if __name__ == "__main__":
    main()
