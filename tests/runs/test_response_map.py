"""MAP, runs/papers/response_map.py: a linear map of response vectors on a frozen encoder."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank import Encoder, evaluate, summarise
from polyrank.records import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from papers.response_map import MapEncoder, Remembered, encode_pairs, fit_map, hits

D = 12
TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0].astype(np.float32)


class Rotated(Encoder):
    """Responses are rotated contexts, so that similarity is useless and a map can be perfect."""

    dimension = D

    def encode_contexts(self, contexts: Sequence[Any]) -> Any:
        vectors = [json.loads(context.turns[-1]) for context in contexts]
        return np.array(vectors, np.float32).reshape(-1, 1, D), np.ones((len(vectors), 1), np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        return np.array([json.loads(text) for text in candidates], np.float32).reshape(-1, D) @ TURN


def examples(n: int, seed: int, n_candidates: int = 1) -> list[Example]:
    vectors = np.random.default_rng(seed).normal(size=(n, D))
    texts = [json.dumps((row / np.linalg.norm(row)).round(5).tolist()) for row in vectors]
    rows = [[(i + k) % n for k in range(n_candidates)] for i in range(n)]
    return [Example((texts[i],), tuple(texts[j] for j in row), (0,), str(i)) for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def fitted() -> tuple[Encoder, np.ndarray, dict[str, Any], list[Example]]:
    encoder, valid = Remembered(Rotated()), examples(60, 2, 10)
    matrix, figures = fit_map(encoder, examples(400, 1), valid, grid=[(3e-2, 1e-4)], max_epochs=15, batch=64)
    return encoder, matrix, figures, valid


@pytest.mark.deep
def test_a_rotation_is_learned(fitted: tuple[Encoder, np.ndarray, dict[str, Any], list[Example]]) -> None:
    encoder, matrix, figures, valid = fitted
    assert figures["similarity"] < 0.4 < figures["map"] == 1.0 == np.mean(hits(encoder, matrix, valid))
    test = examples(50, 3, 10)
    assert summarise(evaluate(MapEncoder(encoder, matrix), test))["metrics"]["R@1"] == 1.0


def test_a_map_that_does_not_help_is_a_scaled_identity() -> None:
    matrix, figures = fit_map(Rotated(), examples(40, 1), examples(20, 2, 5), grid=[(0.0, 1.0)], max_epochs=1)
    assert figures["map"] == figures["similarity"]
    np.testing.assert_allclose(matrix, matrix[0, 0] * np.eye(D), atol=1e-6)


def test_right_answers_of_a_context_are_not_negatives() -> None:
    one, two, three = (example.candidates[0] for example in examples(3, 4))
    pairs = encode_pairs(
        Rotated(), [Example((one,), (one,), (0,)), Example((one,), (two,), (0,)), Example((two,), (three, two), (0, 1))]
    )
    assert pairs.wrong(np.arange(3)).tolist() == [[False, False, True], [False, False, True], [True, False, False]]
