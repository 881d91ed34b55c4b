"""MAP: a frozen encoder with a learned linear map of its response vectors, ``score = h_c . W h_r``.

    python runs/papers/response_map.py TRAIN --valid LISTS --encoder NAME -o FILE.npz

fits the map and writes it; `python runs/papers/evaluate.py NAME DATA --map FILE.npz` evaluates it.

Shapes: N pairs, U distinct responses, V validation contexts, M vectors per context, D dimensions, B pairs of a batch.

Source: Henderson et al., ConveRT (2020), section 3.1, "Baselines"; Henderson et al., A Repository of Conversational
Datasets (2019), section 4.2.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from polyrank.tuning.grid import fit_grid

from polyrank import Encoder, Example, load
from polyrank.config.recipe import DataConfig
from polyrank.errors import DivergedError
from polyrank.evaluation.protocols import rankable
from polyrank.models.losses import cross_entropy
from polyrank.models.scoring import scores
from polyrank.ranking.metrics import hit_at, placement_of, with_duplicates
from polyrank.records import Context, ContextLike
from polyrank.scorers.encoded import score_row
from polyrank.training.data import load_data

Floats = NDArray[np.float32]
TEXTS_AT_A_TIME = 256
SELF_SCORE = 20.0  # scores start in the range of cosine x 20, in which a softmax over a batch learns well
RATES, DECAYS = (3e-3, 1e-3, 3e-4), (1e-2, 3e-3)


class MapEncoder(Encoder):
    """Contexts as the frozen encoder encodes them, candidates mapped by ``W``, ``[D, D]``."""

    def __init__(self, encoder: Encoder, matrix: Floats) -> None:
        self.encoder, self.matrix, self.dimension = encoder, matrix, encoder.dimension

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Those of the encoder, ``[B, M, D]`` and a mask ``[B, M]``."""
        return self.encoder.encode_contexts(contexts)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Mapped vectors ``[N, D]``."""
        vectors: Floats = self.encoder.encode_candidates(candidates) @ self.matrix.T
        return vectors


@dataclass(frozen=True, slots=True)
class Pairs:
    """Encoded training pairs.

    Args:
        contexts: ``[N, M, D]``.
        mask: ``[N, M]``.
        responses: the distinct ones, ``[U, D]``.
        keys: ``[N]``, the row of each context's response.
        groups: ``[N]``, a number per context, the same for equal contexts.
        also_right: ``[R, 2]``: a context's group and the row of one of its right answers, for those of which an example
            has several.
    """

    contexts: Floats
    mask: NDArray[np.bool_]
    responses: Floats
    keys: NDArray[np.int64]
    groups: NDArray[np.int64]
    also_right: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    _right: NDArray[np.int64] = field(init=False, repr=False)  # a number for each context and right answer, sorted

    def __post_init__(self) -> None:
        groups, keys = np.concatenate([np.stack([self.groups, self.keys], 1), self.also_right]).T
        object.__setattr__(self, "_right", np.unique(groups * len(self.responses) + keys))

    def wrong(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which responses of a batch ``[B]`` are negatives of which contexts: ``[B, B]``."""
        asked = self.groups[rows][:, None] * len(self.responses) + self.keys[rows][None]
        places = np.minimum(np.searchsorted(self._right, asked), len(self._right) - 1)
        wrong: NDArray[np.bool_] = self._right[places] != asked
        return wrong


@dataclass(frozen=True, slots=True)
class Ranking:
    """Encoded validation lists.

    Args:
        contexts: ``[V, M, D]``.
        mask: ``[V, M]``.
        candidates: the distinct ones, ``[U, D]``.
        rows: for each context, the rows of its candidates.
        relevant: for each context, the positions of the right ones in its list.
    """

    contexts: Floats
    mask: NDArray[np.bool_]
    candidates: Floats
    rows: tuple[NDArray[np.int64], ...]
    relevant: tuple[tuple[int, ...], ...]

    def hits(self, matrix: Floats) -> list[float]:
        """R@1 of each context, with candidates mapped by ``matrix``."""
        candidates = self.candidates @ matrix.T
        return [
            hit_at(placement_of(score_row(self.contexts[i], self.mask[i], candidates[rows]), right), 1)
            for i, (rows, right) in enumerate(zip(self.rows, self.relevant, strict=True))
        ]

    def accuracy(self, matrix: Floats) -> float:
        """R@1 with candidates mapped by ``matrix``."""
        return float(np.mean(self.hits(matrix)))


def fit_map(
    pairs: Pairs,
    valid: Ranking,
    *,
    rates: Sequence[float] = RATES,
    decays: Sequence[float] = DECAYS,
    max_epochs: int = 40,
    batch_size: int = 256,
    patience: int = 8,
) -> tuple[Floats, float, float]:
    """Fit ``W = s (I + A)`` so that responses score above the others of their batch.

    ``loss = -log softmax_r(h_c . W h_r) + l2 |A|^2``, where no right answer to c is a negative. A starts at zero, so
    the first ranking is plain similarity. If no map ranks better than that, A stays zero.

    Returns:
        W, and R@1 of the validation lists with it and without.
    """
    identity = np.eye(pairs.responses.shape[1], dtype=np.float32)
    similarity, start = valid.accuracy(identity), 1.0
    if pairs.contexts.shape[1] == 1:  # with several vectors per context, attention depends on the size of scores
        size = np.linalg.norm(pairs.contexts[:, 0], axis=1).mean() * np.linalg.norm(pairs.responses, axis=1).mean()
        start = SELF_SCORE / max(float(size), 1e-12)

    def fit(point: tuple[float, float]) -> tuple[float, Floats]:
        return _fit_one(pairs, valid, *point, start, max_epochs=max_epochs, batch_size=batch_size, patience=patience)

    fits = fit_grid(list(product(rates, decays)), fit, lambda *_: None)
    accuracy, matrix = max(fits, key=lambda one: one[0])
    return matrix if accuracy > similarity else start * identity, max(accuracy, similarity), similarity


