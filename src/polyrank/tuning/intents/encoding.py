"""Frozen encodings of utterances by one encoder or a sum of encoders, computed once and optionally cached.

Shapes: N utterances, D dimensions.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.config.checked import read_choice
from polyrank.errors import UsageError
from polyrank.records import Context, turns_of
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.joined import Joined
from polyrank.scorers.protocols import Encoder
from polyrank.storage.durable import write_file

Layer = Literal["final", "r"]
Floats = NDArray[np.float32]
TEXTS_AT_A_TIME = 512


def read_layer(name: str, encoder: Encoder) -> Layer:
    """A layer by its name; "auto" is r for a ConveRT, which is better in the paper, and else the final encoding.

    A sum has r if one of its encoders has it; its other encoders then use their final encoding.

    Raises:
        UsageError: the name is unknown, or the encoder has no such layer.
    """
    inner = _has_inner(encoder)
    if name == "auto":
        return "r" if inner else "final"
    layer: Layer = read_choice(name, Layer, "layer", also="auto")
    if layer == "r" and not inner:
        raise UsageError("only a ConveRT has a layer r; choose final or auto")
    return layer


def _has_inner(encoder: Encoder) -> bool:
    if isinstance(encoder, Joined):
        return any(map(_has_inner, encoder.parts))
    return isinstance(encoder, EncoderScorer) and "r" in encoder.inner_layers


def encode(
    encoder: Encoder,
    texts: Sequence[str | Context],
    layer: Layer = "final",
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Floats:
    """Encode texts as contexts: ``[N, D]``.

    "final" is the context vector, or the mean if an encoder has several vectors; "r" is the output of a ConveRT's
    reduction (Henderson et al., ConveRT, section 4, "Intent Classification: Task, Data, Setup"). A sum concatenates the
    encodings of its encoders, each normalized to length 1, so that none dominates; its weights are for scores and are
    not used here.

    Args:
        encoder: frozen.
        texts: utterances, or contexts of several turns.
        layer: the encoding.
        cache: folder of encodings by encoder, layer and texts; created if it does not exist.
        progress: called with the number of texts encoded and of all texts.
    """
    contexts = [text if isinstance(text, Context) else Context(turns_of(text)) for text in texts]
    if isinstance(encoder, Joined):
        return _concatenated(encoder, contexts, layer, cache, progress)
    path = None if cache is None else cache / f"{_name(encoder, contexts, layer)}.encodings"
    if path is not None and (cached := _read_cache(path)) is not None:
        return cached
    parts = []
    for start in range(0, len(contexts), TEXTS_AT_A_TIME):
        part = contexts[start : start + TEXTS_AT_A_TIME]
        if layer == "r" and isinstance(encoder, EncoderScorer):
            parts.append(encoder.encode_inner(layer, part))
        else:
            parts.append(_mean(*encoder.encode_contexts(part)))
        progress(start + len(part), len(contexts))
    encoded: Floats = np.concatenate(parts) if parts else np.zeros((0, encoder.dimension), np.float32)
    if path is not None:
        buffer = io.BytesIO()
        np.save(buffer, encoded, allow_pickle=False)
        write_file(path, hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    return encoded


def _concatenated(
    encoder: Joined,
    contexts: Sequence[Context],
    layer: Layer,
    cache: Path | None,
    progress: Callable[[int, int], None],
) -> Floats:
    n, blocks = len(contexts), []
    for number, part in enumerate(encoder.parts):

        def report(done: int, _: int, before: int = number * n) -> None:
            progress(before + done, n * len(encoder.parts))

        own = layer if _has_inner(part) else "final"
        block = encode(part, contexts, own, cache=cache, progress=report)
        blocks.append(block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12))
    joined: Floats = np.concatenate(blocks, axis=1).astype(np.float32)
    return joined


def _read_cache(path: Path) -> Floats | None:
    """The encodings of a cache file; None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    encodings: Floats = np.load(io.BytesIO(data[32:]), allow_pickle=False)
    return encodings


def _name(encoder: Encoder, contexts: Sequence[Context], layer: Layer) -> str:
    digest = hashlib.sha256(f"{encoder.fingerprint} {layer}".encode())
    for context in contexts:
        digest.update(repr((context.turns, context.background)).encode())
    return digest.hexdigest()


def _mean(vectors: Floats, mask: NDArray[np.bool_]) -> Floats:
    """The mean of the real vectors: ``[N, M, D]`` and ``[N, M]`` to ``[N, D]``."""
    weights = mask[:, :, None].astype(np.float32)
    mean: Floats = (vectors * weights).sum(1) / np.maximum(weights.sum(1), 1)
    return mean
