"""Trained encoders, ready to be trained further as one weighted sum.

The model is saved in the format of ``polyrank sum``, with the trained parts inside the folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyrank.config.models import SumConfig
from polyrank.config.training import NetworkTraining, Precision
from polyrank.errors import ConfigError, UsageError
from polyrank.loading.folders import SUM
from polyrank.models import EncoderNetwork, SumNetwork
from polyrank.models.artifacts import MODEL_FILES, Artifact, keep_edited_card, load_model, save_model
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.scorers.summed import SumEncoder, sum_document
from polyrank.storage.durable import new_folder
from polyrank.text import SumTexts
from polyrank.training.ranker import Ranker

PART = "part-{}"
SUM_FILES = (*MODEL_FILES, SUM.file, PART.format("*"))


def new_sum(
    config: SumConfig, parts: Sequence[Path], settings: NetworkTraining, *, precision: Precision, device: torch.device
) -> Ranker:
    """Trained encoders as one network.

    Args:
        config: the names of the encoders and the weights of their scores.
        parts: the folders of the encoders.
        settings: of dropout for all encoders; None: each keeps the dropout that it was trained with.
        precision, device: to compute in and on.

    Raises:
        ConfigError: the encoders cannot be summed, or one of them is not an encoder.
        ArtifactError: a folder is damaged or missing.
    """
    artifacts: list[Artifact] = []
    scorers: list[EncoderScorer] = []
    networks: list[EncoderNetwork] = []
    for name, folder in zip(config.parts, parts, strict=True):
        artifact = load_model(folder, dropout=settings.dropout, new_dropout=settings.new_dropout)
        scorer = make_scorer(artifact.model, artifact.texts, device=str(device), precision=precision)
        if not isinstance(artifact.model, EncoderNetwork) or not isinstance(scorer, EncoderScorer):
            raise ConfigError(f"model.parts: {name} is a Cross-encoder, which has no vectors; name encoders only")
        scorer.name = name
        artifacts.append(artifact)
        scorers.append(scorer)
        networks.append(artifact.model)
    if settings.new_dropout and all(getattr(own.config, "projection_dim", None) is None for own in artifacts):
        raise ConfigError(
            f"train.new_dropout = {settings.new_dropout} has no effect, because no part of the sum has a projection;"
            " set dropout instead"
        )
    weights = config.weights or (1.0,) * len(scorers)
    try:
        attending = SumEncoder(scorers, weights).attending
    except UsageError as error:
        raise ConfigError(f"model: {error}") from error
    model = SumNetwork(
        networks,
        weights,
        pad_ids=[artifact.texts.subwords.pad_id for artifact in artifacts],
        attending=attending,
        train_weights=config.train_weights,
    ).to(device)
    texts = SumTexts([artifact.texts for artifact in artifacts])

    def save(path: Path, metadata: dict[str, Any]) -> None:
        made_by = {key: value for key, value in metadata.items() if key != "validation"}  # those figures are the sum's
        with new_folder(path, replace=True, own_files=SUM_FILES) as folder:
            keep_edited_card(path, folder)
            names = [PART.format(number) for number in range(1, len(artifacts) + 1)]
            fingerprints = [
                save_model(folder / name, own.model, own.texts, own.config, metadata=made_by)
                for name, own in zip(names, artifacts, strict=True)
            ]
            (folder / SUM.file).write_bytes(sum_document(names, fingerprints, model.weights, metadata))

    scorer = make_scorer(model, texts, device=str(device), precision=precision)
    return Ranker(model, texts, scorer, save)
