"""A frozen encoder whose response vectors pass through a learned linear map: an Encoder, and its folder.

Shapes: B contexts, N candidates, M vectors per context, D dimensions.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import ArtifactError
from polyrank.loading.models import portable_name
from polyrank.models.mixture import Mixture
from polyrank.records import Context, ContextLike
from polyrank.scorers.parts import check_not_itself, check_part
from polyrank.scorers.protocols import Encoder, Floats
from polyrank.scorers.wrapped import WrappedEncoder
from polyrank.storage.tensors import read_tensors, write_tensors
from polyrank.text import Texts

KIND = "map"


class MapEncoder(WrappedEncoder):
    """``score = h_c . W h_r``: contexts as the frozen encoder encodes them, candidates mapped by ``W = s (I + A)``.

    Args:
        encoder: frozen.
        matrix: W, ``[D, D]``.

    Source: Henderson et al., ConveRT (2020), section 3.1, "Baselines"; Henderson et al., A Repository of Conversational
    Datasets (2019), section 4.2.
    """

    def __init__(self, encoder: Encoder, matrix: Floats) -> None:
        if matrix.shape != (encoder.dimension, encoder.dimension):
            raise ArtifactError(
                f"a map of shape {list(matrix.shape)} does not fit vectors of dimension {encoder.dimension};"
                " fit it on this encoder"
            )
        self.encoder, self.matrix = encoder, np.ascontiguousarray(matrix, np.float32)
        self.dimension = encoder.dimension
        whole = f"{KIND} {encoder.fingerprint}".encode() + self.matrix.tobytes()
        self.fingerprint = hashlib.sha256(whole).hexdigest() if encoder.fingerprint else ""

    def encode_contexts(self, contexts: Sequence[ContextLike]) -> tuple[Floats, NDArray[np.bool_]]:
        """Context vectors ``[B, M, D]`` and a mask ``[B, M]``, of the frozen encoder."""
        return self.encoder.encode_contexts(contexts)

    def encode_candidates(self, candidates: Sequence[str]) -> Floats:
        """Mapped candidate vectors ``[N, D]``."""
        return apply_map(self.encoder.encode_candidates(candidates), self.matrix)

    def encode_lists(self, lists: Iterable[Sequence[str]]) -> Generator[Floats, None, None]:
        """See ``Encoder``."""
        with closing(self.encoder.encode_lists(lists)) as encoded:
            yield from (apply_map(vectors, self.matrix) for vectors in encoded)

    @property
    def texts(self) -> Texts | None:
        """The frozen encoder's text policy; None if it has several, or none."""
        return getattr(self.encoder, "texts", None)

    def context_mixture(self, context: Context) -> Mixture | None:
        """A context's vectors as weighted sums of token outputs; None if the frozen encoder has no such form."""
        mix: Callable[[Context], Mixture | None] | None = getattr(self.encoder, "context_mixture", None)
        return mix and mix(context)

    def candidate_mixture(self, candidate: str) -> Mixture | None:
        """A candidate's mapped vector as a weighted sum of mapped token outputs; None if the encoder has none."""
        mix: Callable[[str], Mixture | None] | None = getattr(self.encoder, "candidate_mixture", None)
        mixture = mix and mix(candidate)
        if mixture is None:
            return None
        return replace(mixture, outputs=mixture.outputs @ torch.from_numpy(self.matrix.T).to(mixture.outputs))


def apply_map(vectors: Floats, matrix: Floats) -> Floats:
    """``W h_r`` for each row ``[N, D]``.

    >>> apply_map(np.array([[1.0, 2.0]], np.float32), np.array([[0.0, 1.0], [3.0, 0.0]], np.float32))
    array([[2., 3.]], dtype=float32)
    """
    result: Floats = vectors @ matrix.T
    return result


def save_map(
    path: Path, encoder: MapEncoder, *, name: str, metadata: dict[str, Any] | None = None, replace: bool = False
) -> None:
    """Write map.json and map.safetensors: the matrix, and which frozen encoder it belongs to.

    Args:
        path: the folder to make.
        encoder: with its map.
        name: the frozen encoder's name, with which it is loaded again.
        metadata: figures of the fit.
        replace: whether an earlier map may be replaced.

    Raises:
        UsageError: the path exists, or is that of the frozen encoder.
        ResourceError: the disk is full.
    """
    check_not_itself(path, name)
    document = {
        "encoder": portable_name(name, path),
        "encoder_fingerprint": encoder.encoder.fingerprint,
        "metadata": metadata or {},
    }
    write_tensors(path, KIND, document, {"matrix": torch.from_numpy(encoder.matrix)}, replace=replace)


def load_map(path: Path, encoder: Encoder) -> MapEncoder:
    """A map's folder with its frozen encoder.

    Args:
        path: the folder.
        encoder: the frozen encoder that the folder names.

    Raises:
        ArtifactError: the folder is damaged, or the encoder has changed since.
    """
    document, tensors = read_tensors(path, KIND)
    check_part(path, "encoder", encoder, document["encoder_fingerprint"], "fit it again")
    return MapEncoder(encoder, tensors["matrix"].numpy())
