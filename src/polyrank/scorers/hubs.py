"""An encoder whose scores are corrected for hubs, candidates that score high in every context; and its folder.

Shapes: B contexts, N candidates, M vectors per context, D dimensions; K stored contexts.
"""

import hashlib
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.models import portable_name
from polyrank.models.scoring import attended
from polyrank.records import ContextLike
from polyrank.scorers.parts import check_not_itself, check_part
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.wrapped import WrappedEncoder
from polyrank.storage.tensors import read_tensors, write_tensors

KIND = "hubs"


class HubEncoder(WrappedEncoder):
    """``score = g(c, r) - w H(r)``, with ``H(r) = log(mean_b exp(a g(b, r))) / a`` over stored contexts b.

    H is the score that a candidate has in any context. A model whose ``a g`` are log-odds gives every candidate the
    same H: the mean of ``p(r | b) / p(r)`` over contexts is 1. On texts that it was not trained on, H differs, and
    candidates with a high H, the hubs, are ranked too high everywhere.

    A vector of the encoder gets one more number, so indexes, searches and sums work as with any encoder:
    ``[y_i ; L]`` and ``[r ; -w H / L]`` have the products ``s_i - w H``. A number added to all ``s_i`` does not change
    ``softmax(s)``, so a Poly score is corrected exactly. L is ``sqrt(D) / 4`` times the root of the contexts' mean
    squared length, which keeps the new number near the size of the others, as int8 requires.

    Args:
        encoder: gives g.
        contexts: stored vectors ``[K, M, D]``.
        mask: ``[K, M]``, true where a vector is real.
        weight: w, 0 or more.
        scale: a, above 0, with which g become log-odds; near 0, H is the mean score.

    Raises:
        UsageError: a number is out of its range.
        ArtifactError: the shapes do not fit.

    Source: Smith et al., Offline Bilingual Word Vectors (ICLR 2017), the inverted softmax,
        https://arxiv.org/abs/1702.03859; Bogolin et al., Cross Modal Retrieval with Querybank Normalisation (CVPR
        2022), https://arxiv.org/abs/2112.12777. Both subtract all of it, w = 1.
    """

    def __init__(
        self, encoder: Encoder, contexts: Floats, mask: NDArray[np.bool_], *, weight: float, scale: float
    ) -> None:
        if not (weight >= 0 and math.isfinite(weight)):
            raise UsageError(f"weight = {weight} of the hubs; give 0 or more")
        if not (scale > 0 and math.isfinite(scale)):
            raise UsageError(f"scale = {scale} of the scores; give a number above 0")
        if contexts.ndim != 3 or not contexts.size or contexts.shape[:2] != mask.shape or not mask.any(1).all():
            raise ArtifactError(f"contexts of shape {list(contexts.shape)} do not fit a mask of {list(mask.shape)}")
        if contexts.shape[2] != encoder.dimension:
            raise ArtifactError(
                f"contexts of dimension {contexts.shape[2]} do not fit vectors of dimension {encoder.dimension}; encode"
                " them with this encoder"
            )
        self.encoder, self.weight, self.scale = encoder, float(weight), float(scale)
        self.contexts, self.mask = np.ascontiguousarray(contexts, np.float32), np.ascontiguousarray(mask)
        self.dimension = encoder.dimension + 1
        real = self.contexts[self.mask].astype(np.float64)
        self._last = float(np.linalg.norm(real) / np.sqrt(len(real)) * np.sqrt(encoder.dimension) / 4) or 1.0
        numbers = f"{KIND} {encoder.fingerprint} {self.weight.hex()} {self.scale.hex()}"
        whole = numbers.encode() + self.contexts.tobytes() + self.mask.tobytes()
        self.fingerprint = hashlib.sha256(whole).hexdigest() if encoder.fingerprint else ""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D + 1]`` and a mask ``[B, M]``."""
        vectors, mask = self.encoder.encode_contexts(contexts)
        return _longer(vectors, np.full(vectors.shape[:2], self._last)), mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D + 1]``."""
        return self._corrected(self.encoder.encode_candidates(candidates))

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """See ``Encoder``."""
        with closing(self.encoder.encode_lists(lists)) as encoded:
            yield from map(self._corrected, encoded)

    def hubness(self, vectors: Floats) -> Floats:
        """H of the inner encoder's candidate vectors ``[N, D]``: ``[N]``."""
        return hubness(self.contexts, self.mask, vectors, self.scale)

    def _corrected(self, vectors: Floats) -> Floats:
        return _longer(vectors, -self.weight / self._last * self.hubness(vectors))


