"""Encoders side by side: one Encoder whose score is the sum of theirs.

Shapes: B contexts, N candidates, M vectors per context, D dimensions; P encoders.
"""

import hashlib
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from itertools import tee

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.protocols import Encoder, Floats

PROBE = Context(("hi", "you"))  # has several vectors if any context has; short, so that no budget cuts it


class Scaled(Encoder):
    """An encoder's score times a weight, split evenly between both sides: int8 needs vectors of about one size.

    Args:
        encoder: of one vector per context; with several, the score is not proportional to the vectors.
        weight: above 0.
    """

    def __init__(self, encoder: Encoder, weight: float) -> None:
        if not (weight > 0 and math.isfinite(weight)):
            raise UsageError(f"weight = {weight} of {encoder!r}; give a number above 0")
        self.encoder, self.root, self.dimension = encoder, math.sqrt(weight), encoder.dimension
        self.parts = (encoder,)
        self.name = encoder.name
        stated = f"{float(weight).hex()} {encoder.fingerprint}"
        self.fingerprint = hashlib.sha256(stated.encode()).hexdigest() if encoder.fingerprint else ""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        vectors, mask = self.encoder.encode_contexts(contexts)
        if vectors.shape[1] > 1:
            raise UsageError(
                f"{self.encoder!r} gives a context several vectors and attends by its scores, so its weight is 1;"
                " divide the other weights instead, which ranks the same"
            )
        return self.root * vectors, mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        return self.root * self.encoder.encode_candidates(candidates)

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        with closing(self.encoder.encode_lists(lists)) as encoded:
            yield from (self.root * vectors for vectors in encoded)


class Joined(Encoder):
    """``score = sum_p score_p``, as one inner product, or as one Poly score.

    Each context vector is the encoders' own side by side, and so is each candidate vector. With context vectors
    ``y_i`` from a Poly-encoder and one vector c from another encoder, ``[y_i ; c]`` and ``[r ; r']`` have the products
    ``s_i + c . r'``. Adding the same number to all of them does not change ``softmax(s)``, so their Poly score is
    ``Poly(s) + c . r'`` exactly.

    Args:
        parts: the encoders, each with its own texts, device and precision. At most one may give a context several
            vectors: two attentions cannot be combined into one.

    Raises:
        UsageError: more than one encoder gives several vectors.
    """

    parts: tuple[Encoder, ...]

    def __init__(self, parts: Sequence[Encoder]) -> None:
        self.parts = tuple(parts)
        attending_part(self.parts)
        self.dimension = sum(part.dimension for part in self.parts)
        fingerprints = [part.fingerprint for part in self.parts]
        stated = " + ".join(fingerprints)
        self.fingerprint = hashlib.sha256(stated.encode()).hexdigest() if all(fingerprints) else ""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]``, D being the sum of the dimensions, and a mask ``[B, M]``."""
        queries = contexts_of(contexts)
        vectors, masks = zip(*(part.encode_contexts(queries) for part in self.parts), strict=True)
        _attending([part.shape[1] for part in vectors], self.parts)
        width = max(part.shape[1] for part in vectors)
        wide = [np.broadcast_to(part, (len(queries), width, part.shape[2])) for part in vectors]
        mask = np.logical_and.reduce([np.broadcast_to(part, (len(queries), width)) for part in masks])
        return np.concatenate(wide, axis=2), mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""
        return np.concatenate([part.encode_candidates(candidates) for part in self.parts], axis=1)

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """See ``Encoder``."""
        with ExitStack() as stack:
            copies = zip(self.parts, tee(lists, len(self.parts)), strict=True)
            encoded = [stack.enter_context(closing(part.encode_lists(copy))) for part, copy in copies]
            for sides in zip(*encoded, strict=True):
                yield np.concatenate(sides, axis=1)


def attending_part(parts: Sequence[Encoder]) -> int | None:
    """The number of the encoder that gives a context several vectors; None: each gives one.

    Raises:
        UsageError: more than one encoder gives several.
    """
    return _attending([part.encode_contexts([PROBE])[0].shape[1] for part in parts], parts)


def _attending(widths: Sequence[int], parts: Sequence[Encoder]) -> int | None:
    several = [number for number, width in enumerate(widths) if width > 1]
    if len(several) > 1:
        names = " and ".join(parts[number].name or f"encoder {number + 1}" for number in several)
        raise UsageError(
            f"{names} both give a context several vectors, and two attentions cannot be one score; keep one of them,"
            " and combine it with encoders of one vector"
        )
    return several[0] if several else None
