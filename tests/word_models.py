"""Small models without networks: every word has random numbers, so that scores are quick and never tie by chance."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.protocols import Encoder, Floats, Scorer


@cache
def word_vector(word: str, seed: int, dimension: int) -> NDArray[np.float64]:
    """Random numbers that a word and a seed determine."""
    vector: NDArray[np.float64] = np.random.default_rng([seed, *word.encode()]).normal(size=dimension)
    vector /= np.sqrt(dimension)
    return vector


def text_vector(text: str, seed: int, dimension: int) -> Floats:
    """The sum of the vectors of a text's words."""
    vectors = [word_vector(word, seed, dimension) for word in text.split()]
    total: Floats = np.sum([np.zeros(dimension), *vectors], axis=0).astype(np.float32)
    return total


class WordEncoder(Encoder):
    """A context is the sum of its words; with ``several``, each turn has its own vector.

    Args:
        name: with which a ranker stores it.
        seed: of the words' vectors.
        several: whether a context has a vector for each turn.
    """

    dimension = 8

    def __init__(self, name: str, seed: int = 0, *, several: bool = False) -> None:
        self.name, self.seed, self.several = name, seed, several
        self.fingerprint = f"{seed:x}{int(several)}" * 8

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        queries = contexts_of(contexts)
        rows = [list(query.turns) or [""] if self.several else [" ".join(query.turns)] for query in queries]
        width = max(map(len, rows), default=1)
        vectors = np.zeros((len(rows), width, self.dimension), np.float32)
        mask = np.zeros((len(rows), width), np.bool_)
        for row, texts in enumerate(rows):
            mask[row, : len(texts)] = True
            for column, text in enumerate(texts):
                vectors[row, column] = text_vector(text, self.seed, self.dimension)
        return vectors, mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        vectors = [text_vector(text, self.seed + 100, self.dimension) for text in candidates]
        return np.array(vectors, np.float32).reshape(len(vectors), self.dimension)


class PairScorer(Scorer):
    """A model that reads a context and a reply together: their newest words decide."""

    def __init__(self, name: str = "pairs") -> None:
        self.name, self.fingerprint, self.n_scored = name, name * 4, 0

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        self.n_scored += sum(map(len, candidates))
        return [
            np.array([word_vector(" ".join([*query.turns[-1:], text]), 7, 2)[0] for text in texts], np.float32)
            for query, texts in zip(contexts_of(contexts), candidates, strict=True)
        ]