def _fit_one(
    pairs: Pairs,
    valid: Ranking,
    rate: float,
    l2: float,
    start: float,
    *,
    max_epochs: int,
    batch_size: int,
    patience: int,
) -> tuple[float, Floats]:
    """R@1 and W of the best epoch of one learning rate and one decay."""
    contexts, mask = torch.from_numpy(pairs.contexts), torch.from_numpy(pairs.mask)
    responses, keys = torch.from_numpy(pairs.responses), torch.from_numpy(pairs.keys)
    identity = torch.eye(responses.shape[1])
    change = torch.zeros_like(identity, requires_grad=True)  # A
    log_scale = torch.tensor(math.log(start), requires_grad=True)
    optimizer = torch.optim.Adam([change, log_scale], lr=rate)
    best, best_epoch, best_matrix = -1.0, 0, (start * identity).numpy()
    for epoch in range(1, max_epochs + 1):
        order = np.random.Generator(np.random.PCG64([1, epoch])).permutation(len(keys))
        for batch in torch.split(torch.from_numpy(order), batch_size):
            if len(batch) < 2:
                continue
            candidates = responses[keys[batch]] @ (log_scale.exp() * (identity + change)).T
            values = scores(contexts[batch], candidates[None], mask[batch])
            loss = cross_entropy(values, torch.arange(len(batch)), torch.from_numpy(pairs.wrong(batch.numpy())))
            optimizer.zero_grad()
            (loss + l2 * change.square().sum()).backward()
            optimizer.step()
        matrix: Floats = (log_scale.exp() * (identity + change)).detach().numpy()
        if not np.isfinite(matrix).all():
            raise DivergedError(f"the map at lr {rate} and l2 {l2} is not finite after {epoch} epochs")
        if (accuracy := valid.accuracy(matrix)) > best:
            best, best_epoch, best_matrix = accuracy, epoch, matrix
        elif epoch - best_epoch >= patience:
            break
    return best, best_matrix


def encode_pairs(encoder: Encoder, examples: Sequence[Example]) -> Pairs:
    """Encode each context and each distinct response once."""
    texts = [example.candidates[example.relevant[0]] for example in examples]
    rows = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    numbers = {query: i for i, query in enumerate(dict.fromkeys(example.query for example in examples))}
    keys, groups = [rows[text] for text in texts], [numbers[example.query] for example in examples]
    more = [
        (group, rows[text])
        for example, group in zip(examples, groups, strict=True)
        for text in (example.candidates[i] for i in example.relevant[1:])
        if text in rows
    ]
    also_right = np.array(more, np.int64).reshape(-1, 2)
    contexts, mask = _encode_contexts(encoder, [example.query for example in examples])
    responses = encoder.encode_candidates(list(rows))
    return Pairs(contexts, mask, responses, np.array(keys, np.int64), np.array(groups, np.int64), also_right)


def encode_lists(encoder: Encoder, examples: Sequence[Example]) -> Ranking:
    """Encode each context and each distinct candidate of lists that can be ranked, once."""
    examples = rankable(examples)
    rows = {text: i for i, text in enumerate(dict.fromkeys(t for e in examples for t in e.candidates))}
    contexts, mask = _encode_contexts(encoder, [example.query for example in examples])
    return Ranking(
        contexts,
        mask,
        encoder.encode_candidates(list(rows)),
        tuple(np.array([rows[text] for text in e.candidates], np.int64) for e in examples),
        tuple(with_duplicates(e.candidates, e.relevant) for e in examples),
    )


def _encode_contexts(encoder: Encoder, contexts: Sequence[Context]) -> tuple[Floats, NDArray[np.bool_]]:
    """Contexts of similar length are encoded together: the longest one of a part decides its padding."""
    order = sorted(range(len(contexts)), key=lambda i: sum(map(len, contexts[i].turns)))
    parts = [order[start : start + TEXTS_AT_A_TIME] for start in range(0, len(order), TEXTS_AT_A_TIME)]
    encoded = [encoder.encode_contexts([contexts[i] for i in rows]) for rows in parts]
    width = max(vectors.shape[1] for vectors, _ in encoded)
    result = np.zeros((len(contexts), width, encoder.dimension), np.float32)
    mask = np.zeros((len(contexts), width), np.bool_)
    for rows, (vectors, real) in zip(parts, encoded, strict=True):
        result[rows, : vectors.shape[1]], mask[rows, : vectors.shape[1]] = vectors, real
    return result, mask


def main() -> None:
    """Encode, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--valid", required=True, help="candidate lists")
    parser.add_argument("--encoder", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--max-train", type=int, default=20_000)
    parser.add_argument("--max-valid", type=int, default=500)
    parser.add_argument("--max-epochs", type=int, default=40)
    options = parser.parse_args()
    encoder = load(options.encoder)
    assert isinstance(encoder, Encoder), f"{options.encoder} has no vectors to map"
    data = DataConfig(
        train=options.train, valid=options.valid, max_train=options.max_train, max_valid=options.max_valid
    )
    examples, valid = load_data(data)
    pairs = encode_pairs(encoder, [example for example in examples if example.relevant])
    matrix, accuracy, similarity = fit_map(pairs, encode_lists(encoder, valid), max_epochs=options.max_epochs)
    np.savez(options.output, matrix=matrix)
    print(json.dumps({"n_train": len(pairs.keys), "map": accuracy, "similarity": similarity}))


if __name__ == "__main__":
    main()
