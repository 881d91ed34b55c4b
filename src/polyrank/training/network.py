"""A network made ready by a recipe: built or taken from a folder, with what validates and saves it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, ModelConfig, TextPolicy
from polyrank.config.names import model_folder
from polyrank.config.training import NetworkTraining, Precision
from polyrank.devices import choose_dtype
from polyrank.errors import ConfigError
from polyrank.models import BiEncoder, CrossEncoder, Model, PolyEncoder, fit_scale_again, new_model
from polyrank.models.artifacts import load_model, save_model
from polyrank.ranking.metrics import metric_values, place, with_duplicates
from polyrank.records import Example
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.text import ConvertSubwords, ConvertTexts, Texts
from polyrank.training.learner import Learner, Report


@dataclass(frozen=True, slots=True)
class Network:
    """A network about to be trained.

    Args:
        model: on its device.
        texts: its text policy at work.
        config: resolved settings, to be saved with it.
        scorer: ranks with the weights of now, for validation and mining.
    """

    model: Model
    texts: Texts | ConvertTexts
    config: ModelConfig
    scorer: CrossScorer | EncoderScorer


def new_network(
    config: ModelConfig,
    text: TextPolicy | ConvertText,
    settings: NetworkTraining,
    examples: Sequence[Example],
    *,
    precision: Precision,
    seed: int,
    device: torch.device,
) -> Network:
    """The network that the settings describe, started from ``settings.init_from`` where that is given.

    Raises:
        ConfigError: the weights to start from do not fit.
    """
    asked = config
    responses = [response for example in examples if (response := example.response)]
    model, texts, config = new_model(
        config,
        text,
        seed=seed,
        sample=responses[:256],
        dropout=settings.dropout,
        corpus=distinct_texts(examples) if isinstance(config, ConvertConfig) else (),
        subwords=_vocabulary_of(config, text, settings),
    )
    if settings.init_from is not None:
        taken = warm_start(model, model_folder(settings.init_from))
        if isinstance(model, BiEncoder | PolyEncoder) and "context_tower.scale" not in taken:
            assert isinstance(asked, BiConfig), "the settings are of the model's kind"
            assert isinstance(config, BiConfig), "the settings are of the model's kind"
            assert isinstance(texts, Texts), "and so is the text policy"
            config = fit_scale_again(model, texts, config, asked, responses[:256])
    model.to(device)
    kind = CrossScorer if isinstance(model, CrossEncoder) else EncoderScorer
    dtype = choose_dtype(precision, device)
    scorer = kind(model, texts, device=device, dtype=dtype)  # type: ignore[arg-type]  # the pair of types belongs together
    return Network(model, texts, config, scorer)


def make_learner(
    network: Network,
    settings: NetworkTraining,
    folder: Path,
    valid: Sequence[Example],
    *,
    metadata: dict[str, Any],
    report: Report,
    name: str = "",
) -> Learner:
    """The network with a folder for its best version and its figures.

    Args:
        network: what learns.
        settings: how.
        folder: for ``model/`` and ``metrics.jsonl``.
        valid: validation lists; none: the last version is the best.
        metadata: to be saved with the model.
        report: takes each record of ``metrics.jsonl``.
        name: of it among several.
    """

    def evaluate() -> dict[str, float]:
        network.scorer.forget()
        return validation_figures(network.scorer, valid)

    def save_best(figures: dict[str, float]) -> None:
        known = {**metadata, "validation": figures}
        save_model(folder / "model", network.model, network.texts, network.config, metadata=known, replace=True)

    folder.mkdir(parents=True, exist_ok=True)
    validates: Callable[[], dict[str, float]] | None = evaluate if valid else None
    return Learner(
        model=network.model,
        settings=settings,
        folder=folder,
        save_best=save_best,
        evaluate=validates,
        report=report,
        name=name,
    )


def distinct_texts(examples: Sequence[Example]) -> Iterator[str]:
    """Every turn and candidate once, in order of appearance: the turns of a dialogue come back in later contexts."""
    known: set[str] = set()
    for example in examples:
        for text in (*example.context, *example.candidates, *example.background):
            if text not in known:
                known.add(text)
                yield text


def _vocabulary_of(
    config: ModelConfig, text: TextPolicy | ConvertText, settings: NetworkTraining
) -> ConvertSubwords | None:
    """The vocabulary of the model to start from: embeddings mean nothing with another."""
    if not isinstance(config, ConvertConfig) or settings.init_from is None:
        return None
    if isinstance(text, ConvertText) and text.vocabulary is not None:
        raise ConfigError(
            f"text.vocabulary = {text.vocabulary}, but train.init_from brings a vocabulary of its own; give one of them"
        )
    texts = load_model(model_folder(settings.init_from)).texts
    if not isinstance(texts, ConvertTexts):
        raise ConfigError(f"train.init_from = {settings.init_from} is no ConveRT; give one or leave it out")
    return texts.subwords


def warm_start(model: Model, folder: Path) -> frozenset[str]:
    """Start from a trained model's weights: all that both have.

    A Poly-encoder started from a Bi-encoder keeps its own codes. A Cross-encoder takes the transformer of an encoder's
    context side and keeps its own head; an encoder takes a Cross-encoder's transformer on both sides.

    Returns:
        Names of the weights that were taken.

    Raises:
        ConfigError: no weight has a counterpart, or one has another shape.
    """
    known, saved = model.state_dict(), load_model(folder).model.state_dict()
    found = {}
    for name in known:
        for source in (name, f"context_tower.{name}", name.partition("_tower.")[2]):
            if source in saved:
                found[name] = saved[source]
                break
    odd = [name for name, tensor in found.items() if tensor.shape != known[name].shape]
    if odd or not found:
        raise ConfigError(f"the weights in {folder} do not fit this model ({(odd or ['no common part'])[0]})")
    model.load_state_dict(found, strict=False)
    return frozenset(found)


def validation_figures(scorer: CrossScorer | EncoderScorer, examples: Sequence[Example]) -> dict[str, float]:
    """Mean cross-entropy ("loss"), R@1 and MRR over candidate lists."""
    losses, placements = [], []
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        lists = scorer.score([e.query for e in part], [e.candidates for e in part])
        for example, values in zip(part, lists, strict=True):
            if not np.isfinite(values).all():
                return {"loss": math.inf, "R@1": 0.0, "MRR": 0.0}
            right = with_duplicates(example.candidates, example.relevant)
            top, wrong = values.max(), np.delete(values, list(right))
            first = values[example.relevant[0]]  # alone with the wrong ones, as in training
            losses.append(float(top + np.log(np.exp(np.append(wrong, first) - top).sum()) - first))
            placements.append(place(values, right))
    values_of = metric_values(placements, (1,))
    return {
        "loss": float(np.mean(losses)),
        "R@1": float(values_of["R@1"].mean()),
        "MRR": float(values_of["MRR"].mean()),
    }
