"""A network with a vector for each side, bound to its text policy, device and precision: an Encoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from polyrank.devices import cpu_has_bf16, free_cores
from polyrank.models import EncoderNetwork
from polyrank.models.exported import ExportedEncoder
from polyrank.records import Context
from polyrank.scorers.encoded import score_lists, score_shared
from polyrank.scorers.protocols import Floats
from polyrank.text import Texts, pad


def token_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Positions grouped so that each padded batch holds at most ``max_tokens`` tokens, longest first.

    Texts of like length go together, so little is computed on padding.

    >>> token_batches([2, 9, 3], max_tokens=9)
    [[1], [2, 0]]
    """
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * max(lengths[batches[-1][0]], 1) <= max_tokens:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def tokens_per_batch(device: torch.device) -> int:
    """Padded tokens that a batch should hold: on a CPU few, so that what passes between layers stays in its cache.

    Measured on an AVX-512 core with a network of six layers and 384 dimensions: batches of 512 to 1,024 tokens take a
    third less time than those of 4,096, whether texts have 15 tokens or pairs 135. In bf16, by AMX, 1,536 to 2,048 do.
    """
    if device.type != "cpu":
        return 16_384
    return 1536 if cpu_has_bf16() else 1024


class EncoderScorer:
    """A Bi- or Poly-encoder or a ConveRT as an Encoder.

    Vectors of candidates are remembered by text, so ranking the same catalogue again costs only the context.

    Args:
        model: the network.
        texts: its text policy at work.
        fingerprint: what an index must match; empty while training.
        device: where to compute.
        dtype: of the large products; results are fp32.
        max_tokens: padded tokens per batch; None: what suits the device.
    """

    max_remembered = 100_000

    def __init__(
        self,
        model: EncoderNetwork | ExportedEncoder,
        texts: Texts,
        *,
        fingerprint: str = "",
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_tokens: int | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.model, self.texts, self.fingerprint = model, texts, fingerprint
        self.dtype, self.dimension = dtype, model.dimension
        self.max_tokens = max_tokens or tokens_per_batch(self.device)
        self._remembered: dict[str, Floats] = {}

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        rows = [self.texts.context_ids(context) for context in contexts]
        parts: list[tuple[list[int], Floats, NDArray[np.bool_]]] = []
        for batch in token_batches([len(row) for row in rows], self.max_tokens):
            tokens = pad([rows[i] for i in batch], pad_id=self.texts.subwords.pad_id)
            with inference(self.model, self.device, self.dtype):
                vectors, mask = self.model.encode_contexts(tokens.to(self.device))
            parts.append((batch, vectors.float().cpu().numpy(), mask.cpu().numpy()))
        width = max((part.shape[1] for _, part, _ in parts), default=1)
        result = np.zeros((len(rows), width, self.dimension), np.float32)
        real = np.zeros((len(rows), width), np.bool_)
        for batch, part, part_mask in parts:
            result[batch, : part.shape[1]], real[batch, : part.shape[1]] = part, part_mask
        return result, real

    @property
    def inner_layers(self) -> tuple[str, ...]:
        """Names of encodings before the last one that ``encode_inner`` gives."""
        return self.model.inner_layers if isinstance(self.model, EncoderNetwork) else ()

    def encode_inner(self, layer: str, contexts: Sequence[Context]) -> Floats:
        """One of ``inner_layers`` for contexts: ``[B, R]``."""
        assert isinstance(self.model, EncoderNetwork), "inner_layers is empty for others"
        rows = [self.texts.context_ids(context) for context in contexts]
        parts: list[tuple[list[int], Floats]] = []
        for batch in token_batches([len(row) for row in rows], self.max_tokens):
            tokens = pad([rows[i] for i in batch], pad_id=self.texts.subwords.pad_id)
            with inference(self.model, self.device, self.dtype):
                parts.append((batch, self.model.inner(layer, tokens.to(self.device)).float().cpu().numpy()))
        result = np.zeros((len(rows), parts[0][1].shape[1] if parts else 0), np.float32)
        for batch, part in parts:
            result[batch] = part
        return result

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``; equal texts are encoded once."""
        new = [text for text in dict.fromkeys(candidates) if text not in self._remembered]
        if new and len(self._remembered) + len(new) > self.max_remembered:
            self._remembered.clear()
            new = list(dict.fromkeys(candidates))
        encoded = dict(zip(new, self._encode(new), strict=True))
        result = np.empty((len(candidates), self.dimension), np.float32)
        for i, text in enumerate(candidates):
            result[i] = encoded[text] if text in encoded else self._remembered[text]
        self._remembered.update(encoded)  # however many: a pool comes again with the next contexts
        return result

    def _encode(self, candidates: Sequence[str]) -> Floats:
        rows = self.texts.all_candidate_ids(candidates)
        result = np.empty((len(rows), self.dimension), np.float32)
        for batch in token_batches([len(row) for row in rows], self.max_tokens):
            tokens = pad([rows[i] for i in batch], pad_id=self.texts.subwords.pad_id)
            with inference(self.model, self.device, self.dtype):
                result[batch] = self.model.encode_candidates(tokens.to(self.device)).float().cpu().numpy()
        return result

    def forget(self) -> None:
        """Drop remembered vectors; needed after the weights change."""
        self._remembered.clear()

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        return score_lists(self, contexts, candidates)

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``."""
        return score_shared(self, contexts, pool)


@contextmanager
def inference(model: nn.Module, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluation mode without gradients, in ``dtype``, on free cores; the model's own mode comes back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with free_cores(), torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            yield
    finally:
        model.train(was_training)


class CosineScorer(EncoderScorer):
    """An EncoderScorer with vectors of length one, so that scores are cosines."""

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[Floats, NDArray[np.bool_]]:
        """Unit context vectors ``[B, M, D]`` and a mask ``[B, M]``."""
        vectors, mask = super().encode_contexts(contexts)
        return _unit(vectors), mask

    def _encode(self, candidates: Sequence[str]) -> Floats:
        return _unit(super()._encode(candidates))


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit
