"""MAP of ConveRT's tables: a frozen encoder whose response vectors pass through a linear map.

    python runs/papers/response_map.py TRAIN --valid LISTS --encoder NAME -o FILE.npz

fits the map, writes it and prints figures; `python runs/papers/evaluate.py NAME DATA --map FILE.npz` evaluates it.
``score = h_c . W h_r`` with ``W = s (I + A)``, fitted by ``-log softmax_r(h_c . W h_r) + l2 |A|^2`` over the responses
of a batch, of which no right answer to c is a negative. A starts at zero; the epoch, learning rate and decay with the
best R@1 on validation lists are kept.

Source: Henderson et al., ConveRT (2020), section 3.1; A Repository of Conversational Datasets (2019), section 4.2.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank import Encoder, evaluate, load
from polyrank.config.recipe import DataConfig
from polyrank.models.losses import cross_entropy
from polyrank.ranking.metrics import hit_at
from polyrank.records import Example
from polyrank.training.data import load_data

GRID = tuple(product((3e-3, 1e-3, 3e-4), (1e-2, 3e-3)))  # learning rates of Adam, decays
BATCH, PATIENCE, SELF_SCORE = 256, 8, 20.0  # scores start in the range of cosine x 20


class MapEncoder(Encoder):
    """A frozen encoder of one vector per context, with candidate vectors mapped by ``W``."""

    def __init__(self, encoder: Encoder, matrix: np.ndarray) -> None:
        self.encoder, self.matrix, self.dimension = encoder, matrix, encoder.dimension

    def encode_contexts(self, contexts: Sequence[Any]) -> Any:
        """Those of the frozen encoder."""
        return self.encoder.encode_contexts(contexts)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        """``W h_r`` for each."""
        return self.encoder.encode_candidates(candidates) @ self.matrix.T


class Remembered(Encoder):
    """An encoder that encodes each text once."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.dimension = encoder, encoder.dimension
        self.vectors: dict[Any, np.ndarray] = {}

    def _of(self, items: Sequence[Any], encode: Any) -> np.ndarray:
        new = sorted({item for item in items if item not in self.vectors}, key=lambda item: len(str(item)))
        for start in range(0, len(new), 256):  # texts of similar length together
            self.vectors |= dict(zip(new[start : start + 256], encode(new[start : start + 256]), strict=True))
        return np.stack([self.vectors[item] for item in items])

    def encode_contexts(self, contexts: Sequence[Any]) -> Any:
        """``[B, 1, D]`` and a mask of ones."""
        vectors = self._of(contexts, lambda part: self.encoder.encode_contexts(part)[0][:, 0])
        return vectors[:, None], np.ones((len(vectors), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        """``[N, D]``."""
        return self._of(candidates, self.encoder.encode_candidates)


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs: contexts ``[N, D]``, distinct responses ``[U, D]``, and for each pair the row of its response.

    Args:
        groups: ``[N]``, the same number for equal contexts.
        right: sorted ``group * U + row`` of each right answer of the data.
    """

    contexts: torch.Tensor
    responses: torch.Tensor
    keys: np.ndarray
    groups: np.ndarray
    right: np.ndarray

    def wrong(self, rows: np.ndarray) -> torch.Tensor:
        """Which responses of a batch ``[B]`` are negatives of which contexts: ``[B, B]``."""
        asked = self.groups[rows][:, None] * len(self.responses) + self.keys[rows]
        return torch.from_numpy(self.right[np.searchsorted(self.right, asked).clip(max=len(self.right) - 1)] != asked)


def encode_pairs(encoder: Encoder, examples: Sequence[Example]) -> Pairs:
    """Encode each context and each distinct response once."""
    keys = {text: key for key, text in enumerate(dict.fromkeys(example.response or "" for example in examples))}
    groups = {query: group for group, query in enumerate(dict.fromkeys(example.query for example in examples))}
    right = {
        groups[example.query] * len(keys) + keys[text]
        for example in examples
        for text in (example.candidates[i] for i in example.relevant)
        if text in keys
    }
    return Pairs(
        torch.from_numpy(encoder.encode_contexts([example.query for example in examples])[0][:, 0]),
        torch.from_numpy(encoder.encode_candidates(list(keys))),
        np.array([keys[example.response or ""] for example in examples]),
        np.array([groups[example.query] for example in examples]),
        np.array(sorted(right)),
    )


def hits(encoder: Encoder, matrix: np.ndarray, lists: Sequence[Example]) -> list[float]:
    """R@1 of each list."""
    return [hit_at(record.placement, 1) for record in evaluate(MapEncoder(encoder, matrix), lists).records]


def fit_map(
    encoder: Encoder,
    train: Sequence[Example],
    valid: Sequence[Example],
    *,
    grid: Sequence[tuple[float, float]] = GRID,
    max_epochs: int = 40,
    batch: int = BATCH,
) -> tuple[np.ndarray, dict[str, Any]]:
    """The best ``W`` on validation lists, and figures; a scaled identity if no map is better than none."""
    pairs = encode_pairs(encoder, train)
    identity = torch.eye(pairs.responses.shape[1])
    start = SELF_SCORE / float(pairs.contexts.norm(dim=1).mean() * pairs.responses.norm(dim=1).mean())
    plain = float(np.mean(hits(encoder, identity.numpy(), valid)))
    best, trials = (plain, (start * identity).numpy()), []
    for lr, l2 in grid:
        change = torch.zeros_like(identity, requires_grad=True)
        log_scale = torch.tensor(math.log(start), requires_grad=True)
        optimizer = torch.optim.Adam([change, log_scale], lr=lr)
        reached, at = -1.0, 0
        for epoch in range(1, max_epochs + 1):
            order = np.random.Generator(np.random.PCG64([1, epoch])).permutation(len(train))
            for rows in (order[first : first + batch] for first in range(0, len(order) - 1, batch)):
                mapped = pairs.responses[pairs.keys[rows]] @ (log_scale.exp() * (identity + change)).T
                loss = cross_entropy(pairs.contexts[rows] @ mapped.T, torch.arange(len(rows)), pairs.wrong(rows))
                optimizer.zero_grad()
                torch.autograd.backward(loss + l2 * change.square().sum())
                optimizer.step()
            matrix = (log_scale.exp() * (identity + change)).detach().numpy()
            found = float(np.mean(hits(encoder, matrix, valid))) if np.isfinite(matrix).all() else -1.0
            if found > reached:
                reached, at = found, epoch
                best = max(best, (reached, matrix), key=lambda one: one[0])
            elif epoch - at >= PATIENCE:
                break
        trials.append({"lr": lr, "l2": l2, "n_epochs": at, "R@1": reached})
    figures = {"n_train": len(train), "n_valid": len(valid), "similarity": plain, "map": best[0], "trials": trials}
    return best[1], figures


def main() -> None:
    """Fit, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--valid", required=True, help="candidate lists")
    parser.add_argument("--encoder", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--max-train", type=int, default=20_000)
    parser.add_argument("--max-valid", type=int, default=500)
    parser.add_argument("--max-epochs", type=int, default=40)
    options = parser.parse_args()
    sizes = {"max_train": options.max_train, "max_valid": options.max_valid}
    examples, valid = load_data(DataConfig(train=options.train, valid=options.valid, **sizes))
    encoder = load(options.encoder)
    assert isinstance(encoder, Encoder), f"{options.encoder} has no vectors to map"
    train = [example for example in examples if example.relevant]
    matrix, figures = fit_map(Remembered(encoder), train, valid, max_epochs=options.max_epochs)
    np.savez(options.output, matrix=matrix)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
