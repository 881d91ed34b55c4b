"""The two losses of pre-training, as sums over a part of a batch, with what was told right.

Shapes: B pairs, T tokens, P tokens to be told.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from polyrank.config.pretraining import Objective
from polyrank.models.pretraining import PretrainingNetwork
from polyrank.training.pretraining.batches import NO_TARGET, Batch

OBJECTIVES: dict[str, tuple[tuple[Objective, ...], ...]] = {
    "alternate": (("masked_lm",), ("next_utterance",)),
    "joint": (("masked_lm", "next_utterance"),),
    "masked_lm": (("masked_lm",),),
    "next_utterance": (("next_utterance",),),
}
"""What the batches are for, in turns, by the name of the setting."""


@dataclass(frozen=True, slots=True)
class StepScalars:
    """How a part of a batch was told.

    Args:
        loss: cross-entropy, summed.
        n_right: how often the likeliest is right.
        n: tokens or pairs.
    """

    loss: Tensor
    n_right: int
    n: int


def tell(network: PretrainingNetwork, batch: Batch, objectives: Sequence[Objective]) -> dict[Objective, StepScalars]:
    """The losses of a batch, in fp32, whatever the network computes in."""
    outputs = network(batch.tokens)
    told: dict[Objective, StepScalars] = {}
    if "masked_lm" in objectives:
        wanted = batch.targets != NO_TARGET
        told["masked_lm"] = _told(network.word_logits(outputs[wanted]), batch.targets[wanted])
    if "next_utterance" in objectives:
        told["next_utterance"] = _told(network.pair_logits(outputs), batch.random)
    return told


def _told(logits: Tensor, targets: Tensor) -> StepScalars:
    loss = F.cross_entropy(logits.float(), targets, reduction="sum")
    return StepScalars(loss, int((logits.argmax(-1) == targets).sum()), len(targets))


def counts(batch: Batch) -> dict[Objective, int]:
    """How many tokens and pairs are to be told; a mean over none is 0."""
    return {"masked_lm": max(1, int((batch.targets != NO_TARGET).sum())), "next_utterance": len(batch.random)}


def figures(told: Iterable[Mapping[Objective, StepScalars]]) -> dict[str, float]:
    """Mean losses and accuracies over parts, such as "masked_lm_loss"."""
    parts = list(told)
    values: dict[str, float] = {}
    for objective in dict.fromkeys(name for part in parts for name in part):
        mine = [part[objective] for part in parts if objective in part]
        n = max(1, sum(part.n for part in mine))
        values[f"{objective}_loss"] = float(sum(float(part.loss.detach()) for part in mine)) / n
        values[f"{objective}_accuracy"] = sum(part.n_right for part in mine) / n
    return values
