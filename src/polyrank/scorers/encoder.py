"""A network with a vector for each side, bound to its text policy, device and precision: an Encoder."""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from operator import call
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.config.models import Side
from polyrank.devices.pipeline import AHEAD, late, prefetched, read_later
from polyrank.errors import UsageError
from polyrank.models import EncoderNetwork
from polyrank.models.bi_encoder import TwoTowers
from polyrank.models.exported import ExportedEncoder
from polyrank.models.network import Mixture
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.remembered import LONGEST
from polyrank.scorers.explanation import Explanation
from polyrank.scorers.inputs import as_texts
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.text import Tokens

UNREAD_BATCHES = 8  # that a device computes before the first one is read


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Candidates that are ready for the network.

    Args:
        candidates: all of them, in order.
        kept: vectors ``[D]`` of those that need no encoding.
        new: the other texts, each once.
        groups: positions among the new texts, for each batch.
        batches: their tokens, those of this process.
    """

    candidates: Sequence[str]
    kept: Mapping[str, Floats]
    new: Sequence[str]
    groups: Sequence[list[int]]
    batches: Iterable[Tokens]


class EncoderScorer(NetworkScorer[EncoderNetwork | ExportedEncoder], Encoder):
    """A Bi- or Poly-encoder, a ConveRT or a sentence encoder as an Encoder.

    Candidates' vectors are kept by text, so ranking the same catalogue again encodes only the context.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.dimension = self.model.dimension
        self._remembered: dict[str, Floats] = {}
        self.around: dict[Side, Callable[..., Any]] = {}  # a second stage's functions, called with each pass

    def truncate(self, dimension: int) -> None:
        """See ``Encoder``."""
        if not isinstance(self.model, TwoTowers):
            super().truncate(dimension)
        elif dimension > self.dimension:
            raise UsageError(f"truncate_dim = {dimension} is above the model's {self.dimension} dimensions; lower it")
        else:
            self.model.truncate(dimension)
            self.dimension, self._remembered = dimension, {}
            self.fingerprint = hashlib.sha256(f"{self.fingerprint} {dimension}".encode()).hexdigest()

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        rows = [self.texts.context_ids(context) for context in contexts_of(contexts)]
        compute = partial(self.around.get("context", call), self.model.encode_contexts)
        parts = list(self.batches(compute, rows))
        width = max((vectors.shape[1] for _, (vectors, _) in parts), default=1)
        result = np.zeros((len(rows), width, self.dimension), np.float32)
        real = np.zeros((len(rows), width), np.bool_)
        for batch, (vectors, mask) in parts:
            result[batch, : vectors.shape[1]], real[batch, : vectors.shape[1]] = _array(vectors), mask.cpu().numpy()
        return result, real

    @property
    def inner_layers(self) -> tuple[str, ...]:
        """Names of the inner encodings that ``encode_inner`` returns."""
        return self.model.inner_layers

    def encode_inner(self, layer: str, contexts: Sequence[ContextLike]) -> Floats:
        """One of ``inner_layers`` for each context: ``[B, R]``."""
        rows = [self.texts.context_ids(context) for context in contexts_of(contexts)]
        batches = self.batches(lambda tokens: self.model.inner(layer, tokens), rows)
        parts = [(batch, _array(vectors)) for batch, vectors in batches]
        result = np.zeros((len(rows), parts[0][1].shape[1] if parts else 0), np.float32)
        for batch, vectors in parts:
            result[batch] = vectors
        return result

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``; equal texts are encoded once."""
        return self._started(self._prepared(as_texts(candidates, "candidates")))()

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """See ``Encoder``. While a device computes, the next lists are tokenized and earlier vectors are used."""

        def prepared(texts: Sequence[str]) -> _Prepared:
            ready = self._prepared(texts)
            return replace(ready, batches=[*ready.batches])  # padded in the thread

        on_cpu = self.device.type == "cpu"  # whose cores all compute
        listed = (as_texts(texts, "candidates") for texts in lists)
        with closing(prefetched(prepared, listed, ahead=0 if on_cpu else AHEAD)) as ready:
            for read in late(map(self._started, ready), 0 if on_cpu else 1):
                yield read()

    def _prepared(self, candidates: Sequence[str]) -> "_Prepared":
        """Candidates as batches of tokens, without those whose vectors are kept."""
        distinct = dict.fromkeys(candidates)
        kept = {text: vector for text in distinct if (vector := self._remembered.get(text)) is not None}
        new = [text for text in distinct if text not in kept]
        if new and len(self._remembered) + len(new) > self.max_remembered:
            self._remembered.clear()
            kept, new = {}, [*distinct]
        rows = self.texts.all_candidate_ids(new)
        groups = self.groups(rows)
        return _Prepared(candidates, kept, new, groups, self.padded(groups, rows))

    def _started(self, prepared: "_Prepared") -> Callable[[], Floats]:
        """Start the network; the returned function waits for the vectors ``[N, D]``."""
        encoded = np.empty((len(prepared.new), self.dimension), np.float32)
        unread: deque[tuple[list[int], Callable[[], Floats]]] = deque()

        def read_one() -> None:
            batch, read = unread.popleft()
            encoded[batch] = read()

        compute = partial(self.around.get("candidate", call), self.model.encode_candidates)
        for batch, vectors in self.outputs(compute, prepared.groups, prepared.batches):
            unread.append((batch, read_later(vectors)))
            if len(unread) > UNREAD_BATCHES:
                read_one()

        def read_all() -> Floats:
            while unread:
                read_one()
            vector_of = dict(zip(prepared.new, encoded, strict=True))
            result = np.empty((len(prepared.candidates), self.dimension), np.float32)
            for i, text in enumerate(prepared.candidates):
                result[i] = vector_of[text] if text in vector_of else prepared.kept[text]
            # however many: the next contexts need the same pool
            self._remembered |= {text: vector for text, vector in vector_of.items() if len(text) <= LONGEST}
            return result

        return read_all

    def context_mixture(self, context: Context) -> Mixture | None:
        """A context's vectors as weighted sums of token outputs; None if the network has no such form."""
        return self._mixture(self.model.context_mixture, self.texts.context_ids(context))

    def candidate_mixture(self, candidate: str) -> Mixture | None:
        """A candidate's vector as a weighted sum of token outputs; None if the network has no such form."""
        return self._mixture(self.model.candidate_mixture, self.texts.candidate_ids(candidate))

    def _mixture(self, compute: Callable[[Tokens], Mixture | None], ids: Sequence[int]) -> Mixture | None:
        ((_, mixture),) = self.batches(compute, [ids])
        if mixture is None:
            return None
        n = len(ids)  # without padding
        return replace(mixture, weights=mixture.weights[..., :n], outputs=mixture.outputs[:, :n])

    def explained(self, context: Context, candidate: str, max_words: int) -> Explanation:
        """The share of each token, exact if the network's vectors are sums over tokens."""
        from polyrank.scorers.shares import token_shares

        return token_shares(self, context, candidate, max_words)

    def forget(self) -> None:
        """Drop the kept vectors, and stop giving a second stage its inputs; needed after the weights change."""
        self._remembered.clear()
        self.around.clear()


def _array(values: torch.Tensor) -> Floats:
    array: Floats = values.float().cpu().numpy()
    return array
