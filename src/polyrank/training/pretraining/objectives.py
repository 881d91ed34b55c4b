"""The two losses of pre-training, as sums over a part of a batch, with the number of correct predictions.

Shapes: B pairs, T tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from polyrank.config.pretrain import Objective
from polyrank.models.pretraining import PretrainingNetwork
from polyrank.training.pretraining.batches import NO_TARGET, MaskedPairs

OBJECTIVES: dict[str, tuple[tuple[Objective, ...], ...]] = {
    "alternate": (("masked_lm",), ("next_utterance",)),
    "joint": (("masked_lm", "next_utterance"),),
    "masked_lm": (("masked_lm",),),
    "next_utterance": (("next_utterance",),),
}
"""For each value of ``train.objectives``: the objectives of successive batches, in turns."""


@dataclass(frozen=True, slots=True)
class LossSum:
    """The loss of a part of a batch.

    Args:
        loss: summed cross-entropy.
        n_right: how many of the most likely predictions are right.
        n: tokens or pairs predicted.
    """

    loss: Tensor
    n_right: int
    n: int


def compute_losses(
    network: PretrainingNetwork, batch: MaskedPairs, objectives: Sequence[Objective]
) -> dict[Objective, LossSum]:
    """The losses of a batch by objective, always in fp32."""
    outputs = network(batch.tokens)
    losses: dict[Objective, LossSum] = {}
    if "masked_lm" in objectives:
        masked = batch.targets != NO_TARGET
        losses["masked_lm"] = _loss_sum(network.word_logits(outputs[masked]), batch.targets[masked])
    if "next_utterance" in objectives:
        losses["next_utterance"] = _loss_sum(network.pair_logits(outputs), batch.random)
    return losses


def _loss_sum(logits: Tensor, targets: Tensor) -> LossSum:
    loss = F.cross_entropy(logits.float(), targets, reduction="sum")
    return LossSum(loss, int((logits.argmax(-1) == targets).sum()), len(targets))


def count_targets(batch: MaskedPairs) -> dict[Objective, int]:
    """How many tokens and pairs are predicted."""
    return {"masked_lm": int((batch.targets != NO_TARGET).sum()), "next_utterance": len(batch.random)}


def figures(losses: Iterable[Mapping[Objective, LossSum]]) -> dict[str, float]:
    """Mean losses and accuracies over parts, such as "masked_lm_loss"."""
    parts = list(losses)
    values: dict[str, float] = {}
    for objective in dict.fromkeys(name for part in parts for name in part):
        sums = [part[objective] for part in parts if objective in part]
        n = max(1, sum(part.n for part in sums))
        values[f"{objective}_loss"] = float(sum(float(part.loss.detach()) for part in sums)) / n
        values[f"{objective}_accuracy"] = sum(part.n_right for part in sums) / n
    return values