def hubness(contexts: Floats, mask: NDArray[np.bool_], candidates: Floats, scale: float) -> Floats:
    """``H = log(mean_b exp(a g(b, r))) / a`` of each candidate, computed alone: ``[N]``; see HubEncoder.

    Args:
        contexts: vectors ``[K, M, D]``.
        mask: ``[K, M]``.
        candidates: vectors ``[N, D]``.
        scale: a.

    >>> contexts, mask = np.array([[[1.0]], [[3.0]]], np.float32), np.ones((2, 1), np.bool_)
    >>> hubness(contexts, mask, np.array([[0.0], [1.0]], np.float32), 1.0).round(4)  # log of 1 and of (e + e^3) / 2
    array([0.    , 2.4338], dtype=float32)
    """
    k, m, dimension = contexts.shape
    flat, real = torch.from_numpy(contexts).reshape(k * m, dimension), torch.from_numpy(mask)
    values = np.empty(len(candidates), np.float32)
    for row, vector in enumerate(torch.from_numpy(np.ascontiguousarray(candidates, np.float32))):
        scores = attended(torch.mv(flat, vector).reshape(k, m), real).double()
        values[row] = (torch.logsumexp(scale * scores, 0) - math.log(k)) / scale
    return values


def _longer(vectors: Floats, last: NDArray[np.floating[Any]]) -> Floats:
    """Vectors ``[..., D]`` with one more number each: ``[..., D + 1]``."""
    return np.concatenate([vectors, last.astype(np.float32)[..., None]], axis=-1)


def save_hubs(
    path: Path, encoder: HubEncoder, *, name: str, metadata: dict[str, Any] | None = None, replace: bool = False
) -> None:
    """Write hubs.json and hubs.safetensors: the vectors of the stored contexts, and which encoder they belong to.

    Args:
        path: the folder to make.
        encoder: with its stored contexts.
        name: the inner encoder's name, with which it is loaded again.
        metadata: figures of the fit.
        replace: whether an earlier folder of this kind may be replaced.

    Raises:
        UsageError: the path exists, or is that of the inner encoder.
        ResourceError: the disk is full.
    """
    check_not_itself(path, name)
    document = {
        "encoder": portable_name(name, path),
        "encoder_fingerprint": encoder.encoder.fingerprint,
        "fingerprint": encoder.fingerprint,
        "weight": encoder.weight,
        "scale": encoder.scale,
        "metadata": metadata or {},
    }
    tensors = {"contexts": torch.from_numpy(encoder.contexts), "mask": torch.from_numpy(encoder.mask)}
    write_tensors(path, KIND, document, tensors, replace=replace)


def load_hubs(path: Path, encoder: Encoder) -> HubEncoder:
    """A folder of stored contexts with its encoder.

    Args:
        path: the folder.
        encoder: the encoder that the folder names.

    Raises:
        ArtifactError: the folder is damaged, or the encoder has changed since.
    """
    document, tensors = read_tensors(path, KIND)
    check_part(path, "encoder", encoder, document["encoder_fingerprint"], "make it again with polyrank hubs")
    contexts, mask = tensors["contexts"].numpy(), tensors["mask"].numpy()
    return HubEncoder(encoder, contexts, mask, weight=document["weight"], scale=document["scale"])
