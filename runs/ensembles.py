"""Evaluates the sum of two models' scores from their scores files, with the scale chosen on validation lists.

    python runs/ensembles.py FOLDER RETRIEVER RERANKER

reads FOLDER/NAME.dev.scores.jsonl and FOLDER/NAME.test.scores.jsonl of both models and prints one JSON object: the
chosen scale, the ensemble's figures on the test lists, and paired tests against each model and between the two. The
scale has the best validation MRR: the re-ranker alone, raw scores added, or z-scores added.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from papers.combining import by_z_score, reranker_alone

from polyrank.evaluation import Evaluation, paired_test, read_scores, summarise
from polyrank.ranking.metrics import placement_of
from polyrank.ranking.statistics import holm
from polyrank.scorers.two_stage import Combine

FORMS: dict[str, Combine] = {"alone": reranker_alone, "raw": np.add, "z-score": by_z_score}


def ensemble(first: Evaluation, second: Evaluation, how: str) -> Evaluation:
    """The re-ranker's evaluation with summed scores."""
    records = []
    for a, b in zip(first.records, second.records, strict=True):
        assert a.id == b.id, f"{a.id} is paired with {b.id}: the two files hold different examples"
        assert a.scores is not None, "the scores file must hold candidate lists"
        assert b.scores is not None, "the scores file must hold candidate lists"
        scores = FORMS[how](a.scores, b.scores)
        records.append(replace(b, scores=scores, placement=placement_of(scores, b.relevant)))
    return replace(second, records=tuple(records))


def main() -> None:
    folder, *names = sys.argv[1:]
    dev, test = (
        [read_scores(Path(folder) / f"{name}.{part}.scores.jsonl") for name in names] for part in ("dev", "test")
    )
    figures = {how: summarise(ensemble(*dev, how))["metrics"]["MRR"] for how in FORMS}
    how = max(figures, key=lambda one: figures[one])
    both = ensemble(*test, how)
    found = {"ensemble": how, "validation": figures, "n_validation": len(dev[0].records), **summarise(both)}
    tests = {f"ensemble against {name}": paired_test(both, one) for name, one in zip(names, test, strict=True)}
    tests[f"{names[1]} against {names[0]}"] = paired_test(test[1], test[0])
    for each, p in zip(tests.values(), holm([each["p"] for each in tests.values()]), strict=True):
        each["p_adjusted"] = p
    print(json.dumps({**found, "tests": tests}))


if __name__ == "__main__":
    main()
