"""Two or more encoders as one: an Encoder whose score is the weighted sum of theirs, and its folder.

Shapes: B contexts, N candidates, M vectors per context, D dimensions; P encoders.
"""

import hashlib
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyrank.errors import UsageError
from polyrank.loading.folders import SUM
from polyrank.loading.models import portable_name
from polyrank.ranking.weights import check_weights, listed
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.parts import check_not_itself, check_part
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.storage.document import read_document, seal
from polyrank.storage.durable import new_folder

if TYPE_CHECKING:  # a folder's document is read without torch
    from polyrank.scorers.network import NetworkScorer
    from polyrank.text.cut import Cut

PROBE = Context(("how are you today ?", "fine , and you ?"))  # has several vectors if any context has


class SumEncoder(Encoder):
    """``score = sum_p w_p score_p``, as one inner product, or as one Poly score.

    Each context vector is the encoders' own side by side, and so is each candidate vector. With context vectors
    ``y_i`` from a Poly-encoder and one vector c from another encoder, ``[y_i ; w c]`` and ``[r ; r']`` have the
    products ``s_i + w c . r'``. Adding the same number to all of them does not change ``softmax(s)``, so their Poly
    score is ``Poly(s) + w c . r'`` exactly. Each w is split evenly between both sides, which keeps the parts of a
    stored vector near one size, as int8 requires.

    Args:
        parts: the encoders, each with its own texts, device and precision. At most one may give a context several
            vectors: two attentions cannot be combined into one.
        weights: of their scores, above 0; 1 for the encoder with several vectors, which attends by its scores.

    Raises:
        UsageError: there are fewer than two encoders, or the weights do not fit.
    """

    def __init__(self, parts: Sequence[Encoder], weights: Sequence[float]) -> None:
        self.parts, self.weights = tuple(parts), tuple(float(weight) for weight in weights)
        check_weights(self.weights, len(self.parts), "a sum", "encoders")
        self.attending = attending_part(self.parts)
        if self.attending is not None and self.weights[self.attending] != 1:
            alike = relative_weights(self.weights, self.attending)
            raise UsageError(
                f"weights {listed(self.weights)}: an encoder with several vectors per context has weight 1, because it"
                f" attends by its scores; give {listed(alike)}, which rank the same"
            )
        self.dimension = sum(part.dimension for part in self.parts)
        self.fingerprint = _fingerprint([part.fingerprint for part in self.parts], self.weights)

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]``, D being the sum of the dimensions, and a mask ``[B, M]``."""
        queries = contexts_of(contexts)
        vectors, masks = zip(*(part.encode_contexts(queries) for part in self.parts), strict=True)
        _attending([each.shape[1] for each in vectors], self.parts)
        width = max(each.shape[1] for each in vectors)
        wide = [
            math.sqrt(weight) * np.broadcast_to(each, (len(queries), width, each.shape[2]))
            for weight, each in zip(self.weights, vectors, strict=True)
        ]
        mask = np.logical_and.reduce([np.broadcast_to(each, (len(queries), width)) for each in masks])
        return np.concatenate(wide, axis=2), mask

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Candidate vectors ``[N, D]``."""
        return self._joined([part.encode_candidates(candidates) for part in self.parts])

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """See ``Encoder``."""
        with ExitStack() as stack:
            copies = zip(self.parts, tee(lists, len(self.parts)), strict=True)
            encoded = [stack.enter_context(closing(part.encode_lists(own))) for part, own in copies]
            yield from map(self._joined, zip(*encoded, strict=True))

    def _joined(self, encoded: Sequence[Floats]) -> Floats:
        sides = [math.sqrt(weight) * each for weight, each in zip(self.weights, encoded, strict=True)]
        return np.concatenate(sides, axis=1)

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the first encoder reads."""
        return self.parts[0].n_context_tokens(context)

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """The networks of all encoders."""
        return tuple(network for part in self.parts for network in part.networks)

    @property
    def cut(self) -> "tuple[Cut, ...]":
        """The texts that each of the encoders truncated."""
        return tuple(cut for part in self.parts for cut in part.cut)


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
            f"{names} both give a context several vectors, and two attentions cannot be one score; sum one of them with"
            " encoders of one vector, or add their scores in two stages with `rerank=MODEL` and `ensemble=raw`"
        )
    return several[0] if several else None


def relative_weights(weights: Sequence[float], unit: int | None) -> tuple[float, ...]:
    """Weights in the same ratios, with 1 for ``unit``, or for the first.

    >>> relative_weights([2.0, 1.0], None), relative_weights([2.0, 1.0], 1)
    ((1.0, 0.5), (2.0, 1.0))
    """
    return tuple(weight / weights[unit or 0] for weight in weights)


def _fingerprint(parts: Sequence[str], weights: Sequence[float]) -> str:
    if not all(parts):
        return ""
    terms = (f"{weight.hex()} {part}" for weight, part in zip(weights, parts, strict=True))
    return hashlib.sha256(" + ".join(("sum", *terms)).encode()).hexdigest()


def check_parts(path: Path, parts: Sequence[Encoder]) -> None:
    """Refuse encoders that a sum at ``path`` could not load again, and the sum itself as a part.

    Raises:
        UsageError: a part, or a part of a part, was not loaded by a name, or is at ``path``.
    """
    for part in parts:
        if not part.name:
            raise UsageError(
                "a part of the sum was not loaded by a name, so it could not be loaded again; load it by name"
            )
        check_not_itself(path, part.name)
        if isinstance(part, SumEncoder):
            check_parts(path, part.parts)


def save_sum(path: Path, encoder: SumEncoder, *, metadata: dict[str, Any] | None = None, replace: bool = False) -> None:
    """Write sum.json: the names with which the encoders are loaded again, their fingerprints and weights.

    Args:
        path: the folder to make.
        encoder: the sum; its parts were loaded by name.
        metadata: the figures from which the weights were chosen.
        replace: whether an earlier sum may be replaced.

    Raises:
        UsageError: the path exists, or is that of a part; or a part was not loaded by a name.
        ResourceError: the disk is full.
    """
    check_parts(path, encoder.parts)
    names = [portable_name(part.name, path) for part in encoder.parts]
    whole = sum_document(names, [part.fingerprint for part in encoder.parts], encoder.weights, metadata or {})
    with new_folder(path, replace=replace) as folder:
        (folder / SUM.file).write_bytes(whole)


def sum_document(
    names: Sequence[str], fingerprints: Sequence[str], weights: Sequence[float], metadata: dict[str, Any]
) -> bytes:
    """The content of sum.json.

    Args:
        names: of the encoders, relative to the sum's folder.
        fingerprints: of the encoders.
        weights: of their scores.
        metadata: the figures from which the weights were chosen.
    """
    parts = [
        {"model": name, "fingerprint": fingerprint, "weight": weight}
        for name, fingerprint, weight in zip(names, fingerprints, weights, strict=True)
    ]
    return seal({"parts": parts, "fingerprint": _fingerprint(fingerprints, weights), "metadata": metadata}, SUM)


def load_sum(path: Path, encoders: Sequence[Encoder]) -> SumEncoder:
    """A sum's folder with its encoders.

    Args:
        path: the folder.
        encoders: the encoders that the folder names, in its order.

    Raises:
        ArtifactError: the folder is damaged, or one of the encoders has changed since.
    """
    parts = read_document(path, SUM)["parts"]
    for part, encoder in zip(parts, encoders, strict=True):
        check_part(path, "encoder", encoder, part["fingerprint"], "make the sum again")
    return SumEncoder(encoders, [part["weight"] for part in parts])
