"""One model from several that were trained from the same start: the average of their weights, as fast as each.

Source: Wortsman et al., Model soups (2022), https://arxiv.org/abs/2203.05482.
"""

import dataclasses
import math
from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from polyrank.config.models import BiConfig
from polyrank.errors import UsageError
from polyrank.models.artifacts import Artifact

LEAST_COSINE = 0.5  # networks with different random starts have about 0, further trainings of one above 0.9


def average(models: Sequence[Artifact], weights: Sequence[float], names: Sequence[str]) -> Artifact:
    """One model whose weights are ``sum_i w_i theta_i / sum_i w_i``, of models theta_i of the same kind.

    Args:
        models: trained from the same start, on the same texts. The weights of the first one change in place.
        weights: of the models, in any unit.
        names: of the models, for errors and the metadata.

    Returns:
        The average, without a fingerprint, which it gets when it is saved. Its metadata is what the models have in
        common, and the share of each.

    Raises:
        UsageError: there is not one weight above 0 for each of two or more models, the models differ in more than what
            they learned, or they come from different starts.
    """
    if len(models) < 2 or len(weights) != len(models) or not all(w > 0 and isfinite(w) for w in weights):
        given = ",".join(f"{weight:g}" for weight in weights)
        raise UsageError(f"weights {given} of {len(models)} models; give one above 0 for each of two or more")
    shares, first = [weight / sum(weights) for weight in weights], models[0]
    states = [each.model.state_dict() for each in models]
    for name, each, state in zip(names, models, states, strict=True):
        if difference := _difference(first, each):
            raise UsageError(f"{name} has {difference} than {names[0]}; average models that differ only in their data")
        if (alike := _cosine(states[0], state)) < LEAST_COSINE:
            raise UsageError(
                f"the weights of {name} and {names[0]} have a cosine of {alike:.2f}, and their average would rank at"
                " random; give models that were trained from the same model or backbone, or combine them with polyrank"
                " tune"
            )
    first.model.load_state_dict(
        {
            key: sum((share * state[key] for share, state in zip(shares, states, strict=True)), torch.zeros(()))
            if value.is_floating_point()
            else value
            for key, value in states[0].items()
        }
    )
    config = first.config
    if isinstance(config, BiConfig):  # the weights hold each model's scale
        scales = [getattr(each.config, "output_scale", 1.0) for each in models]
        scale = math.fsum(share * own for share, own in zip(shares, scales, strict=True))
        config = dataclasses.replace(config, output_scale=scale)
    common: dict[str, Any] = {
        key: value
        for key, value in first.metadata.items()
        if key != "first_stage_name" and all(key in each.metadata and each.metadata[key] == value for each in models)
    }
    parts = [
        {"model": name, "fingerprint": each.fingerprint, "share": share}
        for name, each, share in zip(names, models, shares, strict=True)
    ]
    return dataclasses.replace(first, config=config, fingerprint="", metadata={**common, "average": parts})


def _difference(first: Artifact, other: Artifact) -> str:
    """The first thing, other than weights, in which two models differ; empty: none."""
    configs = [
        dataclasses.replace(each.config, output_scale=None) if isinstance(each.config, BiConfig) else each.config
        for each in (first, other)
    ]
    pairs = {
        "other settings": configs,
        "other text settings": [first.texts.policy, other.texts.policy],
        "another vocabulary": [first.texts.subwords.to_bytes(), other.texts.subwords.to_bytes()],
        "another shape": [first.model.shape(), other.model.shape()],
        "another first stage": [each.metadata.get("first_stage") for each in (first, other)],
    }
    return next((name for name, (one, two) in pairs.items() if one != two), "")


def _cosine(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The cosine of all weights of two networks."""
    keys = [key for key, value in one.items() if value.is_floating_point()]
    product, *squares = (
        sum(float((a[key].double() * b[key].double()).sum()) for key in keys)
        for a, b in ((one, two), (one, one), (two, two))
    )
    return product / math.sqrt(math.prod(squares))
