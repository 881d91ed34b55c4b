"""An intent classifier (a frozen encoder, a small network on it, a threshold) and its folder."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.models import model_exists, portable_name, resolved_name
from polyrank.ranking.abstention import Abstention, confidence
from polyrank.records import Context
from polyrank.scorers.open import load_frozen
from polyrank.scorers.protocols import Encoder
from polyrank.storage.tensors import read_tensors, write_tensors
from polyrank.tuning.intents.confusion import predict_labels
from polyrank.tuning.intents.encoding import Floats, Layer, encode, read_layer
from polyrank.tuning.intents.head import Head

KIND = "intent"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted intent of an utterance.

    Args:
        intent: None: out of scope.
        confidence: by the measure of the threshold; without a threshold, the probability of the best intent.
        best: the best intents with their probabilities, best first, also if the threshold rejects them.
    """

    intent: str | None
    confidence: float
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class IntentClassifier:
    """Utterances to intents.

    Args:
        encoder: frozen.
        encoder_name: to open it again.
        layer: the encoding that is used.
        head: the network.
        intents: their names, in the order of the network's outputs.
        abstention: the threshold below which an utterance is out of scope; None: no utterance is.
        metadata: written by the training.
    """

    encoder: Encoder
    encoder_name: str
    layer: Layer
    head: Head
    intents: tuple[str, ...]
    abstention: Abstention | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def scores_of(self, vectors: Floats) -> Floats:
        """Raw scores ``[N, L]`` of encodings ``[N, D]``."""
        with torch.inference_mode():
            scores: Floats = self.head(torch.from_numpy(vectors)).numpy()
        return scores

    def scores(self, texts: Sequence[str | Context]) -> Floats:
        """Raw scores ``[N, L]``, higher is better."""
        if not len(texts):  # the number of dimensions of a layer is known only from its encodings
            return np.zeros((0, len(self.intents)), np.float32)
        return self.scores_of(encode(self.encoder, texts, self.layer))

    def predict(self, texts: Sequence[str | Context], k: int = 3) -> list[Prediction]:
        """Predict the intent of each utterance, with the best ``k``.

        Raises:
            UsageError: ``k`` is less than one.
        """
        if k < 1:
            raise UsageError(f"k is {k}; give at least 1")
        scores = self.scores(texts)
        labels = predict_labels(scores, self.abstention)
        predictions = []
        for row, number in zip(scores.astype(np.float64), labels.tolist(), strict=True):
            order = np.argsort(-row, kind="stable")
            shares = np.exp(row - row.max())
            shares /= shares.sum()
            best = tuple((self.intents[i], float(shares[i])) for i in order[:k].tolist())
            value = best[0][1] if self.abstention is None else confidence(row[order], self.abstention.measure)
            predictions.append(Prediction(None if number < 0 else self.intents[number], value, best))
        return predictions


def save_intents(path: Path, classifier: IntentClassifier, *, replace: bool = False) -> None:
    """Write a classifier as intent.json and intent.safetensors, without its encoder.

    Raises:
        UsageError: the path exists already.
        ResourceError: the disk is full.
    """
    head = classifier.head
    document = {
        "encoder": portable_name(classifier.encoder_name, path),
        "encoder_fingerprint": classifier.encoder.fingerprint,
        "layer": classifier.layer,
        "intents": list(classifier.intents),
        "abstention": None if classifier.abstention is None else asdict(classifier.abstention),
        "metadata": classifier.metadata,
    }
    write_tensors(path, KIND, document, head.state_dict(), replace=replace)


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
    document, tensors = read_tensors(path, KIND)
    name = encoder or resolved_name(document["encoder"], path)
    if not model_exists(name):
        raise UsageError(f"{path} needs the encoder {name}, which does not exist; give its folder as `encoder`")
    opened = open_encoder(name, device=device)
    if opened.fingerprint != document["encoder_fingerprint"]:
        raise ArtifactError(
            f"{path} was trained on encoder {document['encoder_fingerprint'][:12]}, and {name} is"
            f" {opened.fingerprint[:12]}; give the right encoder as `encoder`, or train the classifier again"
        )
    head = Head(tensors["hidden.weight"].shape[1], tensors["hidden.weight"].shape[0], len(document["intents"]))
    head.load_state_dict(tensors)
    rejection = document["abstention"]
    return IntentClassifier(
        opened,
        name,
        read_layer(document["layer"], opened),
        head.eval(),
        tuple(document["intents"]),
        None if rejection is None else Abstention(**rejection),
        document["metadata"],
    )


def open_encoder(name: str, *, device: str = "auto") -> Encoder:
    """Open a model folder or an untuned backbone as a frozen Encoder.

    Raises:
        UsageError: the model is not an encoder.
    """
    return load_frozen(name, "train on", device=device)
