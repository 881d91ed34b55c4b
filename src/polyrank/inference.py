"""Scorers: a model bound to its text policy, device and precision, ready to rank.

Two narrow protocols. A Cross-encoder cannot honestly encode, so it is a Scorer only.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from polyrank.artifacts import load_model
from polyrank.config import BiConfig, TextPolicy, model_to_dict
from polyrank.devices import Precision, choose_device, choose_dtype, cpu_has_bf16
from polyrank.models import Backbone, BiEncoder, Convert, CrossEncoder, Model, PolyEncoder, new_model
from polyrank.models.exported import ExportedCross, ExportedEncoder
from polyrank.models.first_output import read_first_outputs_only
from polyrank.names import model_folder
from polyrank.records import Context
from polyrank.scores import scores
from polyrank.text import ConvertTexts, Texts, pad

Floats = NDArray[np.float32]


@runtime_checkable
class Scorer(Protocol):
    """Scores candidates for contexts. Raw fp32 scores, higher is better."""

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Score each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        ...

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """Score one shared pool for every context: ``[B, N]``."""
        ...


@runtime_checkable
class Encoder(Scorer, Protocol):
    """A Scorer whose two sides can be computed apart, so that candidates are encoded once and searched."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of weights, configuration and tokenizer: what an index must match."""
        ...

    @property
    def dimension(self) -> int:
        """D, the length of each vector."""
        ...

    def encode_contexts(self, contexts: Sequence[Context]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, true where a vector is real."""
        ...

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""
        ...


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
        model: BiEncoder | PolyEncoder | Convert | ExportedEncoder,
        texts: Texts | ConvertTexts,
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

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``; equal texts are encoded once."""
        new = [text for text in dict.fromkeys(candidates) if text not in self._remembered]
        if new and len(self._remembered) + len(new) > self.max_remembered:
            self._remembered.clear()
            new = list(dict.fromkeys(candidates))
        found = dict(zip(new, self._encode(new), strict=True))
        result = np.empty((len(candidates), self.dimension), np.float32)
        for i, text in enumerate(candidates):
            result[i] = found[text] if text in found else self._remembered[text]
        self._remembered.update(found)  # however many: a pool comes again with the next contexts
        return result

    def _encode(self, candidates: Sequence[str]) -> Floats:
        if isinstance(self.texts, Texts):
            rows = self.texts.all_candidate_ids(candidates)
        else:
            rows = [self.texts.candidate_ids(text) for text in candidates]
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
        vectors, mask = self.encode_contexts(contexts)
        encoded = self.encode_candidates([text for texts in candidates for text in texts])
        results, start = [], 0
        for row, texts in enumerate(candidates):
            part = slice(start, start + len(texts))
            results.append(_scores(vectors[row : row + 1], encoded[None, part], mask[row : row + 1])[0])
            start += len(texts)
        return results

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``."""
        vectors, mask = self.encode_contexts(contexts)
        encoded = self.encode_candidates(pool)
        result = np.empty((len(vectors), len(encoded)), np.float32)
        for start in range(0, len(encoded), 8192):
            part = slice(start, start + 8192)
            for row in range(len(vectors)):
                result[row, part] = _scores(vectors[row : row + 1], encoded[None, part], mask[row : row + 1])[0]
        return result


def _scores(contexts: Floats, candidates: Floats, mask: NDArray[np.bool_]) -> Floats:
    values = scores(torch.from_numpy(contexts), torch.from_numpy(candidates), torch.from_numpy(mask))
    return values.numpy()


class CrossScorer:
    """A Cross-encoder as a Scorer. Small batches of pairs stay in the processor's cache.

    Args:
        model: the network.
        texts: its text policy at work.
        fingerprint: names the model; empty while training.
        device: where to compute.
        dtype: of the large products; results are fp32.
        max_tokens: padded tokens per batch; None: what suits the device.
    """

    def __init__(
        self,
        model: CrossEncoder | ExportedCross,
        texts: Texts,
        *,
        fingerprint: str = "",
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_tokens: int | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.model, self.texts, self.fingerprint = model, texts, fingerprint
        self.dtype, self.max_tokens = dtype, max_tokens or tokens_per_batch(self.device)

    def score(self, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        pairs = [(c, text) for c, texts in zip(contexts, candidates, strict=True) for text in texts]
        rows = [self.texts.pair_ids(context, text) for context, text in pairs]
        flat = np.empty(len(rows), np.float32)
        for batch in token_batches([len(ids) for ids, _ in rows], self.max_tokens):
            ids, segments = [rows[i][0] for i in batch], [rows[i][1] for i in batch]
            tokens = pad(ids, segments, pad_id=self.texts.subwords.pad_id)
            with inference(self.model, self.device, self.dtype):
                flat[batch] = self.model(tokens.to(self.device)).float().cpu().numpy()
        ends = np.cumsum([len(texts) for texts in candidates])
        return [flat[end - len(texts) : end] for end, texts in zip(ends, candidates, strict=True)]

    def score_pool(self, contexts: Sequence[Context], pool: Sequence[str]) -> Floats:
        """One shared pool for every context: ``[B, N]``. Costs B x N passes of the network."""
        return np.stack([self.score([context], [pool])[0] for context in contexts])

    def forget(self) -> None:
        """Nothing is remembered."""


@contextmanager
def inference(model: nn.Module, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Evaluation mode without gradients, in ``dtype``; the model's own mode comes back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            yield
    finally:
        model.train(was_training)


def freeze(model: Model, dtype: torch.dtype) -> torch.dtype:
    """Make a model faster in bf16 for good, at the price that it can be neither trained nor saved.

    The backbones' weights are held in bf16, which beats converting them in every pass and takes half the memory; what
    is behind them stays fp32. Where only the first output is read, the last layer computes no other. In fp32 nothing
    changes: what is loaded scores bit for bit as what was saved.

    Args:
        model: to be changed.
        dtype: of the large products.

    Returns:
        The type that passes are still to be converted to: none, that is fp32, once the weights are in bf16. A ConveRT
        has weights of its own kind and is left as it is.
    """
    if isinstance(model, Convert) or dtype == torch.float32:
        return dtype
    read_first_outputs_only(model)
    for module in model.modules():
        if isinstance(module, Backbone):
            module.narrow()
    return torch.float32


def make_scorer(
    model: Model,
    texts: Texts | ConvertTexts,
    *,
    fingerprint: str = "",
    device: str = "auto",
    precision: Precision = "auto",
    frozen: bool = False,
) -> EncoderScorer | CrossScorer:
    """Bind a model to where and how it computes.

    Args:
        model, texts, fingerprint: of the artifact.
        device: "auto", "cpu" or "cuda".
        precision: "auto" is bf16 where the hardware is fast at it.
        frozen: the model will be neither trained nor saved, so it may be changed to be faster: in bf16 its weights are
            held in it, and last layers compute only what is read.
    """
    place = choose_device(device)
    dtype = choose_dtype(precision, place)
    model.to(place)
    if frozen:
        dtype = freeze(model, dtype)
    if isinstance(model, CrossEncoder):
        assert isinstance(texts, Texts), "only a ConveRT has texts of another kind"
        return CrossScorer(model, texts, fingerprint=fingerprint, device=place, dtype=dtype)
    return EncoderScorer(model, texts, fingerprint=fingerprint, device=place, dtype=dtype)


def load_scorer(
    path: str | Path, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A model folder, or "shipped:convert", as a Scorer, and as an Encoder unless it is a Cross-encoder.

    Raises:
        ArtifactError: the folder is damaged, missing or too new.
    """
    found = load_model(model_folder(path))
    return make_scorer(
        found.model, found.texts, fingerprint=found.fingerprint, device=device, precision=precision, frozen=True
    )


def untuned_scorer(
    name: str, policy: TextPolicy | None = None, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer:
    """A backbone as it comes: its own reduction, cosine as the score. The baseline that fine-tuning must beat."""
    model, texts, config = new_model(
        BiConfig(backbone=name, shared_towers=True, output_scale=1.0), policy, seed=0, sample=()
    )
    assert isinstance(model, BiEncoder)
    place = choose_device(device)
    settings = {
        key: value for key, value in model_to_dict(config).items() if key != "backbone"
    }  # its place says nothing
    digest = hashlib.sha256(b"cosine" + json.dumps([settings, asdict(texts.policy)], sort_keys=True).encode())
    digest.update(texts.subwords.to_bytes())
    for _, weight in sorted(model.state_dict().items()):
        digest.update(weight.contiguous().numpy().tobytes())
    dtype = choose_dtype(precision, place)
    dtype = freeze(model, dtype)
    return CosineScorer(model.to(place), texts, fingerprint=digest.hexdigest(), device=place, dtype=dtype)


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
