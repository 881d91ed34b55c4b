"""A network with a vector for each side, bound to its text policy, device and precision: an Encoder."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.models import EncoderNetwork
from polyrank.models.exported import ExportedEncoder
from polyrank.models.foreign import SentenceEncoder
from polyrank.models.mixture import Mixture
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.inputs import as_texts
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.text import Tokens


class EncoderScorer(NetworkScorer[EncoderNetwork | ExportedEncoder | SentenceEncoder], Encoder):
    """A Bi- or Poly-encoder, a ConveRT or a sentence encoder as an Encoder.

    Candidates' vectors are kept by text, so ranking the same catalogue again encodes only the context.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.dimension = self.model.dimension
        self._remembered: dict[str, Floats] = {}

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        rows = [self.texts.context_ids(context) for context in contexts_of(contexts)]
        parts = list(self.batches(self.model.encode_contexts, rows))
        width = max((vectors.shape[1] for _, (vectors, _) in parts), default=1)
        result = np.zeros((len(rows), width, self.dimension), np.float32)
        real = np.zeros((len(rows), width), np.bool_)
        for batch, (vectors, mask) in parts:
            result[batch, : vectors.shape[1]], real[batch, : vectors.shape[1]] = _array(vectors), mask.cpu().numpy()
        return result, real

    @property
    def inner_layers(self) -> tuple[str, ...]:
        """Names of the inner encodings that ``encode_inner`` returns."""
        return self.model.inner_layers if isinstance(self.model, EncoderNetwork) else ()

    def encode_inner(self, layer: str, contexts: Sequence[ContextLike]) -> Floats:
        """One of ``inner_layers`` for each context: ``[B, R]``."""
        model = self.model
        assert isinstance(model, EncoderNetwork), "inner_layers is empty for others"
        rows = [self.texts.context_ids(context) for context in contexts_of(contexts)]
        parts = [(batch, _array(vectors)) for batch, vectors in self.batches(lambda t: model.inner(layer, t), rows)]
        result = np.zeros((len(rows), parts[0][1].shape[1] if parts else 0), np.float32)
        for batch, vectors in parts:
            result[batch] = vectors
        return result

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``; equal texts are encoded once."""
        candidates = as_texts(candidates, "candidates")
        new = [text for text in dict.fromkeys(candidates) if text not in self._remembered]
        if new and len(self._remembered) + len(new) > self.max_remembered:
            self._remembered.clear()
            new = list(dict.fromkeys(candidates))
        encoded = dict(zip(new, self._encode(new), strict=True))
        result = np.empty((len(candidates), self.dimension), np.float32)
        for i, text in enumerate(candidates):
            result[i] = encoded[text] if text in encoded else self._remembered[text]
        self._remembered.update(encoded)  # however many: the next contexts need the same pool
        return result

    def _encode(self, candidates: Sequence[str]) -> Floats:
        rows = self.texts.all_candidate_ids(candidates)
        result = np.empty((len(rows), self.dimension), np.float32)
        for batch, vectors in self.batches(self.model.encode_candidates, rows):
            result[batch] = _array(vectors)
        return result

    def context_mixture(self, context: Context) -> Mixture | None:
        """A context's vectors as weighted sums of token outputs; None if the network has no such form."""
        return self._mixture(self.model.context_mixture, self.texts.context_ids(context))

    def candidate_mixture(self, candidate: str) -> Mixture | None:
        """A candidate's vector as a weighted sum of token outputs; None if the network has no such form."""
        return self._mixture(self.model.candidate_mixture, self.texts.candidate_ids(candidate))

    def _mixture(self, compute: Callable[[Tokens], Mixture | None], ids: Sequence[int]) -> Mixture | None:
        return next(mixture for _, mixture in self.batches(compute, [ids]))

    def forget(self) -> None:
        """Drop the kept vectors; needed after the weights change."""
        self._remembered.clear()


def _array(values: torch.Tensor) -> Floats:
    array: Floats = values.float().cpu().numpy()
    return array


class CosineScorer(EncoderScorer):
    """An EncoderScorer with vectors of length one, so that scores are cosines."""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Unit context vectors ``[B, M, D]`` and a mask ``[B, M]``."""
        vectors, mask = super().encode_contexts(contexts)
        return _unit(vectors), mask

    def _mixture(self, compute: Callable[[Tokens], Mixture | None], ids: Sequence[int]) -> Mixture | None:
        mixture = super()._mixture(compute, ids)
        return mixture and mixture.unit()

    def _encode(self, candidates: Sequence[str]) -> Floats:
        return _unit(super()._encode(candidates))


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit
