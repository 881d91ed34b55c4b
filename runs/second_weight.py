"""The weight w of a second stage, g + w s, that is best on lists: 1 if it was trained well, below 0 if it misleads.

    python runs/second_weight.py FIRST SECOND LISTS [--limit N]

prints one JSON object: ``n_found`` of ``n`` lists have a right answer among the 25 best of FIRST; on these, the mean
loss of g, of g + s and of the best a g + w s, and w / a; and over all lists R@1 of g and of g + s.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polyrank.data import read_examples
from polyrank.scorers.open import load, load_stage

N_BEST = 25
AT_A_TIME = 50


def main(first: str, second: str, lists: Path, limit: int | None) -> dict[str, float]:
    """Score the lists by both stages, and fit a and w."""
    first_stage, reranker = load(first), load_stage(second)
    examples, both, right = read_examples(lists).examples[:limit], [], []
    for start in range(0, len(examples), AT_A_TIME):
        some = examples[start : start + AT_A_TIME]
        queries = [example.query for example in some]
        scored = first_stage.score(queries, [example.candidates for example in some])
        bests = [np.argsort(-scores, kind="stable")[:N_BEST] for scores in scored]
        shown = [[example.candidates[i] for i in best] for example, best in zip(some, bests, strict=True)]
        for example, scores, best, more in zip(some, scored, bests, reranker.score(queries, shown), strict=True):
            both.append(np.stack([scores[best], more], axis=1))
            right.append([i in example.relevant for i in best.tolist()])
    values, is_right = torch.tensor(np.array(both), dtype=torch.float64), torch.tensor(right)
    found = is_right.any(1)
    target = is_right[found].int().argmax(1)

    def loss(factors: Tensor) -> Tensor:
        return cross_entropy(values[found] @ factors, target)

    def r1(factors: Tensor) -> float:
        return float(is_right[torch.arange(len(right)), (values @ factors).argmax(1)].double().mean())

    factors = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=200)

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(factors)
        value.backward()
        return value.item()

    optimizer.step(closure)
    a, w = factors.tolist()
    one, two = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return {
        "n": len(right),
        "n_found": int(found.sum()),
        "loss_first": float(loss(one)),
        "loss_both": float(loss(two)),
        "loss_best": loss(factors).item(),
        "weight": w / a,
        "R@1_first": r1(one),
        "R@1_both": r1(two),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", help="an encoder, or a ranker of several")
    parser.add_argument("second", help="a re-ranker that corrects it")
    parser.add_argument("lists", type=Path, help="examples with candidates")
    parser.add_argument("--limit", type=int, help="use the first N examples only")
    print(json.dumps(main(**vars(parser.parse_args()))))
