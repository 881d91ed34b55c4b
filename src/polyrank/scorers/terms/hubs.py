"""The term ``hubs``: it lowers the scores of replies that score high in every context.

Shapes: N candidates, M vectors per context, D dimensions; J stored contexts.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, UsageError
from polyrank.records import Context, Example
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.terms.protocol import LoadModel, Offer, ReplyTerm, State, Tensors

N_CONTEXTS = 1000
CONTEXTS_AT_A_TIME = 256
_ENCODED: "WeakKeyDictionary[Encoder, tuple[tuple[str, list[Context]], tuple[Floats, NDArray[np.bool_]]]]"
_ENCODED = WeakKeyDictionary()  # each choice of a ranker asks again for the terms of the same encoders


class Hubs(ReplyTerm):
    """How high a reply scores in any context, subtracted: ``-H(reply)``.

    ``H(r) = log(mean_j exp(a g(c_j, r))) / a``, over stored contexts c_j of an encoder's g, is the score that a
    candidate has in any context. A model whose ``a g`` are log-odds gives every candidate the same H: the mean of
    ``p(r | c) / p(r)`` over contexts is 1. On texts that it was not trained on, H differs, and candidates with a high
    H, the hubs, are ranked too high everywhere.

    Args:
        encoder: gives g.
        contexts: stored vectors ``[J, M, D]``.
        mask: ``[J, M]``, true where a vector is real.
        scale: a, above 0, with which g become log-odds; near 0, H is the mean score.

    Raises:
        UsageError: the scale is not above 0.
        ArtifactError: the shapes do not fit.

    Source: Smith et al., Offline Bilingual Word Vectors (ICLR 2017), the inverted softmax,
        https://arxiv.org/abs/1702.03859; Bogolin et al., Cross Modal Retrieval with Querybank Normalisation (CVPR
        2022), https://arxiv.org/abs/2112.12777. Both subtract all of it, with the weight of the encoder.
    """

    kind = "hubs"

    def __init__(self, encoder: Encoder, contexts: Floats, mask: NDArray[np.bool_], *, scale: float) -> None:
        if not (scale > 0 and math.isfinite(scale)):
            raise UsageError(f"scale = {scale} of the scores; give a number above 0")
        if contexts.ndim != 3 or not contexts.size or contexts.shape[:2] != mask.shape or not mask.any(1).all():
            raise ArtifactError(f"contexts of shape {list(contexts.shape)} do not fit a mask of {list(mask.shape)}")
        if contexts.shape[2] != encoder.dimension:
            raise ArtifactError(
                f"contexts of dimension {contexts.shape[2]} do not fit vectors of dimension {encoder.dimension}; encode"
                " them with this encoder"
            )
        self.parts = (encoder,)
        self.of, self.scale, self.name = encoder, float(scale), f"hubs of {encoder.name or 'the encoder'}"
        self.contexts, self.mask = np.ascontiguousarray(contexts, np.float32), np.ascontiguousarray(mask)
        real = self.contexts[self.mask].astype(np.float64)
        self.size = float(np.linalg.norm(real) / np.sqrt(len(real)) * np.sqrt(encoder.dimension) / 4) or 1.0
        whole = f"{self.kind} {encoder.fingerprint} {self.scale.hex()}".encode()
        whole += self.contexts.tobytes() + self.mask.tobytes()
        self.fingerprint = hashlib.sha256(whole).hexdigest() if encoder.fingerprint else ""

    @classmethod
    def encoded(cls, encoder: Encoder, contexts: Sequence[Context], *, scale: float) -> Self:
        """The term of an encoder and contexts like those that it will answer; right answers are not needed."""
        key = encoder.fingerprint, [*contexts]
        if key[0] and (kept := _ENCODED.get(encoder)) and kept[0] == key:
            return cls(encoder, *kept[1], scale=scale)
        starts = range(0, len(contexts), CONTEXTS_AT_A_TIME)
        parts = [encoder.encode_contexts(contexts[start : start + CONTEXTS_AT_A_TIME]) for start in starts]
        width = max(mask.shape[1] for _, mask in parts)
        vectors = np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]), (0, 0))) for part, _ in parts])
        masks = np.concatenate([np.pad(mask, ((0, 0), (0, width - mask.shape[1]))) for _, mask in parts])
        _ENCODED[encoder] = key, (vectors, masks)
        return cls(encoder, vectors, masks, scale=scale)

    def numbers(self, texts: Sequence[str]) -> Floats:
        """``-H`` of texts ``[N, 1]``."""
        return -hubness(self.contexts, self.mask, self.of.encode_candidates(texts), self.scale)[:, None]

    @classmethod
    def offered(cls, offer: Offer) -> Iterable[Self]:
        """One for each encoder that ranks the lists better than chance, with contexts of the dialogues or the lists."""
        contexts = choose_contexts(offer.dialogues or offer.lists, N_CONTEXTS)
        for encoder, scale in zip(offer.encoders, offer.scales, strict=True) if contexts else ():
            if scale > 0:
                yield cls.encoded(encoder, contexts, scale=float(f"{scale:.4g}"))

    def to_dict(self) -> tuple[State, Tensors]:
        """The encoder's name, the scale and the vectors of the stored contexts."""
        import torch

        tensors = {"contexts": torch.from_numpy(self.contexts), "mask": torch.from_numpy(self.mask)}
        return {"model": self.of.name, "scale": self.scale}, tensors

    @classmethod
    def from_dict(cls, state: State, tensors: Tensors, load: LoadModel) -> Self:
        """The term with the stored contexts."""
        encoder = load(state["model"])
        assert isinstance(encoder, Encoder), "hubs are of an encoder"
        return cls(encoder, tensors["contexts"].numpy(), tensors["mask"].numpy(), scale=state["scale"])


def choose_contexts(examples: Sequence[Example], n: int, *, seed: int = 1) -> list[Context]:
    """At most ``n`` different contexts, at random.

    >>> len(choose_contexts([Example(("hi",), (str(i),), (0,)) for i in range(5)], 3))
    1
    """
    distinct = list(dict.fromkeys(example.query for example in examples))
    order = np.random.default_rng(seed).permutation(len(distinct))[:n]
    return [distinct[number] for number in order.tolist()]


def hubness(contexts: Floats, mask: NDArray[np.bool_], candidates: Floats, scale: float) -> Floats:
    """``H = log(mean_j exp(a g(c_j, r))) / a`` of each candidate, computed alone: ``[N]``; see Hubs.

    Args:
        contexts: vectors ``[J, M, D]``.
        mask: ``[J, M]``.
        candidates: vectors ``[N, D]``.
        scale: a.

    >>> contexts, mask = np.array([[[1.0]], [[3.0]]], np.float32), np.ones((2, 1), np.bool_)
    >>> hubness(contexts, mask, np.array([[0.0], [1.0]], np.float32), 1.0).round(4)  # log of 1 and of (e + e^3) / 2
    array([0.    , 2.4338], dtype=float32)
    """
    import torch

    from polyrank.models.scoring import attended

    j, m, dimension = contexts.shape
    flat, real = torch.from_numpy(contexts).reshape(j * m, dimension), torch.from_numpy(mask)
    values = np.empty(len(candidates), np.float32)
    for row, vector in enumerate(torch.from_numpy(np.ascontiguousarray(candidates, np.float32))):
        scores = attended(torch.mv(flat, vector).reshape(j, m), real).double()
        values[row] = (torch.logsumexp(scale * scores, 0) - math.log(j)) / scale
    return values
