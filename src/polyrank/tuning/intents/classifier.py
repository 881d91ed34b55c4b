"""An intent classifier (a frozen encoder, a small network on it, a threshold) and its folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.folders import INTENTS
from polyrank.loading.models import model_exists, portable_name, resolved_name
from polyrank.records import Context, turns_of
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder
from polyrank.storage.tensors import read_tensors, write_tensors
from polyrank.tuning.intents.head import Floats, Head

REDUCTION = "r"
TEXTS_AT_A_TIME = 512


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted intent of an utterance.

    Args:
        intent: None: out of scope.
        best: the best intents with their probabilities, best first, also if the threshold rejects them.
    """

    intent: str | None
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class IntentClassifier:
    """Utterances to intents.

    Args:
        encoder: frozen.
        encoder_name: to open it again.
        head: the network.
        intents: their names, in the order of the network's outputs.
        threshold: an utterance whose best score is lower is out of scope; None: no utterance is.
        metadata: written by the training.
    """

    encoder: Encoder
    encoder_name: str
    head: Head
    intents: tuple[str, ...]
    threshold: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def scores_of(self, vectors: Floats) -> Floats:
        """Raw scores ``[N, L]`` of encodings ``[N, D]``."""
        with torch.inference_mode():
            scores: Floats = self.head(torch.from_numpy(vectors)).numpy()
        return scores

    def predict(self, texts: Sequence[str | Context], k: int = 3) -> list[Prediction]:
        """Predict the intent of each utterance, with the best ``k``.

        Raises:
            UsageError: ``k`` is less than one.
        """
        if k < 1:
            raise UsageError(f"k is {k}; give at least 1")
        predictions = []
        for row in self.scores_of(encode(self.encoder, texts)).astype(np.float64) if len(texts) else ():
            order = np.argsort(-row, kind="stable").tolist()
            shares = np.exp(row - row.max())
            shares /= shares.sum()
            rejected = self.threshold is not None and row[order[0]] < self.threshold
            best = tuple((self.intents[i], float(shares[i])) for i in order[:k])
            predictions.append(Prediction(None if rejected else best[0][0], best))
        return predictions


def encode(
    encoder: Encoder, texts: Sequence[str | Context], progress: Callable[[int, int], None] = lambda done, total: None
) -> Floats:
    """Encode texts as contexts: ``[N, D]``, the context vector, or the mean if an encoder has several vectors.

    Of a ConveRT, this is the output of its reduction, which is better in the paper (Henderson et al., ConveRT, section
    4, "Intent Classification: Task, Data, Setup").

    Args:
        encoder: frozen.
        texts: utterances, or contexts of several turns.
        progress: called with the number of texts encoded and of all texts.
    """
    contexts = [text if isinstance(text, Context) else Context(turns_of(text)) for text in texts]
    parts = [np.zeros((0, encoder.dimension), np.float32)] if not contexts else []
    for start in range(0, len(contexts), TEXTS_AT_A_TIME):
        part = contexts[start : start + TEXTS_AT_A_TIME]
        if isinstance(encoder, EncoderScorer) and REDUCTION in encoder.inner_layers:
            parts.append(encoder.encode_inner(REDUCTION, part))
        else:
            vectors, mask = encoder.encode_contexts(part)
            weights = mask[:, :, None].astype(np.float32)
            parts.append((vectors * weights).sum(1) / np.maximum(weights.sum(1), 1))
        progress(start + len(part), len(contexts))
    return np.concatenate(parts)


def save_intents(path: Path, classifier: IntentClassifier, *, replace: bool = False) -> None:
    """Write a classifier as intent.json and intent.safetensors, without its encoder.

    Raises:
        UsageError: the path exists already.
        ResourceError: the disk is full.
    """
    document = {
        "encoder": portable_name(classifier.encoder_name, path),
        "encoder_fingerprint": classifier.encoder.fingerprint,
        "intents": list(classifier.intents),
        "threshold": classifier.threshold,
        "metadata": classifier.metadata,
    }
    write_tensors(path, INTENTS, document, classifier.head.state_dict(), replace=replace)


def load_intents(path: Path, *, encoder: str | None = None, device: str = "auto") -> IntentClassifier:
    """Read a classifier from its folder, with the encoder that it was trained on.

    Args:
        path: the folder.
        encoder: the new folder of an encoder that has moved.
        device: for the encoder.

    Raises:
        ArtifactError: the folder is damaged, or the encoder is a different one.
        UsageError: the encoder does not exist.
    """
    document, tensors = read_tensors(path, INTENTS)
    name = encoder or resolved_name(document["encoder"], path)
    if not model_exists(name):
        raise UsageError(f"{path} needs the encoder {name}, which does not exist; give its folder as `encoder`")
    opened = load_encoder(name, device=device)
    if opened.fingerprint != document["encoder_fingerprint"]:
        raise ArtifactError(
            f"{path} was trained on encoder {document['encoder_fingerprint'][:12]}, and {name} is"
            f" {opened.fingerprint[:12]}; give the right encoder as `encoder`, or train the classifier again"
        )
    hidden, intents = tensors["hidden.weight"], tuple(document["intents"])
    head = Head(hidden.shape[1], hidden.shape[0], len(intents))
    head.load_state_dict(tensors)
    return IntentClassifier(opened, name, head.eval(), intents, document["threshold"], document["metadata"])
