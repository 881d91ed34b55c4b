"""Fitting a linear map on frozen encodings: in-batch softmax, with decay towards the identity.

Shapes: N pairs, U distinct responses, V validation contexts, M vectors per context, D dimensions, B pairs of a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.config.checked import AtLeastTwo, Count, NonNegativeFloat, NonNegativeInt, Settings
from polyrank.errors import ConfigError, DataError, ResourceError
from polyrank.evaluation.protocols import rankable
from polyrank.frozen.grid import fit_grid
from polyrank.models.losses import cross_entropy
from polyrank.models.scoring import scores
from polyrank.ranking.metrics import hit_at, placement_of, with_duplicates
from polyrank.records import Context, Example
from polyrank.scorers.encoded import score_row
from polyrank.scorers.mapped import MapEncoder, apply_map
from polyrank.scorers.protocols import Encoder, Floats

TEXTS_AT_A_TIME = 256
MAX_BYTES = 8 * 2**30
SELF_SCORE = 20.0  # scores start in the range of cosine x 20, in which a softmax over a batch learns well


@dataclass(frozen=True, slots=True, kw_only=True)
class MapConfig(Settings):
    """How to fit. Every learning rate is tried with every decay, and the best on validation is kept.

    Args:
        lr: of Adam.
        l2: weight of ``|A|^2`` in the loss, which pulls the map towards the identity.
        batch_size: pairs per step; the other responses are the negatives.
        max_epochs: the maximum number of passes over the pairs.
        patience: epochs without a better validation R@1 before fitting stops.
        seed: of the order.
    """

    lr: tuple[NonNegativeFloat, ...] = (3e-3, 1e-3, 3e-4)
    l2: tuple[NonNegativeFloat, ...] = (1e-2, 3e-3)
    batch_size: AtLeastTwo = 256
    max_epochs: NonNegativeInt = 40
    patience: Count = 8
    seed: int = 1

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        for name, values in (("lr", self.lr), ("l2", self.l2)):
            if not values:
                raise ConfigError(f"{name} has no values to try; give one or more")


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
        """Which responses of a batch ``[B]`` are negatives of which contexts: ``[B, B]``.

        A response that answers the same context anywhere in the data is not a negative.
        """
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
        candidates = apply_map(self.candidates, matrix)
        return [
            hit_at(placement_of(score_row(self.contexts[i], self.mask[i], candidates[rows]), right), 1)
            for i, (rows, right) in enumerate(zip(self.rows, self.relevant, strict=True))
        ]

    def accuracy(self, matrix: Floats) -> float:
        """R@1 with candidates mapped by ``matrix``."""
        return float(np.mean(self.hits(matrix)))


@dataclass(frozen=True, slots=True)
class MapFit:
    """The result of fitting.

    Args:
        matrix: W of the best epoch of the best trial, ``[D, D]``.
        accuracy: its validation R@1.
        similarity: validation R@1 without a map.
        trials: settings, epochs and R@1 of each.
    """

    matrix: Floats
    accuracy: float
    similarity: float
    trials: tuple[dict[str, Any], ...]


def fit_map(
    pairs: Pairs, valid: Ranking, config: MapConfig, *, report: Callable[[str, int, int], None] = lambda *_: None
) -> MapFit:
    """Fit ``W = s (I + A)`` so that responses score above the others of their batch.

    ``loss = -log softmax_r(h_c . W h_r) + l2 |A|^2``, where no right answer to c is a negative. A starts at zero, so
    the first ranking is plain similarity. If no map ranks better than that, A stays zero.

    Args:
        pairs: to train on.
        valid: for early stopping and the choice of the best map.
        config: how to fit.
        report: called with the name of the work, the amount done, and the total.
    """
    similarity = valid.accuracy(np.eye(pairs.responses.shape[1], dtype=np.float32))
    start = _first_scale(pairs)
    fits = fit_grid(
        list(product(config.lr, config.l2)),
        lambda point: _fit_one(pairs, valid, config, *point, start),
        lambda fit, done, total: report(str(fit), done, total),
    )
    best = max(fits, key=lambda fit: fit.accuracy)
    matrix = best.matrix if best.accuracy > similarity else np.eye(pairs.responses.shape[1], dtype=np.float32) * start
    return MapFit(matrix, max(best.accuracy, similarity), similarity, tuple(fit.figures for fit in fits))


@dataclass(frozen=True, slots=True)
class _Trial:
    """The best epoch of one learning rate and one decay: R@1 and W."""

    lr: float
    l2: float
    n_epochs: int
    accuracy: float
    matrix: Floats

    @property
    def figures(self) -> dict[str, Any]:
        return {"lr": self.lr, "l2": self.l2, "n_epochs": self.n_epochs, "R@1": self.accuracy}

    def __str__(self) -> str:
        return f"fitting, R@1 {self.accuracy:.4f} at lr {self.lr}, l2 {self.l2} after {self.n_epochs} epochs"


def _first_scale(pairs: Pairs) -> float:
    """The initial s. With several vectors per context attention depends on the size of scores, so it is kept."""
    if pairs.contexts.shape[1] > 1:
        return 1.0
    size = np.linalg.norm(pairs.contexts[:, 0], axis=1).mean() * np.linalg.norm(pairs.responses, axis=1).mean()
    return SELF_SCORE / max(float(size), 1e-12)


def _fit_one(pairs: Pairs, valid: Ranking, config: MapConfig, lr: float, l2: float, start: float) -> _Trial:
    contexts, mask = torch.from_numpy(pairs.contexts), torch.from_numpy(pairs.mask)
    responses, keys = torch.from_numpy(pairs.responses), torch.from_numpy(pairs.keys)
    n_dimensions = responses.shape[1]
    identity = torch.eye(n_dimensions)
    change = torch.zeros(n_dimensions, n_dimensions, requires_grad=True)  # A
    log_scale = torch.tensor(math.log(start), requires_grad=True)
    optimizer = torch.optim.Adam([change, log_scale], lr=lr)
    unmapped = start * np.eye(n_dimensions, dtype=np.float32)
    best = _Trial(lr, l2, 0, -1.0, unmapped)
    for epoch in range(1, config.max_epochs + 1):
        order = np.random.Generator(np.random.PCG64([config.seed, epoch])).permutation(len(keys))
        for batch in torch.split(torch.from_numpy(order), config.batch_size):
            if len(batch) < 2:
                continue
            matrix = log_scale.exp() * (identity + change)
            candidates = responses[keys[batch]] @ matrix.T
            values = scores(contexts[batch], candidates[None], mask[batch])
            loss = cross_entropy(values, torch.arange(len(batch)), torch.from_numpy(pairs.wrong(batch.numpy())))
            optimizer.zero_grad()
            (loss + l2 * change.square().sum()).backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
        current: Floats = (log_scale.exp() * (identity + change)).detach().numpy()
        accuracy = valid.accuracy(current) if np.isfinite(current).all() else -1.0
        if accuracy > best.accuracy:
            best = _Trial(lr, l2, epoch, accuracy, current)
        elif epoch - best.n_epochs >= config.patience:
            break
    return best if best.n_epochs else replace(best, accuracy=valid.accuracy(unmapped))


def fit_response_map(
    encoder: Encoder,
    examples: Sequence[Example],
    valid: Sequence[Example],
    config: MapConfig | None = None,
    *,
    report: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[MapEncoder, dict[str, Any]]:
    """Encode pairs and lists once, fit the map, and return the encoder with it.

    Args:
        encoder: frozen.
        examples: with a right answer.
        valid: candidate lists with a right answer.
        config: how to fit; None: the defaults.
        report: called with the name of the work, the amount done, and the total.

    Returns:
        The encoder with its map, and figures ready for JSON.

    Raises:
        DataError: too few examples, or no validation list, have a right answer.
        ResourceError: the encodings do not fit into memory.
    """
    config = config or MapConfig()
    answered = [example for example in examples if example.relevant]
    lists = [example for example in valid if example.relevant and len(example.candidates) > 1]
    if len(answered) < 2:
        raise DataError(f"{len(answered)} examples have a right answer, and a map needs at least 2; give more")
    if not lists:
        raise DataError("no validation example has a right answer among candidates; give candidate lists as `valid`")
    pairs = encode_pairs(encoder, answered, report)
    ranking = encode_lists(encoder, lists, report)
    fit = fit_map(pairs, ranking, config, report=report)
    figures = {
        "n_train": len(answered),
        "n_responses": len(pairs.responses),
        "n_valid": len(lists),
        "similarity": fit.similarity,
        "map": fit.accuracy,
        "trials": list(fit.trials),
        "config": asdict(config),
    }
    return MapEncoder(encoder, fit.matrix), figures


def encode_pairs(encoder: Encoder, examples: Sequence[Example], report: Callable[[str, int, int], None]) -> Pairs:
    """Encode each context and each distinct response once."""
    texts = [example.candidates[example.relevant[0]] for example in examples]
    rows = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    contexts, mask = _encode_contexts(encoder, [example.query for example in examples], "training contexts", report)
    responses = _encode_texts(encoder, list(rows), "responses", report)
    numbers = {query: i for i, query in enumerate(dict.fromkeys(example.query for example in examples))}
    keys, groups = [rows[text] for text in texts], [numbers[example.query] for example in examples]
    more = [
        (group, rows[text])
        for example, group in zip(examples, groups, strict=True)
        for text in (example.candidates[i] for i in example.relevant[1:])
        if text in rows
    ]
    also_right = np.array(more, np.int64).reshape(-1, 2)
    return Pairs(contexts, mask, responses, np.array(keys, np.int64), np.array(groups, np.int64), also_right)


def encode_lists(encoder: Encoder, examples: Sequence[Example], report: Callable[[str, int, int], None]) -> Ranking:
    """Encode each context and each distinct candidate of lists that can be ranked, once."""
    examples = rankable(examples)
    rows = {text: i for i, text in enumerate(dict.fromkeys(t for e in examples for t in e.candidates))}
    contexts, mask = _encode_contexts(encoder, [example.query for example in examples], "validation contexts", report)
    candidates = _encode_texts(encoder, list(rows), "validation candidates", report)
    return Ranking(
        contexts,
        mask,
        candidates,
        tuple(np.array([rows[text] for text in e.candidates], np.int64) for e in examples),
        tuple(with_duplicates(e.candidates, e.relevant) for e in examples),
    )


def _encode_contexts(
    encoder: Encoder, contexts: Sequence[Context], name: str, report: Callable[[str, int, int], None]
) -> tuple[Floats, NDArray[np.bool_]]:
    parts: list[tuple[Floats, NDArray[np.bool_]]] = []
    # contexts of similar length are encoded together, because the longest context of a part decides its padding
    order = sorted(range(len(contexts)), key=lambda i: sum(map(len, contexts[i].turns)))
    done = 0
    for start in range(0, len(order), TEXTS_AT_A_TIME):
        rows = order[start : start + TEXTS_AT_A_TIME]
        parts.append(encoder.encode_contexts([contexts[i] for i in rows]))
        _check_memory(len(contexts), parts[-1][0].shape[1], encoder.dimension)
        done += len(rows)
        report(name, done, len(order))
    width = max(vectors.shape[1] for vectors, _ in parts)
    result = np.zeros((len(contexts), width, encoder.dimension), np.float32)
    mask = np.zeros((len(contexts), width), np.bool_)
    start = 0
    for vectors, real in parts:
        rows = order[start : start + len(vectors)]
        result[rows, : vectors.shape[1]], mask[rows, : vectors.shape[1]] = vectors, real
        start += len(vectors)
    return result, mask


def _check_memory(n: int, width: int, dimension: int) -> None:
    n_bytes = n * width * dimension * 4
    if n_bytes > MAX_BYTES:
        raise ResourceError(
            f"{n:,} contexts of {width} vectors need {n_bytes / 2**30:.0f} GiB, above the limit of"
            f" {MAX_BYTES / 2**30:.0f}; use fewer with `max_train`"
        )


def _encode_texts(encoder: Encoder, texts: Sequence[str], name: str, report: Callable[[str, int, int], None]) -> Floats:
    parts, done = list[Floats](), 0
    starts = range(0, len(texts), TEXTS_AT_A_TIME)
    for vectors in encoder.encode_lists(texts[start : start + TEXTS_AT_A_TIME] for start in starts):
        parts.append(vectors)
        done += len(vectors)
        report(name, done, len(texts))
    return np.concatenate(parts)
