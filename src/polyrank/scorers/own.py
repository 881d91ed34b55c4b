"""A user's object as a Scorer: whatever has ``score``, and an Encoder if it also encodes both sides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.inputs import checked_scores, matched_lists
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.wording import brief

NEEDED = "an object with score, or with dimension, encode_contexts and encode_candidates, or what polyrank.load returns"


class OwnScorer(Scorer):
    """An object with ``score(contexts, candidates)``."""

    def __init__(self, model: Any) -> None:
        self.model, self.name = model, str(getattr(model, "name", "") or type(model).__name__)
        self.fingerprint = str(getattr(model, "fingerprint", ""))

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        rows = list(self.model.score(queries, lists))
        if len(rows) != len(lists):
            raise UsageError(
                f"{self.name} returned scores of {len(rows)} contexts for {len(lists)}; return one row for each"
            )
        return [checked_scores(row, (len(texts),), self.name) for row, texts in zip(rows, lists, strict=True)]


class OwnEncoder(Encoder):
    """An object with ``dimension``, ``encode_contexts`` and ``encode_candidates``.

    ``encode_contexts`` returns ``[B, M, D]`` and a mask ``[B, M]``, or ``[B, D]``: one vector for each context.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.name = model, str(getattr(model, "name", "") or type(model).__name__)
        self.fingerprint, self.dimension = str(getattr(model, "fingerprint", "")), int(model.dimension)

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        queries = contexts_of(contexts)
        encoded = self.model.encode_contexts(queries)
        if isinstance(encoded, tuple):
            vectors, mask = np.asarray(encoded[0], np.float32), np.asarray(encoded[1], np.bool_)
        else:
            vectors = np.asarray(encoded, np.float32)[:, None]
            mask = np.ones(vectors.shape[:2], np.bool_)
        if vectors.ndim != 3 or vectors.shape[::2] != (len(queries), self.dimension) or mask.shape != vectors.shape[:2]:
            raise UsageError(
                f"{self.name}.encode_contexts returned shape {list(vectors.shape)} for {len(queries)} contexts; return"
                f" [{len(queries)}, {self.dimension}], or several vectors for each context and their mask"
            )
        return vectors, mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""
        vectors = np.asarray(self.model.encode_candidates(list(candidates)), np.float32)
        if vectors.shape != (len(candidates), self.dimension):
            raise UsageError(
                f"{self.name}.encode_candidates returned shape {list(vectors.shape)} for {len(candidates)} texts;"
                f" return [{len(candidates)}, {self.dimension}]"
            )
        return vectors


def as_scorer(model: Any) -> Scorer:
    """A Scorer itself; any other object that scores or encodes as one.

    Raises:
        UsageError: it does neither.

    >>> class Length:
    ...     def score(self, contexts, candidates):
    ...         return [[len(text) for text in texts] for texts in candidates]
    >>> as_scorer(Length()).rank("hi", ["yes", "hello"], 1)[0].text
    'hello'
    """
    if isinstance(model, Scorer):
        return model
    if all(hasattr(model, name) for name in ("dimension", "encode_contexts", "encode_candidates")):
        return OwnEncoder(model)
    if hasattr(model, "score"):
        return OwnScorer(model)
    raise UsageError(f"{brief(model)} is {type(model).__name__}; give {NEEDED}")
