"""Settings of a training that have no effect with the recipe's other settings; the caller warns of them.

``models.build`` names those of networks and texts, which depend on the backbone.
"""

from collections.abc import Iterator
from typing import Any

from polyrank.config import models
from polyrank.config.checked import Settings
from polyrank.config.methods import ListwiseMethod, MutualMethod
from polyrank.config.recipe import Recipe
from polyrank.config.schedules import PLATEAU, PlateauSchedule
from polyrank.config.train import NegativesConfig, NetworkTraining, TrainConfig


def without_effect(recipe: Recipe, *, validated: bool = True) -> list[str]:
    """The settings that differ from their defaults and have no effect, each with the reason.

    Args:
        recipe: all settings.
        validated: whether there are validation examples.

    >>> from polyrank.config.recipe import recipe_from_dict
    >>> bi = {"model": {"kind": "bi"}, "output": "run", "train": {"clip_embeddings_norm": 2.0}}
    >>> without_effect(recipe_from_dict(bi))
    ['train.clip_embeddings_norm = 2.0 has no effect: the word embeddings are not trained']
    """
    (model, first), *others = recipe.networks
    usual = model.training if first.init_from is None else model.tuning
    of_first = dict(_of_training(model, first))
    for pair in others:  # which inherits the settings of the first
        of_second = dict(_of_training(*pair))
        of_first = {key: reason for key, reason in of_first.items() if key in of_second}
    tables: list[tuple[str, Settings, Settings, dict[str, str]]] = [("train", first, usual, of_first)]
    tables += [("reranker.train", pair[1], first, dict(_of_training(*pair))) for pair in others]
    negatives, method = recipe.train.negatives, recipe.train.method
    if negatives is not None:
        tables.append(("train.negatives", negatives, NegativesConfig(), dict(_of_negatives(negatives))))
    if isinstance(method, ListwiseMethod | MutualMethod) and all(network.encodes for network, _ in recipe.networks):
        tables.append(("train.method", method, type(method)(), {"sigmoid": "it is for Cross-encoders"}))
    if not validated:
        needs = dict.fromkeys(("early_stopping", "patience", "factor"), "it needs validation examples")
        tables.append(("train", recipe.train, TrainConfig(), {"early_stopping": needs.pop("early_stopping")}))
        if isinstance(recipe.train.schedule, PlateauSchedule):
            tables.append(("train.schedule", recipe.train.schedule, PLATEAU, needs))
    return [
        f"{where}.{key} = {_shown(getattr(settings, key))} has no effect: {reason}"
        for where, settings, other, reasons in tables
        for key, reason in reasons.items()
        if getattr(settings, key) not in (None, getattr(other, key))
    ]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _of_training(model: models.ModelConfig, train: NetworkTraining) -> Iterator[tuple[str, str]]:
    new_codes = isinstance(model, models.PolyConfig) and model.codes == "learnt"
    if isinstance(model, models.ConvertConfig) or (isinstance(model, models.BiConfig) and model.projection_dim is None):
        yield "new_dropout", "this model has no projections or heads; dropout applies to the others"
        if not new_codes:
            yield "new_lr", "this model has no new codes, projections or heads"
            yield "decay_new", "this model has no new codes, projections or heads"
    if not train.decay:
        yield "decay_new", "weight_decay is 0"
    if train.optimizer == "adadelta":
        yield "betas", "they are of adamw and adamax"
    if isinstance(model, models.LateConfig):
        yield "train_layers", "model.joined_layers decides which layers of a late Cross-encoder are trained"
    if isinstance(model, models.LateConfig) or train.train_layers != "all":
        yield "clip_embeddings_norm", "the word embeddings are not trained"


def _of_negatives(negatives: NegativesConfig) -> Iterator[tuple[str, str]]:
    if "random" not in negatives.sources:
        yield "weighting", "no negatives are random"
    if "mined" not in negatives.sources:
        yield "remine_epochs", "no negatives are mined"
        yield "remine_ranks", "no negatives are mined"
    if negatives.sources == ("mined",):
        yield "redraw", "it is for given and random negatives"
